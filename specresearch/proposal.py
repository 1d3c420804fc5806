"""What passes between drafting, verifying and accepting: a tree of drafts, and what the target agreed to.

Shape legend, used in every annotation of the package:
B rows (requests in this step), N nodes of a draft tree (root included), D path length (deepest accepted path, root
included), V vocabulary, H hidden size, S cache slots, L cache columns read in this step.

Node 0 is the last committed token, whose keys and values are not in the cache yet; nodes 1..N-1 are drafts. Row i of the
target's logits and row i of `draft_probs` both mean "the distribution after node i".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def upload(values: Any, device: torch.device | str, dtype: torch.dtype | None = None) -> Tensor:
    """A host list on the device, without waiting for what the device is doing (`torch.tensor(..., device=)` waits)."""
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)


@dataclass(frozen=True)
class Topology:
    """The shape of a draft tree: node i hangs below `parents[i] < i`; the root's parent is -1.

    is_chain: parents[i] == i - 1 for every row. A Python bool, so that fast paths cost no device sync.
    max_depth, max_children: host-side bounds on the tree; a builder that knows them saves the sync of finding out.
    """

    parents: Int[Tensor, "#B N"]
    is_chain: bool = False
    max_depth: int = -1
    max_children: int = -1

    def __post_init__(self) -> None:
        num_nodes = self.parents.shape[1]
        if num_nodes == 1:
            object.__setattr__(self, "is_chain", True)
        if self.max_depth < 0 or self.max_children < 0:
            depth = num_nodes - 1 if self.is_chain else int(self.depth.max())  # sync
            width = (
                min(num_nodes - 1, 1) if self.is_chain else int(self._num_siblings_before.max()) + 1
            )  # sync
            object.__setattr__(self, "max_depth", depth)
            object.__setattr__(self, "max_children", width if num_nodes > 1 else 0)

    @staticmethod
    @lru_cache(maxsize=256)
    def chain(num_nodes: int, device: torch.device | str = "cpu") -> "Topology":
        """The chain of `num_nodes` nodes, root included; instances are shared."""
        return Topology(torch.arange(-1, num_nodes - 1, device=device)[None], is_chain=True)

    @staticmethod
    def from_parents(parents: Int[Tensor, "#B N"]) -> "Topology":
        """A tree from its parents. Raises ValueError unless parents[0] == -1 and 0 <= parents[i] < i."""
        index = torch.arange(parents.shape[1], device=parents.device)
        valid = (parents < index) & (parents >= 0)
        valid[:, 0] = parents[:, 0] == -1
        if not bool(valid.all()):  # sync
            row, node = (~valid).nonzero()[0].tolist()
            raise ValueError(
                f"parents[{row}, {node}] = {int(parents[row, node])}: the root's parent is -1 and every other parent "
                "comes before its child; sort the nodes by depth"
            )
        return Topology(parents, is_chain=bool((parents == index - 1).all()))  # sync

    @staticmethod
    def from_paths(
        paths: Sequence[Sequence[int]], device: torch.device | str = "cpu"
    ) -> "Topology":
        """A static tree from its nodes' paths of child ranks, e.g. [(0,), (1,), (0, 0)]. A missing prefix is a ValueError."""
        ordered = sorted({tuple(path) for path in paths}, key=lambda path: (len(path), path))
        index = {(): 0} | {path: i + 1 for i, path in enumerate(ordered)}
        for path in ordered:
            if path[:-1] not in index:
                raise ValueError(
                    f"path {list(path)} has no parent {list(path[:-1])}: list every prefix of every path"
                )
        parents = [-1] + [index[path[:-1]] for path in ordered]
        return Topology.from_parents(torch.tensor([parents], device=device))

    def with_level(self, parents: Int[Tensor, "#B M"], max_children: int) -> "Topology":
        """This tree with one more level: M nodes below nodes of this one, at most `max_children` below each. Never syncs."""
        grown = Topology(
            torch.cat([self.parents.expand(len(parents), -1), parents], dim=1),
            max_depth=self.max_depth + 1,
            max_children=max(self.max_children, max_children),
        )
        num_old, num_new = self.num_nodes, parents.shape[1]
        above = self.ancestors.expand(len(parents), -1, -1)
        below = above.gather(1, parents[:, :, None].expand(-1, -1, num_old))
        own = torch.eye(num_new, dtype=torch.bool, device=parents.device).expand(
            len(parents), -1, -1
        )
        rows = (F.pad(above, (0, num_new)), torch.cat([below, own], dim=2))
        grown.__dict__["ancestors"] = torch.cat(rows, dim=1)
        return grown

    @property
    def num_nodes(self) -> int:
        return self.parents.shape[1]

    @cached_property
    def ancestors(self) -> Bool[Tensor, "#B N N"]:
        """ancestors[b, i, j]: node j lies on the path from the root to node i, i included."""
        num_nodes = self.num_nodes
        if self.is_chain:
            return torch.ones(
                num_nodes, num_nodes, dtype=torch.bool, device=self.parents.device
            ).tril()[None]
        index = torch.arange(num_nodes, device=self.parents.device)
        reach = (self.parents[:, :, None] == index) | (index[:, None] == index)
        longest = num_nodes - 1 if self.max_depth < 0 else self.max_depth
        hops = 1
        while hops < longest:  # a path doubles its reach in each product
            reach = (reach.float() @ reach.float()) > 0
            hops *= 2
        return reach

    @cached_property
    def depth(self) -> Int[Tensor, "#B N"]:
        """Edges between the root and each node."""
        return self.ancestors.sum(-1) - 1

    @cached_property
    def _num_siblings_before(self) -> Int[Tensor, "#B N"]:
        same = self.parents[:, :, None] == self.parents[:, None, :]
        return same.tril(-1).sum(-1)

    @cached_property
    def children(self) -> Int[Tensor, "#B N R"]:
        """The children of each node in index order, padded with -1; R = `max_children`."""
        rows, num_nodes = self.parents.shape
        table = self.parents.new_full((rows, num_nodes, self.max_children + 1), -1)
        row = torch.arange(rows, device=self.parents.device)[:, None]
        node = torch.arange(1, num_nodes, device=self.parents.device)[None]
        table[row, self.parents[:, 1:], self._num_siblings_before[:, 1:]] = node
        return table[:, :, : self.max_children]


