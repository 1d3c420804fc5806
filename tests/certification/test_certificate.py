"""Exact methods are certified."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_methods import (
    CROWD,
    FEW,
    FIVE_TOKENS,
    GREEDY,
    PLAIN,
    SETTINGS,
    WARM,
    WARM_CASES,
    WAVES,
    BlockByHand,
    Copycat,
    Seldom,
    StopAfterUnlikely,
    certify_it,
    printed,
    toy,
)

from specresearch.acceptance import Greedy
from specresearch.certification.adversaries import ATTACKS
from specresearch.certification.certificate import CERTIFIED, UNTESTED
from specresearch.certification.targets import Toy
from specresearch.controllers import AcceptanceGate, BatchSizeCutoff, Controller, Goodput, Heuristic
from specresearch.proposers import Autoregressive, DraftModel, Lookahead, NGram, Proposer


class TestExactMethodsAreCertified:
    def test_with_adversaries_and_greedy_outputs(self, tmp_path: Path) -> None:
        certificate = certify_it(
            tmp_path,
            NGram(n_min=1),
            sampled=SETTINGS,
            stress=("everything",),
            greedy=GREEDY,
            visible_tv=0.1,
        )
        assert certificate.verdict == CERTIFIED
        assert [test.setting for test in certificate.sampled if not test.stress] == list(SETTINGS)
        assert len({len(test.prompt) for test in certificate.sampled}) == len(SETTINGS)
        assert {test.drafter for test in certificate.sampled} == {"it", *ATTACKS}
        assert len(certificate.greedy) == 1 + len(ATTACKS)
        assert all(
            test.visible_tv <= 0.2 and test.num_draft_tokens
            for test in certificate.sampled
            if test.stress
        )
        assert "output follows the target's distribution in all 3 tests" in " ".join(
            printed(certificate).split()
        )

    @pytest.mark.parametrize("proposer", [Copycat, StopAfterUnlikely])
    def test_sampled_drafts(self, tmp_path: Path, proposer: type[Proposer]) -> None:
        assert certify_it(tmp_path, proposer()).verdict == CERTIFIED

    def test_another_rule(self, tmp_path: Path) -> None:
        assert (
            certify_it(tmp_path, Copycat(), BlockByHand(stop_at_first_failure=False)).verdict
            == CERTIFIED
        )

    def test_a_draft_model(self, tmp_path: Path) -> None:
        certificate = certify_it(tmp_path, DraftModel(toy().draft(), 2), greedy=GREEDY)
        assert certificate.verdict == CERTIFIED
        assert (
            0.1
            < certificate.sampled[0].num_accepted_tokens / certificate.sampled[0].num_draft_tokens
            < 0.9
        )

    def test_preempted_requests_and_chunked_prompts(self, tmp_path: Path) -> None:
        sampled = {"top_k": SETTINGS["top_k"]}
        crowd: dict[str, Any] = {
            "batch_size": 8,
            "max_step_tokens": 14,
            "max_cache_tokens": 70,
            "greedy": GREEDY,
        }
        certificate = certify_it(
            tmp_path / "crowded", Copycat(), sampled=sampled, visible_tv=0.15, **crowd
        )
        assert certificate.verdict == CERTIFIED
        assert (
            min(certificate.sampled[0].num_preempted, certificate.sampled[0].num_chunked)
            > 0.3 * certificate.sampled[0].fit.num_samples
        )
        assert (
            certificate.greedy[0].num_equal
            == certificate.greedy[0].num_requests
            == 2 * FEW.num_greedy_prompts
        )
        assert "of requests preempted" in printed(certificate)
        assert "tested in only: " in printed(certificate)

    @pytest.mark.slow
    def test_lookahead_drafts_in_a_crowd(self, tmp_path: Path) -> None:
        certificate = certify_it(tmp_path, Lookahead(3, 3, 3), **CROWD)
        assert certificate.verdict == CERTIFIED

    @pytest.mark.slow
    def test_short_drafts_are_sampled_until_enough_requests_were_preempted(
        self, tmp_path: Path
    ) -> None:
        crowd = CROWD | {"shortest_prompt": 18, "visible_tv": 0.15}
        certificate = certify_it(tmp_path, NGram(2, n_min=1), **crowd)
        assert certificate.verdict == CERTIFIED
        assert certificate.sampled[0].visible_tv < 0.12  # more samples than 0.15 asks for

    def test_too_few_preemptions_leave_preemption_untested(self, tmp_path: Path) -> None:
        certificate = certify_it(
            tmp_path, Copycat(), max_cache_tokens=100_000, max_step_tokens=280, visible_tv=0.15
        )
        assert certificate.verdict == UNTESTED
        assert "0 preempted requests in all outputs of plain in only" in certificate.statement
        assert f"where {certificate.sampled[0].num_needed:,.0f} are needed" in certificate.statement

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_a_target_in_low_precision(self, tmp_path: Path, dtype: str) -> None:
        low = Toy(vocab_size=4, seed=2, dtype=dtype)
        certificate = certify_it(
            tmp_path, NGram(n_min=1), sampled=PLAIN, greedy=GREEDY, toy=low, target=low.target()
        )
        assert certificate.verdict == CERTIFIED
        assert 0 < certificate.sampled[0].rounding < (0.1 if dtype == "bfloat16" else 1e-5)
        assert certificate.greedy[0].num_equal > 0.5 * certificate.greedy[0].num_requests
        assert "rounding may shift the distribution by" in printed(certificate)

    @pytest.mark.parametrize("name", WARM_CASES)
    def test_equal_seeds_and_a_warm_proposer(self, tmp_path: Path, name: str) -> None:
        certificate = certify_it(tmp_path, WARM[name](), **WAVES)
        assert not certificate.failures
        assert certificate.sampled[1].num_draft_tokens > certificate.sampled[1].fit.num_samples

    @pytest.mark.slow
    @pytest.mark.parametrize("controller", [AcceptanceGate, Goodput, Heuristic, BatchSizeCutoff])
    def test_equal_seeds_and_a_controller_with_memory(
        self, tmp_path: Path, controller: Callable[[], Controller]
    ) -> None:
        certificate = certify_it(
            tmp_path, DraftModel(FIVE_TOKENS.draft(), 3), **WAVES, controller=controller()
        )
        assert certificate.verdict in (CERTIFIED, UNTESTED)
        assert not certificate.failures

    def test_a_method_must_draft_but_plain_decoding_need_not(self, tmp_path: Path) -> None:
        assert certify_it(tmp_path / "plain", Autoregressive()).verdict == CERTIFIED
        never = certify_it(tmp_path / "never", NGram(n_min=9, n_max=9))
        assert never.verdict == UNTESTED
        assert "UNTESTED" in printed(never)

    def test_too_few_drafts_leave_a_method_untested(self, tmp_path: Path) -> None:
        sampled = {"everything": SETTINGS["everything"]}
        certificate = certify_it(
            tmp_path, Copycat(), controller=Seldom(), sampled=sampled, batch_size=16
        )
        assert (
            0
            < certificate.sampled[0].num_draft_tokens
            < 0.2 * certificate.sampled[0].fit.num_samples
        )
        assert certificate.verdict == UNTESTED
        assert (
            f"{certificate.sampled[0].num_draft_tokens} drafts in all outputs of everything in only"
            in certificate.statement
        )

    def test_where_drafts_are_rare_more_outputs_are_sampled(self, tmp_path: Path) -> None:
        controller = Seldom()
        controller.every = 12
        sampled = {"everything": SETTINGS["everything"]}
        certificate = certify_it(
            tmp_path, Copycat(), controller=controller, sampled=sampled, batch_size=16
        )
        (test,) = certificate.sampled
        assert certificate.verdict == CERTIFIED
        assert test.visible_tv < 0.8 * test.asked_tv
        assert "everything" in printed(certificate)

    def test_a_greedy_rule_is_certified_for_temperature_0(self, tmp_path: Path) -> None:
        certificate = certify_it(tmp_path, NGram(), Greedy(), greedy=GREEDY)
        assert (certificate.verdict, len(certificate.sampled)) == (CERTIFIED, 0)
        assert "exact for temperature 0 only" in certificate.refused["settings plain"]
        assert "the rule does not sample" in certificate.statement
