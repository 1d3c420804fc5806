"""Acceptance rules as graphs: some dozens of small operations launched as one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.acceptance import AcceptanceSampler
from specresearch.engine.faults import find_faults
from specresearch.judgement import Judgement, pack
from specresearch.models.graphs import GraphInput, Tensors
from specresearch.models.pass_graphs import ROWS, PassGraphs, at_least
from specresearch.proposal import Proposal, Topology, upload
from specresearch.sampling import ACCEPT_STREAM, SamplingBatch, at_least_float32

MOST_LOGITS = 1 << 26  # beyond, a rule's operations take longer than their launches


class RuleGraphs:
    """Judges as a rule does, by graphs where there are some.

    Rules whose attribute `capturable` is not set, and requests with penalties, have none.

    Args:
        passes: The graphs of the target, whose sizes proposals are padded to; None judges without.
    """

    def __init__(self, rule: AcceptanceSampler, passes: PassGraphs | None) -> None:
        self.rule = rule
        self.passes = passes if getattr(rule, "capturable", False) else None

    def __call__(
        self,
        proposal: Proposal,
        logits: Float[Tensor, "B N V"],
        sampling: SamplingBatch,
        faults: Int[Tensor, " B"] | None = None,
    ) -> Judgement:
        """Judge a proposal, and look for faults in it unless they are given."""
        case = self._case(proposal, logits, sampling, faults)
        if case is None or self.passes is None:
            verdict = self.rule(proposal, logits, sampling)
            if faults is None:
                faults = find_faults(proposal, logits)
            return Judgement.of(proposal, verdict, faults)
        (packed,) = self.passes.graphs.run(case.key, case.function(), case.inputs(), case.crop)
        return case.judgement(packed)

    def _case(
        self,
        proposal: Proposal,
        logits: Float[Tensor, "B N V"],
        sampling: SamplingBatch,
        faults: Int[Tensor, " B"] | None,
    ) -> "_Case | None":
        """Return the case of a proposal, or None if it has no graph."""
        rows = at_least(len(logits), ROWS)
        if self.passes is None or rows is None or sampling.has_penalty:
            return None
        num_nodes = at_least(logits.shape[1], self.passes.sizes)
        if num_nodes is None or rows * num_nodes * logits.shape[2] > MOST_LOGITS:
            return None
        return _Case(self.rule, proposal, logits, sampling, faults, rows, num_nodes)


@dataclass(frozen=True)
class _Case:
    """A proposal to judge, and the sizes that it is padded to."""

    rule: AcceptanceSampler
    proposal: Proposal
    logits: Float[Tensor, "B N V"]
    sampling: SamplingBatch
    faults: Int[Tensor, " B"] | None
    rows: int
    num_nodes: int

    @cached_property
    def optional(self) -> dict[str, Tensor]:
        """The parts that not every proposal has."""
        proposal = self.proposal
        parts: dict[str, Tensor | None] = {
            "draft_probs": proposal.draft_probs,
            "scores": proposal.scores,
            "probe": proposal.probe,
            "parents": None if self.is_chain else self._parents(),
            "faults": self.faults,
        }
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def is_chain(self) -> bool:
        return self.proposal.topology.is_chain

    @property
    def bounds(self) -> tuple[int, int]:
        """Upper bounds of the depth and of the children of a node, in few different sizes."""
        if self.is_chain:
            return self.num_nodes - 1, min(self.num_nodes - 1, 1)
        topology = self.proposal.topology
        rounded = [
            1 << (bound - 1).bit_length() for bound in (topology.max_depth, topology.max_children)
        ]
        depth, children = (min(max(bound, 1), self.num_nodes - 1) for bound in rounded)
        return depth, children

    @property
    def key(self) -> tuple[object, ...]:
        sampling, logits = self.sampling, self.logits
        return (
            type(self.rule),
            tuple(sorted(vars(self.rule).items())),  # engines with equal rules share their graphs
            (self.rows, self.num_nodes, logits.shape[2], logits.dtype),
            (self.is_chain, self.bounds, self.proposal.with_replacement),
            tuple((name, part.dtype) for name, part in self.optional.items()),
            (sampling.all_greedy, sampling.kind),
        )

    def _parents(self) -> Int[Tensor, "B N"]:
        """Return the parents; a node of padding hangs below the one before it."""
        parents = self.proposal.topology.parents
        row = torch.arange(-1, self.num_nodes - 1, device=parents.device)
        padded = row.repeat(len(self.logits), 1)
        padded[:, : parents.shape[1]] = parents
        return padded

    def inputs(self) -> list[GraphInput]:
        proposal, shape = self.proposal, (self.rows, self.num_nodes)
        parts = [
            GraphInput.padded(proposal.token_ids, shape),
            GraphInput.padded(proposal.lengths, shape[:1], fill=1),
            GraphInput.padded(self.logits, shape),
            self._settings(),
        ]
        for name, part in self.optional.items():
            part = part.expand(len(self.logits), *part.shape[1:])
            if name == "parents":
                parts.append(GraphInput(part, lambda row=part[:1]: row.expand(shape)))
            else:
                parts.append(GraphInput.padded(part, shape[: part.ndim]))
        return parts

    def _settings(self) -> GraphInput:
        """Return the settings of every row and its draws, [B, num + N], which travel together."""
        settings = np.array(self.sampling.host_columns())
        draws = self.sampling.host_uniforms(ACCEPT_STREAM, self.num_nodes)
        values = upload(np.concatenate([settings, draws], axis=1), self.logits.device)

        def padding() -> Float[Tensor, "rows _"]:
            ones = values.new_ones(self.rows, settings.shape[1])
            return torch.cat([ones, values.new_zeros(self.rows, self.num_nodes)], dim=1)

        return GraphInput(values, padding)

    def function(self) -> Callable[..., Tensors]:
        """Return what a graph captures; it keeps no tensor of this proposal but small ones."""
        return partial(
            _judge,
            self.rule,
            sampling=self.sampling,
            bounds=None if self.is_chain else self.bounds,
            names=tuple(self.optional),
            with_replacement=self.proposal.with_replacement,
        )

    def crop(self, outputs: Tensors) -> Tensors:
        return tuple([output[: len(self.logits)] for output in outputs])

    def judgement(self, packed: Float[Tensor, "B K"]) -> Judgement:
        """Return what the graph made of the proposal."""
        sizes = self.proposal.topology.max_depth + 1, self.logits.shape[1]
        dtype = at_least_float32(self.logits[:0]).dtype
        return Judgement(packed, (self.bounds[0] + 1, self.num_nodes), sizes, dtype)


def _judge(
    rule: AcceptanceSampler,
    token_ids: Int[Tensor, "B N"],
    lengths: Int[Tensor, " B"],
    logits: Float[Tensor, "B N V"],
    settings: Float[Tensor, "B _"],
    *optional: Tensor,
    sampling: SamplingBatch,
    bounds: tuple[int, int] | None,
    names: Sequence[str],
    with_replacement: bool,
) -> Tensors:
    """Judge a proposal in the buffers of a graph.

    Args:
        settings: Of sampling, as `_Case` uploads them.
        optional: The parts of the proposal that `names` names.
        sampling: Decides which operations run; its numbers are in the buffers.
        bounds: Of the tree's depth and children; None for a chain.
    """
    parts = dict(zip(names, optional, strict=True))
    if bounds is None:
        topology = Topology.chain(token_ids.shape[1], token_ids.device)
    else:
        depth, children = bounds
        topology = Topology(parts["parents"], max_depth=depth, max_children=children)
    proposal = Proposal(
        token_ids,
        topology,
        lengths,
        draft_probs=parts.get("draft_probs"),
        with_replacement=with_replacement,
        scores=parts.get("scores"),
        probe=parts.get("probe"),
    )
    num_columns = settings.shape[1] - token_ids.shape[1]
    columns = settings[:, :num_columns].float().T[:, :, None, None]
    verdict = rule(proposal, logits, sampling.given(columns, settings[:, num_columns:]))
    num_missing = topology.max_depth + 1 - verdict.path.shape[1]
    verdict = replace(verdict, path=F.pad(verdict.path, (0, num_missing), value=-1))
    faults = parts.get("faults")
    return (pack(proposal, verdict, find_faults(proposal, logits) if faults is None else faults),)
