"""What answers at an address, and the sentences for what should not be measured."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from fake_server import Script, serving

from specresearch.openai_client import Address, CompletionRequest, RemoteServer
from specresearch.openai_client.body import CHAT, COMPLETIONS
from specresearch.sampling_params import SamplingParams

Serve = Callable[[Script], str]
ASKED = CompletionRequest("Hello?", SamplingParams(max_new_tokens=20))


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(serving(script))


def find(url: str, model: str | None = None, api: str = CHAT) -> RemoteServer:
    return asyncio.run(RemoteServer.find(Address(url), model, api))


def test_a_server_says_what_it_is(serve: Serve) -> None:
    server = find(f"{serve(Script())}/v1/")
    assert (server.model, server.label, server.max_len) == ("fake", "vllm 0.33.0", 4096)
    assert not server.is_switchable


def test_only_what_is_set_is_sent(serve: Serve) -> None:
    script = Script(seconds_per_chunk=0.002)
    url = serve(script)
    answer = asyncio.run(find(url).check(ASKED))
    assert (answer.num_tokens, answer.finish_reason) == (20, "length")
    sampling = SamplingParams(
        temperature=0.5, top_k=4, max_new_tokens=3, stop=("x",), ignore_eos=True, seed=2**40
    )
    completion = CompletionRequest([1, 2], sampling, num_draft_tokens=0)
    asyncio.run(find(url, "fake", COMPLETIONS).check(completion))
    chat, text = script.seen
    assert chat == {
        "model": "fake",
        "messages": [{"role": "user", "content": "Hello?"}],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_tokens": 20,
        "temperature": 0.0,
    }
    assert text["prompt"] == [1, 2]
    assert {key: text[key] for key in ("top_k", "stop", "ignore_eos", "num_draft_tokens")} == {
        "top_k": 4,
        "stop": ["x"],
        "ignore_eos": True,
        "num_draft_tokens": 0,
    }
    assert 0 <= text["seed"] < 2**31


def test_the_key_comes_from_the_environment(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(key="secret", seconds_per_chunk=0.002)
    url = serve(script)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValueError, match=r"asks for another key .* variable OPENAI_API_KEY"):
        find(url)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    asyncio.run(find(url).check(ASKED))
    assert script.headers[-1]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (Script(holds_back=True), "held back all 20 tokens .* proxy"),
        (Script(has_usage=False), "does not say how many tokens"),
        (Script(failures={1: 400}), r"first request: refused \(HTTP 400\): status 400 by script"),
        (Script(failures={1: "cut"}), "first request: disconnected"),
    ],
)
def test_what_cannot_be_measured_is_said_by_the_first_answer(
    serve: Serve, script: Script, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        asyncio.run(find(serve(script)).check(ASKED))


def test_addresses_that_are_none_and_models_that_are_not_there(serve: Serve) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ValueError, match=r"no server answers at http://127.0.0.1"):
        find(f"http://127.0.0.1:{port}")
    for url in ("localhost:8000", "ftp://host", "http://", "http://host:port"):
        with pytest.raises(ValueError, match="is no address"):
            find(url)
    with pytest.raises(ValueError, match="must not hold a password"):
        find("http://me:secret@localhost")
    url = serve(Script())
    with pytest.raises(ValueError, match=r"has no model 'other'; it has: fake"):
        find(url, "other")
    with pytest.raises(ValueError, match=r"no OpenAI-compatible server: .* HTTP 404"):
        find(f"{url}/docs")


def test_a_tokenizer_counts_where_the_server_does_not(serve: Serve) -> None:
    script = Script(has_usage=False, seconds_per_chunk=0.002)
    server = replace(find(serve(script)), count=lambda text: len(text.split()))
    assert asyncio.run(server.check(ASKED)).num_tokens == 20
