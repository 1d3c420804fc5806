"""A server that listens on this machine while a test runs."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from openai import OpenAI

from specresearch import CausalLM, Engine, SamplingParams
from specresearch.engine import SchedulerSettings
from specresearch.proposers import NGram, Proposer
from specresearch.serving.app import create_app
from specresearch.serving.bridge import EngineBridge
from specresearch.serving.driver import StepFeed
from specresearch.serving.server import HttpServer, bind
from specresearch.serving.service import Service
from specresearch.serving.settings import ServeSettings

SECONDS = 60.0  # after which a server that does not start or stop fails the test
MAX_LEN = 256
HOST = "127.0.0.1"


@dataclass
class Live:
    """A server that listens."""

    address: str
    service: Service
    engine: Engine
    server: HttpServer
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread

    def client(self, **options: object) -> Any:  # whose stubs know no fields but OpenAI's
        """Return OpenAI's client of this server."""
        options = {"api_key": "none", "max_retries": 0, "timeout": SECONDS} | options
        return OpenAI(base_url=f"{self.address}/v1", **options)  # pyright: ignore[reportArgumentType]

    def stop(self) -> None:
        """Stop it as SIGTERM does, and wait until it has ended."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.server.stop)
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()


StartServer = Callable[..., Live]


@contextmanager
def serving(
    target: CausalLM,
    proposer: Proposer | None = None,
    *,
    max_running: int = 4,
    reuse_prefixes: bool = False,
    defaults: SamplingParams | None = None,
    settings: ServeSettings | None = None,
    **parts: object,
) -> Iterator[Live]:
    """Serve in a thread, and see that nothing is left behind.

    Args:
        parts: More arguments of the engine.
    """
    feed = StepFeed()
    engine = Engine(
        target,
        NGram(4) if proposer is None else proposer,
        max_batch_size=max_running,
        observers=[feed],
        scheduling=SchedulerSettings(reuse_prefixes=reuse_prefixes),
        **parts,  # pyright: ignore[reportArgumentType]
    )
    ready = threading.Event()
    started: list[Live] = []

    async def run() -> None:
        bridge = EngineBridge(engine, feed)
        service = Service(bridge, settings or ServeSettings(), defaults or SamplingParams())

        def announce(address: str) -> None:
            loop, thread = asyncio.get_running_loop(), threading.current_thread()
            started.append(Live(address, service, engine, server, loop, thread))
            ready.set()

        server = HttpServer(create_app(service), service, bind(HOST, 0), announce)
        await server.run(handles_signals=False)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(SECONDS)
    live = started[0]
    try:
        yield live
    finally:
        live.stop()
    assert not engine.has_work
    assert not engine.target.in_use
    assert not engine.scheduler.counts
