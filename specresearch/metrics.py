"""What is measured, under the field's standard names; each is defined here once, and reports print the definition."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specresearch.batch import Batch, Delivery, RequestState
from specresearch.proposal import Proposal, upload
from specresearch.shift_records import ShiftSums, StepShift, TokenShift, add_up
from specresearch.step_times import StepTimes

DEFINITIONS = {
    "num_drafts": "verify steps in which a request had at least one draft token",
    "num_target_forwards": "verify steps of a request, prefill excluded",
    "num_draft_tokens": "draft tokens verified (in a tree, every node but the root)",
    "num_accepted_tokens": "accepted draft tokens; bonus and recovered tokens not included",
    "draft_acceptance_rate": "accepted / draft tokens; a tree's rate is not comparable with a chain's",
    "mean_acceptance_length": "1 + accepted / num_drafts",
    "tokens_per_target_forward": "generated tokens / target forwards of the request, prefill excluded",
    "acceptance_at_position": "accepted at depth i / num_drafts (unconditional)",
    "conditional_acceptance_at_position": "accepted at depth i / drafts that reached depth i with depth i-1 accepted",
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
    "decode_speedup": "speedup without the time spent on prefill",
    "ideal_speedup": "tau x t_forward(1) / (t_propose + t_forward(N)) from this run's own measured times",
    "efficiency": "decode speedup / ideal speedup: what the host and bookkeeping leave",
    "host_overhead": "1 - (propose + verify time) / decode wall time",
    "cost_ratio": "t_propose per draft token of the longest draft in the batch / t_forward(1)",
}


@dataclass(frozen=True)
class StepRecord:
    """One step: what each row drafted, what was accepted, and where the time went.

    num_accepted_tokens: accepted drafts that were delivered; what lies behind an end token counts as drafted only.
    expected_acceptance: for each row, at each draft of its chain; None where the rule is deterministic, and for trees.
    draft_depth: length of each row's longest drafted path. context: committed tokens of each row before the step.
    accepted_ranks: in trees, the place of every accepted draft of a row among its siblings. num_children: how many drafts
    there were to choose from below the root and below every accepted draft. Both None for chains.
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
        depth, ranks, num_children = drafted, None, None
        if not proposal.topology.is_chain:
            depth, ranks, num_children = _walk(proposal, delivery)
        new, expected = delivery.num_new, delivery.verdict.expected
        return StepRecord(
            tuple(row.id for row in batch.rows),
            drafted,
            depth,
            tuple(delivery.verdict.num_accepted.tolist()),
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
        )


Lists = tuple[tuple[int, ...], ...]


def _walk(proposal: Proposal, delivery: Delivery) -> tuple[tuple[int, ...], Lists, Lists]:
    """Of every row of a tree: its depth, the rank of every accepted draft, and the children at every node on the path."""
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
    return (
        tuple(row[0] for row in packed),
        tuple(tuple(row[1 : 1 + n]) for row, n in zip(packed, accepted, strict=True)),
        tuple(tuple(row[1 + steps : 2 + steps + n]) for row, n in zip(packed, accepted, strict=True)),
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

    def add_step(
        self,
        drafted: int,
        depth: int,
        accepted: int,
        new: int,
        expected: Sequence[float] | None = None,
        shift: TokenShift | None = None,
    ) -> None:
        """reached[i]: drafts that went to depth i + 1 with everything above accepted; expected[i]: how many of them were
        expected to be accepted, which for a deterministic rule is how many were.
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
        for i in range(min(accepted + 1, depth)):
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
        )

    @property
    def draft_acceptance_rate(self) -> float:
        return _ratio(self.num_accepted_tokens, self.num_draft_tokens)

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
        return [_ratio(count, self.num_drafts) for count in self.accepted]

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
