"""A judgement holds exactly what a rule said, with or without the padding of a graph."""

from dataclasses import replace

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.acceptance import AcceptanceSampler, Greedy, Rejection
from specresearch.engine.rule_graphs import RuleGraphs
from specresearch.judgement import Judgement
from specresearch.models.graphs import Graphs
from specresearch.models.pass_graphs import PassGraphs
from specresearch.proposal import Proposal, Topology, Verdict
from specresearch.sampling import SamplingBatch
from specresearch.sampling_params import SamplingParams

VOCAB = 12
CHAIN = Topology.chain(3)
TREE = Topology.from_parents(torch.tensor([[-1, 0, 0, 1, 1, 3]]))


class Sizes(PassGraphs):
    """The sizes of a target's graphs, without a target."""

    def __init__(self) -> None:
        self.graphs = Graphs(torch.device("cpu"))
        self.sizes = [1, 2, 4, 8]


class RootsOnly(Greedy):
    """Writes no path beyond the root."""

    def __call__(
        self, proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
    ) -> Verdict:
        verdict = super().__call__(proposal, target_logits, sampling)
        nothing = torch.zeros_like(verdict.num_accepted)
        return replace(verdict, path=verdict.path[:, :1], num_accepted=nothing)


def proposed(topology: Topology, num_rows: int = 3) -> tuple[Proposal, Tensor]:
    generator = torch.Generator().manual_seed(0)
    num_nodes = topology.num_nodes
    tokens = torch.randint(VOCAB, (num_rows, num_nodes), generator=generator)
    lengths = torch.tensor([num_nodes, 1, num_nodes - 1])[:num_rows].clamp(min=1)
    logits = torch.randn(num_rows, num_nodes, VOCAB, generator=generator)
    logits[0, 0, tokens[0, :2][-1]] = 9.0  # so that a draft is accepted
    return Proposal(tokens, topology, lengths), logits


def sampling(temperature: float, num_rows: int = 3) -> SamplingBatch:
    params = [SamplingParams(temperature=temperature)] * num_rows
    return SamplingBatch(params, seeds=range(num_rows), positions=[4] * num_rows)


def assert_equal(actual: Judgement, expected: Judgement) -> None:
    for part in ("scalars", "path", "tokens", "parents", "acceptable", "expected"):
        ours, theirs = getattr(actual.columns, part), getattr(expected.columns, part)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(
                actual.packed[:, ours], expected.packed[:, theirs], equal_nan=True
            )


@pytest.mark.parametrize("topology", [Topology.chain(1), CHAIN, TREE])
@pytest.mark.parametrize(
    ("rule", "temperature"), [(Rejection(), 0.0), (Rejection(), 1.0), (Greedy(), 0.0)]
)
def test_padding_changes_no_judgement(
    topology: Topology, rule: AcceptanceSampler, temperature: float
) -> None:
    proposal, logits = proposed(topology)
    logits[2, 0] = float("nan")
    eager = RuleGraphs(rule, None)(proposal, logits, sampling(temperature))
    padded = RuleGraphs(rule, Sizes())(proposal, logits, sampling(temperature))
    assert_equal(padded, eager)
    assert padded.packed[:, padded.columns.scalars][:, 3].tolist() == [0, 0, 1]


def test_a_graph_writes_paths_of_one_length() -> None:
    proposal, logits = proposed(TREE)
    judge = RuleGraphs(RootsOnly(), Sizes())
    path = judge(proposal, logits, sampling(0.0)).verdict.path
    assert path.tolist() == [[0, -1, -1, -1]] * 3


def test_a_verdict_comes_back_as_it_was() -> None:
    proposal, _ = proposed(TREE, num_rows=2)
    verdict = Verdict(
        path=torch.tensor([[0, 1, 3, 5], [0, -1, -1, -1]]),
        num_accepted=torch.tensor([3, 0]),
        next_token=torch.tensor([(1 << 24) + 1, 0]),
        expected=torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5], [0.0] * 5]),
    )
    restored = Judgement.of(proposal, verdict).verdict
    for name, value in vars(verdict).items():
        if isinstance(value, Tensor):
            assert torch.equal(getattr(restored, name), value)
    assert Judgement.of(proposal, replace(verdict, expected=None)).verdict.expected is None


def test_nothing_expected_of_no_drafts_is_not_none() -> None:
    """So a step without drafts is recorded as the steps around it are."""
    proposal, logits = proposed(Topology.chain(1))
    verdict = RuleGraphs(Rejection(), None)(proposal, logits, sampling(1.0)).verdict
    assert verdict.expected is not None
    assert verdict.expected.shape == (3, 0)


def test_given_faults_replace_the_search_for_them() -> None:
    proposal, logits = proposed(CHAIN)
    logits[1] = float("-inf")  # as a grammar without a way out leaves them
    given = torch.tensor([0, 0, 2])
    for passes in (None, Sizes()):
        judge = RuleGraphs(Greedy(), passes)
        found = judge(proposal, logits, sampling(0.0))
        assert found.packed[:, 3].tolist() == [0, 1, 0]
        assert judge(proposal, logits, sampling(0.0), given).packed[:, 3].tolist() == [0, 0, 2]
