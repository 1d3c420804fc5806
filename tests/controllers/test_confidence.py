"""Stopping behind an unsure draft is lossless; dropping the unsure draft is not."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from shape_checks import unchecked

from specresearch import Engine, SamplingParams
from specresearch.certification.cases import SampledSetting
from specresearch.certification.counts import Tally
from specresearch.certification.targets import Toy
from specresearch.controllers import Confidence, Controller
from specresearch.proposal import DraftKind, Proposal, Topology
from specresearch.proposers import DraftModel

pytestmark = pytest.mark.filterwarnings("ignore:the target is:UserWarning")

ALPHA, POWER, VISIBLE_TV = 1e-4, 0.95, 0.1
VOCAB, BOUND = 4, 0.3


def chain(scores: Sequence[Sequence[float]], lengths: Sequence[int]) -> Proposal:
    told = torch.tensor([[1.0, *row] for row in scores], dtype=torch.float64)
    tokens = torch.arange(told.numel()).view(told.shape)
    probs = torch.rand(*told.shape, 5, dtype=torch.float64)
    return Proposal(
        tokens, Topology.chain(told.shape[1]), torch.tensor(lengths), probs, scores=told
    )


class TestTrim:
    def test_keeps_the_first_unsure_draft_and_nothing_behind_it(self) -> None:
        proposal = chain(
            [[0.9, 0.2, 0.9, 0.9], [0.1, 0.9, 0.9, 0.9], [0.9, 0.9, 0.9, 0.1]], [5, 5, 3]
        )
        trimmed = Confidence(0.5).trim(proposal)
        assert trimmed.host_lengths == (3, 2, 3)
        assert trimmed.lengths.tolist() == [3, 2, 3]
        assert trimmed.topology.is_chain
        assert torch.equal(trimmed.token_ids, proposal.token_ids[:, :3])
        assert trimmed.draft_probs is not None
        assert proposal.draft_probs is not None
        assert torch.equal(trimmed.draft_probs, proposal.draft_probs[:, :3])
        assert trimmed.scores is not None
        assert trimmed.scores.shape == (3, 3)

    def test_at_the_bound_is_sure_enough(self) -> None:
        assert Confidence(0.5).trim(chain([[0.5, 0.5, 0.4, 0.9]], [5])).host_lengths == (4,)

    @pytest.mark.parametrize(("bound", "length"), [(0.0, 5), (1.0, 2)])
    def test_extremes(self, bound: float, length: int) -> None:
        assert Confidence(bound).trim(chain([[0.5, 0.5, 0.4, 0.9]], [5])).host_lengths == (length,)

    def test_rows_without_drafts_stay_so(self) -> None:
        assert Confidence(0.5).trim(chain([[0.9, 0.9], [0.9, 0.9]], [1, 3])).host_lengths == (1, 3)
        empty = Proposal.empty(torch.tensor([[3], [4]]))
        assert Confidence(0.5).trim(empty) is empty


def test_drafts_it_cannot_judge_are_refused() -> None:
    with pytest.raises(ValueError, match="this proposer gives none"):
        Confidence().bind(DraftKind(), 5)
    with pytest.raises(ValueError, match="Confidence steers the length of chains"):
        Confidence().bind(DraftKind(trees=True, scored=True), 5)
    with pytest.raises(ValueError, match=r"min_confidence=1\.2"):
        Confidence(1.2)


class DropsTheUnsure(Controller):
    """Trims like `Confidence`, but drops the unsure draft itself."""

    def budget(self, batch) -> list[int | None]:
        return [None] * len(batch)

    def observe(self, record) -> None:
        pass

    def trim(self, proposal: Proposal) -> Proposal:
        if proposal.scores is None:
            return proposal
        is_sure = proposal.scores[:, 1:] >= BOUND
        kept = torch.minimum(proposal.lengths, is_sure.long().cumprod(1).sum(1) + 1)
        return replace(proposal, lengths=kept, host_lengths=None)


@lru_cache
def setting() -> SampledSetting:
    toy, sampling = Toy(VOCAB, seed=4), SamplingParams(temperature=1.0, max_new_tokens=4)
    return SampledSetting.build(
        "plain", 0, sampling, (1, 2), toy=toy, tv=VISIBLE_TV, alpha=ALPHA, power=POWER
    )


def tally_of(controller: Controller) -> Tally:
    toy = Toy(VOCAB, seed=4)
    tally, requests = Tally([0] * len(setting().distribution.outputs)), []
    for number in range(-(-setting().num_samples // 2048)):
        requests += setting().requests(number, seed=0)
    engine = Engine(
        toy.target(), DraftModel(toy.draft(), 3), controller=controller, max_batch_size=1024
    )
    with unchecked():
        for output in engine.generate(requests):
            tally.add(output, setting().distribution)
    return tally


def p_value(tally: Tally) -> float:
    return tally.fit(setting().distribution).p_value


def test_stopping_behind_an_unsure_draft_is_exact() -> None:
    controller = Confidence(BOUND)
    tally = tally_of(controller)
    assert p_value(tally) > ALPHA
    steps = controller.trace()
    made, verified = (sum(row[name] for row in steps) for name in ("num_made", "num_verified"))
    assert 0.5 < verified / made < 0.95
    assert 0.1 < tally.num_accepted_tokens / tally.num_draft_tokens < 0.95


def test_negative_control_dropping_the_unsure_draft_is_not() -> None:
    assert p_value(tally_of(DropsTheUnsure())) < ALPHA
