"""The engine's loop on a simulated clock: the real scheduler and controller, recorded acceptance, modelled times."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch

from specresearch.batch import Batch, RequestState
from specresearch.engine import SchedulerSettings
from specresearch.engine.prefill import Chunk
from specresearch.engine.scheduler import Scheduler
from specresearch.loadtest.loop import Feed, Stops
from specresearch.loadtest.rows import PassRow
from specresearch.metrics import RequestRecord, StepRecord
from specresearch.models.slots import Slots
from specresearch.proposers.draft_model import MOST_BEHIND
from specresearch.rows import PassKey, RequestRow, StepLog
from specresearch.simulation.acceptance import Drafted
from specresearch.simulation.method import Method
from specresearch.simulation.replays import ReplayedRequest, text_of
from specresearch.simulation.timing import Seconds, Timing, Work

_CPU = torch.device("cpu")


class SimulatedTarget(Slots):
    """All that a scheduler wants of a target."""

    tokenizer, name, vocab_size, eos_token_ids = None, "simulated", 1, frozenset[int]()

    def __init__(self, num_slots: int, max_len: int) -> None:
        super().__init__(num_slots)
        self.max_len = max_len


@dataclass(frozen=True)
class SimulatedPass:
    """What a load run would have written down of a pass."""

    row: PassRow
    requests: list[RequestRow]
    log: StepLog


@dataclass
class Simulation:
    """One side on a machine. max_running: requests that decode together. max_len: of a request, in tokens."""

    timing: Timing
    method: Method
    scheduling: SchedulerSettings
    max_running: int
    max_len: int
    now: float = field(default=0.0, init=False)

    def run(
        self,
        place: PassKey,
        feed: Feed,
        request: Callable[[int], ReplayedRequest],
        stops: Stops,
        seed: int = 0,
    ) -> SimulatedPass:
        """One pass over the requests of `feed`, on an empty machine, with a controller that knows nothing yet."""
        self._begin(seed)
        log, rows, last_arrival, stopped = StepLog(place, 0.0), [], 0.0, None
        while stopped is None and not (feed.is_empty and feed.num_submitted == len(rows)):
            for number, moment in feed.due(self.now, feed.num_submitted - len(rows)):
                self.scheduler.submit(self.scheduler.prepare(request(number), moment))
                last_arrival = moment
            if self.scheduler.has_work:
                record = self._step()
                if record is not None:
                    log.add(record)
                rows += self._outputs(place)
            else:
                self.now = max(self.now, feed.next_time)
            stopped = self._too_much(feed, stops, len(rows))
        waiting = len(self.scheduler.waiting)
        row = PassRow(
            key=place,
            wall=self.now,
            num_requests=len(feed.times),
            num_submitted=feed.num_submitted,
            num_finished=len(rows),
            last_arrival=last_arrival,
            num_waiting=waiting,
            stopped=stopped,
            trace=self.method.trace(),
        )
        return SimulatedPass(row, rows, log)

    def _begin(self, seed: int) -> None:
        self.method.reset()
        self.timing.restart(seed)
        self.now = self._prefill_seconds = 0.0
        self._num_prefilled = 0
        self._known: WeakKeyDictionary[RequestState, tuple[int, int]] = WeakKeyDictionary()
        self._slots = SimulatedTarget(self.max_running, self.max_len)
        num_nodes = self.method.num_draft_tokens + 1
        self.scheduler = Scheduler(
            self._slots, self.scheduling, self.max_running, max_nodes=num_nodes
        )

    def _too_much(self, feed: Feed, stops: Stops, num_finished: int) -> str | None:
        waiting = len(self.scheduler.waiting)
        came = f"{feed.num_submitted} requests came and {num_finished} were answered in {self.now:.0f} s"
        if waiting > stops.max_waiting:
            return f"the queue grows without bound: {came}, {waiting} wait (max_waiting={stops.max_waiting})"
        if self.now > stops.max_seconds:
            return f"out of time: {came}, {waiting} wait (max_seconds={stops.max_seconds:g})"
        return None

    def _step(self) -> StepRecord | None:
        """As `Engine.step`, in the same order."""
        begin, plan = self.now, self.scheduler.plan()
        num_prefill_tokens = self._read(plan.chunks)
        rows = self.scheduler.decoding
        if not rows:
            seconds = self.timing.step(self._work([], num_prefill_tokens))
            self._spend(seconds, plan.chunks)
            self.now += seconds.between
            return None
        batch = Batch(rows, _CPU, self._slots.vocab_size)
        granted = self.scheduler.grant(*self.method.wanted(batch))
        drafted = self.method.trim(
            rows, [_draft(row, num) for row, num in zip(rows, granted, strict=True)]
        )
        num_lazy_prefill_tokens = self._catch_up(rows, granted) if self.method.reads_late else 0
        work = self._work(
            rows, num_prefill_tokens, drafted, num_lazy_prefill_tokens, is_asked=any(granted)
        )
        seconds = self.timing.step(work)
        context = tuple(len(row.tokens) - 1 for row in rows)
        self._spend(seconds, plan.chunks)
        num_new = [
            _deliver(row, draft.accepted, self.now)
            for row, draft in zip(rows, drafted, strict=True)
        ]
        self._known |= {
            row: (len(row.tokens) - 1, row.num_preemptions)
            for row, n in zip(rows, granted, strict=True)
            if n
        }
        record = self._record(
            rows, drafted, num_new, context, seconds, begin, num_lazy_prefill_tokens
        )
        for b, (row, draft) in enumerate(zip(rows, drafted, strict=True)):
            expected = None if record.expected_acceptance is None else record.expected_acceptance[b]
            accepted, new = record.num_accepted_tokens[b], num_new[b]
            has_ended = accepted == new  # inside the draft, whose rest nobody judged
            num_judged = new if has_ended and draft.num == draft.depth else None
            judged_depth = accepted if has_ended else None
            self.scheduler.counts[row].add_step(
                draft.num, draft.depth, accepted, new, expected, None, num_judged, judged_depth
            )
        self.method.controller.observe(record)
        self.scheduler.retire()
        self.now += seconds.between
        return record

    def _read(self, chunks: Sequence[Chunk]) -> int:
        """Prompts go into the cache. Returns tokens read."""
        for chunk in chunks:
            row = chunk.row
            if self._slots.lengths[row.slot] == 0 and row.num_preemptions == 0:
                row.queue_time = self.now - row.arrival_time  # in place of the wall clock's
            self._slots.lengths[row.slot] += chunk.num_cached
            row.is_prefilled = chunk.is_last
        return sum(chunk.num_cached for chunk in chunks)

    def _catch_up(self, rows: Sequence[RequestState], granted: Sequence[int]) -> int:
        """Tokens that the drafter reads of those that draft, after as many steps without as leave it far behind."""
        num_lazy_prefill_tokens = 0
        for row, num in zip(rows, granted, strict=True):
            known, num_preemptions = self._known.get(row, (0, 0))
            behind = len(row.tokens) - (known if num_preemptions == row.num_preemptions else 0)
            num_lazy_prefill_tokens += behind - 1 if num and behind > MOST_BEHIND else 0
        return num_lazy_prefill_tokens

    def _work(
        self,
        rows: Sequence[RequestState],
        num_prefill_tokens: int,
        drafted: Sequence[Drafted] = (),
        num_lazy_prefill_tokens: int = 0,
        *,
        is_asked: bool = False,
    ) -> Work:
        context = [len(row.tokens) - 1 for row in rows]
        fed = [draft.num + 1 for draft in drafted] or [1] * len(rows)
        return Work(
            len(rows),
            sum(draft.num for draft in drafted),
            max((draft.depth for draft in drafted), default=0),
            max((draft.num for draft in drafted), default=0) + 1,
            sum(context),
            max(context, default=0),
            num_prefill_tokens,
            sum(num * (start + num) for num, start in zip(fed, context, strict=True)),
            num_lazy_prefill_tokens,
            can_draft=self.method.num_draft_tokens > 0,
            is_asked=is_asked,
        )

    def _spend(self, seconds: Seconds, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            chunk.row.prefill_time += seconds.prefill
        self._prefill_seconds += seconds.prefill
        self._num_prefilled += sum(chunk.num_cached for chunk in chunks)
        self.now += seconds.prefill + seconds.lazy_prefill + seconds.total

    def _record(
        self,
        rows: Sequence[RequestState],
        drafted: Sequence[Drafted],
        num_new: Sequence[int],
        context: tuple[int, ...],
        seconds: Seconds,
        begin: float,
        num_lazy_prefill_tokens: int,
    ) -> StepRecord:
        accepted = tuple(
            min(draft.accepted, new) for draft, new in zip(drafted, num_new, strict=True)
        )
        expected = None
        if all(text_of(row).expected for row in rows):
            before = [row.num_generated - new for row, new in zip(rows, num_new, strict=True)]
            every = zip(rows, before, drafted, strict=True)
            expected = tuple(
                tuple(text_of(row).expected_at(begin, draft.num)) for row, begin, draft in every
            )
        times = seconds.times(self._prefill_seconds)
        num_prefilled, self._num_prefilled, self._prefill_seconds = self._num_prefilled, 0, 0.0
        return StepRecord(
            tuple(row.id for row in rows),
            tuple(draft.num for draft in drafted),
            tuple(draft.depth for draft in drafted),
            accepted,
            tuple(num_new),
            context,
            expected,
            max(draft.num for draft in drafted) + 1,
            times,
            start=begin,
            num_waiting=len(self.scheduler.waiting),
            num_prefill_tokens=num_prefilled,
            num_lazy_prefill_tokens=num_lazy_prefill_tokens,
        )

    def _outputs(self, place: PassKey) -> Iterator[RequestRow]:
        ended, self.scheduler.finished = self.scheduler.finished, []
        for row, counts in ended:
            told = RequestRecord.of(row, counts)
            yield RequestRow(
                key=place,
                id=row.id,
                category=row.request.category,
                row=row.id,
                num_prompt_tokens=told.num_prompt_tokens,
                num_cut_tokens=0,
                arrival=told.arrival_time,
                queue_time=told.queue_time,
                ttft=told.ttft,
                tpot=told.tpot,
                e2el=told.e2el,
                itl=told.itl,
                prefill_time=told.prefill_time,
                num_preemptions=told.num_preemptions,
                finish_reason=told.finish_reason,
                counts=counts,
            )


def _draft(row: RequestState, budget: int) -> Drafted:
    text = text_of(row)
    return text.replay.step(row.num_generated % text.length, budget)


def _deliver(row: RequestState, num_accepted: int, now: float) -> int:
    """Accepted drafts and the target's own token, cut at the end of the output. Returns how many."""
    request = row.request
    assert isinstance(request, ReplayedRequest)
    num = min(num_accepted + 1, request.num_tokens - row.num_generated)
    row.tokens.extend([0] * num)
    row.token_times.extend([now] * num)
    if row.num_generated == request.num_tokens:
        row.finish_reason = request.ends_for
    return num
