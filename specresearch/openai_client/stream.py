"""Sends requests to one address and reads what comes back."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

from specresearch.openai_client import failure
from specresearch.openai_client.answer import StreamedAnswer
from specresearch.openai_client.events import DONE, EventDecoder

PREFIX = "v1"
CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class Address:
    """Where a server is.

    Attributes:
        url: With or without the last `/v1`, such as http://localhost:8000.
        key_variable: The environment variable with the key, if the server asks for one. The key
            itself is written nowhere.
        timeout: Seconds without a byte after which a request has failed.

    Raises:
        ValueError: If the address cannot be one.
    """

    url: str
    key_variable: str = "OPENAI_API_KEY"
    timeout: float = 600.0

    def __post_init__(self) -> None:
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise ValueError(f"server={self.url} is no address ({error}); {_EXAMPLE}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"server={self.url} is no address; {_EXAMPLE}")
        if parsed.userinfo:
            raise ValueError(
                "a server's address must not hold a password, because results repeat it; set the "
                f"environment variable {self.key_variable}"
            )

    @property
    def root(self) -> str:
        """Return the address without `/v1`, where /metrics and /version are."""
        return self.url.rstrip("/").removesuffix(f"/{PREFIX}")

    def session(self) -> "Session":
        """Return the connections of a measurement, as an asynchronous context manager."""
        return Session(self)


_EXAMPLE = "give one such as http://localhost:8000"


class Session:
    """Connections to a server, as many as there are requests at a time."""

    def __init__(self, address: Address) -> None:
        key = os.environ.get(address.key_variable)
        self.address = address
        self._client = httpx.AsyncClient(
            base_url=f"{address.root}/",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(address.timeout, connect=CONNECT_SECONDS, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )

    async def __aenter__(self) -> "Session":
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def get(self, path: str) -> httpx.Response:
        """Return the answer to a GET. Raises httpx.RequestError without one."""
        return await self._client.get(path, timeout=2 * CONNECT_SECONDS)

    async def ask(self, path: str, body: Mapping[str, Any], answer: StreamedAnswer) -> None:
        """Send a request and fill `answer` as its chunks arrive, by `time.perf_counter`.

        Raises:
            RequestRefusedError: If the request fails; `answer` then holds what came before.
        """
        try:
            async with self._client.stream("POST", f"{PREFIX}/{path}", json=body) as response:
                if not response.is_success:
                    text = (await response.aread()).decode("utf-8", errors="replace")
                    raise failure.of_status(response, _message_in(text))
                await _read(response, answer)
        except httpx.RequestError as error:
            raise failure.of_network(error) from error
        if not answer.is_done:
            raise failure.RequestRefusedError(
                failure.DISCONNECTED, "the stream ended before the answer did"
            )


async def _read(response: httpx.Response, answer: StreamedAnswer) -> None:
    decoder = EventDecoder()
    async for piece in response.aiter_bytes():
        now = time.perf_counter()
        for data in decoder.feed(piece):
            _add(answer, data, now)
    now = time.perf_counter()
    for data in decoder.close():
        _add(answer, data, now)


def _add(answer: StreamedAnswer, data: str, now: float) -> None:
    if data == DONE:
        answer.is_done = True
        return
    try:
        event = json.loads(data)
    except ValueError as error:
        raise failure.RequestRefusedError(
            failure.BROKEN, failure.one_line(f"an event that is no JSON: {data}")
        ) from error
    answer.add(event, now)


def _message_in(text: str) -> str:
    """Return the message of an error in OpenAI's form, or the text itself."""
    try:
        content = json.loads(text)
    except ValueError:
        return text
    error = content.get("error", content) if isinstance(content, dict) else content
    message = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return str(message or text)
