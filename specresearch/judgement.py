"""What a rule said of a step's drafts, in one tensor, which the host fetches as a whole."""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from specresearch.proposal import Proposal, Verdict

NUM_SCALARS = 4  # accepted drafts, next token, valid nodes, fault


@dataclass(frozen=True)
class Judgement:
    """A verdict with the drafts that it is about, on the device or on the host.

    Attributes:
        packed: See `pack`.
        packed_sizes: D of the paths and N of the nodes in it, with the padding of a graph.
        sizes: The same without that padding.
        dtype: Of what the rule expected.
    """

    packed: Float[Tensor, "B K"]
    packed_sizes: tuple[int, int]
    sizes: tuple[int, int]
    dtype: torch.dtype = torch.float32

    @staticmethod
    def of(
        proposal: Proposal, verdict: Verdict, faults: Int[Tensor, " B"] | None = None
    ) -> "Judgement":
        """Return the judgement of a proposal.

        Args:
            faults: For each row a key of `FAULTS`, which fails the row, or 0.
        """
        if faults is None:
            faults = torch.zeros_like(verdict.num_accepted)
        packed = pack(proposal, verdict, faults)
        sizes = verdict.path.shape[1], proposal.token_ids.shape[1]
        dtype = torch.float32 if verdict.expected is None else verdict.expected.dtype
        return Judgement(packed, sizes, sizes, dtype)

    @property
    def verdict(self) -> Verdict:
        columns = self.columns
        num_accepted, next_token, *_ = self.packed[:, columns.scalars].long().unbind(1)
        path = self.packed[:, columns.path].long()
        expected = columns.expected and self.packed[:, columns.expected].to(self.dtype)
        return Verdict(path, num_accepted, next_token, expected)

    @cached_property
    def columns(self) -> "PackedColumns":
        """Where the parts lie in `packed`, without the padding of a graph."""
        (path_length, num_nodes), (packed_length, stride) = self.sizes, self.packed_sizes
        path = NUM_SCALARS
        nodes = [path + packed_length + part * stride for part in range(3)]
        expected = nodes[-1] + stride
        is_said = expected < self.packed.shape[1]
        return PackedColumns(
            slice(NUM_SCALARS),
            slice(path, path + path_length),
            *(slice(begin, begin + num_nodes) for begin in nodes),
            expected=slice(expected + 1, expected + num_nodes) if is_said else None,
        )


@dataclass(frozen=True)
class PackedColumns:
    """Slices of the last axis of a packed judgement; `expected` is None if nothing is."""

    scalars: slice
    path: slice
    tokens: slice
    parents: slice
    acceptable: slice
    expected: slice | None


def pack(proposal: Proposal, verdict: Verdict, faults: Int[Tensor, " B"]) -> Float[Tensor, "B K"]:
    """Return a verdict and its drafts as one tensor, without waiting for the device.

    Doubles hold every token id exactly. The columns are the scalars, the path, the tokens, parents
    and acceptability of the nodes, and, if the rule expects anything, a zero and `expected`.
    """
    tokens = proposal.token_ids
    scalars = [verdict.num_accepted, verdict.next_token, proposal.lengths, faults]
    parts: list[Shaped[Tensor, "B _"]] = [
        torch.stack(scalars, 1).double(),  # all others become what this is
        verdict.path,
        tokens,
        proposal.topology.parents.expand_as(tokens),
        proposal.acceptable,
    ]
    if verdict.expected is not None:
        parts.append(F.pad(verdict.expected, (1, 0)))
    return torch.cat(parts, dim=1)
