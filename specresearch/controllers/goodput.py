"""Drafts that make the whole batch fastest, by times and acceptance measured during the run.

After SmartSpec (Liu et al., https://arxiv.org/abs/2406.14066): expected tokens of all requests over
the time of the step, with a length for each request and, in trees, a choice of nodes.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np
from jaxtyping import Bool

from specresearch.batch import Batch
from specresearch.controllers.base import AT_LEAST_ONE, check
from specresearch.controllers.decision_schedule import MOST_DRAFTING, DecisionSchedule
from specresearch.controllers.draft_plan import DraftPlan, LoneDraft, Prospects, TimeLimit
from specresearch.controllers.draft_trial import DraftTrial
from specresearch.controllers.evidence import AskedStep, Evidence, RequestEvidence
from specresearch.controllers.prefill_cost import PrefillCost
from specresearch.controllers.rehearsal import LEVELS, Rehearsals
from specresearch.controllers.score_calibration import ScoreCalibration
from specresearch.controllers.scored_tree import ScoredTree
from specresearch.controllers.step_time import StepTime
from specresearch.controllers.time_account import TimeAccount
from specresearch.controllers.trace import TracedController
from specresearch.controllers.tree_size import TreeSize
from specresearch.metrics import StepRecord
from specresearch.proposal import DraftForecast, DraftKind, Proposal

# Levels and nodes of the first steps; the first step of each depth is left out of the times. Trees
# have two numbers of nodes, which tells what a node costs; chains need no last step.
_START = ((0, 0), (0, 0), (0, 0), (3, 16), (3, 16), (3, 4))
# Where times were measured before the run, only what that does not tell: lazy prefill.
_START_FORESEEN = ((0, 0), (3, 16))
_START_FRACTION = 3  # one request in 3 drafts in these, since a lazy drafter has to prefill first
# The weight of the run's acceptance if a request has to tell of levels that nobody tried, or who
# would lose under `max_slowdown`; and otherwise, if levels were measured: drafts are accepted in
# bursts, so few refusals say little of a request.
_PRIOR_WEIGHT, _KNOWN_WEIGHT = 10.0, 40.0
_UNBOUND_DEPTH = 10  # levels to consider before a proposer is known
_EARLY = 500.0  # steps whose share of trials may be spent at the start
_DRAFTED = 32  # steps with drafts after which plain ones are tried
_DOUBT = 1.15  # of gains below which this is done
_OVERRUN = 2.0  # planned steps by which drafts may be late before they are reconsidered


class Goodput(TracedController):
    """Maximizes expected tokens per second over what all requests draft.

    A step has two decisions, each by what it may look at:

    - Before drafting, how deep each request drafts, from earlier steps. A drafter with a model
      needs a pass for each level.
    - After drafting, which nodes are verified, by the drafter's own scores, if all drafts are point
      masses: any choice among these is lossless. What scores mean is learned from the run. Sampled
      drafts are shortened by the first decision alone, and trees of few requests mostly have the
      number of nodes that was chosen lately.

    Both keep a draft if it yields more tokens than its time would yield elsewhere. A decision that
    confirms the one before holds for twice as many steps, and longer if decisions have taken too
    much of the time. Requests that come meanwhile draft as deep as pays for one of which nothing is
    known yet; they cause a new decision only if `max_slowdown` is set, or if nothing else drafts.

    Lookups and other point masses are also drafted in some plain steps and not verified: the tokens
    that follow show whether drafts would be accepted by now.

    Drafts are made only if they promise to be faster than plain steps by `margin`, the lazy prefill
    of every request included. A share of the time, `explore`, goes into trying drafts where none
    are made.

    Decisions depend on earlier steps, and on the scores of point masses, never on sampled drafts;
    so the controller is lossless. But it reads a clock: a seed fixes the distribution of sampled
    tokens, not the tokens.

    On a GPU, choosing nodes by their scores waits for the drafts. It is done only where verifying
    all of them would cost more than `margin`.

    Args:
        max_draft_tokens: The longest path to consider; None leaves that to the proposer.
        max_slowdown: The most that a request's time per token may be, relative to plain steps of
            the same batch, as predicted. It has priority over throughput. None maximizes
            throughput alone: requests with rejected drafts pay for the others.
        margin: Gain in throughput below which no drafts are made.
        explore: Share of the time that may be lost by such trials, at the start more where nothing
            was measured before the run; and half as much by drafts that are not verified.
        prior_weight: Drafts of its own after which a request's acceptance counts as much as the
            run's mean; None: 10, or 40 if acceptance was measured before the run and
            `max_slowdown` is not set.
        memory: Steps after which a measured time or acceptance counts 1/e.
    """

    takes_forecasts = True

    def __init__(
        self,
        max_draft_tokens: int | None = None,
        max_slowdown: float | None = None,
        margin: float = 0.02,
        explore: float = 0.005,
        prior_weight: float | None = None,
        memory: float = 50.0,
        trace_every: int = 100,
    ) -> None:
        most, slowdown = max_draft_tokens, max_slowdown
        check("max_draft_tokens", most, most is None or most >= 1, AT_LEAST_ONE)
        bounds = "at least 1, as slow as plain decoding; null sets no limit"
        check("max_slowdown", slowdown, slowdown is None or slowdown >= 1, bounds)
        check("margin", margin, 0 <= margin < 1, "a share in [0, 1)")
        tries = "a share of the time in [0, 1); 0 tries nothing after the first steps"
        check("explore", explore, 0 <= explore < 1, tries)
        trusts = "above 0; 1 trusts a request's own drafts"
        check("prior_weight", prior_weight, prior_weight is None or prior_weight > 0, trusts)
        check("memory", memory, memory > 1, "above 1 step")
        super().__init__(trace_every)
        self.max_draft_tokens, self.max_slowdown = max_draft_tokens, max_slowdown
        self.margin, self.explore = margin, explore
        self.prior_weight, self.memory = prior_weight, memory
        self.bind(DraftKind(), max_draft_tokens or _UNBOUND_DEPTH)

    def bind(self, kind: DraftKind, num_draft_tokens: int) -> None:
        self._forecast: DraftForecast | None = None
        self._kind, self._max_nodes = kind, num_draft_tokens
        depth = kind.max_depth or num_draft_tokens
        self._max_depth = min(depth, self.max_draft_tokens or depth)
        self.reset()

    def foresee(self, forecast: DraftForecast) -> None:
        self._forecast = forecast
        self.reset()

    def reset(self) -> None:
        super().reset()
        is_known = self._forecast is not None and self.max_slowdown is None
        self._evidence = Evidence(
            self._max_depth,
            self.memory,
            self.prior_weight or (_KNOWN_WEIGHT if is_known else _PRIOR_WEIGHT),
            counts_unmade=self.max_slowdown is not None,
            forecast=self._forecast,
        )
        self._step_time = StepTime(self.memory)
        if self._forecast is not None:
            self._step_time.foresee(self._forecast)
        self._prefill = PrefillCost()
        self._calibration = ScoreCalibration(self._max_depth, self.memory)
        self._size = TreeSize(self.memory)
        self._first, early = _START if self._kind.trees else _START[:-1], _EARLY
        if self._forecast is not None and self._forecast.draft_seconds:
            self._first, early = _START_FORESEEN, 0.0
        self._exploration = TimeAccount(self.explore, early)
        self._schedule = DecisionSchedule(len(self._first))
        self._decided_for: list[RequestEvidence] = []
        self._depths: list[int] = []  # decided
        self._asked: list[int] = []  # in this step
        self._has_own_number: list[bool] = []  # by row; their drafts are left as they are
        self._price = self._step_seconds = self._trial_lost = self._overrun = 0.0
        self._plain_at = 0  # the last decision or trial without drafts
        self._newcomers: dict[int, LoneDraft] = {}  # by the depth of the others
        self._costs = self._step_time.costs()
        self._tree: tuple[ScoredTree, np.ndarray] | None = None
        self._unlearned: list[AskedStep] = []
        self._rehearsals, self._rehearsed = Rehearsals(self.explore / 2), list[AskedStep]()

    def budget(self, batch: Batch) -> list[int | None]:
        requests = self._evidence.requests.select(batch.rows)
        self._has_own_number = [row.request.num_draft_tokens is not None for row in batch.rows]
        self._rehearsals.is_now = False
        if self._is_start:
            self._asked = self._start(self._first[self._schedule.step][0], batch)
        else:
            has_changed = self._decided_for is not requests
            is_bound = has_changed and self.max_slowdown is not None and any(self._depths)
            is_late = self._overrun > _OVERRUN * self._step_seconds
            if self._schedule.is_due() or is_bound or is_late or self._has_rehearsed_well():
                self._decide(batch)
            elif has_changed:
                self._welcome(batch, requests)
            self._decided_for = requests
            self._asked = self._depths
            if any(self._depths):
                self._asked = list(map(min, self._depths, batch.room))
            elif self._may_rehearse(batch):
                self._asked = [min(LEVELS, self._max_depth, room) for room in batch.room]
        if not (self._kind.trees and any(self._asked)):
            return [*self._asked]
        if self._is_start:
            nodes = self._first[self._schedule.step][1]
        else:
            is_new = self._schedule.has_just_decided
            nodes = self._size.num_nodes(len(batch), max(self._asked), is_new=is_new)
        return [min(nodes, self._max_nodes) if depth else 0 for depth in self._asked]

    def _may_rehearse(self, batch: Batch) -> bool:
        """Return whether drafts are to be made that are not verified."""
        is_bound = self.max_slowdown is not None
        if is_bound or self._schedule.is_trial or self._prefill.seconds_each:
            return False
        depth = min(LEVELS, self._max_depth)
        return self._rehearsals.begin(batch, self._step_time.drafting(len(batch), depth))

    def _has_rehearsed_well(self) -> bool:
        """Return whether drafts that were not verified would have been worth it."""
        step = self._rehearsals.judged()
        if step is None:
            return False
        self._rehearsed.append(step)
        if not self._schedule.is_paid:
            return False
        record = self._as_chosen(step).record
        seconds = self._costs.of(record.draft_depth, sum(record.num_draft_tokens))
        return sum(record.num_accepted_tokens) > self._price * seconds

    def max_depth(self, batch: Batch) -> int | None:
        return max(self._asked) if self._kind.trees else None

    def max_width(self, batch: Batch) -> int | None:
        is_free = self._kind.trees and not any(self._has_own_number)
        return self._size.width if is_free else None

    def trim(self, proposal: Proposal) -> Proposal:
        self._tree = None
        if self._rehearsals.takes(proposal):
            return self._rehearsals.trim(proposal)
        is_scored = proposal.scores is not None and proposal.draft_probs is None
        if not (is_scored and self._size.chooses):
            return proposal
        num_drafts = (proposal.topology.num_nodes - 1) * len(proposal.token_ids)
        is_cheap = num_drafts * self._costs.node <= self.margin * self._step_seconds
        if proposal.probe is not None or (is_cheap and not self._is_start):
            return proposal
        tree = ScoredTree.of(proposal)
        keep = self._is_worth_it(tree)
        keep |= np.repeat(self._has_own_number, tree.widths)
        if self._schedule.is_trial:
            keep |= tree.likeliest()
        keep &= tree.is_valid
        self._tree = tree, keep
        return tree.kept(keep, proposal)

    def _is_worth_it(self, tree: ScoredTree) -> Bool[np.ndarray, " BN"]:
        """Return the nodes that promise more than their time would yield elsewhere."""
        return self._calibration.survival(tree) >= min(self._price * self._costs.node, 1.0)

    def observe(self, record: StepRecord) -> None:
        requests = self._evidence.requests.selected
        # The scheduler may grant less, and a drafter that is still reading makes nothing.
        granted = record.budget or self._asked
        asked = self._asked
        if any(asked):
            asked = [min(pair) if pair[1] else 0 for pair in zip(asked, granted, strict=True)]
        step = AskedStep(record, requests, asked, self._tree)
        self._rehearsals.observe(step)
        if not self._rehearsals.is_now:
            self._unlearned.append(step)
        seconds, lost = record.times.total + record.times.lazy_prefill, 0.0
        if self._schedule.is_trial:
            lost = seconds - sum(record.num_new_tokens) / self._price
        elif self._schedule.is_drafting:
            self._overrun += record.times.total - self._step_seconds
        self._trial_lost += lost
        self._exploration.observe(seconds, lost)
        self._schedule.observe(record)

    @property
    def _is_start(self) -> bool:
        return self._schedule.step < len(self._first)

    def _start(self, depth: int, batch: Batch) -> list[int]:
        """Let a few rows draft."""
        given = self._given(batch)
        free = [b for b, has_own in enumerate(self._has_own_number) if not has_own]
        num = ceil(len(free) / _START_FRACTION) if depth else 0
        for b in free[:num]:
            given[b] = min(depth, self._max_depth, batch.room[b])
        return given

    def _given(self, batch: Batch) -> list[int]:
        """Return the depth that requests with a number of drafts of their own have."""
        given = []
        for row, room in zip(batch.rows, batch.room, strict=True):
            number = row.request.num_draft_tokens or 0
            depth = self._max_depth if self._kind.trees and number else number
            given.append(min(depth, room))
        return given

    def _welcome(self, batch: Batch, requests: list[RequestEvidence]) -> None:
        """Keep what was decided for each request, and let newcomers draft if that pays for them.

        If nothing else drafts, their drafts take a decision.
        """
        decided = dict(zip(map(id, self._decided_for), self._depths, strict=True))
        self._depths = [decided.get(id(request), 0) for request in requests]
        if any(self._has_own_number):
            own = zip(self._has_own_number, self._given(batch), self._depths, strict=True)
            self._depths = [given if has_own else depth for has_own, given, depth in own]
        new = [b for b, request in enumerate(requests) if id(request) not in decided]
        new = [b for b in new if not self._has_own_number[b]]
        if self._schedule.is_trial or not new:
            return
        newcomer, drafts = self._newcomer(max(self._depths)), self._schedule.is_drafting
        price = self._price * self._prefill.seconds_each
        least = 0.0 if drafts else self.margin * len(batch)
        pays = False
        for b in new:
            prefill = price * len(batch.rows[b].tokens) / (batch.room[b] + 1)
            if newcomer.value > prefill * (1 + newcomer.gained) + least:
                self._depths[b], pays = newcomer.depth, True
        if pays and not drafts:
            self._decide(batch)

    def _newcomer(self, deepest: int) -> LoneDraft:
        """Return what a request drafts of which nothing is known, beside others so deep."""
        if deepest not in self._newcomers:
            survival, nodes = self._evidence.rates().cumprod()[None], self._evidence.nodes()
            limits, nothing = np.full(1, self._max_depth), np.zeros(1, int)
            unknown = Prospects(survival, nodes, limits, nothing, np.zeros(1), self._costs, 0.0)
            self._newcomers[deepest] = unknown.best_of_one(self._price, deepest)
        return self._newcomers[deepest]

    def _learn(self) -> None:
        steps, self._unlearned = self._unlearned, []
        if not steps:
            return
        acceptance = float(self._evidence.rates()[0])  # that was assumed before these steps
        for step in steps:
            record, asked = step.record, step.asked
            estimates = self._step_time.observe(record, max(asked), sum(map(bool, asked)))
            self._prefill.observe(record)
            seconds = sum(estimates.values())
            if self.max_slowdown is not None:
                # By estimates: an outlier would have hit a plain step just as well.
                plain = self._step_time.plain(len(asked), sum(record.context))
                for request, new in zip(step.requests, record.num_new_tokens, strict=True):
                    request.slack += new * self.max_slowdown * plain - seconds
            self._trace.add(
                num_requests=len(asked),
                mean_length=sum(record.num_draft_tokens) / len(asked),
                acceptance=acceptance,
                **{f"{name}_seconds": value for name, value in estimates.items()},
                estimated_seconds=seconds,
                measured_seconds=record.times.total,
            )
        self._step_time.solve()
        rehearsed, self._rehearsed = self._rehearsed, []
        self._calibration.observe([*rehearsed, *steps])
        if not self._schedule.has_begun:
            record, self._costs = steps[-1].record, self._step_time.costs()
            num_rows = len(record.request_ids)
            self._price = num_rows / self._step_time.plain(num_rows, sum(record.context))
            steps = [*map(self._as_chosen, steps)]
        self._evidence.observe([*map(self._as_chosen, rehearsed), *steps])
        self._size.observe(steps)

    def _as_chosen(self, step: AskedStep) -> AskedStep:
        """Return a step whose tree was judged whole as if it had verified what is worth its time.

        It accepted more than those that follow will, and of nodes that will not be chosen again.
        """
        if step.chosen is None:
            return step
        return step.with_fewer(self._is_worth_it(step.chosen[0]))

    def _decide(self, batch: Batch) -> None:
        """Choose depths, and keep them for several steps if they confirm the last ones."""
        self._learn()
        prospects = self._prospects(batch)
        plain, best = prospects.plain, prospects.fastest()
        if self.max_slowdown is not None:
            limit = self._time_limit(prospects, self._schedule.most_held)
            best = prospects.fastest_within(limit, best)
        least = (1 + self.margin) * plain.rate
        newcomers = replace(prospects, prefill=self._prefill.of_all(batch))
        drafts = best.rate > least and newcomers.plan(best.depths).rate > least
        chosen = best if drafts else plain
        self._price, self._step_seconds, self._costs = chosen.rate, chosen.seconds, prospects.costs
        trial = None
        if not self._schedule.is_trial:
            trial = self._trial(prospects, best if drafts else None, batch.room)
        if not (drafts and trial is None):
            self._plain_at = self._schedule.step
        if trial is not None:
            chosen = trial.plan
            self._schedule.try_for(trial.num_steps)
        else:
            self._schedule.decide(drafts=drafts, is_new=self._trial_lost < 0)
            self._trial_lost = 0.0
        self._depths, self._newcomers, self._overrun = chosen.depths.tolist(), {}, 0.0
        if self._kind.trees:
            self._size.widen(prospects.nodes[: max(self._depths)].max(initial=1.0))

    def _trial(
        self, prospects: Prospects, best: DraftPlan | None, room: Sequence[int]
    ) -> DraftTrial | None:
        """Return a trial, if there is one that can be paid for and makes nobody fall behind.

        Args:
            best: The plan that drafts, if one seems to pay.
            room: The drafts that each row can still use.
        """
        allowance, plain, limit = self._exploration.allowance, prospects.plain, None
        if allowance <= 0:
            return None
        if best is not None:
            trial = DraftTrial.of_plain(plain, best)
            is_due = self._schedule.step >= self._plain_at + _DRAFTED
            is_due &= best.rate < _DOUBT * plain.rate
            return trial if is_due and trial.lost <= allowance else None
        if self._kind.trees and self._kind.scored:
            # At least the likeliest node of each level is verified, see `trim`.
            prospects = replace(prospects, nodes=np.maximum(prospects.nodes, 1.0))
        # Who falls behind is not known before it is tried: not far behind, at least.
        deepest = self._max_depth if self.max_slowdown is None else 1
        trial = DraftTrial.of(prospects, room, allowance, MOST_DRAFTING, deepest)
        if self.max_slowdown is not None:
            limit = self._time_limit(prospects, trial.num_steps)
        return trial if trial.may_begin(plain, limit, allowance) else None

    def _prospects(self, batch: Batch) -> Prospects:
        given = np.array(self._given(batch))
        limits = np.minimum(batch.room, self._max_depth)
        limits = np.where(self._has_own_number, 0, limits)
        unread = self._evidence.num_unprefilled(
            [len(row.tokens) for row in batch.rows], self._max_nodes
        )
        prefill = self._prefill.seconds_each * unread / (np.array(batch.room) + 1)
        survival, nodes = self._evidence.survival(), self._evidence.nodes()
        context = sum(len(row.tokens) - 1 for row in batch.rows)
        seconds, costs = self._step_time.plain(len(batch), context), self._step_time.costs()
        return Prospects(survival, nodes, limits, given, prefill, costs, seconds)

    def _time_limit(self, prospects: Prospects, num_steps: int) -> TimeLimit:
        """Return how long each of so many steps may take if no request is to fall behind.

        Nor may one fall further behind than by a plain step.
        """
        assert self.max_slowdown is not None
        plain = prospects.plain_seconds
        allowed = self.max_slowdown * plain
        slack = np.array([request.slack for request in self._evidence.requests.selected])
        spare = (slack / num_steps).clip(min=plain - allowed)
        return lambda depths: float((allowed * (1 + prospects.accepted(depths)) + spare).min())

    def trace(self) -> list[dict[str, float]]:
        self._learn()
        return super().trace()
