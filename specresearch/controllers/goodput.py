"""Drafts that make the whole batch fastest, by times and acceptance measured during the run.

SmartSpec (Liu et al., https://arxiv.org/abs/2406.14066), with a length per request: k = argmax of
sum_r (1 - a_r^(k_r + 1)) / (1 - a_r) over t_draft(k) + t_verify(tokens, context) + overhead.
"""

from collections.abc import Sequence
from functools import partial
from math import ceil
from statistics import fmean

import numpy as np
from jaxtyping import Float, Int

from specresearch.batch import Batch
from specresearch.controllers.allocation import Affordable, Rows, allocate
from specresearch.controllers.evidence import Evidence, RequestEvidence
from specresearch.controllers.lazy_prefill import LazyPrefillTime
from specresearch.controllers.probes import Probes
from specresearch.controllers.slowdown import SlowdownBound
from specresearch.controllers.step_time import StepTime
from specresearch.controllers.trace import TracedController
from specresearch.metrics import StepRecord
from specresearch.proposal import DraftKind

_START_ROUNDS = 3  # plain steps, and as many with a draft: any single one may be slow by accident
_PROBE_FRACTION = 3  # one request in 3 drafts a token in a probe, one in 3k drafts k tokens
_HOPE = 1.0  # standard errors of optimism about acceptance, so that little evidence gets more
_MAX_STEPS = 8  # for which a decision to draft holds; doubled each time that the next confirms it
_MAX_IDLE_STEPS = 32  # for which a decision not to draft holds, from which there is little to learn
_CAUTION = 5.0  # times as much a request's own evidence counts if the request is to lose nothing


