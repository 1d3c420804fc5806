"""A server under load: a thousand clients at once, and many that come and go while steps fail.

SOAK_MINUTES in the environment sets how long the second test lasts.
"""

import asyncio
import json
import multiprocessing
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import httpx
import psutil
import pytest
from live_server import Live, serving

from specresearch import CausalLM, Engine, SamplingParams
from specresearch.proposers import Cascade, DraftModel, NGram, Suffix
from specresearch.serving.settings import ServeSettings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("untyped")]

MINUTES = float(os.environ.get("SOAK_MINUTES", "4"))
NUM_CLIENTS = 24
LONGEST = 48
CROWD = 1000
PROMPTS = [
    "Once upon a time there was a little fox who",
    "Once upon a time there was a little fox who had a red house by the sea, and in that house",
    "def fibonacci(n):",
    "Summarise: the harbour was closed on Monday. The harbour was closed",
    "What is 12 times 12?",
    "the the the the",
]
CAN_FAIL = 0.005  # share of steps that raise


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return CausalLM.from_pretrained("zoo:tiny", max_len=256)


@pytest.fixture(scope="module")
def alone(target: CausalLM) -> list[tuple[int, ...]]:
    """The tokens of every prompt, decoded without a server and without drafts."""
    sampling = SamplingParams(max_new_tokens=LONGEST, ignore_eos=True)
    outputs = Engine(target, max_batch_size=4).generate_all(PROMPTS, sampling)
    return [output.token_ids for output in outputs]


@dataclass
class Seen:
    """What the clients have seen.

    Attributes:
        ended: How requests ended, by the client's account.
    """

    ended: Counter[str] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)


def body(prompt: int, num_tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "prompt": PROMPTS[prompt],
        "temperature": 0,
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "stream_options": {"include_speculation": True, "include_usage": True},
        **more,
    }


async def streamed(
    http: httpx.AsyncClient, sent: dict[str, Any], num_events: int | None = None
) -> tuple[list[int], str]:
    """Return the tokens of a stream, and "done", "left" or "failed".

    Args:
        num_events: Go away after so many; None reads to the end.
    """
    tokens: list[int] = []
    async with http.stream("POST", "/v1/completions", json=sent | {"stream": True}) as answer:
        if answer.status_code == 500:
            return tokens, "failed"
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if not line:
                continue
            if line == "data: [DONE]":
                return tokens, "done"
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return tokens, "failed"
            for choice in event["choices"]:
                tokens += [token["token_id"] for token in choice["speculation"]["tokens"]]
            if num_events is not None:
                num_events -= 1
                if num_events <= 0:
                    return tokens, "left"
    raise AssertionError("a stream ended without [DONE]")


def crowd_client(live: Live) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=live.address, timeout=600.0, limits=limits)


def test_a_thousand_streams_at_once(target: CausalLM, alone: list[tuple[int, ...]]) -> None:
    num_tokens = 8

    async def crowd(live: Live) -> tuple[list[tuple[list[int], str]], int]:
        most = 0
        async with crowd_client(live) as http:
            tasks = [
                asyncio.ensure_future(streamed(http, body(number % len(PROMPTS), num_tokens)))
                for number in range(CROWD)
            ]
            while not all(task.done() for task in tasks):
                most = max(most, live.service.bridge.num_live)
                await asyncio.sleep(0.02)
            return [task.result() for task in tasks], most

    with serving(target, max_running=32, reuse_prefixes=True) as live:
        answers, most = asyncio.run(crowd(live))
    for number, (tokens, end) in enumerate(answers):
        assert end == "done"
        assert tuple(tokens) == alone[number % len(PROMPTS)][:num_tokens]
    assert most > CROWD // 2


async def come_and_go(
    address: str, number: int, alone: list[tuple[int, ...]], seen: Seen, end: float
) -> None:
    """Send requests one after another, some of which are left before they end."""
    chance = random.Random(number)
    limits = httpx.Limits(max_keepalive_connections=1)
    async with httpx.AsyncClient(base_url=address, timeout=300.0, limits=limits) as http:
        while time.monotonic() < end:
            prompt, num_tokens = chance.randrange(len(PROMPTS)), chance.choice([1, 7, LONGEST])
            expected = alone[prompt][:num_tokens]
            kind = chance.random()
            if kind < 0.3:
                sent = body(prompt, num_tokens)
                tokens, ended = await streamed(http, sent, chance.randrange(1, 6))
                assert tuple(tokens) == expected[: len(tokens)]
            elif kind < 0.4:
                ended = "left"
                try:
                    sent = body(prompt, LONGEST)
                    await http.post("/v1/completions", json=sent, timeout=chance.random() * 0.2)
                except httpx.TimeoutException:
                    pass
            else:
                tokens, ended = await streamed(http, body(prompt, num_tokens))
                if ended == "done":
                    assert tuple(tokens) == expected
            seen.ended[ended] += 1


def serve_with_failures(parent: Connection) -> None:
    """Serve until told to stop; send the address, and in the end the number of failed steps."""
    target = CausalLM.from_pretrained("zoo:tiny", max_len=256)
    draft = CausalLM.from_pretrained("zoo:tiny_draft", max_len=256)
    proposer = Cascade([NGram(5), Suffix(6, branch=False, use_global=True), DraftModel(draft, 3)])
    chance, commit = random.Random(99), target.commit
    num_failures = 0

    def sometimes_fails(*arguments: Any) -> None:
        nonlocal num_failures
        if chance.random() < CAN_FAIL:
            num_failures += 1
            raise RuntimeError("now and then")
        commit(*arguments)

    settings = ServeSettings(max_waiting=NUM_CLIENTS * 2)
    failing = patch.object(target, "commit", sometimes_fails)
    server = serving(target, proposer, max_running=6, reuse_prefixes=True, settings=settings)
    with failing, server as live:
        parent.send(live.address)
        parent.recv()
    parent.send(num_failures)


def test_nothing_is_lost_leaked_or_changed(alone: list[tuple[int, ...]]) -> None:
    """The server has a process of its own, so that its memory is not that of clients and pytest."""
    spawned = multiprocessing.get_context("spawn")
    pipe, end_of_child = spawned.Pipe()
    child = spawned.Process(target=serve_with_failures, args=(end_of_child,), daemon=True)
    child.start()
    end_of_child.close()
    address = pipe.recv()
    process, seen = psutil.Process(child.pid), Seen()
    end = time.monotonic() + 60 * MINUTES

    async def soak() -> None:
        clients = [come_and_go(address, n, alone, seen, end) for n in range(NUM_CLIENTS)]
        together = asyncio.gather(*clients)
        while not together.done():
            seen.memory.append(process.memory_info().rss)
            await asyncio.sleep(1)
        await together

    asyncio.run(soak())
    pipe.send("stop")
    num_failures = pipe.recv()
    child.join(60)
    num_requests = sum(seen.ended.values())
    print(f"{num_requests} requests in {MINUTES:g} minutes: {dict(seen.ended)}")
    print(f"{num_failures} failed steps; memory in MB:", [n >> 20 for n in seen.memory[::30]])
    assert child.exitcode == 0
    assert seen.ended["done"] > 10 * MINUTES
    assert seen.ended["left"] > 0
    assert seen.ended["failed"] >= num_failures > 0
    third = len(seen.memory) // 3
    assert max(seen.memory[2 * third :]) < 1.1 * max(seen.memory[:third] or seen.memory)
