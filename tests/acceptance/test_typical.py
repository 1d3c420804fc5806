"""Typical acceptance follows its definition and is exact at temperature 0."""

import math

import pytest
import torch

from specresearch.acceptance import Greedy, Typical
from specresearch.acceptance.typical import accept_typical
from specresearch.proposal import DraftKind, Proposal, Topology
from specresearch.sampling import SamplingBatch, SamplingParams

V = 5
TREE = Topology.from_parents(torch.tensor([[-1, 0, 0, 1, 2, 4]]))
WARM = SamplingParams(temperature=1.0)


def random_rows(
    topology: Topology, num_rows: int, seed: int, sharpness: float = 2.0
) -> tuple[Proposal, torch.Tensor]:
    """Return drafts and the target's logits after them."""
    generator = torch.Generator().manual_seed(seed)
    num_nodes = topology.num_nodes
    tokens = torch.randint(0, V, (num_rows, num_nodes), generator=generator)
    lengths = torch.randint(1, num_nodes + 1, (num_rows,), generator=generator)
    logits = torch.randn((num_rows, num_nodes, V), generator=generator) * sharpness
    return Proposal(tokens, topology, lengths), logits


@pytest.mark.parametrize("topology", [TREE, Topology.chain(4)], ids=["tree", "chain"])
def test_it_accepts_what_the_definition_accepts(topology: Topology) -> None:
    proposal, logits = random_rows(topology, 100, seed=1)
    probs = logits.double().softmax(-1)
    uniforms = torch.rand(100, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    epsilon, delta = 0.25, 0.9
    verdict = accept_typical(proposal, probs, uniforms, epsilon, delta)
    ancestors = topology.ancestors[0]
    for row in range(100):
        ok = [True]
        for node in range(1, topology.num_nodes):
            p = probs[row, topology.parents[0, node]].tolist()
            floor = min(epsilon, delta * math.exp(sum(x * math.log(x) for x in p)))
            ok.append(
                node < int(proposal.lengths[row]) and p[int(proposal.token_ids[row, node])] > floor
            )
        paths = [
            [i for i in range(topology.num_nodes) if ancestors[node, i]]
            for node in range(topology.num_nodes)
        ]
        expected = max((path for path in paths if all(ok[i] for i in path)), key=len)
        assert verdict.path[row].tolist() == expected + [-1] * (
            verdict.path.shape[1] - len(expected)
        )
        end = probs[row, expected[-1]]
        assert int(verdict.next_token[row]) == int(
            (end.cumsum(0) <= uniforms[row] * end.sum()).sum()
        )


def test_a_flat_target_accepts_less_likely_drafts() -> None:
    proposal = Proposal.chain(torch.tensor([[0, 1], [0, 1]]), torch.tensor([2, 2]))
    sure = torch.tensor([0.92, 0.06, 0.01, 0.005, 0.005])
    undecided = torch.tensor([0.235, 0.06, 0.235, 0.235, 0.235])
    probs = torch.stack([sure, undecided])[:, None].expand(-1, 2, -1)
    verdict = accept_typical(proposal, probs, torch.zeros(2, dtype=torch.float64), 0.09, 0.25)
    assert verdict.num_accepted.tolist() == [0, 1]


def test_a_token_of_probability_zero_is_never_accepted() -> None:
    probs = torch.zeros(1, 2, V)
    probs[..., 3] = 1.0
    for token, num in ((0, 0), (3, 1)):
        proposal = Proposal.chain(torch.tensor([[0, token]]), torch.tensor([2]))
        verdict = accept_typical(proposal, probs, torch.zeros(1, dtype=torch.float64), 0.09, 0.3)
        assert (verdict.num_accepted.item(), verdict.next_token.item()) == (num, 3)


@pytest.mark.parametrize("topology", [TREE, Topology.chain(4)], ids=["tree", "chain"])
def test_greedy_rows_are_exact_in_any_batch(topology: Topology) -> None:
    proposal, logits = random_rows(topology, 60, seed=3, sharpness=0.3)
    cold = [SamplingParams()] * 60
    expected = Greedy()(proposal, logits, SamplingBatch(cold, range(60), [0] * 60))
    assert int(expected.num_accepted.sum()) > 5
    for params in (cold, [*cold[:-1], WARM]):
        actual = Typical()(proposal, logits, SamplingBatch(params, range(60), [0] * 60))
        assert torch.equal(actual.path[:-1], expected.path[:-1])
        assert torch.equal(actual.next_token[:-1], expected.next_token[:-1])


def test_probes_are_never_accepted() -> None:
    tree = Topology.from_parents(torch.tensor([[-1, 0, 1, 0]]))
    probe = torch.tensor([[False, False, True, False]])
    proposal = Proposal(torch.ones(1, 4, dtype=torch.long), tree, torch.tensor([4]), probe=probe)
    verdict = Typical()(proposal, torch.zeros(1, 4, V), SamplingBatch([WARM], [0], [0]))
    assert verdict.path.tolist() == [[0, 1, -1]]


def test_trees_are_judged_and_bad_settings_are_rejected() -> None:
    assert Typical().refuses(DraftKind(trees=True)) is None
    assert not Typical().lossless
    for settings in ({"epsilon": 0.0}, {"epsilon": 1.0}, {"delta": -0.1}):
        with pytest.raises(ValueError, match="must lie between 0 and 1"):
            Typical(**settings)
