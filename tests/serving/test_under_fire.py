"""Clients that leave, too many of them, bad ones, a failing proposer, and the end of the server."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from live_server import HOST, SECONDS, Live, serving
from stepwise import Stepwise

from specresearch import CausalLM, Engine, SamplingParams
from specresearch.serving.app import create_app
from specresearch.serving.bridge import EngineBridge
from specresearch.serving.driver import StepFeed
from specresearch.serving.server import HttpServer, bind
from specresearch.serving.service import Service
from specresearch.serving.settings import ServeSettings

BODY = {"prompt": "secret words of a client", "temperature": 0, "max_tokens": 24}
STREAM = BODY | {"stream": True}
MANY_STEPS = 1000
SETTINGS = ServeSettings(
    api_key="k-123", max_waiting=1, max_body_bytes=2000, max_header_bytes=4000, max_output_tokens=50
)
KEY = {"Authorization": "Bearer k-123"}


@pytest.fixture
def stepwise() -> Stepwise:
    return Stepwise()


@pytest.fixture
def live(target: CausalLM, stepwise: Stepwise) -> Iterator[Live]:
    with serving(target, stepwise, max_running=1, settings=SETTINGS) as server:
        yield server
        stepwise.allow(MANY_STEPS)


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.005)


def client(live: Live) -> httpx.Client:
    return httpx.Client(base_url=live.address, headers=KEY, timeout=SECONDS)


def error_of(answer: httpx.Response, status: int) -> dict[str, object]:
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    for leak in ("secret", "Traceback", ".py"):
        assert leak not in answer.text
    assert answer.headers["x-request-id"]
    return error


def first_event(lines: Iterator[str]) -> dict[str, object]:
    return json.loads(next(line for line in lines if line).removeprefix("data: "))


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_frees_its_slot(live: Live, stepwise: Stepwise, streams: bool) -> None:
    body = STREAM if streams else BODY
    with client(live) as http:
        request = http.build_request("POST", "/v1/completions", json=body)
        if streams:
            answer = http.send(request, stream=True)
            stepwise.allow(1)
            first_event(answer.iter_lines())
            answer.close()
        else:
            with pytest.raises(httpx.ReadTimeout):
                http.post("/v1/completions", json=body, timeout=0.5)
    eventually(lambda: live.service.bridge.num_live == 0)
    stepwise.allow(1)  # the step that was in progress
    eventually(lambda: not live.engine.scheduler.running)
    assert not live.engine.target.in_use


def test_a_full_queue_refuses_and_recovers(live: Live, stepwise: Stepwise) -> None:
    answers: list[httpx.Response] = []

    def ask() -> None:
        with client(live) as http:
            answers.append(http.post("/v1/completions", json=BODY))

    threads = [in_thread(ask), in_thread(ask)]
    eventually(lambda: live.service.bridge.num_live == 2)
    with client(live) as http:
        answer = http.post("/v1/completions", json=BODY)
        assert error_of(answer, 429)["code"] == "queue_full"
        assert int(answer.headers["Retry-After"]) > 0
        assert "vllm:admission_rejections_total{" in http.get("/metrics").text
        stepwise.allow(MANY_STEPS)
        for thread in threads:
            thread.join(SECONDS)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert http.post("/v1/completions", json=BODY).status_code == 200


def test_a_draining_server_finishes_what_runs(live: Live, stepwise: Stepwise) -> None:
    with client(live) as http, client(live) as other:
        request = http.build_request("POST", "/v1/completions", json=STREAM)
        running = http.send(request, stream=True)
        lines = running.iter_lines()
        stepwise.allow(1)
        first_event(lines)
        live.loop.call_soon_threadsafe(live.server.stop)
        eventually(lambda: live.service.draining)
        answer = other.post("/v1/completions", json=BODY)
        assert error_of(answer, 503)["code"] == "draining"
        assert "Retry-After" in answer.headers
        assert other.get("/health").status_code == 503
        stepwise.allow(MANY_STEPS)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    live.thread.join(SECONDS)
    assert not live.thread.is_alive()


def test_an_error_in_the_proposer_fails_its_requests_only(live: Live, stepwise: Stepwise) -> None:
    stepwise.failing = True
    answers: list[httpx.Response] = []

    def ask() -> None:
        with client(live) as http:
            answers.append(http.post("/v1/completions", json=BODY))

    failing = in_thread(ask)
    eventually(lambda: bool(live.engine.scheduler.running))
    waiting = in_thread(ask)
    eventually(lambda: live.service.bridge.num_live == 2)
    stepwise.allow(1)
    failing.join(SECONDS)
    error_of(answers[0], 500)
    stepwise.failing = False
    stepwise.allow(MANY_STEPS)
    waiting.join(SECONDS)
    assert answers[1].status_code == 200
    with client(live) as http:
        stepwise.failing = True
        with http.stream("POST", "/v1/completions", json=STREAM) as streamed:
            events = [line for line in streamed.iter_lines() if line]
        assert json.loads(events[-2].removeprefix("data: "))["error"]["message"]
        assert "secret" not in "".join(events)
        stepwise.failing = False
        assert http.post("/v1/completions", json=BODY).status_code == 200


def test_limits(live: Live) -> None:
    with client(live) as http:
        long = BODY | {"prompt": "secret " * 1000}
        error_of(http.post("/v1/completions", json=long), 413)
        chunks = (b"x" * 1000 for _ in range(5))  # without a length
        error_of(http.post("/v1/completions", content=chunks), 413)
        error_of(http.get("/v1/models", headers={"x": "secret" * 1000}), 431)
        much = error_of(http.post("/v1/completions", json=BODY | {"max_tokens": 51}), 400)
        assert much["param"] == "max_tokens"


def test_the_key(live: Live) -> None:
    with httpx.Client(base_url=live.address) as http:
        for headers in ({}, {"Authorization": "Bearer k-12"}, {"Authorization": "Basic k-123"}):
            answer = http.get("/v1/models", headers=headers)
            assert error_of(answer, 401)["code"] == "invalid_api_key"
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert http.get("/v1/models", headers=KEY).status_code == 200
        assert http.get("/health").status_code == 200


def test_bad_requests(live: Live) -> None:
    with client(live) as http:
        chat = {"messages": [{"role": "user", "content": "secret"}]}
        no_schema = {"type": "json_schema"}
        wrong_schema = no_schema | {"json_schema": {"name": "x", "schema": {"type": "king"}}}
        bad = [
            ("/v1/completions", BODY | {"temperature": "hot"}, "temperature"),
            ("/v1/completions", BODY | {"n": 0}, "n"),
            ("/v1/completions", BODY | {"prompt": []}, "prompt"),
            ("/v1/completions", BODY | {"prompt": [10**6]}, None),
            ("/v1/completions", BODY | {"stop": [""]}, "stop"),
            ("/v1/completions", BODY | {"echo": True}, "echo"),
            ("/v1/completions", BODY | {"acceptance": "code"}, "acceptance"),
            ("/v1/completions", BODY | {"response_format": {"type": "xml"}}, "response_format"),
            ("/v1/completions", BODY | {"response_format": no_schema}, "response_format"),
            ("/v1/completions", BODY | {"response_format": wrong_schema}, "response_format"),
            ("/v1/chat/completions", {"messages": []}, "messages"),
            ("/v1/chat/completions", {"messages": [{"role": "king", "content": "x"}]}, "messages"),
            ("/v1/chat/completions", chat | {"tools": [{}]}, "tools"),
            ("/v1/chat/completions", chat | {"num_draft_tokens": -1}, "num_draft_tokens"),
        ]
        for path, body, param in bad:
            error = error_of(http.post(path, json=body), 400)
            assert param is None or error["param"] == param
        error_of(http.post("/v1/completions", content=b'{"prompt": "secret'), 400)
        error_of(http.get("/v1/completions"), 405)
        error_of(http.get("/etc/secrets"), 404)


def test_request_ids(live: Live) -> None:
    with client(live) as http:
        given = http.get("/v1/models", headers={"x-request-id": "mine-1"})
        assert given.headers["x-request-id"] == "mine-1"
        bad = http.get("/v1/models", headers={"x-request-id": "a b"})
        assert bad.headers["x-request-id"].startswith("req-")


def test_sigterm_ends_the_process_in_good_order(target: CausalLM) -> None:
    feed, stepwise = StepFeed(), Stepwise()
    engine = Engine(target, stepwise, observers=[feed])
    events: list[str] = []

    def ask(address: str) -> None:
        with (
            httpx.Client(base_url=address, timeout=SECONDS) as http,
            http.stream("POST", "/v1/completions", json=STREAM) as answer,
        ):
            for line in filter(None, answer.iter_lines()):
                events.append(line)
                if len(events) == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                stepwise.allow(1)

    async def run() -> None:
        service = Service(EngineBridge(engine, feed), ServeSettings(), SamplingParams())

        def announce(address: str) -> None:
            stepwise.allow(1)
            in_thread(lambda: ask(address))

        await HttpServer(create_app(service), service, bind(HOST, 0), announce).run()

    asyncio.run(asyncio.wait_for(run(), SECONDS))
    eventually(lambda: bool(events) and events[-1] == "data: [DONE]")
    assert not engine.has_work
