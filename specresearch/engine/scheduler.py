"""Which requests run: a queue, a slot of the target's cache for each that left it, and what a step may read."""

import heapq
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from specresearch.batch import Request, RequestState
from specresearch.engine.checks import Host, check_request
from specresearch.engine.prefill import Chunk
from specresearch.engine.seeds import Seeds
from specresearch.engine.settings import SchedulerSettings
from specresearch.metrics import Counts

MAX_DRAFT_SHARE = 4  # while prompts are being read: a quarter of what the roots leave


class NoSlotError(RuntimeError):
    """Nothing can be decoded until another engine gives slots back; nothing was changed."""


@dataclass(frozen=True)
class Plan:
    """What a step begins with. freed: slots of requests that were preempted. chunks: what is read of which prompt."""

    freed: list[int]
    chunks: list[Chunk]


class Scheduler:
    """Admits, preempts, and shares out what a step may read. All of it on the host, in time that grows with running requests.

    waiting: a heap; who was preempted comes first, then whom the policy ranks lowest. running: in order of admission.
    max_nodes: the most nodes that the proposer makes for a row. num_probes: how many of these are no drafts.
    slots: of the target's cache, which are kept for this scheduler; None: any.
    """

    def __init__(
        self,
        target: Host,
        settings: SchedulerSettings,
        max_batch_size: int,
        seeds: Seeds | None = None,
        max_nodes: int = 1,
        num_probes: int = 0,
        slots: range | None = None,
    ) -> None:
        self.step_limit = settings.max_step_tokens or sys.maxsize
        self.cache_limit = settings.max_cache_tokens or sys.maxsize
        if self.step_limit <= max_batch_size:
            raise ValueError(
                f"scheduler.max_step_tokens={settings.max_step_tokens} leaves no room for a prompt beside {max_batch_size} "
                f"running requests; raise it above {max_batch_size}"
            )
        self.target, self.settings, self.max_batch_size = target, settings, max_batch_size
        self.seeds = seeds or Seeds()
        self.num_probes, self.slots = num_probes, slots
        self.waiting: list[tuple[bool, float, int, RequestState]] = []
        self.running: list[RequestState] = []
        self.finished: list[tuple[RequestState, Counts]] = []
        self.counts: dict[RequestState, Counts] = {}
        self.num_submitted = 0
        self._taken: set[int] = set()  # slots
        self._ties = count()
        self._asked = (max_nodes, max_nodes)  # nodes for a row, in the last two steps
        self._num_prefill_tokens = 0
        self._num_held = 0  # by all who run, at the beginning of a step and as they come
        self._seconds = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self.finished)

    @property
    def decoding(self) -> list[RequestState]:
        """The requests whose prompts are in, by slot."""
        return sorted((row for row in self.running if row.is_prefilled), key=lambda row: row.slot)

    @property
    def unfinished(self) -> Iterator[RequestState]:
        """Everyone who waits or runs."""
        yield from self.running
        yield from (entry[-1] for entry in self.waiting)

    def stand_still(self, seconds: float) -> None:
        """Time that was no service does not count for anyone here, nor for the order of those who come."""
        for row in self.unfinished:
            row.stand_still(seconds)
        rank = self.settings.policy.rank
        self.waiting = [
            (new, rank(row) if new else row.arrival_time, tie, row)
            for new, _, tie, row in self.waiting
        ]
        heapq.heapify(self.waiting)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - begin

    def take_seconds(self) -> float:
        """Seconds spent in here since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def prepare(self, request: Request, arrival_time: float | None = None) -> RequestState:
        """The row of a request, to be submitted. Raises ValueError for one that can never be served."""
        arrival = time.perf_counter() if arrival_time is None else arrival_time
        seed = self.seeds.of(request, self.num_submitted)
        row = RequestState(
            request, -1, seed, self.target.eos_token_ids, self.target.max_len, arrival
        )
        check_request(row, self.target, self.settings.max_cache_tokens)
        self.num_submitted += 1
        return row

    def submit(self, row: RequestState) -> None:
        """Queue a request."""
        with self._timed():
            heapq.heappush(
                self.waiting, (True, self.settings.policy.rank(row), next(self._ties), row)
            )

    def plan(self) -> Plan:
        """Who leaves, who enters, and what is read of which prompt."""
        with self._timed():
            freed = self._preempt()
            num_decoding = sum(row.is_prefilled for row in self.running)
            beside_roots = self.step_limit - num_decoding
            left = beside_roots - min(
                num_decoding * (self._reserved - 1), beside_roots // MAX_DRAFT_SHARE
            )
            readers, chunks = self._readers(may_admit=not freed), []
            while left > 0 and (row := next(readers, None)):
                unread = len(row.tokens) - self.target.lengths[row.slot]
                chunks.append(Chunk(row, min(unread, left), unread <= left))
                left -= unread - 1 + self._reserved
            self._num_prefill_tokens = sum(chunk.num_cached for chunk in chunks)
            if self.waiting and not self.running:
                raise NoSlotError(
                    "every slot of the target is in use by another engine; finish its requests first"
                )
            return Plan(freed, chunks)

    @property
    def _reserved(self) -> int:
        """Nodes kept free for each row: what was asked in both of the last two steps, so that one long draft preempts nobody."""
        return min(self._asked)

    def _held(self, row: RequestState) -> int:
        return len(row.tokens) - 1 + self._reserved

    def _preempt(self) -> list[int]:
        """Send away those admitted last until the step fits; one always stays."""
        freed = []
        self._num_held = sum(map(self._held, self.running))
        while len(self.running) > 1 and self._num_held > self.cache_limit:
            row = self.running.pop()
            self._num_held -= self._held(row)
            freed.append(row.slot)
            row.slot, row.is_prefilled = -1, False
            row.num_preemptions += 1
            heapq.heappush(self.waiting, (False, row.arrival_time, next(self._ties), row))
        self._release(freed)
        return freed

    def _readers(self, *, may_admit: bool) -> Iterator[RequestState]:
        """Whose prompts are not in yet, those that run before those that wait; who is admitted is so when it is asked for."""
        yield from [row for row in self.running if not row.is_prefilled]
        if may_admit:
            yield from iter(self._admit, None)

    def _admit(self) -> RequestState | None:
        """The first in the queue, in a slot; None when there is none, or no room for it."""
        if not self.waiting or len(self.running) >= self.max_batch_size:
            return None
        row = self.waiting[0][-1]
        num_held = self._num_held + self._held(row)
        if self.running and num_held > self.cache_limit:
            return None
        slot = self.target.acquire(self.slots)
        if slot is None:
            return None
        self._taken.add(slot)
        heapq.heappop(self.waiting)
        row.slot, self._num_held = slot, num_held
        if row.num_preemptions == 0:
            row.queue_time = time.perf_counter() - row.arrival_time
        self.counts.setdefault(row, Counts())
        self.running.append(row)
        return row

    def grant(self, wanted: Sequence[int], limits: Sequence[int]) -> list[int]:
        """How much of what is wanted each row may draft: within its limit, and all of them within the step and the cache."""
        with self._timed():
            num_probes = self.num_probes if any(wanted) else 0
            self._asked = (self._asked[1], max(wanted) + num_probes + 1)
            in_step = self.step_limit - self._num_prefill_tokens - len(wanted)
            in_cache = self.cache_limit - sum(len(row.tokens) for row in self.running)
            room = min(in_step, in_cache) - num_probes * len(wanted)
            return _level(
                [min(want, limit) for want, limit in zip(wanted, limits, strict=True)], room
            )

    def _release(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.target.release(slot)
            self._taken.discard(slot)

    def retire(self) -> list[int]:
        """Move the requests that have finished to `finished`; returns their slots, which are free again."""
        with self._timed():
            ended = [row for row in self.running if row.finish_reason]
            for row in ended:
                self.running.remove(row)
                self.finished.append((row, self.counts.pop(row)))
            slots = [row.slot for row in ended]
            self._release(slots)
            return slots

    def drop(self, rows: Iterable[RequestState]) -> list[int]:
        """Forget requests that have not finished; returns the slots that are free again.

        Once nobody runs these are all that were held, even those that a failed step lost track of.
        """
        gone = set(rows)
        self.waiting = [entry for entry in self.waiting if entry[-1] not in gone]
        heapq.heapify(self.waiting)
        slots = [row.slot for row in self.running if row in gone]
        self.running = [row for row in self.running if row not in gone]
        for row in gone:
            self.counts.pop(row, None)
        slots = slots if self.running else sorted(self._taken)
        self._release(slots)
        return slots


def _level(wanted: list[int], room: int) -> list[int]:
    """What is wanted, cut at the one height at which it fits."""
    left = max(room, 0)
    if sum(wanted) <= left:
        return wanted
    for num_rows, want in zip(range(len(wanted), 0, -1), sorted(wanted), strict=True):
        if want * num_rows > left:
            return [min(want, left // num_rows) for want in wanted]
        left -= want
    raise AssertionError("it fits")
