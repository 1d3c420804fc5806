"""What passes between drafting, verification and acceptance: draft trees and verdicts.

Node 0 is the last committed token, whose keys and values are not cached yet; nodes 1 to N - 1 are
drafts. Row i of the target's logits and row i of `draft_probs` both mean "the distribution after
node i".

Shape legend for every jaxtyping annotation of the package. `#B` is B or 1; `*rows` (or `*rest`,
`*shape`) any number of axes; `_` an axis of any size; a digit that size.

Decoding:
B  rows: the requests of this step                 N  nodes of a draft tree, root included
M  some of the nodes, often the N - 1 drafts       n  nodes that are kept of a larger tree
b  rows of a partial proposal                      D  nodes of the deepest accepted path, root too
R  children of a node, at most                     P  candidate nodes of a dynamic tree
V  vocabulary                                      k  likeliest tokens after a node
K  drafts of one request or chain                  W  widest accepted path of a step
num  random numbers per row

Models:
S  cache slots                                     C  columns of a cache slot
L  cache columns that a pass reads                 T  tokens of packed rows or a whole sequence
R  rows whose logits are computed                  K  drafting steps, or Medusa heads
H  hidden size; in the cache, key-value heads      D  head size, or tokens of a draft vocabulary
Hq, Hkv  query and key-value heads                 Dk, Dv  head sizes of keys and of values
GN, RN  N per query head of a group, or repeated   I, O  inputs and outputs of a linear layer
SC  all columns of all slots                       E  columns that are attended explicitly
P  stretches that attention splits a prefix into

Training:
T  tokens of a sequence                            P, Q  positions with a prediction, with a target
R  positions of a chunk                            D  tokens of a draft vocabulary
K  drafting steps                                  L  layers

Controllers, recordings, load tests and statistics:
R  requests (r: some of them)                      W  draft lengths or batches under comparison
M  alternatives for each of them                   F  features of a linear fit
E  tokens of a request's output                    P  recorded positions
C  contexts of an exact enumeration                K  outcomes of a distribution
n, m  observations                                 k  totals of each observation
e, bins  edges of a histogram, and its bins        blocks  blocks of a measurement window
units  resampling units
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.topology import Topology, upload

__all__ = ["DraftKind", "InvalidProposalError", "Proposal", "Topology", "Verdict", "upload"]


class InvalidProposalError(ValueError):
    """A proposer broke a rule of `Proposal`; the message says which one."""


@dataclass(frozen=True)
class DraftKind:
    """The drafts that a proposer may make.

    A proposer declares it, so that an acceptance rule can refuse them before anything is decoded.

    Attributes:
        trees: Drafts may branch.
        sampled: Every proposal has `draft_probs`.
        scored: Every proposal has `scores`.
        chain_setting: The setting that makes it draft chains, for errors; None if there is none.
        max_depth: The longest path of a tree; None if that is not known before it is drafted.
        finds_depth: The scores say how long each path should be, and longer ones cost nothing
            before they are verified.
    """

    trees: bool = False
    sampled: bool = False
    scored: bool = False
    chain_setting: str | None = field(default=None, compare=False)
    max_depth: int | None = field(default=None, compare=False)
    finds_depth: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class DraftForecast:
    """What drafts are expected to yield and to take, by a measurement before the run.

    Attributes:
        survival: The chance that a draft of the best size for its depth is accepted down to each
            level; 0 if nothing is drafted.
        nodes: Nodes of each level of such a draft, those that are not made counted as none.
        drafted: The share of a request's steps in which something is drafted.
        num_rows: Requests of the steps that were timed.
        draft_seconds: Levels, and the time to draft them.
        rest_seconds: Drafts of all rows, and the rest of a step's time.
        judged_scores: Nodes of each level whose parent was accepted, by class of their scores as
            `ScoreCalibration` has them. All nodes were verified, whatever their score.
        accepted_scores: Those of them that were accepted.
    """

    survival: tuple[float, ...]
    nodes: tuple[float, ...]
    drafted: float
    num_rows: int = 1
    draft_seconds: tuple[tuple[int, float], ...] = ()
    rest_seconds: tuple[tuple[int, float], ...] = ()
    judged_scores: tuple[tuple[float, ...], ...] = ()
    accepted_scores: tuple[tuple[float, ...], ...] = ()

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "DraftForecast":
        """Return a forecast as `dataclasses.asdict` wrote it."""
        draft, rest = (
            tuple((int(size), float(seconds)) for size, seconds in data[name])
            for name in ("draft_seconds", "rest_seconds")
        )
        survival, nodes = (tuple(map(float, data[name])) for name in ("survival", "nodes"))
        judged, accepted = (
            tuple(tuple(map(float, level)) for level in data.get(name, ()))
            for name in ("judged_scores", "accepted_scores")
        )
        drafted, num_rows = float(data["drafted"]), int(data["num_rows"])
        return DraftForecast(survival, nodes, drafted, num_rows, draft, rest, judged, accepted)


@dataclass(frozen=True)
class Proposal:
    """The drafts of every row.

    Attributes:
        token_ids: The root (last committed token) and the drafts; nodes from `lengths` on are
            padding.
        lengths: Valid nodes of each row, root included; 1 means that nothing was drafted. Valid
            nodes come first.
        draft_probs: Row i holds q(. | path to node i), from which the children of node i were
            sampled, siblings in index order. None if the drafts were chosen deterministically,
            so that each is a point mass.
        with_replacement: Siblings were drawn independently from q. Otherwise each was drawn from
            what its earlier siblings left of q.
        scores: The drafter's probability of each node given its parent, for controllers, lossy
            rules and plots.
        probe: Nodes verified for information only and never accepted; they may come after
            `lengths`.
        host_lengths: `lengths`, if the host knows it without a sync. The target can then skip
            the padding.
    """

    token_ids: Int[Tensor, "B N"]
    topology: Topology
    lengths: Int[Tensor, " B"]
    draft_probs: Float[Tensor, "B N V"] | None = None
    with_replacement: bool = False
    scores: Float[Tensor, "B N"] | None = None
    probe: Bool[Tensor, "#B N"] | None = None
    host_lengths: tuple[int, ...] | None = None

    @property
    def can_be_chosen_from(self) -> bool:
        """Whether nodes may be left out by their scores: of point masses, without probes."""
        is_point_mass = self.draft_probs is None and self.probe is None
        return self.scores is not None and is_point_mass

    @staticmethod
    def chain(
        token_ids: Int[Tensor, "B N"],
        lengths: Int[Tensor, " B"],
        draft_probs: Float[Tensor, "B N V"] | None = None,
        host_lengths: Sequence[int] | None = None,
    ) -> "Proposal":
        """Return a proposal with a chain in every row.

        Raises:
            InvalidProposalError: If `token_ids` does not have a row for each request.
        """
        if token_ids.ndim != 2:
            raise InvalidProposalError(
                f"token_ids of shape {list(token_ids.shape)} hold no chain for each row; give a "
                "row for each request, its root first: [B, N]"
            )
        return Proposal(
            token_ids,
            Topology.chain(token_ids.shape[1], token_ids.device),
            lengths,
            draft_probs,
            host_lengths=None if host_lengths is None else tuple(host_lengths),
        )

    @staticmethod
    def empty(roots: Int[Tensor, "B 1"]) -> "Proposal":
        """Return a proposal without drafts: plain autoregressive decoding."""
        lengths = torch.ones(len(roots), dtype=torch.long, device=roots.device)
        return Proposal.chain(roots, lengths, host_lengths=[1] * len(roots))

    def check(
        self,
        roots: Int[Tensor, "B 1"],
        budget: Sequence[int],
        kind: DraftKind,
        vocab_size: int,
        max_depth: int | None = None,
    ) -> None:
        """Check the rules that acceptance and later steps rely on.

        Syncs many times: meant for tests, and for the first steps of a new proposer.

        Args:
            roots: The last committed token of each row.
            budget: The drafts that each row was allowed.
            max_depth: The longest path that the controller asked for; None: any.

        Raises:
            InvalidProposalError: If a rule is broken; the message names it.
        """
        from specresearch.proposal_check import violation

        reason = violation(self, roots, budget, kind, vocab_size, max_depth)
        if reason is not None:
            raise InvalidProposalError(f"invalid proposal: {reason}")

    @cached_property
    def acceptable(self) -> Bool[Tensor, "B N"]:
        """The nodes that a rule may accept: valid, and not probes."""
        index = torch.arange(self.token_ids.shape[1], device=self.token_ids.device)
        valid = index < self.lengths[:, None]
        return valid if self.probe is None else valid & ~self.probe


@dataclass(frozen=True)
class Verdict:
    """The drafts that the target accepted.

    Attributes:
        path: Accepted nodes, root first, padded with -1.
        num_accepted: Accepted drafts; the root and the bonus token do not count.
        next_token: The bonus token if the whole path was accepted, otherwise the token that
            replaces the first rejected draft.
        expected: For chains, the probability that draft i + 1 is accepted once all before it
            are: the sum of min(p, q). None if the rule is deterministic.
        readback: On the host: what the proposer asked for by `Proposer.readback`.
    """

    path: Int[Tensor, "B D"]
    num_accepted: Int[Tensor, " B"]
    next_token: Int[Tensor, " B"]
    expected: Float[Tensor, "B M"] | None = None
    readback: tuple[Tensor, ...] = ()