class InvalidProposalError(ValueError):
    """A proposer broke the rules of `Proposal`; the message says which one."""


@dataclass(frozen=True)
class Proposal:
    """Drafts for every row.

    token_ids: the root (last committed token) and the drafts; positions from `lengths` on are padding.
    lengths: valid nodes of each row, root included; 1 = nothing drafted. In a tree, valid nodes come first.
    draft_probs: row i holds q(. | path to node i), from which the children of node i were really sampled, siblings in
        index order. None: the drafts were chosen deterministically, i.e. each is a point mass.
    with_replacement: siblings were drawn independently from q; otherwise each was drawn from what was left of q.
    scores: the drafter's own probability of each node given its parent, for controllers, lossy rules and plots.
    probe: nodes verified for information only, never accepted; they may stand behind `lengths`.
    host_lengths: `lengths` as known on the host without asking the device; lets the target leave padding out.
    """

    token_ids: Int[Tensor, "B N"]
    topology: Topology
    lengths: Int[Tensor, " B"]
    draft_probs: Float[Tensor, "B N V"] | None = None
    with_replacement: bool = False
    scores: Float[Tensor, "B N"] | None = None
    probe: Bool[Tensor, "#B N"] | None = None
    host_lengths: tuple[int, ...] | None = None

    @staticmethod
    def chain(
        token_ids: Int[Tensor, "B N"],
        lengths: Int[Tensor, " B"],
        draft_probs: Float[Tensor, "B N V"] | None = None,
        host_lengths: Sequence[int] | None = None,
    ) -> "Proposal":
        """A chain in every row."""
        topology = Topology.chain(token_ids.shape[1], token_ids.device)
        known = None if host_lengths is None else tuple(host_lengths)
        return Proposal(token_ids, topology, lengths, draft_probs, host_lengths=known)

    @staticmethod
    def empty(roots: Int[Tensor, "B 1"]) -> "Proposal":
        """Nothing drafted in any row: plain autoregressive decoding."""
        lengths = torch.ones(len(roots), dtype=torch.long, device=roots.device)
        return Proposal.chain(roots, lengths, host_lengths=[1] * len(roots))

    def check(
        self, roots: Int[Tensor, "B 1"], budget: Sequence[int], kind: "DraftKind", vocab_size: int
    ) -> None:
        """Raises InvalidProposalError, naming what is wrong, for drafts that would be judged wrongly or
        fail later. Waits for the device many times: for tests, and the first steps of a new proposer.

        roots: each row's last committed token. budget: the drafts that each row was allowed.
        """
        for holds, reason in _conditions(self, roots, budget, kind, vocab_size):
            if not (holds if isinstance(holds, bool) else bool(holds.all())):
                raise InvalidProposalError(f"invalid proposal: {reason}")

    @cached_property
    def acceptable(self) -> Bool[Tensor, "B N"]:
        """Nodes that a rule may accept: valid, and not probes."""
        valid = (
            torch.arange(self.token_ids.shape[1], device=self.token_ids.device)
            < self.lengths[:, None]
        )
        return valid if self.probe is None else valid & ~self.probe


@dataclass(frozen=True)
class DraftKind:
    """What a proposer's drafts may be, declared so that an acceptance rule can refuse them before anything is decoded.

    trees: they may branch.  sampled: all come with `draft_probs`.  scored: all come with `scores`, the drafter's own
    probability of each node given its parent.
    """

    trees: bool = False
    sampled: bool = False
    scored: bool = False


@dataclass(frozen=True)
class Verdict:
    """What the target agreed to.

    path: accepted nodes, root first, padded with -1.
    num_accepted: accepted drafts; root and bonus token not counted.
    next_token: the bonus token (everything on a path accepted) or the recovered one (first rejection).
    expected: for chains, the probability that draft i + 1 is accepted once all before it are: sum of min(p, q). None where
        the rule is deterministic, so that what was expected is what happened.
    """

    path: Int[Tensor, "B D"]
    num_accepted: Int[Tensor, " B"]
    next_token: Int[Tensor, " B"]
    expected: Float[Tensor, "B M"] | None = None


