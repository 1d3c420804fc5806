"""What is measured, under the field's standard names; each is defined here once, and reports print the definition."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from operator import mul
from typing import Any

import torch

from specresearch.batch import Batch, Delivery, RequestState
from specresearch.proposal import Proposal, upload
from specresearch.shift_records import ShiftSums, StepShift, TokenShift, add_up
from specresearch.step_times import StepTimes

DEFINITIONS = {
    "num_drafts": "verify steps in which a request had at least one draft token",
    "num_target_forwards": "verify steps of a request, prefill excluded",
    "num_draft_tokens": "draft tokens verified (in a tree, every node but the root)",
    "num_unjudged_tokens": "draft tokens verified that could not be accepted, because the output ended before them: they stand "
    "behind a drafted end token, or behind the token at which a limit or a stop string ended the output",
    "num_accepted_tokens": "accepted draft tokens; bonus and recovered tokens not included",
    "draft_acceptance_rate": "accepted / (draft tokens - unjudged ones); a tree's rate is not comparable with a chain's",
    "mean_acceptance_length": "1 + accepted / num_drafts",
    "tokens_per_target_forward": "generated tokens / target forwards of the request, prefill excluded",
    "acceptance_at_position": "probability that a draft is accepted down to depth i (unconditional): product of the "
    "conditional rates up to i (Kaplan and Meier 1958), so that drafts that end above i count as far as they go; it is accepted "
    "at depth i / num_drafts where all drafts are equally long and no output ends inside one",
    "conditional_acceptance_at_position": "accepted at depth i / drafts with depth i-1 accepted and a token judged at depth i",
    "expected_acceptance": "sum over the vocabulary of min(p, q), averaged over the drafts whose predecessors were accepted",
    "output_tv": "total variation between the distribution of a generated token under a lossy rule and the target's after the "
    "same tokens, averaged over generated tokens; at position i, over the drafts that reached depth i",
    "output_kl": "KL divergence of the first of these two distributions from the second, nats, averaged in the same way; null "
    "where it is infinite, because the rule emits what the target never would",
    "num_infinite_kl": "generated tokens at which output_kl is infinite",
    "refused_rate": "share of accepted drafts that rejection sampling would have refused, in expectation",
    "ttft": "seconds from a request's arrival to its first token, queueing included",
    "tpot": "(last token - first token) / (tokens - 1) of a request, seconds",
    "itl": "seconds between consecutive tokens as delivered; speculation delivers in bursts",
    "e2el": "seconds from a request's arrival to its last token",
    "queue_time": "seconds from a request's arrival to when it first got a slot of the cache; part of ttft",
    "num_preemptions": "times a request gave its slot up for lack of cache room; it is prefilled again, output so far included",
    "speedup": "baseline wall time / method wall time, same prompts, interleaved in one run",
    "decode_speedup": "speedup without any prefill: neither the target's time to read the prompts counts nor the drafter's",
    "draft_prefill_speedup": "speedup without the target's prefill: the drafter's time to read the prompts counts, which plain "
    "decoding does not spend",
    "ideal_speedup": "tau x t_forward(1) / (t_propose + t_forward(N)) from this run's own measured times",
    "efficiency": "decode speedup / ideal speedup: what the host and bookkeeping leave",
    "host_overhead": "1 - (propose + verify time) / decode wall time",
    "cost_ratio": "t_propose per draft token of the longest draft in the batch / t_forward(1)",
}


@dataclass(frozen=True)
class StepRecord:
    """One step: what each row drafted, what was accepted, and where the time went.

    num_accepted_tokens: accepted drafts that were delivered; what lies behind an end token is drafted, and not judged.
    expected_acceptance: for each row, at each draft of its chain; None where the rule is deterministic, and for trees.
    draft_depth: length of each row's longest drafted path. context: committed tokens of each row before the step.
    accepted_ranks: in trees, the place of every accepted draft of a row among its siblings. num_children: how many drafts
    there were to choose from below the root and below every accepted draft. Both None for chains.
    num_judged_tokens: drafts of each row that the end of its output did not cut off. judged_depth: how many drafts on each row's
    accepted path, and one below it, were accepted or refused.
    shift: where a lossy rule's is measured. start: when the step began, seconds of `time.perf_counter`.
    num_waiting: requests without a slot. num_prefill_tokens: tokens of prompts cached since the last record. num_caught_up:
    tokens that the proposer had put off reading, and read before it drafted.
    """

    request_ids: tuple[str, ...]
    num_draft_tokens: tuple[int, ...]
    draft_depth: tuple[int, ...]
    num_accepted_tokens: tuple[int, ...]
    num_new_tokens: tuple[int, ...]
    context: tuple[int, ...]
    expected_acceptance: tuple[tuple[float, ...], ...] | None
    num_nodes: int
    times: StepTimes
    accepted_ranks: tuple[tuple[int, ...], ...] | None = None
    num_children: tuple[tuple[int, ...], ...] | None = None
    shift: StepShift | None = None
    start: float = 0.0
    num_waiting: int = 0
    num_prefill_tokens: int = 0
    num_caught_up: int = 0
    num_judged_tokens: tuple[int, ...] = ()
    judged_depth: tuple[int, ...] = ()

    @staticmethod
    def of(
        batch: Batch,
        proposal: Proposal,
        delivery: Delivery,
        times: StepTimes,
        shift: StepShift | None = None,
        start: float = 0.0,
        num_waiting: int = 0,
        num_prefill_tokens: int = 0,
        num_caught_up: int = 0,
    ) -> "StepRecord":
        drafted = tuple(length - 1 for length in delivery.lengths)
        new, expected = delivery.num_new, delivery.verdict.expected
        accepted = tuple(delivery.verdict.num_accepted.tolist())
        judged = _num_judged(batch, proposal, delivery, accepted)
        if proposal.topology.is_chain:
            depth, ranks, num_children = drafted, None, None
            judged_depth = tuple(min(a + 1, n) for a, n in zip(accepted, judged, strict=True))
        else:
            depth, ranks, num_children = _walk(proposal, delivery)
            judged_depth = tuple(sum(num > 0 for num in choices) for choices in num_children)
        return StepRecord(
            tuple(row.id for row in batch.rows),
            drafted,
            depth,
            accepted,
            new,
            tuple(len(row.tokens) - n - 1 for row, n in zip(batch.rows, new, strict=True)),
            None
            if expected is None
            else tuple(tuple(row[:n]) for row, n in zip(expected.tolist(), depth, strict=True)),
            proposal.topology.num_nodes,
            times,
            ranks,
            num_children,
            shift,
            start,
            num_waiting,
            num_prefill_tokens,
            num_caught_up,
            judged,
            judged_depth,
        )


def _num_judged(batch: Batch, proposal: Proposal, delivery: Delivery, accepted: Sequence[int]) -> tuple[int, ...]:
    """Return how many drafts of each row are neither behind a drafted end token nor cut off where the output ended.

    A drafted end token counts whether it was accepted or not: otherwise drafts would be left out only where all before them
    were accepted.
    """
    drafted = [length - 1 for length in delivery.lengths]
    cuts = [n if n == a else None for a, n in zip(accepted, delivery.num_new, strict=True)]
    ends = [row.end_ids for row in batch.rows]
    if not any(drafted) or (not any(ends) and cuts.count(None) == len(cuts)):
        return tuple(drafted)
    tokens, topology = proposal.token_ids.tolist(), proposal.topology  # sync
    is_end = [[token in own for token in row] for own, row in zip(ends, tokens, strict=True)]
    if topology.is_chain:
        firsts = [
            next((depth for depth in range(1, num) if row[depth]), num)
            for row, num in zip(is_end, drafted, strict=True)
        ]
        return tuple(first if cut is None else min(first, cut) for first, cut in zip(firsts, cuts, strict=True))
    marks = upload(is_end, topology.parents.device)
    marks[:, 0] = False  # the root is no draft
    above = topology.ancestors & ~torch.eye(topology.num_nodes, dtype=torch.bool, device=marks.device)
    is_behind = (above & marks[:, None]).any(2)
    limits = upload([topology.num_nodes if cut is None else cut for cut in cuts], marks.device)
    is_judged = proposal.acceptable & ~is_behind & (topology.depth <= limits[:, None])
    return tuple((is_judged.sum(1) - 1).tolist())  # sync


Lists = tuple[tuple[int, ...], ...]


def _walk(proposal: Proposal, delivery: Delivery) -> tuple[tuple[int, ...], Lists, Lists]:
    """Return each row's depth, the rank of every accepted draft, and the choices below every node on the path.

    Nothing could be chosen below the token that ended the output.
    """
    rows = len(proposal.token_ids)
    depths = proposal.topology.depth.expand(rows, -1).masked_fill(~proposal.acceptable, 0).max(1).values
    path = upload(delivery.verdict.path.tolist(), proposal.token_ids.device)
    children = proposal.topology.children.expand(rows, -1, -1)  # [B, N, R]
    at = path.clamp(min=0)[:, :, None].expand(-1, -1, children.shape[2])
    below = children.gather(1, at)  # [B, D, R]
    usable = (below >= 0) & proposal.acceptable.gather(1, below.clamp(min=0).flatten(1)).view_as(below)
    taken = (below[:, :-1] == path[:, 1:, None]).long().argmax(2)
    packed = torch.cat([depths[:, None], taken, usable.sum(2)], dim=1).tolist()  # sync
    steps = path.shape[1] - 1
    accepted = delivery.verdict.num_accepted.tolist()
    is_cut = [n == a for a, n in zip(accepted, delivery.num_new, strict=True)]
    return (
        tuple(row[0] for row in packed),
        tuple(tuple(row[1 : 1 + n]) for row, n in zip(packed, accepted, strict=True)),
        tuple(
            (*row[1 + steps : 1 + steps + n], 0 if cut else row[1 + steps + n])
            for row, n, cut in zip(packed, accepted, is_cut, strict=True)
        ),
    )


@dataclass
class Counts:
    """Running counts of one request, or of many added up. Position lists start at depth 1. shift: None if it is not measured."""

    num_target_forwards: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_generated_tokens: int = 0
    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)
    shift: ShiftSums | None = None
    num_unjudged_tokens: int = 0

    def add_step(
        self,
        drafted: int,
        depth: int,
        accepted: int,
        new: int,
        expected: Sequence[float] | None = None,
        shift: TokenShift | None = None,
        num_judged: int | None = None,
        judged_depth: int | None = None,
    ) -> None:
        """Count one verify step; arguments as in `StepRecord`.

        reached[i]: drafts judged at depth i + 1, everything above accepted; expected[i]: how many of them were expected to be
        accepted, which for a deterministic rule is how many were. Without num_judged and judged_depth the output did not end
        inside the draft, and the draft is a chain.
        """
        self.num_target_forwards += 1
        self.num_drafts += drafted > 0
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        self.num_generated_tokens += new
        grow = depth - len(self.reached)
        if grow > 0:
            self.reached += [0] * grow
            self.accepted += [0] * grow
            self.expected += [0.0] * grow
        self.num_unjudged_tokens += 0 if num_judged is None else drafted - num_judged
        for i in range(min(accepted + 1, depth) if judged_depth is None else judged_depth):
            self.reached[i] += 1
            self.accepted[i] += i < accepted
            self.expected[i] += expected[i] if expected is not None else i < accepted
        if shift is not None:
            self.shift = self.shift or ShiftSums()
            self.shift.add(depth, shift)

    @staticmethod
    def total(parts: "Sequence[Counts]") -> "Counts":
        shifts = [part.shift for part in parts if part.shift is not None]
        return Counts(
            sum(part.num_target_forwards for part in parts),
            sum(part.num_drafts for part in parts),
            sum(part.num_draft_tokens for part in parts),
            sum(part.num_accepted_tokens for part in parts),
            sum(part.num_generated_tokens for part in parts),
            add_up([part.reached for part in parts]),
            add_up([part.accepted for part in parts]),
            add_up([part.expected for part in parts]),
            ShiftSums.total(shifts) if shifts else None,
            sum(part.num_unjudged_tokens for part in parts),
        )

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> "Counts":
        """Return the counts of a flat row. Raises KeyError for one that lacks some, `num_unjudged_tokens` (0) excepted."""
        told = {f.name: row[f.name] for f in fields(Counts) if f.name != "num_unjudged_tokens"}
        if told["shift"] is not None:
            told["shift"] = ShiftSums(**told["shift"])
        return Counts(**told, num_unjudged_tokens=row.get("num_unjudged_tokens", 0))

    @property
    def num_judged_tokens(self) -> int:
        return self.num_draft_tokens - self.num_unjudged_tokens

    @property
    def draft_acceptance_rate(self) -> float:
        return _ratio(self.num_accepted_tokens, self.num_judged_tokens)

    @property
    def mean_acceptance_length(self) -> float:
        return 1 + _ratio(self.num_accepted_tokens, self.num_drafts)

    @property
    def tokens_per_target_forward(self) -> float:
        return _ratio(self.num_generated_tokens, self.num_target_forwards)

    @property
    def expected_acceptance(self) -> float:
        return _ratio(sum(self.expected), sum(self.reached))

    @property
    def expected_acceptance_at_position(self) -> list[float]:
        return [_ratio(e, r) for e, r in zip(self.expected, self.reached, strict=True)]

    @property
    def acceptance_at_position(self) -> list[float]:
        return list(accumulate(self.conditional_acceptance_at_position, mul))

    @property
    def conditional_acceptance_at_position(self) -> list[float]:
        return [_ratio(a, r) for a, r in zip(self.accepted, self.reached, strict=True)]

    @property
    def output_tv(self) -> float | None:
        return None if self.shift is None else _ratio(sum(self.shift.total_variation), self.num_generated_tokens)

    @property
    def output_kl(self) -> float | None:
        if self.shift is None or any(self.shift.num_infinite):
            return None
        return _ratio(sum(self.shift.kl), self.num_generated_tokens)

    @property
    def num_infinite_kl(self) -> int | None:
        return None if self.shift is None else sum(self.shift.num_infinite)

    @property
    def refused_rate(self) -> float | None:
        return None if self.shift is None else _ratio(sum(self.shift.refusal), self.num_accepted_tokens)

    @property
    def output_tv_at_position(self) -> list[float]:
        sums = self.shift or ShiftSums()
        return [_ratio(tv, r) for tv, r in zip(sums.total_variation, self.reached, strict=False)]

    @property
    def output_kl_at_position(self) -> list[float | None]:
        sums = self.shift or ShiftSums()
        finite = zip(sums.kl, self.reached, sums.num_infinite, strict=False)
        return [None if num_infinite else _ratio(kl, r) for kl, r, num_infinite in finite]

    @property
    def refused_rate_at_position(self) -> list[float]:
        sums = self.shift or ShiftSums()
        return [_ratio(refusal, a) for refusal, a in zip(sums.refusal, self.accepted, strict=False)]


def _ratio(part: int | float, whole: int) -> float:
    return part / whole if whole else 0.0


@dataclass(frozen=True)
class RequestRecord:
    """One finished request. Times in seconds; see `DEFINITIONS`. arrival_time: of `time.perf_counter`."""

    id: str
    num_prompt_tokens: int
    counts: Counts
    finish_reason: str
    ttft: float
    tpot: float
    e2el: float
    itl: tuple[float, ...]
    prefill_time: float
    num_preemptions: int = 0
    queue_time: float = 0.0
    arrival_time: float = 0.0

    @staticmethod
    def of(state: RequestState, counts: Counts) -> "RequestRecord":
        assert state.finish_reason is not None
        moments = state.token_times or [math.nan]  # none of a request that failed before its first token
        first, last, num = moments[0], moments[-1], len(moments)
        return RequestRecord(
            state.id,
            state.num_prompt_tokens,
            counts,
            state.finish_reason,
            first - state.arrival_time,
            (last - first) / (num - 1) if num > 1 else 0.0,
            last - state.arrival_time,
            tuple(b - a for a, b in zip(state.token_times, state.token_times[1:], strict=False)),
            state.prefill_time,
            state.num_preemptions,
            state.queue_time,
            state.arrival_time,
        )
