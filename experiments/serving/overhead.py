"""What HTTP, JSON, streaming and the bridge cost: the engine alone and behind its server, in turns.

Streaming clients run in a process of their own. Beside wall time, the processor time of the serving
process is compared, which other work on the machine disturbs less.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import httpx

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.proposers import NGram
from specresearch.serving.app import create_app
from specresearch.serving.bridge import EngineBridge
from specresearch.serving.driver import StepFeed
from specresearch.serving.server import HttpServer, bind
from specresearch.serving.service import Service
from specresearch.serving.settings import ServeSettings

PROMPT = "Write a story about a fox, number {}. Once upon a time there was a little fox who"


@dataclass
class Round:
    """One turn of one side.

    Attributes:
        wall: Seconds from the first request to the last token.
        cpu: Processor seconds of the serving process meanwhile.
        ttft: Median seconds to the first token, as the engine or the client saw it.
    """

    side: str
    wall: float
    cpu: float
    num_tokens: int
    ttft: float


def alone(engine: Engine, num_clients: int, num_tokens: int, num_turns: int) -> Round:
    """Decode the requests without a server."""
    tokenizer = engine.target.tokenizer
    assert tokenizer is not None
    sampling = SamplingParams(max_new_tokens=num_tokens, ignore_eos=True)
    begin = time.perf_counter(), time.process_time()
    outputs = []
    for _ in range(num_turns):
        requests = [
            Request(tokenizer(PROMPT.format(number))["input_ids"], sampling, str(number))
            for number in range(num_clients)
        ]
        outputs += engine.generate(requests)
    wall, cpu = time.perf_counter() - begin[0], time.process_time() - begin[1]
    ttft = statistics.median(output.record.ttft for output in outputs)
    return Round("alone", wall, cpu, sum(len(output.token_ids) for output in outputs), ttft)


def clients(pipe: Connection) -> None:
    """Stream as many requests at once as the other end asks for; runs in its own process."""
    for address, *load in iter(pipe.recv, None):
        pipe.send(asyncio.run(_stream_all(address, *load)))


async def _stream_all(
    address: str, num_clients: int, num_tokens: int, num_turns: int
) -> tuple[float, float, int]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=address, timeout=None, limits=limits) as http:
        await http.get("/health")
        begin = time.perf_counter()
        answers = []
        for _ in range(num_turns):
            seen = [_stream(http, number, num_tokens) for number in range(num_clients)]
            answers += await asyncio.gather(*seen)
        wall = time.perf_counter() - begin
    return wall, statistics.median(ttft for ttft, _ in answers), sum(num for _, num in answers)


async def _stream(http: httpx.AsyncClient, number: int, num_tokens: int) -> tuple[float, int]:
    """Return the seconds to the first chunk, and the tokens by usage."""
    body: dict[str, Any] = {
        "prompt": PROMPT.format(number),
        "temperature": 0,
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begin, ttft, usage = time.perf_counter(), 0.0, {"completion_tokens": 0}
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line and not ttft:
                ttft = time.perf_counter() - begin
            if line.startswith("data: {"):
                usage = json.loads(line.removeprefix("data: ")).get("usage") or usage
    return ttft, usage["completion_tokens"]


async def served(service: Service, app: Any, pipe: Connection, *load: int) -> Round:
    """Serve the same requests over HTTP."""
    finished: asyncio.Future[tuple[float, float, int]] = asyncio.get_running_loop().create_future()
    start = 0.0

    def announce(address: str) -> None:
        nonlocal start
        start = time.process_time()
        pipe.send((address, *load))
        asyncio.get_running_loop().add_reader(
            pipe.fileno(), lambda: finished.set_result(pipe.recv())
        )

    server = HttpServer(app, service, bind("127.0.0.1", 0), announce)
    running = asyncio.ensure_future(server.run(handles_signals=False))
    wall, ttft, num_tokens = await finished
    cpu = time.process_time() - start
    asyncio.get_running_loop().remove_reader(pipe.fileno())
    server.stop()
    await running
    return Round("served", wall, cpu, num_tokens, ttft)


def rounds(arguments: argparse.Namespace, pipe: Connection) -> Iterator[Round]:
    target = CausalLM.from_pretrained(arguments.target, max_len=256)
    load = arguments.clients, arguments.tokens, arguments.turns
    feed = StepFeed()
    proposer = NGram(arguments.drafts) if arguments.drafts else None
    engine = Engine(target, proposer, max_batch_size=arguments.clients, observers=[feed])
    alone(engine, *load)  # warm-up
    for _ in range(arguments.rounds):
        yield alone(engine, *load)
        settings = ServeSettings(stream_interval=arguments.stream_interval)
        service = Service(EngineBridge(engine, feed), settings, SamplingParams())
        yield asyncio.run(served(service, create_app(service), pipe, *load))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="zoo:tiny")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--drafts", type=int, default=4, help="0 decodes plainly")
    parser.add_argument("--turns", type=int, default=1, help="requests of a client in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stream-interval", type=int, default=1, help="tokens of an event")
    arguments = parser.parse_args()
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=clients, args=(there,))
    process.start()
    found: dict[str, list[Round]] = {"alone": [], "served": []}
    for round in rounds(arguments, here):
        print(json.dumps(asdict(round)), flush=True)
        found[round.side].append(round)
    here.send(None)
    process.join()
    pairs = list(zip(found["alone"], found["served"], strict=True))
    wall = statistics.median(with_server.wall / without.wall for without, with_server in pairs)
    cpu = statistics.median(with_server.cpu / without.cpu for without, with_server in pairs)
    extra = statistics.median(
        (with_server.cpu - without.cpu) / with_server.num_tokens for without, with_server in pairs
    )
    ttft = statistics.median(with_server.ttft - without.ttft for without, with_server in pairs)
    print(
        f"served / alone: wall {wall:.3f}, processor time {cpu:.3f} "
        f"({extra * 1e6:.0f} us a token), first token {ttft * 1e3:+.1f} ms later"
    )


if __name__ == "__main__":
    main()
