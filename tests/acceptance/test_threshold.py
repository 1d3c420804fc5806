"""Threshold acceptance: what it compares, what it refuses, and the target's last token."""

import pytest
import torch

from specresearch.acceptance import Threshold
from specresearch.acceptance.threshold import WORKLOADS, temper_by_entropy
from specresearch.proposal import DraftKind, Proposal, Topology
from specresearch.sampling import SamplingBatch, SamplingParams

V = 4
TREE = Topology.from_parents(torch.tensor([[-1, 0, 0, 2, 3]]))
Q = torch.tensor(
    [[0.7, 0.1, 0.1, 0.1], [0.4, 0.4, 0.1, 0.1], [0.55, 0.15, 0.15, 0.15], [0.25, 0.25, 0.25, 0.25]]
)


def batch(num_rows: int, params: SamplingParams) -> SamplingBatch:
    return SamplingBatch([params] * num_rows, range(num_rows), [0] * num_rows)


WARM, COLD = SamplingParams(temperature=1.0), SamplingParams()


@pytest.mark.parametrize("params", [WARM, COLD], ids=["sampled", "greedy"])
@pytest.mark.parametrize(
    ("threshold", "want"), [(0.3, [0, 2, 3, 4]), (0.65, [0, 2, 3]), (0.7, [0, 1]), (0.9, [0])]
)
def test_the_scores_of_a_tree_decide_whatever_the_target_predicts(
    params: SamplingParams, threshold: float, want: list[int]
) -> None:
    scores = torch.tensor([[0.0, 0.8, 0.7, 0.68, 0.4]]).expand(20, -1)
    proposal = Proposal(
        torch.ones(20, 5, dtype=torch.long), TREE, torch.full((20,), 5), scores=scores
    )
    logits = torch.randn(20, 5, V, generator=torch.Generator().manual_seed(1))
    verdict = Threshold(threshold)(proposal, logits, batch(20, params))
    assert verdict.path.tolist() == [want + [-1] * (4 - len(want))] * 20
    if params.is_greedy:
        assert torch.equal(verdict.next_token, logits[:, want[-1]].argmax(-1))


def test_padding_and_probes_are_never_accepted() -> None:
    probe = torch.tensor([[False, False, False, True, False]])
    lengths = torch.tensor([5, 2, 1])
    proposal = Proposal(
        torch.ones(3, 5, dtype=torch.long), TREE, lengths, scores=torch.ones(3, 5), probe=probe
    )
    verdict = Threshold()(proposal, torch.zeros(3, 5, V), batch(3, WARM))
    assert verdict.path.tolist() == [[0, 1, -1, -1], [0, 1, -1, -1], [0, -1, -1, -1]]


def test_drafts_without_scores_are_judged_by_their_draft_probs() -> None:
    proposal = Proposal.chain(torch.zeros(1, 4, dtype=torch.long), torch.tensor([4]), Q[None])
    logits = torch.zeros(1, 4, V)
    for threshold, num in ((0.75, 0), (0.5, 1), (0.3, 3), (0.0, 3)):
        assert Threshold(threshold)(proposal, logits, batch(1, WARM)).num_accepted.item() == num


def test_workloads_set_the_threshold() -> None:
    assert Threshold().threshold == WORKLOADS["prose"] == 0.5
    assert Threshold(workload="code").threshold == 0.75
    assert Threshold(0.1, workload="code").threshold == 0.1


def test_the_entropy_scale_raises_the_threshold_of_an_uncertain_drafter() -> None:
    peaked, flat, certain = Q[:1], torch.tensor([[0.55, 0.15, 0.15, 0.15]]), torch.eye(V)[:1]
    rows = torch.cat([peaked, flat, certain])[None]
    softer, sharper = (temper_by_entropy(rows, scale)[0, :, 0] for scale in (0.5, -0.5))
    probs = rows[0, :, 0]
    assert bool((softer[:2] < probs[:2]).all())
    assert bool((sharper[:2] > probs[:2]).all())
    assert softer[2] == sharper[2] == 1
    assert probs[1] / probs[0] > softer[1] / softer[0]
    torch.testing.assert_close(temper_by_entropy(rows, 0.5).sum(-1), torch.ones(1, 3))
    entropy = -(peaked * peaked.log()).sum()
    powers = peaked ** (-0.5 * entropy).exp()
    torch.testing.assert_close(softer[0], powers[0, 0] / powers.sum())

    proposal = Proposal.chain(
        torch.zeros(1, 3, dtype=torch.long),
        torch.tensor([3]),
        torch.stack([Q[2], Q[0], Q[3]])[None],
    )
    numbers = [
        Threshold(0.5, entropy_scale=scale)(
            proposal, torch.zeros(1, 3, V), batch(1, WARM)
        ).num_accepted.item()
        for scale in (-0.5, 0.0, 0.5)
    ]
    assert numbers == [2, 2, 0]


