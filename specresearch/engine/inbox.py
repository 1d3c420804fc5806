"""What other threads ask of an engine, kept until the thread that steps takes it."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from itertools import count
from threading import Lock

from specresearch.request import Request, RequestState


@dataclass(frozen=True)
class Mail:
    """Requests to be queued, and then those to be dropped, which may have finished."""

    new: list[RequestState]
    cancelled: list[RequestState]


class Inbox:
    """New requests and cancellations, from any thread. Ids are unique until outputs are taken."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._new: list[RequestState] = []
        self._cancelled: set[str] = set()
        self._live: dict[str, RequestState] = {}
        self._names = count()

    def __bool__(self) -> bool:
        return bool(self._new or self._cancelled)

    def submit(self, request: Request, prepare: Callable[[Request], RequestState]) -> str:
        """Keep what `prepare` makes of the request; returns its id, a new one if it has none.

        Raises ValueError for an id that is in use, and whatever `prepare` raises.
        """
        with self._lock:
            if request.id in self._live:
                raise ValueError(
                    f"request id {request.id!r} is in use by a request whose output has not been taken; "
                    "give every request an id of its own"
                )
            row = prepare(request if request.id else replace(request, id=self._unused_id()))
            self._live[row.id] = row
            self._new.append(row)
            return row.id

    def _unused_id(self) -> str:
        return next(
            name for name in map("request-{}".format, self._names) if name not in self._live
        )

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

    def forget(self, ids: Iterable[str]) -> None:
        """These requests have been dropped, or their outputs taken."""
        with self._lock:
            for id in ids:
                self._live.pop(id, None)

    def live(self, ids: Collection[str]) -> set[str]:
        """Those of `ids` that have neither been cancelled nor had their outputs taken."""
        with self._lock:
            return {id for id in ids if id in self._live}
