"""Which cached columns each new token of a pass may see.

One plan is made per forward pass and shared by every layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.models.ragged import Packing
from specresearch.proposal import Topology, upload

MASKED = float("-inf")


@dataclass
class AttentionPlan:
    """The masks of one pass over draft trees behind the committed tokens of several slots.

    Attributes:
        starts: Columns already committed in each row.
        width: L, the columns read.
        first: Nodes of the tree that earlier passes have written; the others are the new tokens.
        packing: Set if the pass leaves padding out.
    """

    starts: tuple[int, ...]
    topology: Topology
    width: int
    dtype: torch.dtype
    device: torch.device
    first: int = 0
    packing: Packing | None = None
    _biases: dict[tuple[int | None, int, torch.device], Tensor | None] = field(default_factory=dict)
    _row_biases: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        return self.topology.num_nodes

    @property
    def from_empty(self) -> bool:
        """True for chains written into empty slots, whose mask is the plain causal triangle."""
        return self.topology.is_chain and self.first == 0 and not any(self.starts)

    def bias(
        self, window: int | None = None, repeats: int = 1, device: torch.device | None = None
    ) -> Float[Tensor, "#B 1 RN L"] | None:
        """Return 0 where a token may look and -inf where it may not; None if nothing is masked.

        Args:
            window: The layer's sliding window in tokens.
            repeats: How often to stack the rows, for folded query heads.
            device: The layer's device, if layers are spread over several.
        """
        if window is not None and self.width <= window:
            window = None
        device = device or self.device
        key = (window, repeats, device)
        if key not in self._biases:
            if repeats == 1 and device == self.device:
                bias = self._make_bias(window)
            else:
                bias = self.bias(window)
                if bias is not None:
                    bias = bias.repeat(1, 1, repeats, 1).to(device)
            self._biases[key] = bias
        return self._biases[key]

    def bias_of_row(self, b: int, length: int, repeats: int) -> Float[Tensor, "RN L"] | None:
        """Return `bias` of one row's first `length` nodes over its own columns."""
        if length == 1:
            return None
        if (b, repeats) not in self._row_biases:
            start = self.starts[b]
            ancestors = self.topology.ancestors.expand(len(self.starts), -1, -1)[b]
            bias = torch.zeros((length, start + length), dtype=self.dtype, device=self.device)
            bias[:, start:].masked_fill_(~ancestors[:length, :length], MASKED)
            self._row_biases[b, repeats] = bias.repeat(repeats, 1)
        return self._row_biases[b, repeats]

    @cached_property
    def roots(self) -> "AttentionPlan":
        """The same rows with their roots alone."""
        root = Topology.chain(1, self.device)
        return AttentionPlan(self.starts, root, max(self.starts) + 1, self.dtype, self.device)

    def full_bias(self, window: int | None = None) -> Float[Tensor, "B 1 N L"]:
        """Return `bias` with every row written out, zeros if nothing is masked."""
        shape = (len(self.starts), 1, self.num_nodes - self.first, self.width)
        bias = self._make_bias(window)
        if bias is None:
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        return bias.expand(shape)

    def _make_bias(self, window: int | None) -> Float[Tensor, "#B 1 N L"] | None:
        uniform = len(set(self.starts)) == 1
        if self.num_nodes == 1 and uniform and window is None and self.width == self.starts[0] + 1:
            return None
        if not uniform:
            starts = upload(self.starts, self.device)
            return tree_bias(starts, self.topology, self.width, self.dtype, self.first, window)
        hidden = ~self.topology.ancestors[:, self.first :]
        begin, end = self.starts[0], self.starts[0] + self.num_nodes
        shape = (*hidden.shape[:2], self.width)
        bias = torch.zeros(shape, dtype=self.dtype, device=self.device)
        bias[:, :, begin:end].masked_fill_(hidden, MASKED)
        bias[:, :, end:] = MASKED
        if window is not None:
            node = torch.arange(-begin, self.width - begin, device=self.device)[None]
            _hide_outside(bias, node, self.topology, self.first, window)
        return bias[:, None]


def tree_bias(
    starts: Int[Tensor, " B"],
    topology: Topology,
    width: int,
    dtype: torch.dtype,
    first: int = 0,
    window: int | None = None,
) -> Float[Tensor, "B 1 N L"]:
    """Return 0 where a node may look and -inf where it may not, for rows of any lengths.

    Args:
        starts: Columns committed in each row.
        first: Nodes that earlier passes have written; the result has rows for the others.
    """
    rows, num_nodes = len(starts), topology.num_nodes
    node = torch.arange(width, device=starts.device) - starts[:, None]  # [B L]
    hidden = ~topology.ancestors[:, first:]
    table = torch.zeros(hidden.shape, dtype=dtype, device=starts.device)
    table.masked_fill_(hidden, MASKED)
    table = F.pad(F.pad(table, (1, 0)), (0, 1), value=MASKED)  # past, tree, future
    index = (node + 1).clamp_(0, num_nodes + 1)[:, None].expand(rows, num_nodes - first, -1)
    bias = table.expand(rows, -1, -1).gather(2, index)
    if window is not None:
        _hide_outside(bias, node, topology, first, window)
    return bias[:, None]


def _hide_outside(
    bias: Float[Tensor, "B M L"],
    node: Int[Tensor, "#B L"],
    topology: Topology,
    first: int,
    window: int,
) -> None:
    """Hide the columns that a sliding window leaves behind.

    Args:
        node: The node in each column, negative in the committed past.
    """
    depth, rows = topology.depth, len(bias)
    nearest = node.clamp(0, topology.num_nodes - 1).expand(rows, -1)
    node_depth = depth.expand(rows, -1).gather(1, nearest)
    key_position = torch.where(node < 0, node, node_depth)  # relative to the root
    distance = depth[:, first:, None] - key_position[:, None]
    bias.masked_fill_(distance >= window, MASKED)


@dataclass(frozen=True)
class GivenBiases:
    """An attention plan of masks alone, one per window, as a graph makes them."""

    biases: dict[int | None, Float[Tensor, "S 1 N L"]]
    from_empty: bool = False
    packing: None = None
    _repeated: dict[tuple[int | None, int], Tensor] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return self.biases[None].shape[-1]

    def bias(
        self, window: int | None = None, repeats: int = 1, device: torch.device | None = None
    ) -> Float[Tensor, "S 1 RN L"]:
        key = window if window in self.biases else None, repeats
        if key not in self._repeated:
            self._repeated[key] = self.biases[key[0]].repeat(1, 1, repeats, 1)
        return self._repeated[key]


def committed_positions(
    starts: Sequence[int], topology: Topology, device: torch.device, first: int = 0
) -> Int[Tensor, "B N"]:
    """Return the rotary positions of the nodes from `first` on.

    The root stands right after the committed tokens, a child one after its parent.
    """
    begin = upload(starts, device)[:, None]
    if topology.is_chain:
        return begin + torch.arange(first, topology.num_nodes, device=device)
    return begin + topology.depth[:, first:].to(device)
