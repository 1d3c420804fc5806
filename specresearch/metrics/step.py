"""The record of one engine step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specresearch.batch import Batch, Delivery
from specresearch.metrics.shift import StepShift
from specresearch.metrics.times import StepTimes
from specresearch.proposal import Proposal

Lists = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class StepRecord:
    """What each row drafted in a step, what was accepted, and where the time went.

    Tuples have an entry for each row.

    Attributes:
        num_draft_tokens: Drafts that were verified.
        draft_depth: Length of the longest drafted path.
        num_accepted_tokens: Accepted drafts that were delivered. Drafts behind the end of an output
            are drafted but not judged.
        num_new_tokens: Tokens delivered, the target's own included.
        context: Committed tokens before the step.
        expected_acceptance: The acceptance probability of each draft of a chain; None if the rule
            is deterministic, and for trees.
        num_nodes: Nodes of the widest row, root included.
        accepted_ranks: In trees, the rank of every accepted draft among its siblings.
        num_children: In trees, how many drafts there were to choose from below the root and below
            every accepted draft.
        shift: How far a lossy rule moved the output, if that is measured.
        start: When the step began, on the engine's clock.
        num_waiting: Requests without a slot.
        num_prefill_tokens: Prompt tokens cached since the last record.
        num_lazy_prefill_tokens: Tokens that the proposer had put off and prefilled in this step.
        num_judged_tokens: Drafts that the end of the output did not cut off.
        judged_depth: Drafts on the accepted path, and one below it, that were accepted or refused.
        budget: The drafts that each row was granted.
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
    accepted_ranks: Lists | None = None
    num_children: Lists | None = None
    shift: StepShift | None = None
    start: float = 0.0
    num_waiting: int = 0
    num_prefill_tokens: int = 0
    num_lazy_prefill_tokens: int = 0
    num_judged_tokens: tuple[int, ...] = ()
    judged_depth: tuple[int, ...] = ()
    budget: tuple[int, ...] = ()

    @staticmethod
    def of(
        batch: Batch,
        proposal: Proposal,
        delivery: Delivery,
        times: StepTimes,
        *,
        shift: StepShift | None = None,
        start: float = 0.0,
        num_waiting: int = 0,
        num_prefill_tokens: int = 0,
        num_lazy_prefill_tokens: int = 0,
    ) -> "StepRecord":
        """Return the record of a step whose tokens have been delivered."""
        num_drafts = tuple(length - 1 for length in delivery.lengths)
        num_accepted = tuple(delivery.verdict.num_accepted.tolist())
        num_judged = _num_judged(batch, delivery, num_accepted)
        depth, ranks, num_children = num_drafts, None, None
        judged_depth = []
        if proposal.topology.is_chain:
            for accepted, judged in zip(num_accepted, num_judged, strict=True):
                judged_depth.append(min(accepted + 1, judged))
        else:
            depth, ranks, num_children = _walk(delivery)
            for choices in num_children:
                judged_depth.append(sum(num > 0 for num in choices))
        contexts = []
        for row, num_new in zip(batch.rows, delivery.num_new, strict=True):
            contexts.append(len(row.tokens) - 1 - num_new)
        return StepRecord(
            request_ids=tuple(row.id for row in batch.rows),
            num_draft_tokens=num_drafts,
            draft_depth=depth,
            num_accepted_tokens=num_accepted,
            num_new_tokens=delivery.num_new,
            context=tuple(contexts),
            expected_acceptance=_expected_acceptance(delivery, depth),
            num_nodes=proposal.topology.num_nodes,
            times=times,
            accepted_ranks=ranks,
            num_children=num_children,
            shift=shift,
            start=start,
            num_waiting=num_waiting,
            num_prefill_tokens=num_prefill_tokens,
            num_lazy_prefill_tokens=num_lazy_prefill_tokens,
            num_judged_tokens=num_judged,
            judged_depth=tuple(judged_depth),
            budget=tuple(batch.budget),
        )


def _expected_acceptance(
    delivery: Delivery, depth: Sequence[int]
) -> tuple[tuple[float, ...], ...] | None:
    if delivery.verdict.expected is None:
        return None
    rows = delivery.verdict.expected.tolist()
    return tuple(tuple(row[:n]) for row, n in zip(rows, depth, strict=True))


def _num_judged(batch: Batch, delivery: Delivery, num_accepted: Sequence[int]) -> tuple[int, ...]:
    """Return how many drafts of each row come before the end of its output.

    Drafts after a drafted end token do not count, whether that token was accepted or not:
    otherwise drafts would be left out only where all before them were accepted.
    """
    num_drafts = [length - 1 for length in delivery.lengths]
    # Without a token of the target's own, the output ended inside the draft.
    pairs = zip(num_accepted, delivery.num_new, strict=True)
    cuts = [new if new == accepted else None for accepted, new in pairs]
    end_ids = [row.end_ids for row in batch.rows]
    is_uncut = cuts.count(None) == len(cuts) and not any(end_ids)
    if not any(num_drafts) or is_uncut:
        return tuple(num_drafts)
    drafts = delivery.drafts
    is_end = [
        [token in ids for token in row]
        for ids, row in zip(end_ids, drafts.tokens.tolist(), strict=True)
    ]
    if drafts.is_chain:
        return _num_judged_of_chains(is_end, num_drafts, cuts)
    end_nodes = np.array(is_end)
    end_nodes[:, 0] = False  # the root is no draft
    is_behind_end = np.zeros_like(end_nodes)
    for node in drafts.ancestors():
        is_behind_end |= (node > 0) & np.take_along_axis(end_nodes, np.maximum(node, 0), 1)
    limits = np.array([end_nodes.shape[1] if cut is None else cut for cut in cuts])
    is_judged = drafts.acceptable & ~is_behind_end & (drafts.depth <= limits[:, None])
    return tuple((is_judged.sum(1) - 1).tolist())


def _num_judged_of_chains(
    is_end: Sequence[Sequence[bool]], num_drafts: Sequence[int], cuts: Sequence[int | None]
) -> tuple[int, ...]:
    judged = []
    for row, num, cut in zip(is_end, num_drafts, cuts, strict=True):
        first_end = next((depth for depth in range(1, num) if row[depth]), num)
        judged.append(first_end if cut is None else min(first_end, cut))
    return tuple(judged)


def _walk(delivery: Delivery) -> tuple[tuple[int, ...], Lists, Lists]:
    """Return each row's depth, the rank of every accepted draft, and the choices below each node.

    Nothing can be chosen below the token that ended the output.
    """
    drafts, path = delivery.drafts, delivery.verdict.path.numpy()
    depths = (drafts.depth * drafts.acceptable).max(1)
    is_below = drafts.parents[:, None] == path[:, :, None]  # [B, D, N]
    num_usable = (is_below & drafts.acceptable[:, None]).sum(2).tolist()
    is_before = np.arange(drafts.tokens.shape[1]) < path[:, 1:, None]
    rank = (is_below[:, :-1] & is_before).sum(2).tolist()  # [B, D - 1]
    ranks, num_children = [], []
    num_accepted = delivery.verdict.num_accepted.tolist()
    for b, (accepted, new) in enumerate(zip(num_accepted, delivery.num_new, strict=True)):
        choices = num_usable[b][: accepted + 1]
        if new == accepted:  # the output ended with the last accepted draft
            choices[-1] = 0
        ranks.append(tuple(rank[b][:accepted]))
        num_children.append(tuple(choices))
    return tuple(depths.tolist()), tuple(ranks), tuple(num_children)
