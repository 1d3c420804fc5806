"""The record of one engine step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specresearch.batch import Batch, Delivery
from specresearch.metrics.shift import StepShift
from specresearch.metrics.times import StepTimes
from specresearch.proposal import Proposal, upload


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


def _num_judged(
    batch: Batch, proposal: Proposal, delivery: Delivery, accepted: Sequence[int]
) -> tuple[int, ...]:
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
        return tuple(
            first if cut is None else min(first, cut)
            for first, cut in zip(firsts, cuts, strict=True)
        )
    marks = upload(is_end, topology.parents.device)
    marks[:, 0] = False  # the root is no draft
    above = topology.ancestors & ~torch.eye(
        topology.num_nodes, dtype=torch.bool, device=marks.device
    )
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
    depths = (
        proposal.topology.depth.expand(rows, -1).masked_fill(~proposal.acceptable, 0).max(1).values
    )
    path = upload(delivery.verdict.path.tolist(), proposal.token_ids.device)
    children = proposal.topology.children.expand(rows, -1, -1)  # [B, N, R]
    at = path.clamp(min=0)[:, :, None].expand(-1, -1, children.shape[2])
    below = children.gather(1, at)  # [B, D, R]
    usable = (below >= 0) & proposal.acceptable.gather(1, below.clamp(min=0).flatten(1)).view_as(
        below
    )
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
