"""Requests and cancellations from other threads, kept until the stepping thread takes them."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from itertools import count
from threading import Lock

from specresearch.request import Request, RequestState


@dataclass(frozen=True)
class Mail:
    """Requests to queue, and then requests to drop, some of which may have finished."""

    new: list[RequestState]
    cancelled: list[RequestState]


class Inbox:
    """Collects new requests and cancellations from any thread.

    An id stays in use until the output of its request has been taken.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._new: list[RequestState] = []
        self._cancelled: set[str] = set()
        self._live: dict[str, RequestState] = {}
        self._numbers = count()

    def __bool__(self) -> bool:
        return bool(self._new or self._cancelled)

    def submit(self, request: Request, prepare: Callable[[Request], RequestState]) -> str:
        """Prepare a request and keep its row for the next `pop`.

        Returns:
            The request's id, a new one if it has none.

        Raises:
            ValueError: The id is in use, or `prepare` refuses the request.
        """
        with self._lock:
            if request.id in self._live:
                raise ValueError(
                    f"request id {request.id!r} is in use by a request whose output has not been "
                    "taken; give every request an id of its own"
                )
            row = prepare(request if request.id else replace(request, id=self._unused_id()))
            self._live[row.id] = row
            self._new.append(row)
            return row.id

    def _unused_id(self) -> str:
        names = map("request-{}".format, self._numbers)
        return next(name for name in names if name not in self._live)

    def cancel(self, ids: Iterable[str] | None = None) -> None:
        """Drop these requests, or all."""
        with self._lock:
            self._cancelled.update(self._live if ids is None else self._live.keys() & set(ids))

    def pop(self) -> Mail:
        """Return what has come since the last call."""
        with self._lock:
            new, self._new = self._new, []
            cancelled = [self._live[id] for id in self._cancelled if id in self._live]
            self._cancelled.clear()
            return Mail(new, cancelled)

    def release(self, ids: Iterable[str]) -> None:
        """Free the ids of requests that have been dropped, or whose outputs have been taken."""
        with self._lock:
            for id in ids:
                self._live.pop(id, None)

    def live(self, ids: Collection[str]) -> set[str]:
        """Return those of `ids` that were neither dropped nor had their outputs taken."""
        with self._lock:
            return self._live.keys() & ids
