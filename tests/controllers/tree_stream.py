"""Trees of scored drafts on a simulated machine, with scores that may promise too much."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from simulation import Machine, batch_of, record_of, rows_of

from specresearch.controllers import Controller
from specresearch.proposal import DraftKind, Proposal, Topology

FANS = (3, 2, 1, 1)  # children of each node, by depth


@dataclass(frozen=True)
class TreeStream:
    """Requests that draft one tree in every step, whose nodes are sure in varying degree.

    Attributes:
        confidence: Mean score of a node's first child; its siblings share what that leaves.
        trust: A node is accepted with chance score ** (1 / trust): 1 means what it says, 0.3
            promises too much.
    """

    machine: Machine
    concurrency: int
    num_steps: int
    confidence: float = 0.6
    trust: float = 1.0
    depth: int = len(FANS)

    @cached_property
    def parents(self) -> list[int]:
        """The parents of the nodes, level by level; -1 for the root."""
        parents, level = [-1], [0]
        for fan in FANS[: self.depth]:
            following = []
            for node in level:
                following += range(len(parents), len(parents) + fan)
                parents += [node] * fan
            level = following
        return parents

    def throughput(self, controller: Controller, seed: int) -> float:
        """Tokens per second."""
        num_drafts = len(self.parents) - 1
        kind = DraftKind(trees=True, scored=True, max_depth=self.depth)
        controller.bind(kind, num_drafts)
        rng, rows = np.random.default_rng(seed), rows_of(self.concurrency)
        seconds = num_tokens = 0.0
        for _ in range(self.num_steps):
            batch = batch_of(rows)
            budget = controller.budget(batch)
            depth = controller.max_depth(batch)
            depth = self.depth if depth is None else min(depth, self.depth)
            asked = [num_drafts if n is None else min(n, num_drafts) for n in budget]
            record = self._step(controller, asked, depth, rng)
            controller.observe(record)
            seconds += record.times.total
            num_tokens += sum(record.num_new_tokens)
        return num_tokens / seconds

    def _step(self, controller: Controller, asked: list[int], depth: int, rng: np.random.Generator):
        parents = [p for p, d in zip(self.parents, self._depths, strict=True) if d <= depth]
        lengths = tuple(min(number + 1, len(parents)) for number in asked)
        parents = parents[: max(lengths)]
        scores = np.array([self._scores(parents, rng) for _ in asked])
        tokens = torch.arange(scores.size).view(scores.shape)
        proposal = Proposal(
            tokens,
            Topology.from_parents(torch.tensor([parents])),
            torch.tensor(lengths),
            scores=torch.tensor(scores),
            host_lengths=lengths,
        )
        kept = controller.trim(proposal) if max(lengths) > 1 else proposal
        paths = [list(self._accepted(kept, b, rng)) for b in range(len(asked))]
        above = np.broadcast_to(kept.topology.parents.numpy(), kept.token_ids.shape)
        verified = [n - 1 for n in kept.host_lengths or ()]
        levels = depth if max(lengths) > 1 else 0
        times = self.machine.times(len(asked), levels, sum(verified))
        slower = float(np.exp(0.06 * abs(rng.standard_normal())))
        times = replace(
            times,
            propose=times.propose * slower,
            verify=times.verify * slower,
            total=times.total * slower,
        )
        ranks = []
        for b, path in enumerate(paths):
            row = above[b].tolist()
            ranks.append(tuple(row[:node].count(row[node]) for node in path))
        record = record_of(verified, [len(path) for path in paths], times)
        return replace(
            record,
            draft_depth=tuple(levels if n else 0 for n in verified),
            accepted_ranks=tuple(ranks),
        )

    @cached_property
    def _depths(self) -> list[int]:
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return depths

    def _scores(self, parents: list[int], rng: np.random.Generator) -> list[float]:
        """Return scores that add up to less than 1 below every node."""
        mean, left, scores = self.confidence, [1.0] * len(parents), [1.0]
        shares = rng.beta(2 * mean, 2 * (1 - mean), len(parents)).tolist()
        for parent, share in zip(parents[1:], shares[1:], strict=True):
            scores.append(left[parent] * share)
            left[parent] -= scores[-1]
        return scores

    def _accepted(self, kept: Proposal, b: int, rng: np.random.Generator) -> Iterator[int]:
        """Yield the accepted nodes of a row."""
        assert kept.scores is not None
        assert kept.host_lengths is not None
        parents = np.broadcast_to(kept.topology.parents.numpy(), kept.token_ids.shape)[b].tolist()
        scores, node = kept.scores[b].tolist(), 0
        for draw in rng.random(self.depth).tolist():
            for child in range(1, kept.host_lengths[b]):
                draw -= scores[child] ** (1 / self.trust) * (parents[child] == node)
                if draw < 0:
                    break
            else:
                return
            node = child
            yield node


@dataclass
class Whole(Controller):
    """Drafts trees of one depth, or the likeliest nodes among them."""

    depth: int

    def budget(self, batch) -> list[int | None]:
        return [None if self.depth else 0] * len(batch)

    def max_depth(self, batch) -> int | None:
        return self.depth
