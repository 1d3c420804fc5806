"""A proposer that drafts random trees around the true continuation."""

from collections.abc import Callable, Sequence

import pytest
import torch
from tiny_models import VOCAB

from specresearch.batch import Batch
from specresearch.proposal import DraftKind, Proposal, Topology
from specresearch.proposers import Proposer


class OracleTree(Proposer):
    """Draft a random tree per row, with the target's next tokens along one of its paths.

    Some nodes are probes, which may not be accepted.

    Args:
        truth: Returns the prompt with the target's whole continuation.
    """

    kind = DraftKind(trees=True)

    def __init__(
        self, truth: Callable[[Sequence[int]], Sequence[int]], num_draft_tokens: int, seed: int = 3
    ) -> None:
        self.truth = truth
        self.num_draft_tokens = num_draft_tokens
        self.generator = torch.Generator().manual_seed(seed)

    def _int(self, below: int) -> int:
        return int(torch.randint(0, below, (1,), generator=self.generator))

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        num_nodes = max(budget) + 1
        parents = torch.tensor(
            [[-1, *(self._int(i) for i in range(1, num_nodes))] for _ in batch.rows]
        )
        tokens = torch.randint(0, VOCAB, parents.shape, generator=self.generator)
        topology = Topology.from_parents(parents)
        for b, row in enumerate(batch.rows):
            tokens[b, 0] = row.tokens[-1]
            coming = self.truth(row.request.prompt_ids)[len(row.tokens) :]
            leaf = self._int(num_nodes)
            path = topology.ancestors.expand(len(batch), -1, -1)[b, leaf].nonzero()[1:, 0].tolist()
            for node, token in zip(path, coming, strict=False):
                tokens[b, node] = token
        probe = torch.rand(parents.shape, generator=self.generator) < 0.1
        return Proposal(tokens, topology, torch.tensor(budget) + 1, probe=probe)


@pytest.fixture(scope="session")
def oracle_tree() -> type[OracleTree]:
    return OracleTree
