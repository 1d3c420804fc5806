"""Several proposers in turn: each row takes its drafts from the first one that has any for it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice

from jaxtyping import Shaped
from torch import Tensor

from specresearch.batch import Batch
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.proposal import DraftKind, Proposal, Verdict
from specresearch.proposers.base import Proposer, check_num_draft_tokens, drafts_of
from specresearch.proposers.draft_shape import AUTO, DraftShape, NumDrafts
from specresearch.proposers.partial import PartialProposal, merge
from specresearch.request import RequestState


class Cascade(Proposer):
    """Asks proposers in order, each for the rows without drafts so far; all of them learn.

    A proposer sees only the rows that it drafts for, so its state of other rows remains that of
    the committed tokens.

    Args:
        num_draft_tokens: The most drafts of each proposer; None leaves that to them. `auto`
            measures how many pay, and how many of the proposers.
        num_proposers: Of the proposers, those that are asked; None asks all.

    Raises:
        ValueError: For a deterministic tree beside sampled drafts: a proposal has draft
            probabilities for all rows or for none, and they cannot express siblings that were
            not drawn. Also for a proposer with probe nodes.
    """

    def __init__(
        self,
        proposers: Sequence[Proposer],
        num_draft_tokens: NumDrafts | None = None,
        num_proposers: int | None = None,
    ) -> None:
        if len(proposers) < 2:
            raise ValueError(f"a cascade needs at least two proposers; got {len(proposers)}")
        self.proposers = tuple(proposers)
        self._asked = self._first(num_proposers)
        _check_compatible(self.proposers)
        kinds = [proposer.kind for proposer in proposers]
        self.kind = DraftKind(
            trees=any(kind.trees for kind in kinds),
            sampled=all(kind.sampled for kind in kinds),
            scored=all(kind.scored for kind in kinds),
            finds_depth=all(kind.finds_depth for kind in kinds),
        )
        self._lengths = [proposer.num_draft_tokens for proposer in proposers]
        self.num_draft_tokens = max(self._lengths[: len(self._asked)])
        if num_draft_tokens == AUTO:
            self.shapes = tuple(map(self._largest_shape, self._choices(num_proposers)))
        elif num_draft_tokens is not None:
            most = check_num_draft_tokens(num_draft_tokens)
            self.num_draft_tokens = min(most, self.num_draft_tokens)
        self._num_wanted = [0] * len(proposers)  # tensors in the last readback, by proposer
        self._join_layers()

    def _first(self, num_proposers: int | None) -> tuple[Proposer, ...]:
        num = len(self.proposers) if num_proposers is None else num_proposers
        if not 1 <= num <= len(self.proposers):
            raise ValueError(
                f"proposer.num_proposers={num} must be 1 to {len(self.proposers)}, as many as the "
                "cascade has; null asks all"
            )
        return self.proposers[:num]

    def _choices(self, num_proposers: int | None) -> Sequence[int]:
        """Return how many proposers may be asked."""
        return range(1, len(self.proposers) + 1) if num_proposers is None else [num_proposers]

    def _largest_shape(self, num_proposers: int) -> DraftShape:
        most = max(self._lengths[:num_proposers])
        return DraftShape(most, num_proposers=num_proposers)

    @property
    def shape_now(self) -> DraftShape:
        return DraftShape(self.num_draft_tokens, num_proposers=len(self._asked))

    def draft_as(self, shape: DraftShape) -> None:
        super().draft_as(shape)
        self._asked = self._first(shape.num_proposers)

    def _join_layers(self) -> None:
        layers: dict[int, None] = {}
        for proposer in self.proposers:
            layers |= dict.fromkeys(proposer.hidden_layers)
        self.hidden_layers = tuple(layers)

    def bind(self, target: CausalLM, num_slots: int) -> None:
        for proposer in self.proposers:
            proposer.bind(target, num_slots)
        self._join_layers()

    def start(self, rows: Sequence[RequestState], output: ModelOutput | None) -> None:
        for proposer in self.proposers:
            proposer.start(rows, None if output is None else self._output_for(proposer, output))

    def _output_for(self, proposer: Proposer, output: ModelOutput) -> ModelOutput:
        """Return the output with the hidden states that this proposer asked for."""
        indexes = map(self.hidden_layers.index, proposer.hidden_layers)
        return ModelOutput(output.logits, tuple(output.hidden[index] for index in indexes))

    def num_reusable(self, slot: int, num_tokens: int) -> int:
        for proposer in self.proposers:
            num_tokens = proposer.num_reusable(slot, num_tokens)
        return num_tokens

    def reuse(self, slot: int, source: int, num_tokens: int) -> None:
        for proposer in self.proposers:
            proposer.reuse(slot, source, num_tokens)

    def lazy_prefill(self, rows: Sequence[RequestState]) -> int:
        """Prefill the first proposer; the others prefill when they are asked, chunk by chunk."""
        return self.proposers[0].lazy_prefill(rows)

    def is_behind(self, row: RequestState) -> bool:
        return self.proposers[0].is_behind(row)

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        if not any(budget):
            return Proposal.empty(batch.roots)
        parts: list[PartialProposal] = []
        waiting = [row for row, allowed in enumerate(budget) if allowed > 0]
        for proposer in self._asked:
            if not waiting:
                break
            part = _ask(proposer, batch, budget, waiting, is_last=proposer is self._asked[-1])
            if len(part.batch_rows) == len(batch):
                return part.proposal
            if part.batch_rows:
                parts.append(part)
            drafted = set(part.batch_rows)
            waiting = [row for row in waiting if row not in drafted]
        return merge(batch, parts)

    def readback(
        self, batch: Batch, proposal: Proposal, output: ModelOutput
    ) -> Sequence[Shaped[Tensor, "..."]]:
        parts = []
        for proposer in self.proposers:
            own = self._output_for(proposer, output)
            parts.append(proposer.readback(batch, proposal, own))
        self._num_wanted = list(map(len, parts))
        return list(chain.from_iterable(parts))

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        fetched = iter(verdict.readback)
        for proposer, num_wanted in zip(self.proposers, self._num_wanted, strict=True):
            own = replace(verdict, readback=tuple(islice(fetched, num_wanted)))
            proposer.observe(batch, proposal, self._output_for(proposer, output), own)

    def finish(self, slots: Sequence[int]) -> None:
        for proposer in self.proposers:
            proposer.finish(slots)

    def reset(self) -> None:
        for proposer in self.proposers:
            proposer.reset()


def _check_compatible(proposers: Sequence[Proposer]) -> None:
    sampled: list[str] = []
    fixed_trees: list[str] = []
    for proposer in proposers:
        name = type(proposer).__name__
        if proposer.max_nodes > proposer.num_draft_tokens + 1:
            raise ValueError(
                f"{name} verifies probe nodes beside its drafts, which a cascade does not support; "
                "use it alone"
            )
        if proposer.kind.sampled:
            sampled.append(name)
        elif proposer.kind.trees:
            fixed_trees.append(name)
    if sampled and fixed_trees:
        tree, sampler = fixed_trees[0], sampled[0]
        raise ValueError(
            f"{tree} drafts trees that are not sampled, {sampler} samples: no draft probabilities "
            f"fit both; let {tree} draft chains, or {sampler} its likeliest tokens (sample=false)"
        )


def _ask(
    proposer: Proposer, batch: Batch, budget: Sequence[int], rows: Sequence[int], *, is_last: bool
) -> PartialProposal:
    """Let a proposer draft for some rows; the last one keeps those without drafts too."""
    asked = batch.select(rows)
    while proposer.lazy_prefill(asked.rows):
        pass
    limits = []
    for row, room in zip(rows, asked.room, strict=True):
        limit = min(budget[row], proposer.num_draft_tokens)
        # The budget of a tree counts nodes, so only that of a chain is bounded by the room.
        limits.append(limit if proposer.kind.trees else min(limit, room))
    proposal = drafts_of(proposer, asked, limits)
    if is_last:
        return PartialProposal(proposal, rows, range(len(rows)))
    lengths = proposal.host_lengths
    if lengths is None:
        lengths = proposal.lengths.tolist()  # sync
    drafted = [i for i, length in enumerate(lengths) if length > 1]
    return PartialProposal(proposal, [rows[i] for i in drafted], drafted)