class Goodput(TracedController):
    """Maximizes expected tokens per second over the draft lengths of all requests.

    A decision that confirms the previous one holds for twice as many steps: to draft, for the same
    requests; not to draft, for any.

    The run starts with plain steps and single drafts in turn. Drafts then grow while that pays, to
    at most twice the longest so far. Every `probe_every` steps, and up to four times as rarely
    while nothing changes, a probe measures another length, which shows when speculation pays again.
    Only a few requests draft in a probe: those that have drafted least, as long as their lazy
    prefill takes a small share of the time.

    Acceptance is assumed to be higher than observed, by less the more was observed. Where a drafter
    has to prefill a prompt first, drafts must be worth that as well.

    Decisions depend on earlier steps only and never on the drafts themselves, so the controller is
    lossless. But it reads a clock: a seed fixes the distribution of sampled tokens, not the tokens.

    A tree is drafted whole or not at all: it counts as one draft, whose acceptance is the number of
    tokens that are accepted of it.

    Args:
        max_draft_tokens: The longest chain to consider, within what the proposer makes.
        max_slowdown: The most that a request's time per token may be, relative to plain steps of
            the same batch, as predicted from a pessimistic acceptance. None maximizes throughput
            alone: requests with rejected drafts pay for the others.
        prior_weight: Drafts of its own after which a request's acceptance counts as much as the
            run's mean.
        memory: Steps after which a measured time counts 1/e.
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
                f"controller.max_draft_tokens={max_draft_tokens} must be at least 1; to decode "
                "plainly use controller=fixed controller.num_draft_tokens=0"
            )
        if probe_every < 2:
            raise ValueError(
                f"controller.probe_every={probe_every} must be at least 2, or every step is a probe"
            )
        if prior_weight <= 0:
            raise ValueError(
                f"controller.prior_weight={prior_weight} must be above 0; 1 trusts a request's own "
                "drafts"
            )
        if memory <= 1:
            raise ValueError(f"controller.memory={memory} must be above 1 step")
        super().__init__(trace_every)
        self.max_draft_tokens = max_draft_tokens
        self.max_slowdown = max_slowdown
        self.probe_every = probe_every
        self.memory = memory
        self._max_length = self._max_proposed = max_draft_tokens
        self._evidence = Evidence(prior_weight)
        self._bound = None if max_slowdown is None else SlowdownBound(max_slowdown)
        self.reset()

    def bind(self, kind: DraftKind, num_draft_tokens: int) -> None:
        self._evidence.whole_trees = kind.trees
        self._max_length = 1 if kind.trees else min(self.max_draft_tokens, num_draft_tokens)
        self._max_proposed = num_draft_tokens
        self.reset()

    def reset(self) -> None:
        super().reset()
        self._evidence.clear()
        self._probes = Probes(self.probe_every)
        self._step_time = StepTime(2 * _START_ROUNDS, self.memory)
        self._lazy_prefill = LazyPrefillTime(self.memory)
        self._num_steps = 0
        self._is_drafting = False
        self._is_probing = False
        self._longest = 0  # draft of the last decision to draft
        self._longest_tried = 1
        self._asked: list[int] = []
        self._decision: list[int] = []
        self._decided_for: list[RequestEvidence] = []
        self._next_decision = 0  # step
        self._num_held = 1  # steps for which the decision holds
        self._unlearned: list[tuple[int, StepRecord, list[int], list[RequestEvidence]]] = []

    def budget(self, batch: Batch) -> list[int | None]:
        self._evidence.requests.select(batch.rows)
        length = self._probe_length()
        self._is_probing = length is not None
        self._asked = self._decided(batch) if length is None else self._probe(length, batch)
        if self._evidence.whole_trees:
            return [None if number else 0 for number in self._asked]
        return [*self._asked]

    def _decided(self, batch: Batch) -> list[int]:
        """Return the lengths decided now or a few steps ago."""
        requests = self._evidence.requests.selected
        has_changed = self._is_drafting and self._decided_for is not requests
        if self._num_steps >= self._next_decision or has_changed:
            self._learn()
            self._decision = self._decide(batch)
            self._decided_for = requests
        if not self._is_drafting:
            return [0] * len(batch)
        return list(map(min, self._decision, batch.room))

    def _decide(self, batch: Batch) -> list[int]:
        """Choose draft lengths; keep them for several steps if they confirm the last ones."""
        self._next_decision = self._num_steps + 1
        requested = [row.request.num_draft_tokens for row in batch.rows]
        is_free = np.array([number is None for number in requested])
        room = np.array(batch.room)
        limits = np.minimum(room, min(self._max_length, 2 * self._longest_tried))
        limits = np.where(is_free, limits, 0)
        most = 1 if self._evidence.whole_trees else self._max_proposed
        given = np.minimum(room.clip(max=most), [number or 0 for number in requested])
        if not limits.any():
            return given.tolist()
        context = sum(len(row.tokens) - 1 for row in batch.rows)
        lengths = allocate(
            self._rows(limits, given, _HOPE),
            partial(self._step_time.seconds, len(batch), context),
            self._affordable(limits, given, context),
            self._prefill_per_token(batch) if self._lazy_prefill.is_known else None,
        )
        was_drafting = self._is_drafting
        self._is_drafting = bool((lengths > given).any())
        self._probes.note_change(self._is_drafting != was_drafting)
        if self._is_drafting:
            self._longest = int(lengths[limits > 0].max())
        is_confirmed = self._is_drafting == was_drafting and self._longest <= self._longest_tried
        max_held = _MAX_STEPS if self._is_drafting else _MAX_IDLE_STEPS
        self._num_held = min(2 * self._num_held, max_held) if is_confirmed else 1
        self._next_decision = self._num_steps + self._num_held
        self._longest_tried = max(self._longest_tried, self._longest)
        return lengths.tolist()

    def _rows(
        self,
        limits: Int[np.ndarray, " R"],
        given: Int[np.ndarray, " R"],
        optimism: float,
        trust: float = 1.0,
    ) -> Rows:
        """Return the rows of the step; see `Evidence` for `optimism` and `trust`."""
        requests = self._evidence.requests.selected
        acceptance = np.array(self._evidence.acceptance(requests, optimism, trust))
        supply = np.array(self._evidence.supply(requests, trust))
        return Rows(acceptance, supply, limits, given)

    def _affordable(
        self, limits: Int[np.ndarray, " R"], given: Int[np.ndarray, " R"], context: int
    ) -> Affordable | None:
        """Return the longest that a step of some lengths may take; None without a bound."""
        if self._bound is None:
            return None
        cautious = self._rows(limits, given, -_HOPE, _CAUTION)
        plain = self._step_time.plain(len(limits), context)
        num_steps = min(2 * self._num_held, _MAX_STEPS)
        requests = self._evidence.requests.selected
        return self._bound.affordable(cautious, requests, plain, num_steps)

    def _prefill_per_token(self, batch: Batch) -> Float[np.ndarray, " R"]:
        """Return the seconds of a joint lazy prefill per token that each row has left."""
        num_tokens = self._evidence.num_unprefilled(batch.rows, self._max_proposed)
        return self._lazy_prefill.seconds(num_tokens) / (np.array(batch.room) + 1)

    def _probe_length(self) -> int | None:
        """Return the length to measure, or None if the step is to be as fast as possible.

        While drafting pays, every other probe is a plain step.
        """
        if not self._step_time.is_ready:
            return self._num_steps % 2
        if not self._probes.is_due(self._num_steps, self._step_time.num_surprises):
            return None
        if not self._is_drafting:
            return 1
        turn, is_second = divmod(self._probes.number, 2)
        if not is_second or turn % 2 == 0:
            return int(is_second)
        longer = 2 * self._longest
        return longer if longer <= self._max_length else max(self._longest // 2, 1)

    def _probe(self, length: int, batch: Batch) -> list[int]:
        """Let a few rows draft `length` tokens: those that were asked for the fewest drafts so far.

        Ties are broken by another row each time. Once times are known, rows whose lazy prefill
        would take too long have to wait.
        """
        self._learn()
        num_rows = len(batch)
        requests = self._evidence.requests.selected
        unprefilled = np.zeros(num_rows, int)
        if self._step_time.is_ready and self._lazy_prefill.is_known:
            unprefilled = self._evidence.num_unprefilled(batch.rows, self._max_proposed)
        steered = []
        for b, row in enumerate(batch.rows):
            if row.request.num_draft_tokens is None and batch.room[b]:
                order = (requests[b].num_asked, unprefilled[b], (b + self._num_steps) % num_rows)
                steered.append((order, b))
        num_probing = ceil(len(steered) / (_PROBE_FRACTION * length)) if length else 0
        probing: list[int] = []
        for _, b in sorted(steered):
            if len(probing) == num_probing:
                break
            if self._lazy_prefill.allows_probe(unprefilled[[*probing, b]]):
                probing.append(b)
        return [length if b in probing else 0 for b in range(num_rows)]

    def observe(self, record: StepRecord) -> None:
        # Learning from several steps together is cheaper, and decisions need it only then.
        requests = self._evidence.requests.selected
        self._unlearned.append((self._num_steps, record, self._asked, requests))
        self._num_steps += 1
        if self._is_probing:
            self._learn()

    def _learn(self) -> None:
        unlearned, self._unlearned = self._unlearned, []
        if not unlearned:
            return
        # The trace shows the acceptance that was assumed before these steps.
        acceptance = fmean(self._evidence.acceptance(self._evidence.requests.selected))
        for step, record, asked, requests in unlearned:
            self._learn_times(record, requests, acceptance)
            is_news = self._probes.is_first(step) and (
                self._step_time.was_gain or self._evidence.is_news(record, requests)
            )
            num_surprises = self._step_time.num_surprises
            self._probes.note_change(num_surprises > 1 or is_news)
            self._probes.observe(step, num_surprises)
            self._evidence.observe(record, requests, asked)
            self._lazy_prefill.observe(record)
        self._step_time.update()

    def _learn_times(
        self, record: StepRecord, requests: Sequence[RequestEvidence], acceptance: float
    ) -> None:
        was_ready = self._step_time.is_ready
        estimates = self._step_time.observe(self._evidence.counted(record))
        if not was_ready:
            return
        seconds = sum(estimates.values())
        self._trace.add(
            num_requests=len(requests),
            mean_length=sum(record.num_draft_tokens) / len(requests),
            acceptance=acceptance,
            **{f"{name}_seconds": value for name, value in estimates.items()},
            estimated_seconds=seconds,
            measured_seconds=record.times.work,
        )
        if self._bound is not None:
            # By estimates: an outlier would have hit a plain step just as well.
            plain = self._step_time.plain(len(requests), sum(record.context))
            self._bound.observe(requests, record.num_new_tokens, plain, seconds)

    def trace(self) -> list[dict[str, float]]:
        self._learn()
        return super().trace()
