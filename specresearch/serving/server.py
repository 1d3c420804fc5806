"""Run the application under uvicorn, and stop it without losing what runs."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from specresearch.serving.service import Service

BACKLOG = 2048  # connections that wait to be accepted
FLUSH_SECONDS = 5  # for answers that clients have not read when the engine is done

logger = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """uvicorn without its own handling of signals, which would close the socket at once."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves until it is told to stop; then it refuses new requests and finishes the others.

    Args:
        listener: What `bind` has returned.
        on_ready: Called with the address once the server listens.
    """

    def __init__(
        self,
        app: FastAPI,
        service: Service,
        listener: socket.socket,
        on_ready: Callable[[str], None] | None = None,
    ) -> None:
        settings = service.settings
        self._service, self._listener, self._on_ready = service, listener, on_ready
        self._stopping = asyncio.Event()
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                http="h11",  # which stops reading header lines that never end
                h11_max_incomplete_event_size=4 * settings.max_header_bytes,
                backlog=BACKLOG,
                server_header=False,
                timeout_graceful_shutdown=FLUSH_SECONDS,
                lifespan="off",
                ws="none",
            )
        )

    def stop(self) -> None:
        """Stop once all requests have been answered; called again, stop at once."""
        if self._stopping.is_set():
            self._server.should_exit = True
            self._server.force_exit = True
        self._service.draining = True
        self._stopping.set()

    async def run(self, *, handles_signals: bool = True) -> None:
        """Serve until `stop` is called or, with `handles_signals`, SIGTERM or SIGINT comes."""
        bridge = self._service.bridge
        with self._listener as listener:
            loop = asyncio.get_running_loop()
            if handles_signals:
                for signum in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(signum, self.stop)
            bridge.start()
            serving = asyncio.ensure_future(self._server.serve([listener]))
            draining = asyncio.ensure_future(self._drain())
            try:
                if self._on_ready is not None:
                    host, port = listener.getsockname()[:2]
                    self._on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
                await serving
            finally:
                draining.cancel()
                await bridge.stop()
                self._service.close()

    async def _drain(self) -> None:
        await self._stopping.wait()
        bridge = self._service.bridge
        logger.info("draining: %d requests left", bridge.num_live)
        try:
            await asyncio.wait_for(bridge.idle(), self._service.settings.drain_seconds)
        except TimeoutError:
            logger.warning("%d requests are dropped: they took too long", bridge.num_live)
        self._server.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that has the address to itself, and does not listen yet.

    Its connections send small packets at once. asyncio sees to that for sockets that name TCP
    alone. Otherwise the first token would wait for the client's delayed acknowledgement of the
    header lines, some 40 ms.

    Raises:
        ValueError: If that is impossible.
    """
    listener = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        reason = (error.strerror or str(error)).lower()
        raise ValueError(
            f"cannot listen at server.host={host} server.port={port}: {reason}; choose another "
            "address or port (server.port=0 takes a free one)"
        ) from error
    return listener
