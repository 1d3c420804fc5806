"""Rejected methods and settings, and certificates drawn in several sessions."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_methods import GREEDY, PLAIN, Copycat, Swapped, certify_it, toy

from specresearch import Engine, Request, SamplingParams
from specresearch.certification import cases, sampled_outputs
from specresearch.certification.adversaries import ATTACKS, Adversary
from specresearch.certification.certificate import REFUSED
from specresearch.certification.sampled_outputs import Decoded
from specresearch.proposers import NGram


class TestRefusals:
    def test_drafts_that_the_rule_cannot_judge_are_refused(self, tmp_path: Path) -> None:
        certificate = certify_it(tmp_path, Adversary(toy(), ATTACKS["tree_iid"]), Swapped())
        assert (certificate.verdict, certificate.refused) == (
            REFUSED,
            {"the drafts of it": "they branch"},
        )

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"greedy": PLAIN}, "greedy.plain: temperature 0 belongs"),
            ({"sampled": GREEDY}, "sampled.plain: temperature 0 belongs"),
            ({"stress": ("cool",)}, "trials.only.stress names 'cool'"),
            ({"visible_tv": 0.0}, "visible_tv=0.0 must lie between"),
            ({"batch_size": 0}, "batch_size=0 must be at least 1"),
            (
                {"sampled": {"one": SamplingParams(temperature=1.0, top_k=1)}},
                "in trials.only: it leaves only one output",
            ),
        ],
    )
    def test_bad_settings_are_rejected(
        self, tmp_path: Path, changes: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            certify_it(tmp_path, NGram(), **changes)


class TestResuming:
    def test_an_interrupted_certificate_resumes_to_the_same_counts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (cases, sampled_outputs):
            monkeypatch.setattr(module, "CHUNK_SIZE", 500)
        uninterrupted = certify_it(tmp_path / "whole", Copycat())
        chunk_sizes, original = [], sampled_outputs.in_bursts

        def until_interrupted(
            engine: Engine, requests: Sequence[Request], rng: np.random.Generator
        ) -> Iterator[Decoded]:
            chunk_sizes.append(len(requests))
            if len(chunk_sizes) == 3:
                raise KeyboardInterrupt
            yield from original(engine, requests, rng)

        with monkeypatch.context() as patched:
            patched.setattr(sampled_outputs, "in_bursts", until_interrupted)
            with pytest.raises(KeyboardInterrupt):
                certify_it(tmp_path / "parts", Copycat())
            counts = tmp_path / "parts" / "counts" / "only-it.jsonl"
            assert len(counts.read_text().splitlines()) == 3
            counts.write_text(counts.read_text() + '{"chunk":2,"tallies":{"pl')
            assert certify_it(tmp_path / "parts", Copycat()).sampled == uninterrupted.sampled
        assert sum(chunk_sizes[3:]) == uninterrupted.sampled[0].fit.num_samples - 1000

    def test_counts_of_every_round_are_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        once = certify_it(tmp_path / "once", Copycat()).sampled[0]
        monkeypatch.setattr(sampled_outputs, "MOST_ROUNDS", 3)
        monkeypatch.setattr(sampled_outputs, "_needs_more", lambda case, totals: True)
        more = certify_it(tmp_path, Copycat()).sampled[0]
        assert more.fit.num_samples == 3 * once.fit.num_samples
        assert more.fit.statistic != pytest.approx(once.fit.statistic)  # other seeds

        def decode_nothing(*args: object) -> Iterator[Decoded]:
            raise AssertionError

        monkeypatch.setattr(sampled_outputs, "in_bursts", decode_nothing)
        assert certify_it(tmp_path, Copycat()).sampled[0] == more

    def test_counts_of_other_settings_are_rejected(self, tmp_path: Path) -> None:
        certify_it(tmp_path, Copycat())
        with pytest.raises(ValueError, match="was sampled with other settings: samples, seed"):
            certify_it(tmp_path, Copycat(), seed=1)
        with pytest.raises(ValueError, match="was sampled with other settings: samples, settings"):
            certify_it(
                tmp_path,
                Copycat(),
                sampled={"plain": SamplingParams(temperature=0.8, max_new_tokens=2)},
            )
