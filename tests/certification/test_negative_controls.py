"""Inexact methods are refuted at the strength of a quick certificate, which names the fault."""

from pathlib import Path
from typing import Any

import pytest
from toy_methods import (
    CROWD,
    GREEDY,
    PLAIN,
    WARM,
    WARM_CASES,
    WAVES,
    AboveAFloor,
    BlockByHand,
    Copycat,
    DeclaredFloor,
    DropUnlikely,
    FullPrecisionRow,
    Mislabelled,
    OffAtTheFourth,
    Swapped,
    certify_it,
    printed,
    toy,
)

from specresearch.certification import adversaries
from specresearch.certification.certificate import LOSSY, REFUTED
from specresearch.certification.targets import Toy
from specresearch.engine.seeds import Seeds
from specresearch.proposers import Autoregressive, DraftModel, NGram


class TestNegativeControls:
    """Each of these must be refuted with the samples of `strength=quick`, or fewer."""

    def test_top_k_labelled_as_sampled(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(adversaries, "draw", lambda weights, uniforms: weights.argmax(1))
        assert certify_it(tmp_path, Copycat()).verdict == REFUTED

    def test_dropping_a_draft_of_low_confidence(self, tmp_path: Path) -> None:
        assert certify_it(tmp_path, DropUnlikely()).verdict == REFUTED

    def test_block_verification_that_stops_at_the_first_failure(self, tmp_path: Path) -> None:
        assert (
            certify_it(tmp_path, Copycat(), BlockByHand(stop_at_first_failure=True)).verdict
            == REFUTED
        )

    def test_p_and_q_swapped(self, tmp_path: Path) -> None:
        assert certify_it(tmp_path, Copycat(), Swapped()).verdict == REFUTED

    def test_a_lossy_rule_is_reported_with_its_distance_unless_it_claims_to_be_lossless(
        self, tmp_path: Path
    ) -> None:
        declared = certify_it(tmp_path / "declared", Copycat(), DeclaredFloor(), visible_tv=0.1)
        assert declared.verdict == LOSSY
        assert declared.sampled[0].rejected
        assert declared.sampled[0].fit.tv_low > 0
        assert f"total variation up to {declared.sampled[0].fit.tv:.3f}" in " ".join(
            printed(declared).split()
        )
        assert certify_it(tmp_path / "claimed", Copycat(), AboveAFloor()).verdict == REFUTED

    @pytest.mark.parametrize("name", WARM_CASES)
    def test_draws_shared_with_the_request_that_taught_the_drafts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setattr(Seeds, "of", lambda self, request, number: request.sampling.seed)
        assert certify_it(tmp_path, WARM[name](), **WAVES).verdict == REFUTED

    @pytest.mark.slow
    def test_lookahead_that_mislabels_its_drafts_in_a_crowd(self, tmp_path: Path) -> None:
        certificate = certify_it(tmp_path, Mislabelled(3, 3, 3), **CROWD)
        assert certificate.verdict == REFUTED

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_low_precision_is_no_excuse(self, tmp_path: Path, dtype: str) -> None:
        low = Toy(vocab_size=4, seed=2, dtype=dtype)
        parts: dict[str, Any] = {"toy": low, "target": low.target()}
        assert certify_it(tmp_path / "sampled", NGram(), AboveAFloor(), **parts).verdict == REFUTED
        certificate = certify_it(
            tmp_path / "greedy", NGram(), OffAtTheFourth(), sampled={}, greedy=GREEDY, **parts
        )
        assert certificate.verdict == REFUTED
        assert certificate.greedy[0].num_wrong > certificate.greedy[0].num_requests / 2

    def test_an_adversary_exposes_a_fault_that_the_method_hides(self, tmp_path: Path) -> None:
        certificate = certify_it(tmp_path, Autoregressive(), AboveAFloor(), stress=("plain",))
        assert certificate.verdict == REFUTED
        assert "flat" in certificate.statement
        assert "so the rule is at fault" in certificate.statement
        assert certificate.refused["adversary tree_iid"] == "they branch"

    @pytest.mark.filterwarnings("ignore:the target is:UserWarning")
    @pytest.mark.parametrize("declares", ["rounded", "full"])
    def test_the_full_row_declared_for_a_quantised_draw(
        self, tmp_path: Path, declares: str
    ) -> None:
        rounded = toy().copy(bits=2)
        proposer = DraftModel(rounded, 3, tree="chain")
        if declares == "full":
            proposer = FullPrecisionRow(rounded, toy().copy(bits=None))
        certificate = certify_it(tmp_path, proposer, sampled=PLAIN, seed=1)
        assert (certificate.verdict == REFUTED) == (declares == "full")

    def test_a_wrong_greedy_token(self, tmp_path: Path) -> None:
        certificate = certify_it(tmp_path, NGram(), OffAtTheFourth(), sampled={}, greedy=GREEDY)
        assert certificate.verdict == REFUTED
        test = certificate.greedy[0]
        assert test.num_wrong > test.num_requests / 2
        assert test.num_ties == 0
        assert test.first_difference
        assert test.first_difference.endswith("token 3")
        assert test.first_difference in printed(certificate)
