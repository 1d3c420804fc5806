"""Acceptance rules as graphs: some dozens of small operations launched as one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.acceptance import AcceptanceSampler
from specresearch.models.graphs import GraphInput, Tensors
from specresearch.models.pass_graphs import ROWS, PassGraphs, at_least
from specresearch.proposal import Proposal, Topology, Verdict
from specresearch.sampling import ACCEPT_STREAM, SamplingBatch

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
        self, proposal: Proposal, logits: Float[Tensor, "B N V"], sampling: SamplingBatch
    ) -> Verdict:
        rows = at_least(len(logits), ROWS)
        if self.passes is None or rows is None or sampling.has_penalty:
            return self.rule(proposal, logits, sampling)
        num_nodes = at_least(logits.shape[1], self.passes.sizes)
        if num_nodes is None or rows * num_nodes * logits.shape[2] > MOST_LOGITS:
            return self.rule(proposal, logits, sampling)
        case = _Case(self.rule, proposal, logits, sampling, rows, num_nodes)
        path, num_accepted, next_token, *expected = self.passes.graphs.run(
            case.key, case.function(), case.inputs(), case.crop
        )
        return Verdict(path, num_accepted, next_token, expected[0] if expected else None)


@dataclass(frozen=True)
class _Case:
    """A proposal to judge, and the sizes that it is padded to."""

    rule: AcceptanceSampler
    proposal: Proposal
    logits: Float[Tensor, "B N V"]
    sampling: SamplingBatch
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
        sampling, proposal = self.sampling, self.proposal
        columns, shape = sampling.columns, (self.rows, self.num_nodes)
        uniforms = sampling.uniforms(ACCEPT_STREAM, self.num_nodes)
        token_ids, lengths = proposal.token_ids, proposal.lengths
        parts = [
            GraphInput.padded(token_ids, shape),
            GraphInput.padded(lengths, shape[:1], fill=1),
            GraphInput.padded(self.logits, shape),
            GraphInput.padded(columns, (len(columns), self.rows), fill=1),
            GraphInput.padded(uniforms, shape),
        ]
        for name, part in self.optional.items():
            part = part.expand(len(self.logits), *part.shape[1:])
            if name == "parents":
                parts.append(GraphInput(part, lambda row=part[:1]: row.expand(shape)))
            else:
                parts.append(GraphInput.padded(part, shape))
        return parts

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
        path, *others = (output[: len(self.logits)] for output in outputs)
        path = path[:, : self.proposal.topology.max_depth + 1]
        if len(others) < 3:
            return path, *others
        return path, *others[:2], others[2][:, : self.logits.shape[1] - 1]


def _judge(
    rule: AcceptanceSampler,
    token_ids: Int[Tensor, "B N"],
    lengths: Int[Tensor, " B"],
    logits: Float[Tensor, "B N V"],
    columns: Float[Tensor, "num B 1 1"],
    uniforms: Float[Tensor, "B N"],
    *optional: Tensor,
    sampling: SamplingBatch,
    bounds: tuple[int, int] | None,
    names: Sequence[str],
    with_replacement: bool,
) -> Tensors:
    """Judge a proposal in the buffers of a graph.

    Args:
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
    verdict = rule(proposal, logits, sampling.given(columns, uniforms))
    outputs = (verdict.path, verdict.num_accepted, verdict.next_token)
    return outputs if verdict.expected is None else (*outputs, verdict.expected)
