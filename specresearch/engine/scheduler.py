"""Decide which requests run: a queue, cache slots, preemption and prefill chunks."""

import heapq
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from specresearch.clock import Clock
from specresearch.engine.checks import Host, check_request
from specresearch.engine.prefill import PrefillChunk
from specresearch.engine.prefix_cache import PrefixCache
from specresearch.engine.seeds import Seeds
from specresearch.engine.settings import SchedulerSettings
from specresearch.metrics import Counts
from specresearch.request import FAILED, Request, RequestState

MAX_DRAFT_SHARE = 4  # while prompts are prefilled: a quarter of what the roots leave
_SCHEDULE = "schedule"  # the lap of the clock


class NoSlotError(RuntimeError):
    """No slot is free until another engine releases one; nothing was changed."""


@dataclass(frozen=True)
class StepPlan:
    """The beginning of a step.

    Attributes:
        freed: Slots of requests that were preempted.
        chunks: Prompt tokens to prefill.
    """

    freed: list[int]
    chunks: list[PrefillChunk]


class Scheduler:
    """Admits and preempts requests, and divides the tokens of a step among them.

    It works on the host, in time that grows with the number of running requests.

    Attributes:
        waiting: A heap: preempted requests first, then those that the policy ranks lowest.
        running: Requests with a slot, in order of admission.
        finished: Requests that have ended, with their counts, until `pop_finished`.

    Args:
        max_nodes: The most nodes that the proposer makes for a row.
        num_probe_nodes: How many of these are not drafts.
        slots: Slots of the target that this scheduler may use; None: any.
        prefixes: Gives slots out if prefixes are reused.
    """

    def __init__(
        self,
        target: Host,
        settings: SchedulerSettings,
        max_batch_size: int,
        *,
        seeds: Seeds | None = None,
        clock: Clock | None = None,
        max_nodes: int = 1,
        num_probe_nodes: int = 0,
        slots: range | None = None,
        prefixes: PrefixCache | None = None,
    ) -> None:
        self.step_limit = settings.max_step_tokens or sys.maxsize
        self.cache_limit = settings.max_cache_tokens or sys.maxsize
        if self.step_limit <= max_batch_size:
            raise ValueError(
                f"scheduler.max_step_tokens={settings.max_step_tokens} leaves no room for a "
                f"prompt beside {max_batch_size} running requests; raise it above {max_batch_size}"
            )
        self.target = target
        self.settings = settings
        self.max_batch_size = max_batch_size
        self.seeds = seeds or Seeds()
        self.clock = clock or Clock()
        self.num_probe_nodes = num_probe_nodes
        self.slots, self.prefixes = slots, prefixes
        self.waiting: list[tuple[bool, float, int, RequestState]] = []
        self.running: list[RequestState] = []
        self.finished: list[tuple[RequestState, Counts]] = []
        self.counts: dict[RequestState, Counts] = {}
        self.num_submitted = 0
        self._acquired: set[int] = set()
        self._tie_breaks = count()
        self._requested_nodes = (max_nodes, max_nodes)  # for a row, in the last two steps
        self._num_prefill_tokens = 0
        self._num_held = 0  # cache columns of the running requests
        self._most_running = max_batch_size

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self.finished)

    @property
    def decoding(self) -> list[RequestState]:
        """Return the requests whose prompts are cached, by slot."""
        rows = [row for row in self.running if row.is_prefilled]
        return sorted(rows, key=lambda row: row.slot)

    def prepare(self, request: Request, arrival_time: float | None = None) -> RequestState:
        """Return the row of a request, or raise ValueError if it can never be served."""
        arrival = self.clock.now() if arrival_time is None else arrival_time
        seed = self.seeds.of(request, self.num_submitted)
        target = self.target
        row = RequestState(
            request,
            slot=-1,
            seed=seed,
            eos_token_ids=target.eos_token_ids,
            max_total_tokens=target.max_len,
            arrival_time=arrival,
        )
        check_request(row, target, self.settings.max_cache_tokens)
        self.num_submitted += 1
        return row

    def submit(self, row: RequestState) -> None:
        """Queue a row."""
        with self.clock.lap(_SCHEDULE, on_host=True):
            rank = self.settings.policy.rank(row)
            heapq.heappush(self.waiting, (True, rank, next(self._tie_breaks), row))

    def plan(self) -> StepPlan:
        """Preempt, admit, and schedule prefill chunks."""
        with self.clock.lap(_SCHEDULE, on_host=True):
            freed = self._preempt()
            num_decoding = sum([row.is_prefilled for row in self.running])
            num_beside_roots = self.step_limit - num_decoding
            num_drafts = num_decoding * (self._num_reserved - 1)
            left = num_beside_roots - min(num_drafts, num_beside_roots // MAX_DRAFT_SHARE)
            chunks = []
            for row in self._prefilling(may_admit=not freed):
                num_uncached = len(row.tokens) - self.target.lengths[row.slot]
                chunks.append(PrefillChunk(row, min(num_uncached, left), num_uncached <= left))
                left -= num_uncached - 1 + self._num_reserved
                if left <= 0:
                    break
            self._num_prefill_tokens = sum(chunk.num_cached for chunk in chunks)
            if self.waiting and not self.running:
                raise NoSlotError(
                    "every slot of the target is in use by another engine; finish its requests "
                    "first"
                )
            return StepPlan(freed, chunks)

    def grant(self, wanted: Sequence[int], limits: Sequence[int]) -> list[int]:
        """Return the draft budget of each row: what it wants, within its limit and the step's."""
        num_probe_nodes = self.num_probe_nodes if any(wanted) else 0
        num_nodes = max(wanted) + num_probe_nodes + 1
        self._requested_nodes = (self._requested_nodes[1], num_nodes)
        room_in_step = self.step_limit - self._num_prefill_tokens - len(wanted)
        room_in_cache = self.cache_limit - sum(len(row.tokens) for row in self.running)
        room = min(room_in_step, room_in_cache) - num_probe_nodes * len(wanted)
        return _fit([min(*pair) for pair in zip(wanted, limits, strict=True)], room)

    def retire(self) -> list[int]:
        """Move requests that have ended to `finished`, and return their slots, now free."""
        with self.clock.lap(_SCHEDULE, on_host=True):
            slots = []
            for row in [row for row in self.running if row.finish_reason]:
                self.running.remove(row)
                if self.prefixes is not None and row.finish_reason != FAILED:
                    self.prefixes.keep(row)
                self.finished.append((row, self.counts.pop(row)))
                slots.append(row.slot)
            self._release(slots)
            return slots

    def pop_finished(
        self, wants: Callable[[RequestState], bool] = lambda row: True
    ) -> list[tuple[RequestState, Counts]]:
        """Remove and return the finished requests that are wanted, all by default."""
        popped, kept = [], []
        for entry in self.finished:
            (popped if wants(entry[0]) else kept).append(entry)
        self.finished = kept
        return popped

    def drop(self, rows: Iterable[RequestState]) -> list[int]:
        """Drop requests that have not finished, and return the slots that are free again.

        Once nothing runs, these are all slots still held, even those left behind by a failed step.
        """
        dropped = set(rows)
        slots = []
        if dropped:  # each submission drops none, and the queue may be long
            self.waiting = [entry for entry in self.waiting if entry[-1] not in dropped]
            heapq.heapify(self.waiting)
            slots = [row.slot for row in self.running if row in dropped]
            self.running = [row for row in self.running if row not in dropped]
            for row in dropped:
                self.counts.pop(row, None)
        if not self.running:
            slots = sorted(self._acquired)
        self._release(slots)
        return slots

    def retreat(self) -> list[int]:
        """Preempt every request, and let one fewer run until `advance`; return the slots."""
        self._most_running = max(len(self.running) - 1, 1)
        slots = []
        while self.running:
            slots.append(self._evict())
        self._release(slots)
        return slots

    def advance(self) -> None:
        """Let as many requests run as before `retreat`."""
        self._most_running = self.max_batch_size

    @property
    def _num_reserved(self) -> int:
        """Return the nodes kept free for each row.

        That is what was requested in both of the last two steps, so that one long draft does not
        preempt anybody.
        """
        return min(self._requested_nodes)

    def _num_columns(self, row: RequestState) -> int:
        return len(row.tokens) - 1 + self._num_reserved

    def _preempt(self) -> list[int]:
        """Preempt the requests admitted last until the step fits; one always stays."""
        freed = []
        num_tokens = sum([len(row.tokens) for row in self.running])
        self._num_held = num_tokens + (self._num_reserved - 1) * len(self.running)
        while len(self.running) > 1 and self._num_held > self.cache_limit:
            self._num_held -= self._num_columns(self.running[-1])
            if self.prefixes is not None:
                self.prefixes.keep(self.running[-1])
            freed.append(self._evict())
        self._release(freed)
        return freed

    def _evict(self) -> int:
        """Put the request admitted last back into the queue, and return its slot."""
        row = self.running.pop()
        slot = row.slot
        row.slot, row.is_prefilled = -1, False
        row.num_preemptions += 1
        heapq.heappush(self.waiting, (False, row.arrival_time, next(self._tie_breaks), row))
        return slot

    def _prefilling(self, *, may_admit: bool) -> Iterator[RequestState]:
        """Yield running requests to prefill, then waiting ones, each admitted when asked for."""
        yield from [row for row in self.running if not row.is_prefilled]
        while may_admit:
            row = self._admit()
            if row is None:
                return
            yield row

    def _admit(self) -> RequestState | None:
        """Give the first request in the queue a slot; None if there is no request or no room."""
        if not self.waiting or len(self.running) >= self._most_running:
            return None
        row = self.waiting[0][-1]
        num_held = self._num_held + self._num_columns(row)
        if self.running and num_held > self.cache_limit:
            return None
        if self.prefixes is None:
            slot = self.target.acquire(self.slots)
        else:
            slot = self.prefixes.acquire(row, self.running)
        if slot is None:
            return None
        self._acquired.add(slot)
        heapq.heappop(self.waiting)
        row.slot = slot
        self._num_held = num_held
        if row.num_preemptions == 0:
            row.queue_time = self.clock.now() - row.arrival_time
        self.counts.setdefault(row, Counts())
        self.running.append(row)
        return row

    def _release(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.target.release(slot)
            self._acquired.discard(slot)


def _fit(wanted: list[int], room: int) -> list[int]:
    """Return what is wanted, capped at the largest common number that fits into `room`."""
    left = max(room, 0)
    if sum(wanted) <= left:
        return wanted
    num_rows = len(wanted)
    for number in sorted(wanted):
        if number * num_rows > left:
            return [min(number, left // num_rows) for number in wanted]
        left -= number
        num_rows -= 1
    raise AssertionError("the sum fits")
