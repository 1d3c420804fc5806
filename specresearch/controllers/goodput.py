"""Drafts that make the whole batch fastest, by times and acceptance measured during the run.

After SmartSpec (Liu et al., https://arxiv.org/abs/2406.14066): expected tokens of all requests over
the time of the step, with a length for each request and, in trees, a choice of nodes.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specresearch.batch import Batch
from specresearch.controllers.base import AT_LEAST_ONE, check
from specresearch.controllers.decision_schedule import MOST_DRAFTING, MOST_IDLE, DecisionSchedule
from specresearch.controllers.draft_plan import DraftPlan, Prospects, TimeLimit
from specresearch.controllers.draft_trial import DraftTrial
from specresearch.controllers.evidence import AskedStep, RequestEvidence
from specresearch.controllers.first_steps import FirstSteps
from specresearch.controllers.run_estimates import RunEstimates
from specresearch.controllers.scored_tree import ScoredTree
from specresearch.controllers.time_account import TimeAccount
from specresearch.controllers.trace import TracedController
from specresearch.controllers.tree_size import TreeSize
from specresearch.metrics import StepRecord
from specresearch.proposal import DraftForecast, DraftKind, Proposal

_DOUBT = 1.15  # of gains below which plain steps are tried now and then
_OVERRUN = 2.0  # planned steps by which drafts may be late before they are reconsidered


class Goodput(TracedController):
    """Maximizes expected tokens per second over what all requests draft.

    A step has two decisions, each by what it may look at:

    - Before drafting, how deep each request drafts, from earlier steps. A drafter with a model
      needs a pass for each level; one that needs none may find its depth by itself.
    - After drafting, which nodes are verified, by the drafter's own scores, if all drafts are point
      masses: any choice among these is lossless. What scores mean is learned from the run. Sampled
      drafts are shortened by the first decision alone, and trees of few requests mostly have the
      number of nodes that was chosen lately, or as many as a lookup finds.

    Both keep a draft if it yields more tokens than its time would yield elsewhere. A decision that
    confirms the one before holds for twice as many steps, and longer if decisions have taken too
    much of the time. Requests that come meanwhile draft as deep as pays for one like the others;
    they cause a new decision only if nothing drafts, or if `max_slowdown` is set.

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
        explore: Share of the time that may be lost by such trials, at the start a little more.
        prior_weight: Drafts of its own after which a request's acceptance counts as much as the
            run's mean; None: 40, or 10 if `max_slowdown` is set.
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
        self.bind(DraftKind(), max_draft_tokens or 1)  # until a proposer is known

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
        self._estimates = RunEstimates(
            self._max_depth,
            self.memory,
            self.prior_weight,
            self.max_slowdown,
            self._forecast,
            finds_depth=self._kind.finds_depth,
        )
        self._unlearned: list[AskedStep] = []
        self._size = TreeSize(self.memory, finds_depth=self._kind.finds_depth)
        self._first = FirstSteps(self._kind, self._forecast)
        self._exploration = TimeAccount(self.explore)
        self._schedule = DecisionSchedule(len(self._first))
        self._decided_for: list[RequestEvidence] = []
        self._depths: list[int] = []  # decided
        self._newcomer = (0, 0.0)  # the depth of one, and the prefill that it may cost
        self._asked: list[int] = []  # in this step
        self._has_own_number: list[bool] = []  # by row; their drafts are left as they are
        self._price = self._step_seconds = self._node_seconds = 0.0
        self._overrun = self._trial_lost = 0.0
        self._plain_at = 0  # the last decision or trial without drafts
        self._tree: tuple[ScoredTree, np.ndarray] | None = None

    def budget(self, batch: Batch) -> list[int | None]:
        requests = self._estimates.evidence.requests.select(batch.rows)
        self._has_own_number = [row.request.num_draft_tokens is not None for row in batch.rows]
        if self._is_start:
            first = self._first.depths(self._schedule.step, self._limits(batch))
            self._asked = list(map(max, first, self._given(batch)))
        else:
            has_changed = self._decided_for is not requests
            if self._must_decide(has_changed=has_changed):
                self._decide(batch)
            elif has_changed:
                self._welcome(batch, requests)
            self._decided_for = requests
            self._asked = list(map(min, self._depths, batch.room))
        if not (self._kind.trees and any(self._asked)):
            return [*self._asked]
        if self._is_start:
            nodes = self._first.num_nodes(self._schedule.step)
        else:
            is_new = self._schedule.has_just_decided
            nodes = self._size.num_nodes(len(batch), max(self._asked), is_new=is_new)
        return [min(nodes, self._max_nodes) if depth else 0 for depth in self._asked]

    def _must_decide(self, *, has_changed: bool) -> bool:
        """Return whether the last decision ends: in time, or by other requests, or as too slow."""
        if any(self._depths):
            is_other = has_changed and self.max_slowdown is not None
        else:
            is_other = has_changed and self._schedule.is_paid and not self._schedule.is_trial
        is_late = self._overrun > _OVERRUN * self._step_seconds
        return self._schedule.is_due() or is_other or is_late

    def max_depth(self, batch: Batch) -> int | None:
        is_limited = self._kind.trees and not self._kind.finds_depth
        return max(self._asked) if is_limited else None

    def max_width(self, batch: Batch) -> int | None:
        is_free = self._kind.trees and not any(self._has_own_number)
        return self._size.width if is_free else None

    def trim(self, proposal: Proposal) -> Proposal:
        self._tree = None
        if not (proposal.can_be_chosen_from and self._size.chooses):
            return proposal
        num_drafts = (proposal.topology.num_nodes - 1) * len(proposal.token_ids)
        is_cheap = num_drafts * self._node_seconds <= self.margin * self._step_seconds
        if is_cheap and not self._is_start:
            return proposal
        tree = ScoredTree.of(proposal)
        keep = self._estimates.scores.survival(tree) >= min(self._price * self._node_seconds, 1.0)
        keep |= np.repeat(self._has_own_number, tree.widths)
        if self._is_last_of_start:
            keep = tree.likeliest()
        elif self._schedule.is_trial:
            keep |= tree.likeliest()
        keep &= tree.is_valid
        self._tree = tree, keep
        return tree.kept(keep, proposal)

    def observe(self, record: StepRecord) -> None:
        requests = self._estimates.evidence.requests.selected
        # The scheduler may grant less, and a drafter that is still reading makes nothing.
        granted = record.budget or self._asked
        asked = self._asked
        if any(asked):
            asked = [min(pair) if pair[1] else 0 for pair in zip(asked, granted, strict=True)]
        is_whole = self._is_start and not self._is_last_of_start and self._tree is not None
        self._unlearned.append(AskedStep(record, requests, asked, self._tree, is_whole))
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

    @property
    def _is_last_of_start(self) -> bool:
        return self._first.is_last(self._schedule.step)

    def _given(self, batch: Batch) -> list[int]:
        """Return the depth that requests with a number of drafts of their own have."""
        given = []
        for row, room in zip(batch.rows, batch.room, strict=True):
            number = row.request.num_draft_tokens or 0
            depth = self._max_depth if self._kind.trees and number else number
            given.append(min(depth, room))
        return given

    def _welcome(self, batch: Batch, requests: list[RequestEvidence]) -> None:
        """Keep what was decided for each request, and let newcomers draft if that pays for them."""
        decided = dict(zip(map(id, self._decided_for), self._depths, strict=True))
        (depth, most), each = self._newcomer, self._estimates.prefill.seconds_each
        self._depths, given = [], self._given(batch)
        for b, row in enumerate(batch.rows):
            pays = each * len(row.tokens) < most * (batch.room[b] + 1)
            its_first = depth if pays and not self._has_own_number[b] else given[b]
            self._depths.append(decided.get(id(requests[b]), its_first))

    def _learn(self) -> None:
        steps, self._unlearned = self._unlearned, []
        if steps:
            self._estimates.learn(steps, self._trace)
            self._size.observe(steps)

    def _decide(self, batch: Batch) -> None:
        """Choose depths, and keep them for several steps if they confirm the last ones."""
        self._learn()
        prospects = self._estimates.prospects(
            batch, self._limits(batch), self._given(batch), self._max_nodes
        )
        plain, best = prospects.plain, prospects.fastest()
        if self.max_slowdown is not None:
            limit = self._time_limit(prospects, self._schedule.most_held)
            best = prospects.fastest_within(limit, best)
        least = (1 + self.margin) * plain.rate
        later = replace(prospects, prefill=self._estimates.prefill.of_all(batch))
        drafts = best.rate > least and later.plan(best.depths).rate > least
        chosen, trial = best if drafts else plain, None
        self._price, self._step_seconds = chosen.rate, chosen.seconds
        self._node_seconds = prospects.costs.node
        if not self._schedule.is_trial:
            trial = self._trial(prospects, best if drafts else None, batch.room)
        if not (drafts and trial is None):
            self._plain_at = self._schedule.step
        if trial is None:
            self._schedule.decide(drafts=drafts, is_new=self._trial_lost < 0)
            self._trial_lost = 0.0
            self._newcomer = prospects.newcomer(chosen)
        else:
            chosen, self._newcomer = trial.plan, (0, 0.0)
            self._schedule.try_for(trial.num_steps)
        self._depths, self._overrun = chosen.depths.tolist(), 0.0
        if self._kind.trees:
            self._size.expect(prospects.nodes[: max(self._depths)])

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
            is_due = self._schedule.step >= self._plain_at + MOST_IDLE
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

    def _limits(self, batch: Batch) -> list[int]:
        """Return the most levels of each request; 0 for those with a number of their own."""
        rows = zip(self._has_own_number, batch.room, strict=True)
        return [0 if has_own else min(room, self._max_depth) for has_own, room in rows]

    def _time_limit(self, prospects: Prospects, num_steps: int) -> TimeLimit:
        """Return how long each of so many steps may take if no request is to fall behind.

        Nor may one fall further behind than by a plain step.
        """
        assert self.max_slowdown is not None
        plain = prospects.plain_seconds
        allowed = self.max_slowdown * plain
        slack = np.array([request.slack for request in self._estimates.evidence.requests.selected])
        spare = (slack / num_steps).clip(min=plain - allowed)
        return lambda depths: float((allowed * (1 + prospects.accepted(depths)) + spare).min())

    def trace(self) -> list[dict[str, float]]:
        self._learn()
        return super().trace()
