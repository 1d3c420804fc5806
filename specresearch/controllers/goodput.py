"""As many drafts as make the whole batch fastest, if need be without slowing anyone down, by times and acceptance measured on the
way.

SmartSpec (Liu et al., arXiv 2406.14066), with lengths per request: k = argmax of sum_r (1 - a_r^(k_r + 1)) / (1 - a_r) over
t_draft(k) + t_verify(tokens, context) + overhead.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from statistics import fmean

import numpy as np
from jaxtyping import Float, Int

from specresearch.batch import Batch
from specresearch.controllers.allocation import Rows, allocate
from specresearch.controllers.base import Controller, check_chains
from specresearch.controllers.evidence import Share, judged_drafts
from specresearch.controllers.lazy_prefill import LazyPrefillTime
from specresearch.controllers.per_request import PerRequest
from specresearch.controllers.probes import Probes
from specresearch.controllers.step_time import StepTime
from specresearch.controllers.trace import Trace
from specresearch.metrics import StepRecord
from specresearch.proposal import DraftKind

_START_ROUNDS = (
    3  # plain steps, and as many with a draft, at the start: one may be slow for reasons of its own
)
_FEW = 3  # one request in so many drafts in a measurement, and one in k times as many where its length is k
_OWN_MEMORY = 40.0  # steps after which what a request saw counts 1/e
_RUN_MEMORY, _IDLE_MEMORY = (
    50.0,
    2000.0,
)  # what the run saw: steps that drafted, and steps that did not
_HOPE = 1.0  # standard errors by which acceptance is taken for higher than was seen, so that little evidence gets more
_STANDS = 8  # steps for which a decision stands, at most: twice as many every time that the next one confirms it
_IDLE_STANDS = 32  # steps for which one to draft nothing does, of which there is little to learn
_NEWS = 2.0  # standard errors of the acceptance in a step that make it news
_SUPPLY_WEIGHT = (
    5.0  # steps that were to draft, for how many of them did to count as much as the run's mean
)
_LEAST, _MOST = 0.01, 0.99  # acceptance is never believed to be certain
_CAUTION = 5.0  # how much more a request's own record counts, against the run's, where it is to lose nothing


@dataclass
class _Request:
    """acceptance: accepted drafts, of those that the target looked at, i.e. with all before them accepted. supply: steps with a
    draft, of those in which it was to have one. ahead: seconds that it may still lose before it is slower than plain decoding by
    more than is allowed. known: tokens it had when it last drafted, which a drafter that reads late has read. num_asked: drafts
    that it was to have, of all time."""

    acceptance: Share = field(default_factory=Share)
    supply: Share = field(default_factory=Share)
    known: int = 0
    num_asked: int = 0
    ahead: float = 0.0


class Goodput(Controller):
    """Maximises expected tokens per second over the lengths of every request's draft; with `max_slowdown`, as far as no request
    becomes slower than that against plain decoding.

    A decision that confirms the one before stands for twice as many steps: to draft, for the same requests; not to, for whoever
    comes.
    Starts with plain steps and single drafts in turn; drafts then grow as long as that pays, to at most twice the longest so far.
    After `probe_every` steps something else than usual is measured, so that it notices when speculation pays again, and after
    up to four times as many while nothing new is found. Only a few requests draft in a measurement: those that did least, as
    far as what the drafter first has to read for it takes a small share of the time. Acceptance is taken for somewhat higher than
    was seen, by less the more was seen. Where a drafter would first have to read a prompt, drafts must be worth that, too.
    It decides by earlier steps only, never by what is drafted, hence is lossless; but it reads a clock, so that a seed does
    not fix sampled tokens: only their distribution.

    max_draft_tokens: the longest draft considered, within what the proposer makes.
    max_slowdown: a request's time per token over that of plain steps of the same batch, at most, as far as it can be foreseen,
    by acceptance taken for lower than was seen; None: throughput alone counts, and requests whose drafts are refused pay for the
    others'.
    prior_weight: drafts of its own that a request needs for its acceptance to count as much as the run's mean.
    """

    def __init__(
        self,
        max_draft_tokens: int = 10,
        max_slowdown: float | None = None,
        probe_every: int = 25,
        prior_weight: float = 15.0,
        memory: float = 50.0,
        trace_every: int = 100,
    ) -> None:
        if max_draft_tokens < 1:
            raise ValueError(
                f"controller.max_draft_tokens={max_draft_tokens} must be at least 1; to decode plainly use "
                "controller=fixed controller.num_draft_tokens=0"
            )
        if max_slowdown is not None and not max_slowdown >= 1:
            raise ValueError(
                f"controller.max_slowdown={max_slowdown} must be at least 1, as slow as plain decoding; null sets no limit"
            )
        if probe_every < 2:
            raise ValueError(
                f"controller.probe_every={probe_every} must be at least 2, or every step is a probe"
            )
        if prior_weight <= 0:
            raise ValueError(
                f"controller.prior_weight={prior_weight} must be above 0; 1 trusts a request's own drafts"
            )
        if memory <= 1:
            raise ValueError(f"controller.memory={memory} must be above 1 step")
        self.max_draft_tokens, self.probe_every, self.prior_weight = (
            max_draft_tokens,
            probe_every,
            prior_weight,
        )
        self.max_slowdown, self.memory = max_slowdown, memory
        self._most = self._proposed = max_draft_tokens
        self._requests = PerRequest(_Request)
        self._trace = Trace(trace_every)
        self.reset()

    def bind(self, kind: DraftKind, num_draft_tokens: int) -> None:
        check_chains(self, kind)
        self._most, self._proposed = min(self.max_draft_tokens, num_draft_tokens), num_draft_tokens
        self.reset()

    def reset(self) -> None:
        self._num_steps, self._is_drafting, self._is_measuring = 0, False, False
        self._unlearnt: list[tuple[int, StepRecord, list[int], list[_Request]]] = []
        self._probes = Probes(self.probe_every)
        self._longest, self._tried = 0, 1  # drafts: of the last decision to draft, and of all
        self._time = StepTime(2 * _START_ROUNDS, self.memory)
        self._run, self._run_supply = Share(), Share()
        self._late = LazyPrefillTime(self.memory)
        self._wanted: list[int] = []
        self._decided: list[int] = []
        self._decided_for: list[_Request] = []
        self._decide_next, self._stands = 0, 1
        self._requests.clear()
        self._trace.clear()

    def budget(self, batch: Batch) -> list[int | None]:
        self._requests.meet(batch.rows)
        length = self._length_to_measure()
        self._is_measuring = length is not None
        self._wanted = self._usual(batch) if length is None else self._few(length, batch)
        return [*self._wanted]

    def _usual(self, batch: Batch) -> list[int]:
        """As decided, now or a few steps ago."""
        if self._num_steps >= self._decide_next or (
            self._is_drafting and self._decided_for is not self._requests.met
        ):
            self._learn()
            self._decided, self._decided_for = self._decide(batch), self._requests.met
        return list(map(min, self._decided, batch.room)) if self._is_drafting else [0] * len(batch)

    def _decide(self, batch: Batch) -> list[int]:
        """Lengths, which stand for a while unless they are news, or nobody had a choice."""
        self._decide_next = self._num_steps + 1
        asked = [row.request.num_draft_tokens for row in batch.rows]
        room = np.minimum(batch.room, min(self._most, 2 * self._tried))
        most = np.minimum(batch.room, self._proposed)
        given = np.minimum(most, [0 if number is None else number for number in asked])
        limits = np.where([number is None for number in asked], room, 0)
        if not limits.any():
            return given.tolist()
        context = sum(len(row.tokens) - 1 for row in batch.rows)
        rows = self._rows(limits, given, _HOPE)
        seconds = partial(self._time.seconds, len(batch), context)
        affordable = None
        if self.max_slowdown is not None:
            plain, stands = self._time.plain(len(batch), context), min(2 * self._stands, _STANDS)
            cautious = self._rows(limits, given, -_HOPE, _CAUTION)
            affordable = partial(self._affordable, cautious, self.max_slowdown, plain, stands)
        reading = self._reading(batch) if self._late.is_known else None
        lengths = allocate(rows, seconds, affordable, reading)
        was_drafting, self._is_drafting = self._is_drafting, bool((lengths > given).any())
        self._probes.tell(self._is_drafting != was_drafting)
        if self._is_drafting:
            self._longest = int(lengths[limits > 0].max())
        is_confirmed = self._is_drafting == was_drafting and self._longest <= self._tried
        most = _STANDS if self._is_drafting else _IDLE_STANDS
        self._stands = min(2 * self._stands, most) if is_confirmed else 1
        self._decide_next = self._num_steps + self._stands
        self._tried = max(self._tried, self._longest)
        return lengths.tolist()

    def _few(self, length: int, batch: Batch) -> list[int]:
        """Drafts of one length for some rows: those that were to have least so far, among equals others every time. After the
        start, whom there is no time to read has to wait."""
        self._learn()
        rows, num_rows, met = batch.rows, len(batch), self._requests.met
        put_off = (
            self._put_off(batch)
            if self._time.is_ready and self._late.is_known
            else np.zeros(num_rows, int)
        )
        steered = [
            b for b in range(num_rows) if rows[b].request.num_draft_tokens is None and batch.room[b]
        ]
        steered.sort(key=lambda b: (met[b].num_asked, put_off[b], (b + self._num_steps) % num_rows))
        number, drafting = ceil(len(steered) / (_FEW * length)) if length else 0, []
        for b in steered:
            if len(drafting) < number and self._late.is_time_for(put_off[[*drafting, b]]):
                drafting.append(b)
        return [length if b in drafting else 0 for b in range(num_rows)]

    def _put_off(self, batch: Batch) -> Int[np.ndarray, " R"]:
        """Tokens that the drafter has put off reading; what one step delivers is read with the next draft."""
        unread = [
            len(row.tokens) - state.known
            for row, state in zip(batch.rows, self._requests.met, strict=True)
        ]
        return np.array([number if number > self._proposed + 1 else 0 for number in unread])

    def _reading(self, batch: Batch) -> Float[np.ndarray, " R"]:
        """Seconds that this would take, all rows together, for every token that a row is still to get."""
        return self._late.seconds(self._put_off(batch)) / (np.array(batch.room) + 1)

    def _rows(
        self,
        limits: Int[np.ndarray, " R"],
        given: Int[np.ndarray, " R"],
        hope: float,
        trust: float = 1.0,
    ) -> Rows:
        """The rows of the step. hope: see `_acceptance`. trust: how much more than usual a request's own record counts."""
        met = self._requests.met
        return Rows(
            np.array(self._acceptance(met, hope, trust)),
            np.array(self._supply(met, trust)),
            limits,
            given,
        )

    def _affordable(
        self,
        rows: Rows,
        max_slowdown: float,
        plain_seconds: float,
        stands: int,
        lengths: Int[np.ndarray, " R"],
    ) -> float:
        """The longest that a step of these lengths may take for no row to fall behind, or further behind than by a plain step, in
        as many steps as the decision may stand."""
        ahead = np.array([request.ahead for request in self._requests.met])
        spare = (ahead / stands).clip(min=(1 - max_slowdown) * plain_seconds)
        return float((max_slowdown * plain_seconds * (1 + rows.accepted(lengths)) + spare).min())

    def _length_to_measure(self) -> int | None:
        """One length, every other time 0 where drafts are usual; None when the step is to be as fast as possible."""
        if not self._time.is_ready:
            return self._num_steps % 2
        if not self._probes.is_due(self._num_steps, self._time.num_surprises):
            return None
        if not self._is_drafting:
            return 1
        turn, is_second = divmod(self._probes.number, 2)
        longer = 2 * self._longest
        other = longer if longer <= self._most else max(self._longest // 2, 1)
        return (1, other)[turn % 2] if is_second else 0

    def _acceptance(
        self, rows: Sequence[_Request], hope: float = 0.0, trust: float = 1.0
    ) -> list[float]:
        """Of every row, shrunk towards the run's, which starts at a half and is taken for `hope` standard errors higher."""
        mean, weight = self._run.rate(0.5, 1.0), self.prior_weight / trust
        mean += hope * self._run.error(mean)
        rates = (request.acceptance.rate(mean, weight) for request in rows)
        return [min(max(rate, _LEAST), _MOST) for rate in rates]

    def _supply(self, rows: Sequence[_Request], trust: float = 1.0) -> list[float]:
        """Share of the drafts asked for that are made, shrunk towards the run's, which starts at 1."""
        mean, weight = self._run_supply.rate(1.0, 1.0), _SUPPLY_WEIGHT / trust
        return [max(request.supply.rate(mean, weight), _LEAST) for request in rows]

    def observe(self, record: StepRecord) -> None:
        """Learnt from when a decision depends on it, which costs less for several steps together."""
        self._unlearnt.append((self._num_steps, record, self._wanted, self._requests.met))
        self._num_steps += 1
        if self._is_measuring:
            self._learn()

    def _learn(self) -> None:
        unlearnt, self._unlearnt = self._unlearnt, []
        if not unlearnt:
            return
        acceptance = fmean(self._acceptance(self._requests.met))
        for step, record, wanted, rows in unlearnt:
            self._learn_from(step, record, wanted, rows, acceptance)
        self._time.update()

    def _learn_from(
        self,
        step: int,
        record: StepRecord,
        wanted: Sequence[int],
        rows: Sequence[_Request],
        acceptance: float,
    ) -> None:
        """acceptance: before these steps, for the trace."""
        was_ready, was_measured = self._time.is_ready, self._probes.is_first(step)
        estimates = self._time.observe(record)
        if was_ready:
            self._trace.add(
                num_requests=len(rows),
                mean_length=sum(record.num_draft_tokens) / len(rows),
                acceptance=acceptance,
                **{f"{name}_seconds": seconds for name, seconds in estimates.items()},
                estimated_seconds=sum(estimates.values()),
                measured_seconds=record.times.work,
            )
            self._settle(record, rows, sum(estimates.values()))
        accepted, judged = judged_drafts(record)
        is_news = was_measured and (self._time.was_gain or self._is_news(rows, accepted, judged))
        self._probes.tell(self._time.num_surprises > 1 or is_news)
        self._probes.observe(step, self._time.num_surprises)
        made = []
        for b, request in enumerate(rows):
            request.acceptance.add(accepted[b], judged[b], _OWN_MEMORY)
            request.num_asked += wanted[b]
            drafted = record.num_draft_tokens[b]
            if drafted:
                request.known = record.context[b]
            if wanted[b]:
                made.append(min(drafted / wanted[b], 1.0))
                request.supply.add(made[-1], 1, _OWN_MEMORY)
        self._run.add(sum(accepted), sum(judged), _RUN_MEMORY if any(judged) else _IDLE_MEMORY)
        if made:
            self._run_supply.add(fmean(made), 1, _RUN_MEMORY)
        self._late.observe(record)

    def _is_news(
        self, rows: Sequence[_Request], accepted: Sequence[float], judged: Sequence[int]
    ) -> bool:
        """More or less of a step's drafts were accepted than was to be expected."""
        rates = self._acceptance(rows)
        usual = sum(n * rate * (1 - rate) for n, rate in zip(judged, rates, strict=True)) ** 0.5
        expected = sum(n * rate for n, rate in zip(judged, rates, strict=True))
        return abs(sum(accepted) - expected) > _NEWS * usual + 0.5

    def _settle(self, record: StepRecord, rows: Sequence[_Request], seconds: float) -> None:
        """Who got ahead, who fell behind; by estimates, since a hiccup would have befallen a plain step, too."""
        if self.max_slowdown is None:
            return
        allowed = self.max_slowdown * self._time.plain(len(rows), sum(record.context))
        for request, num_new in zip(rows, record.num_new_tokens, strict=True):
            request.ahead += num_new * allowed - seconds

    def trace(self) -> list[dict[str, float]]:
        self._learn()
        return self._trace.rows()