@pytest.mark.parametrize(("penalty", "want"), [(0.0, 1), (2.0, 1), (3.0, 2)])
def test_the_last_token_is_the_targets_with_penalties(penalty: float, want: int) -> None:
    """The penalty of token 1, drafted twice, counts the accepted draft only."""
    logits = torch.tensor([0.0, 3.5, 1.0, 0.0]).expand(1, 3, -1)
    scores = torch.tensor([[0.0, 0.9, 0.1]])
    proposal = Proposal(
        torch.tensor([[0, 1, 1]]), Topology.chain(3), torch.tensor([3]), scores=scores
    )
    counts = torch.zeros(1, V, dtype=torch.long)
    params = SamplingParams(frequency_penalty=penalty)
    sampling = SamplingBatch([params], [0], [0], prompt_counts=counts, output_counts=counts)
    verdict = Threshold()(proposal, logits, sampling)
    assert verdict.num_accepted.item() == 1
    assert verdict.next_token.item() == want


def test_a_step_without_drafts_is_plain_decoding() -> None:
    proposal = Proposal.chain(torch.zeros(3, 1, dtype=torch.long), torch.ones(3, dtype=torch.long))
    logits = torch.randn(3, 1, V, generator=torch.Generator().manual_seed(2))
    verdict = Threshold()(proposal, logits, batch(3, COLD))
    assert verdict.num_accepted.tolist() == [0, 0, 0]
    assert torch.equal(verdict.next_token, logits[:, 0].argmax(-1))


class TestRefusals:
    def test_drafts_without_scores_or_probabilities_are_refused(self) -> None:
        assert "without the probabilities" in str(Threshold().refuses(DraftKind(trees=True)))
        assert Threshold().refuses(DraftKind(trees=True, scored=True)) is None
        assert Threshold().refuses(DraftKind(sampled=True)) is None
        assert "entropy_scale=0.5" in str(
            Threshold(entropy_scale=0.5).refuses(DraftKind(scored=True))
        )
        assert Threshold(entropy_scale=0.5).refuses(DraftKind(sampled=True)) is None
        assert not Threshold().lossless

    @pytest.mark.parametrize(
        "q", [None, torch.eye(V)[:1].expand(2, -1)[None]], ids=["point_mass", "one_hot"]
    )
    def test_a_greedy_request_has_no_distribution_to_compare(self, q: torch.Tensor | None) -> None:
        proposal = Proposal.chain(torch.zeros(1, 2, dtype=torch.long), torch.tensor([2]), q)
        with pytest.raises(ValueError, match="temperature=0"):
            Threshold()(proposal, torch.zeros(1, 2, V), batch(1, COLD))

    def test_bad_settings_are_rejected(self) -> None:
        with pytest.raises(ValueError, match="'poem' is not one of code, structured, prose"):
            Threshold(workload="poem")
        with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
            Threshold(1.5)


def test_a_request_brings_its_own_threshold() -> None:
    """Of two equal rows of a scored chain, the one with the higher threshold is rejected."""
    proposal = Proposal(
        torch.tensor([[0, 1, 2]] * 2),
        Topology.chain(3),
        torch.tensor([3, 3]),
        scores=torch.tensor([[1.0, 0.7, 0.6]] * 2),
    )
    params = [SamplingParams(draft_threshold=0.65), SamplingParams()]
    verdict = Threshold(0.5)(proposal, torch.zeros(2, 3, 4), SamplingBatch(params, [0, 0], [0, 0]))
    assert verdict.num_accepted.tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"draft_threshold=1\.5"):
        SamplingParams(draft_threshold=1.5)