Condition = tuple[Tensor | bool, str]
SUM_TOLERANCE = 1e-2  # of probabilities, in any dtype


def _conditions(
    proposal: Proposal,
    roots: Int[Tensor, "B 1"],
    budget: Sequence[int],
    kind: DraftKind,
    vocab_size: int,
) -> Iterator[Condition]:
    """What must hold, and what to say if it does not; later conditions rely on earlier ones."""
    yield from _shape_conditions(proposal, len(roots))
    tokens, lengths = proposal.token_ids, proposal.lengths
    yield tokens[:, :1] == roots, "token_ids[:, 0] is not each row's last committed token"
    yield (
        (tokens >= 0) & (tokens < vocab_size),
        f"a token id lies outside the vocabulary of {vocab_size}",
    )
    yield (
        (lengths >= 1) & (lengths <= tokens.shape[1]),
        f"lengths do not lie in 1 to {tokens.shape[1]}, the root included",
    )
    known = lengths.tolist()
    told = known if proposal.host_lengths is None else proposal.host_lengths
    yield len(told) == len(known), f"host_lengths has {len(told)} entries for {len(known)} rows"
    for row, (length, claimed, allowed) in enumerate(zip(known, told, budget, strict=True)):
        yield (
            claimed == length,
            f"row {row}: host_lengths says {claimed} nodes, and lengths {length}",
        )
        yield length - 1 <= allowed, f"row {row}: {length - 1} drafts where {allowed} are allowed"
    yield from _tree_conditions(proposal.topology, proposal.acceptable, kind)
    yield from _probability_conditions(proposal)


def _shape_conditions(proposal: Proposal, rows: int) -> Iterator[Condition]:
    num_nodes = proposal.topology.num_nodes
    yield (
        proposal.token_ids.shape == (rows, num_nodes),
        (
            f"token_ids has shape {list(proposal.token_ids.shape)} for {rows} rows and a tree of {num_nodes} nodes"
        ),
    )
    for name in ("draft_probs", "scores", "probe"):
        values = getattr(proposal, name)
        shape = (rows, num_nodes) if values is None else tuple(values.shape[:2])
        fits = shape == (rows, num_nodes) or (name == "probe" and shape == (1, num_nodes))
        yield (
            fits,
            f"{name} has shape {list(shape)} for {rows} rows and a tree of {num_nodes} nodes",
        )


def _tree_conditions(
    topology: Topology, acceptable: Bool[Tensor, "B N"], kind: DraftKind
) -> Iterator[Condition]:
    parents = topology.parents
    index = torch.arange(topology.num_nodes, device=parents.device)
    yield parents[:, 0] == -1, "the root's parent is not -1"
    yield (parents[:, 1:] >= 0) & (parents[:, 1:] < index[1:]), "a node stands before its parent"
    is_chain = bool((parents == index - 1).all())
    yield is_chain or not topology.is_chain, "is_chain=True for a tree that branches"
    yield is_chain or kind.trees, "it branches, and the proposer's kind says trees=False"
    # found from the parents alone, without the bounds or caches that this tree claims
    true = Topology(parents)
    depth = int(true.depth.expand(acceptable.shape).masked_fill(~acceptable, 0).max())
    yield depth <= topology.max_depth, f"max_depth={topology.max_depth}, but it is {depth} deep"
    yield (
        true.max_children <= topology.max_children,
        (f"max_children={topology.max_children}, but a node has {true.max_children}"),
    )
    same = (topology.ancestors == true.ancestors).all(-1).expand(acceptable.shape)
    yield same | ~acceptable, "ancestors do not follow from parents"


def _probability_conditions(proposal: Proposal) -> Iterator[Condition]:
    drafted = proposal.acceptable.clone()
    drafted[:, 0] = False
    if proposal.scores is not None:
        scores = proposal.scores[drafted]
        yield (scores >= 0) & (scores <= 1 + SUM_TOLERANCE), "a score is no probability"
    if proposal.draft_probs is None:
        return
    parents = proposal.topology.parents.clamp(min=0).expand(len(drafted), -1)
    row = torch.arange(len(drafted), device=parents.device)[:, None].expand_as(parents)
    q = proposal.draft_probs[row[drafted], parents[drafted]]  # [drafts, V]
    yield (q >= 0) & q.isfinite(), "draft_probs holds NaN, infinity or a negative number"
    yield (
        (q.sum(-1) - 1).abs() <= SUM_TOLERANCE,
        "draft_probs of a node with children does not sum to 1",
    )
    own = q.gather(1, proposal.token_ids[drafted][:, None])
    yield own > 0, "a draft has probability 0 in the distribution that it is said to be drawn from"
    if not proposal.with_replacement:
        tokens = proposal.token_ids
        related = (parents[:, :, None] == parents[:, None]) & (
            tokens[:, :, None] == tokens[:, None]
        )
        twins = related & drafted[:, :, None] & drafted[:, None]
        yield ~twins.tril(-1), "siblings drawn without replacement hold the same token"
