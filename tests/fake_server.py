"""A small OpenAI-compatible server on 127.0.0.1 that answers, and fails, as a test says."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

WORDS = [f"word{number} " for number in range(1000)]


@dataclass
class Script:
    """What the server does.

    Attributes:
        tokens_per_chunk: As with drafts, of which several are accepted at once.
        seconds_per_chunk: How long it takes for each.
        failures: What becomes of the request that comes as the n-th, from 1: a status, "cut" for a
            connection that breaks off in mid-stream, or "event" for an error in the stream.
        drafts: Drafts of a step that it counts on /metrics; 0 shows no such counters.
        reports: It counts drafts in its answers, too.
        holds_back: It sends nothing before the answer is complete.
        key: Only requests with this key are served.
        seen: Bodies of the requests.
    """

    model: str = "fake"
    owned_by: str = "vllm"
    tokens_per_chunk: int = 1
    seconds_per_chunk: float = 0.0
    failures: dict[int, int | str] = field(default_factory=dict)
    drafts: int = 0
    reports: bool = False
    counts_tokens: bool = False
    has_usage: bool = True
    holds_back: bool = False
    key: str | None = None
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)


class Fake:
    """The application of a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.app = FastAPI()
        self.app.get("/v1/models")(self.models)
        self.app.get("/version")(self.version)
        self.app.get("/metrics")(self.metrics)
        self.app.post("/v1/chat/completions")(self.answer)
        self.app.post("/v1/completions")(self.answer)

    async def models(self, request: Request) -> Response:
        if self.script.key and request.headers.get("authorization") != f"Bearer {self.script.key}":
            return JSONResponse({"error": {"message": "no key"}}, 401)
        card = {"id": self.script.model, "owned_by": self.script.owned_by, "max_model_len": 4096}
        return JSONResponse({"object": "list", "data": [card]})

    async def version(self) -> Response:
        return JSONResponse({"version": "0.33.0"})

    async def metrics(self) -> Response:
        if not self.script.drafts:
            return PlainTextResponse("")
        lines = []
        for name, value in self.script.counters.items():
            label = ""
            if ":" in name:
                name, position = name.split(":")
                label = f',position="{position}"'
            series = f"vllm:spec_decode_num_{name}"
            lines.append(f"# TYPE {series} counter")
            lines.append(f'{series}_total{{engine="0"{label}}} {value}.0')
        return PlainTextResponse("\n".join(lines) + "\n")

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        script = self.script
        script.seen.append(body)
        script.headers.append(dict(request.headers))
        failure = script.failures.get(len(script.seen))
        if isinstance(failure, int):
            error = {"error": {"message": f"status {failure} by script", "code": failure}}
            return JSONResponse(error, failure, headers={"Retry-After": "3"})
        is_chat = "messages" in body
        return StreamingResponse(
            self.stream(body, is_chat, failure), media_type="text/event-stream"
        )

    async def stream(
        self, body: Mapping[str, Any], is_chat: bool, failure: str | None
    ) -> AsyncIterator[str]:
        script = self.script
        num_tokens = body["max_tokens"]
        plain = body.get("num_draft_tokens") == 0
        size = 1 if plain else script.tokens_per_chunk
        histogram = [0] * (script.drafts + 1)
        held: list[str] = []
        for begin in range(0, num_tokens, size):
            await asyncio.sleep(script.seconds_per_chunk)
            end = min(begin + size, num_tokens)
            if failure is not None and begin > 0:
                if failure == "event":
                    yield _event({"error": {"message": "the engine broke"}})
                    return
                raise ConnectionResetError("by script")
            histogram[min(end - begin - 1, script.drafts)] += 1
            chunk = self._chunk("".join(WORDS[begin:end]), is_chat)
            if script.counts_tokens:
                chunk["usage"] = {"prompt_tokens": 7, "completion_tokens": end}
            held.append(_event(chunk))
            if not script.holds_back:
                yield held.pop()
        if held:
            yield "".join(held)
        yield _event(self._chunk("", is_chat, "length"))
        if not plain:
            self._count(histogram)
        last: dict[str, Any] = {"choices": []}
        if script.has_usage and body["stream_options"]["include_usage"]:
            last["usage"] = {"prompt_tokens": 7, "completion_tokens": num_tokens}
        if script.reports and not plain:
            last["metrics"] = {"speculative_decoding": self._report(histogram)}
        yield _event(last)
        yield "data: [DONE]\n\n"

    def _chunk(self, text: str, is_chat: bool, finish: str | None = None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        choice |= {"delta": {"content": text}} if is_chat else {"text": text}
        return {"id": "x", "model": self.script.model, "choices": [choice]}

    def _count(self, histogram: list[int]) -> None:
        counters, drafts = self.script.counters, self.script.drafts
        for accepted, num_steps in enumerate(histogram):
            counters["drafts"] += num_steps
            counters["draft_tokens"] += num_steps * drafts
            counters["accepted_tokens"] += num_steps * accepted
            for position in range(drafts):
                counters[f"accepted_tokens_per_pos:{position}"] += num_steps * (accepted > position)

    def _report(self, histogram: list[int]) -> dict[str, Any]:
        num_steps = sum(histogram)
        accepted = sum(number * steps for number, steps in enumerate(histogram))
        return {
            "mean_acceptance_length": 1 + accepted / num_steps,
            "draft_acceptance_rate": accepted / (num_steps * self.script.drafts),
            "acceptance_histogram": histogram,
            "num_spec_steps": num_steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": num_steps * self.script.drafts,
            "num_spec_tokens": self.script.drafts,
        }


def _event(content: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


@contextmanager
def serving(script: Script, port: int = 0) -> Iterator[str]:
    """Serve a script in a thread and return its address.

    Args:
        port: 0 takes one that is free.
    """
    config = uvicorn.Config(
        Fake(script).app, "127.0.0.1", port, log_level="critical", loop="asyncio", lifespan="off"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(timeout=10)
