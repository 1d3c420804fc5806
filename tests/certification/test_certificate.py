"""Certificates: what is exact is certified, what is not is refuted, and either can be drawn in several sessions."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pytest
import torch
from command_line import Run, Typed
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_class
from jaxtyping import config
from omegaconf import OmegaConf
from rich.console import Console
from scipy import stats
from torch import Tensor

from specresearch import CausalLM, Engine, Request, SamplingParams, certify
from specresearch.acceptance import AcceptanceSampler, Greedy, Rejection
from specresearch.acceptance.rejection import accept_by_rejection
from specresearch.batch import Batch
from specresearch.certification import adversaries, draws
from specresearch.certification.adversaries import ATTACKS, Adversary, Attack, for_other_tokens
from specresearch.certification.certificate import (
    CERTIFIED,
    LOSSY,
    REFUSED,
    REFUTED,
    UNTESTED,
    Certificate,
    print_certificate,
)
from specresearch.certification.certifier import Certifier, Demands
from specresearch.certification.decoding import Decoded
from specresearch.certification.enumeration import Toy, enumerate_outputs, next_token_probs
from specresearch.certification.goodness import (
    Fit,
    chi_square,
    holm,
    samples_needed,
    tv_bounds,
    visible_tv,
)
from specresearch.certification.substitution import build_on_toy
from specresearch.certification.trials import Trial, TrialSettings
from specresearch.cli import conf_dir
from specresearch.controllers import (
    AcceptanceGate,
    BatchSizeCutoff,
    Controller,
    Fixed,
    Goodput,
    Heuristic,
)
from specresearch.engine.seeds import Seeds
from specresearch.engine.settings import SchedulerSettings
from specresearch.proposal import DraftKind, Proposal, Verdict
from specresearch.proposers import (
    Autoregressive,
    DraftModel,
    NGram,
    Proposer,
    Suffix,
    TokenRecycling,
)
from specresearch.sampling import ACCEPT_STREAM, SamplingBatch, draw, logits_to_probs

PLAIN = {"plain": SamplingParams(temperature=1.0, max_new_tokens=3)}
SETTINGS = PLAIN | {
    "top_k": SamplingParams(temperature=1.0, top_k=2, max_new_tokens=5),
    "everything": SamplingParams(
        temperature=0.8,
        top_k=3,
        top_p=0.95,
        min_p=0.05,
        repetition_penalty=1.5,
        presence_penalty=0.3,
        frequency_penalty=0.4,
        max_new_tokens=3,
        stop_token_ids=(1,),
    ),
}
GREEDY = {"plain": SamplingParams(max_new_tokens=8)}
CHANGED = {
    "stress",
    "batch_size",
    "max_step_tokens",
    "max_cache_tokens",
    "equal_seeds",
    "coarseness",
}
FEW = Demands(visible_tv=0.1, num_greedy_prompts=6)


@pytest.fixture(scope="module", autouse=True)
def unchecked() -> Iterator[None]:
    """Shapes are checked in every other test; in long runs the checks would take most of the time."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@lru_cache
def toy() -> Toy:
    return Toy(vocab_size=4, seed=2)


@lru_cache
def target() -> CausalLM:
    return toy().target()


class Copycat(Adversary):
    """Drafts sampled from what the target gives to other tokens; subclasses spoil them."""

    memory = "cold"  # pyright: ignore[reportAssignmentType]

    def __init__(self) -> None:
        super().__init__(toy(), Attack(for_other_tokens))


class DropUnlikely(Copycat):
    """Ends a draft before its first token of low probability, having seen it."""

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        proposal = super().propose(batch, budget)
        assert proposal.scores is not None
        sure = (proposal.scores[:, 1:] >= 0.25).long().cumprod(1).sum(1)
        return replace(proposal, lengths=torch.minimum(proposal.lengths, sure + 1))


class StopAfterUnlikely(Copycat):
    """Ends a draft with its first token of low probability, which is allowed."""

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        proposal = super().propose(batch, budget)
        assert proposal.scores is not None
        sure = (proposal.scores[:, 1:] >= 0.25).long().cumprod(1).sum(1)
        return replace(proposal, lengths=torch.minimum(proposal.lengths, sure + 2))


class Rule:
    """A rule on the probabilities of chains."""

    lossless = True

    def refuses(self, kind: DraftKind) -> str | None:
        return "they branch" if kind.trees else None

    def __call__(
        self, proposal: Proposal, target_logits: Tensor, sampling: SamplingBatch
    ) -> Verdict:
        p = logits_to_probs(target_logits, sampling)
        num_nodes = proposal.topology.num_nodes
        q = (
            torch.full_like(p, 1 / p.shape[2])
            if proposal.draft_probs is None
            else proposal.draft_probs
        )
        return self.decide(proposal, p, q, sampling.uniforms(ACCEPT_STREAM, num_nodes))

    def decide(self, proposal: Proposal, p: Tensor, q: Tensor, u: Tensor) -> Verdict:
        raise NotImplementedError

    def verdict(self, passes: Tensor, weights: Tensor, u: Tensor) -> Verdict:
        """The longest prefix of `passes` [B, M], then a draw from the row of `weights` [B, N, V] after it."""
        num_accepted = passes.long().cumprod(1).sum(1)
        index = torch.arange(weights.shape[1])
        row = weights[torch.arange(len(weights)), num_accepted]
        return Verdict(
            torch.where(index <= num_accepted[:, None], index, -1), num_accepted, draw(row, u[:, 0])
        )


def own(probs: Tensor, tokens: Tensor) -> Tensor:
    """Of every draft of a chain: its probability after the node before."""
    return probs[:, :-1].gather(2, tokens[:, 1:, None])[:, :, 0]


class Swapped(Rule):
    """p where q belongs, and q where p belongs."""

    def decide(self, proposal: Proposal, p: Tensor, q: Tensor, u: Tensor) -> Verdict:
        last = torch.arange(p.shape[1]) == proposal.lengths[:, None] - 1
        q = torch.where(last[:, :, None], p, q)
        return accept_by_rejection(replace(proposal, draft_probs=p), q, u)


class AboveAFloor(Rule):
    """Accepts whatever the target finds likely enough."""

    def decide(self, proposal: Proposal, p: Tensor, q: Tensor, u: Tensor) -> Verdict:
        return self.verdict((own(p, proposal.token_ids) > 0.2) & proposal.acceptable[:, 1:], p, u)


class DeclaredFloor(AboveAFloor):
    lossless = False


class BlockByHand(Rule):
    """Block verification (arXiv 2403.10444), with the last draft that passes or up to the first that fails."""

    def __init__(self, stop_at_first_failure: bool) -> None:
        self.stop_at_first_failure = stop_at_first_failure

    def decide(self, proposal: Proposal, p: Tensor, q: Tensor, u: Tensor) -> Verdict:
        num_drafts = proposal.lengths - 1
        kept = [torch.ones(len(p), dtype=p.dtype)]
        for ratio in (own(p, proposal.token_ids) / own(q, proposal.token_ids)).unbind(1):
            kept.append((kept[-1] * ratio).clamp(max=1))
        keep = torch.stack(kept, 1)
        left = (keep[:, :, None] * p - q).clamp(min=0)
        total = left.sum(2)
        chance = torch.where(total + 1 - keep > 0, total / (total + 1 - keep), 1.0)
        node = torch.arange(p.shape[1])
        is_last = node == num_drafts[:, None]
        chance = torch.where(is_last, keep, chance)
        passes = ((u <= chance) & (node <= num_drafts[:, None]))[:, 1:]
        if not self.stop_at_first_failure:
            passes = passes.flip(1).cummax(1).values.flip(1)
        return self.verdict(
            passes, torch.where(is_last[:, :, None] | (left.sum(2, keepdim=True) == 0), p, left), u
        )


WARM: dict[str, Callable[[], Proposer]] = {
    "suffix": lambda: Suffix(4, offset=2.0, use_global=True),
    "token_recycling": lambda: TokenRecycling(24, top_k=5, depth=3, warm=True),
}


class Seldom(Fixed):
    """Drafts in every fortieth step."""

    num_steps = 0

    def budget(self, batch: Batch) -> list[int | None]:
        self.num_steps += 1
        return [None if self.num_steps % 40 == 0 else 0] * len(batch)


FIVE_TOKENS = Toy()
WAVES: dict[str, Any] = {
    "toy": FIVE_TOKENS,
    "target": FIVE_TOKENS.target(),
    "sampled": {
        "brief": SamplingParams(temperature=1.0, max_new_tokens=2),
        "pairs": SamplingParams(temperature=1.0, top_k=2, max_new_tokens=5),
    },
    "equal_seeds": True,
    "visible_tv": 0.18,
}


def certify_it(
    folder: Path, proposer: Proposer, rule: AcceptanceSampler | None = None, **changes: Any
) -> Certificate:
    """In one trial with few samples; fields of the demands, the trial, its settings and `Certifier` can be changed."""
    demands = {name: changes.pop(name) for name in list(changes) if hasattr(FEW, name)}
    told: dict[str, Any] = {name: changes.pop(name) for name in CHANGED & changes.keys()}
    made: dict[str, Any] = {
        "toy": toy(),
        "target": target(),
        "controller": Fixed(),
        "scheduling": SchedulerSettings(),
    }
    made |= {name: changes.pop(name) for name in made.keys() & changes.keys()}
    trial = Trial("only", TrialSettings(**told), proposer=proposer, **made)
    kinds: dict[str, Any] = {"sampled": PLAIN, "greedy": {}} | changes
    certifier = Certifier(
        "it", rule or Rejection(), [trial], folder=folder, demands=replace(FEW, **demands), **kinds
    )
    return certifier.run(progress=False)


def printed(certificate: Certificate) -> str:
    console = Console(width=80, file=io.StringIO(), record=True)
    print_certificate(certificate, Path("certificate.json"), console)
    return console.export_text()


class TestWhatIsExactIsCertified:
    def test_with_adversaries_and_greedy_outputs(self, tmp_path: Path) -> None:
        made = certify_it(
            tmp_path, NGram(), sampled=SETTINGS, stress=("everything",), greedy=GREEDY
        )
        assert made.verdict == CERTIFIED
        assert [test.setting for test in made.sampled if not test.stress] == list(SETTINGS)
        assert len({len(test.prompt) for test in made.sampled}) == len(SETTINGS)
        assert {test.drafter for test in made.sampled} == {"it", *ATTACKS}
        assert len(made.greedy) == 1 + len(ATTACKS)
        assert all(
            test.visible_tv <= 0.2 and test.num_draft_tokens for test in made.sampled if test.stress
        )
        assert "the target's distribution in all of 3 tests" in " ".join(printed(made).split())

    @pytest.mark.parametrize("proposer", [Copycat, StopAfterUnlikely])
    def test_sampled_drafts(self, tmp_path: Path, proposer: type[Proposer]) -> None:
        assert certify_it(tmp_path, proposer()).verdict == CERTIFIED

    def test_another_rule(self, tmp_path: Path) -> None:
        assert (
            certify_it(tmp_path, Copycat(), BlockByHand(stop_at_first_failure=False)).verdict
            == CERTIFIED
        )

    def test_a_draft_model(self, tmp_path: Path) -> None:
        made = certify_it(tmp_path, DraftModel(toy().draft(), 2), greedy=GREEDY)
        assert made.verdict == CERTIFIED
        assert 0.1 < made.sampled[0].num_accepted_tokens / made.sampled[0].num_draft_tokens < 0.9

    def test_requests_that_are_preempted_and_prompts_that_are_read_in_chunks(
        self, tmp_path: Path
    ) -> None:
        sampled = {"top_k": SETTINGS["top_k"]}
        crowd: dict[str, Any] = {
            "batch_size": 8,
            "max_step_tokens": 14,
            "max_cache_tokens": 70,
            "greedy": GREEDY,
        }
        made = certify_it(
            tmp_path / "crowded", Copycat(), sampled=sampled, visible_tv=0.15, **crowd
        )
        assert made.verdict == CERTIFIED
        assert (
            min(made.sampled[0].num_preempted, made.sampled[0].num_chunked)
            > 0.3 * made.sampled[0].fit.num_samples
        )
        assert made.greedy[0].num_equal == made.greedy[0].num_requests == 2 * FEW.num_greedy_prompts
        assert "of requests preempted" in printed(made)

    def test_limits_that_preempt_too_few_prove_nothing_of_preemption(self, tmp_path: Path) -> None:
        made = certify_it(
            tmp_path, Copycat(), max_cache_tokens=100_000, max_step_tokens=280, visible_tv=0.15
        )
        assert made.verdict == UNTESTED
        assert "0 preempted requests in all outputs of only plain" in made.statement

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_a_target_in_low_precision(self, tmp_path: Path, dtype: str) -> None:
        low = Toy(vocab_size=4, seed=2, dtype=dtype)
        made = certify_it(
            tmp_path, NGram(n_min=1), sampled=PLAIN, greedy=GREEDY, toy=low, target=low.target()
        )
        assert made.verdict == CERTIFIED
        assert 0 < made.sampled[0].rounding < (0.1 if dtype == "bfloat16" else 1e-5)
        assert made.greedy[0].num_equal > 0.5 * made.greedy[0].num_requests
        assert "rounding may move outputs by" in printed(made)

    @pytest.mark.parametrize("name", WARM)
    def test_seeds_shared_with_what_a_warm_proposer_remembers(
        self, tmp_path: Path, name: str
    ) -> None:
        made = certify_it(tmp_path, WARM[name](), **WAVES)
        assert not made.failures
        assert made.sampled[1].num_draft_tokens > made.sampled[1].fit.num_samples

    @pytest.mark.slow
    @pytest.mark.parametrize("controller", [AcceptanceGate, Goodput, Heuristic, BatchSizeCutoff])
    def test_seeds_shared_with_what_a_controller_has_seen(
        self, tmp_path: Path, controller: Callable[[], Controller]
    ) -> None:
        made = certify_it(
            tmp_path, DraftModel(FIVE_TOKENS.draft(), 3), **WAVES, controller=controller()
        )
        assert made.verdict in (CERTIFIED, UNTESTED)
        assert not made.failures

    def test_plain_decoding_need_not_draft_but_a_method_must(self, tmp_path: Path) -> None:
        assert certify_it(tmp_path / "plain", Autoregressive()).verdict == CERTIFIED
        never = certify_it(tmp_path / "never", NGram(n_min=9, n_max=9))
        assert never.verdict == UNTESTED
        assert "UNTESTED" in printed(never)

    def test_a_few_drafts_prove_nothing(self, tmp_path: Path) -> None:
        sampled = {"everything": SETTINGS["everything"]}
        made = certify_it(tmp_path, Copycat(), controller=Seldom(), sampled=sampled, batch_size=16)
        assert 0 < made.sampled[0].num_draft_tokens < 0.2 * made.sampled[0].fit.num_samples
        assert made.verdict == UNTESTED
        assert (
            f"{made.sampled[0].num_draft_tokens} drafts in all outputs of only everything"
            in made.statement
        )

    def test_a_rule_for_temperature_0_is_certified_for_that(self, tmp_path: Path) -> None:
        made = certify_it(tmp_path, NGram(), Greedy(), greedy=GREEDY)
        assert (made.verdict, len(made.sampled)) == (CERTIFIED, 0)
        assert "exact for temperature 0 only" in made.refused["settings plain"]
        assert "it does not sample" in printed(made)


class TestNegativeControls:
    """Each must be refuted with the samples it gets, and says who is at fault."""

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
        declared = certify_it(tmp_path / "declared", Copycat(), DeclaredFloor())
        assert declared.verdict == LOSSY
        assert declared.sampled[0].rejected
        assert declared.sampled[0].fit.tv_low > 0
        assert f"total variation up to {declared.sampled[0].fit.tv:.3f}" in " ".join(
            printed(declared).split()
        )
        assert certify_it(tmp_path / "claimed", Copycat(), AboveAFloor()).verdict == REFUTED

    @pytest.mark.parametrize("name", WARM)
    def test_draws_shared_with_the_request_that_made_the_drafts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setattr(Seeds, "of", lambda self, request, number: request.sampling.seed)
        assert certify_it(tmp_path, WARM[name](), **WAVES).verdict == REFUTED

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_low_precision_is_no_excuse(self, tmp_path: Path, dtype: str) -> None:
        low = Toy(vocab_size=4, seed=2, dtype=dtype)
        parts: dict[str, Any] = {"toy": low, "target": low.target()}
        assert certify_it(tmp_path / "sampled", NGram(), AboveAFloor(), **parts).verdict == REFUTED
        made = certify_it(
            tmp_path / "greedy", NGram(), OffAtTheFourth(), sampled={}, greedy=GREEDY, **parts
        )
        assert made.verdict == REFUTED
        assert made.greedy[0].num_wrong > made.greedy[0].num_requests / 2

    def test_an_adversary_finds_what_the_method_itself_does_not_show(self, tmp_path: Path) -> None:
        made = certify_it(tmp_path, Autoregressive(), AboveAFloor(), stress=("plain",))
        assert made.verdict == REFUTED
        assert "flat" in made.statement
        assert "so the rule is at fault" in made.statement
        assert made.refused["adversary tree_iid"] == "they branch"

    def test_a_wrong_greedy_token(self, tmp_path: Path) -> None:
        made = certify_it(tmp_path, NGram(), OffAtTheFourth(), sampled={}, greedy=GREEDY)
        assert made.verdict == REFUTED
        found = made.greedy[0]
        assert found.num_wrong > found.num_requests / 2
        assert found.num_ties == 0
        assert found.first_difference
        assert found.first_difference.endswith("token 3")
        assert found.first_difference in printed(made)


class OffAtTheFourth(Greedy):
    """Greedy, but whatever ends a step with three tokens generated is the neighbour of the likeliest token."""

    def __call__(
        self, proposal: Proposal, target_logits: Tensor, sampling: SamplingBatch
    ) -> Verdict:
        verdict = super().__call__(proposal, target_logits, sampling)
        is_fourth = torch.tensor(sampling.positions) + verdict.num_accepted == 3
        wrong = (verdict.next_token + 1) % target_logits.shape[2]
        return replace(verdict, next_token=torch.where(is_fourth, wrong, verdict.next_token))


class TestRefusals:
    def test_drafts_that_the_rule_cannot_judge(self, tmp_path: Path) -> None:
        made = certify_it(tmp_path, Adversary(toy(), ATTACKS["tree_iid"]), Swapped())
        assert (made.verdict, made.refused) == (REFUSED, {"the drafts of it": "they branch"})

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
    def test_bad_settings(self, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            certify_it(tmp_path, NGram(), **changes)


class TestResuming:
    def test_an_interrupted_certificate_continues_to_the_same_counts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(draws, "CHUNK", 500)
        whole = certify_it(tmp_path / "whole", Copycat())
        drawn, original = [], draws.in_bursts

        def until_interrupted(
            engine: Engine, requests: Sequence[Request], rng: np.random.Generator
        ) -> Iterator[Decoded]:
            drawn.append(len(requests))
            if len(drawn) == 3:
                raise KeyboardInterrupt
            yield from original(engine, requests, rng)

        with monkeypatch.context() as patched:
            patched.setattr(draws, "in_bursts", until_interrupted)
            with pytest.raises(KeyboardInterrupt):
                certify_it(tmp_path / "parts", Copycat())
            counts = tmp_path / "parts" / "counts" / "only-it.jsonl"
            assert len(counts.read_text().splitlines()) == 3
            counts.write_text(counts.read_text() + '{"chunk":2,"tallies":{"pl')
            assert certify_it(tmp_path / "parts", Copycat()).sampled == whole.sampled
        assert sum(drawn[3:]) == whole.sampled[0].fit.num_samples - 1000

    def test_counts_of_something_else_are_refused(self, tmp_path: Path) -> None:
        certify_it(tmp_path, Copycat())
        with pytest.raises(ValueError, match="was drawn with another samples, seed"):
            certify_it(tmp_path, Copycat(), seed=1)
        with pytest.raises(ValueError, match="was drawn with another samples, settings"):
            certify_it(
                tmp_path,
                Copycat(),
                sampled={"plain": SamplingParams(temperature=0.8, max_new_tokens=2)},
            )


class TestEnumeration:
    @pytest.mark.parametrize("name", SETTINGS)
    def test_probabilities_add_up_and_agree_with_the_engine_s_sampling(self, name: str) -> None:
        prompt, sampling = (0, 3, 2, 0, 3), SETTINGS[name]
        law = enumerate_outputs(toy(), prompt, sampling)
        assert law.probs.sum() == pytest.approx(1)
        assert len(set(law.outputs)) == len(law.outputs)
        for output in law.outputs[:5]:
            logits = toy().logits([(*prompt, *output)])
            seen, said = (
                torch.bincount(torch.tensor(tokens), minlength=4)[None]
                for tokens in (prompt, output)
            )
            batch = SamplingBatch([sampling], [0], [0], torch.device("cpu"), seen, said)
            wanted = next_token_probs(logits[0].numpy(), prompt, output, sampling)
            assert np.allclose(logits_to_probs(logits[None], batch)[0, 0].numpy(), wanted)

    def test_logits_are_those_of_each_context_alone(self) -> None:
        contexts = [(0,), (1, 2, 3), (2, 2), (1, 2, 3)]
        together = toy().logits(contexts)
        alone = torch.cat([Toy(vocab_size=4, seed=2).logits([context]) for context in contexts])
        assert torch.allclose(together, alone, rtol=0, atol=1e-12)

    def test_stop_tokens_end_an_output(self) -> None:
        law = enumerate_outputs(
            toy(), (0,), SamplingParams(temperature=1.0, max_new_tokens=2, stop_token_ids=(1,))
        )
        assert sorted(map(len, law.outputs)) == [1] + [2] * 12


class TestGoodness:
    def test_chi_square_is_scipy_s(self) -> None:
        expected = np.array([0.1, 0.2, 0.3, 0.4]) * 1000
        counts = np.array([90, 230, 290, 390])
        statistic, freedom, p_value = chi_square(counts, expected)
        wanted = stats.chisquare(counts, expected)
        assert (statistic, freedom, p_value) == pytest.approx((wanted.statistic, 3, wanted.pvalue))

    def test_small_cells_are_pooled_until_they_count(self) -> None:
        assert chi_square(np.array([1, 50, 49]), np.array([0.5, 50.0, 49.5]))[1] == 1
        assert chi_square(np.array([3, 3, 94]), np.array([3.0, 3.0, 94.0]))[1] == 1
        assert chi_square(np.array([100]), np.array([100.0])) == (0.0, 0, 1.0)

    def test_an_impossible_sample_is_enough(self) -> None:
        probs = np.array([0.5, 0.5])
        assert Fit.of(np.array([500, 500]), probs).p_value == 1
        assert Fit.of(np.array([500, 499]), probs, num_impossible=1).p_value == 0

    def test_p_values_are_uniform_and_deviations_of_the_promised_size_are_seen(self) -> None:
        rng = np.random.default_rng(0)
        probs = rng.dirichlet(np.full(30, 0.5))
        num = samples_needed(probs, tv=0.05, alpha=0.01, power=0.9)
        assert visible_tv(num, probs, alpha=0.01, power=0.9) == pytest.approx(0.05, rel=0.03)
        fits = [Fit.of(counts, probs) for counts in rng.multinomial(num, probs, size=400)]
        assert stats.kstest([fit.p_value for fit in fits], "uniform").pvalue > 0.001
        assert all(fit.tv_low == 0 and fit.tv_high > 0 for fit in fits)
        shift = np.where(np.arange(30) % 2, 1, -1) * probs
        shift -= probs * shift.sum()
        moved = probs + shift * 0.05 / (0.5 * np.abs(shift).sum())
        fits = [Fit.of(counts, probs) for counts in rng.multinomial(num, moved, size=400)]
        assert np.mean([fit.p_value < 0.01 for fit in fits]) > 0.87
        assert all(fit.tv_low <= 0.05 <= fit.tv_high for fit in fits)

    def test_what_is_hidden_in_the_pool_counts_as_unseen(self) -> None:
        """A deviation among outputs too rare to be tested one by one; the larger sample tests them."""
        probs = np.array([*[0.9 / 9] * 9, *[0.1 / 400] * 400])
        moved = probs * np.where(np.arange(409) < 9, 1.0, 2.0 * (np.arange(409) % 2))
        few, many = 2_000, 400_000
        assert (
            visible_tv(few, probs, alpha=0.01, power=0.9)
            > 0.1
            > visible_tv(many, probs, alpha=0.01, power=0.9)
        )
        assert 0.5 * np.abs(moved / moved.sum() - probs).sum() == pytest.approx(0.05, abs=0.001)
        rng = np.random.default_rng(1)
        assert Fit.of(rng.multinomial(few, moved / moved.sum()), probs).p_value > 0.01
        assert Fit.of(rng.multinomial(many, moved / moved.sum()), probs).p_value < 1e-9

    def test_rounding_is_allowed_for_and_no_more(self) -> None:
        rng = np.random.default_rng(0)
        probs = rng.dirichlet(np.full(30, 5.0))
        shift = np.where(np.arange(30) % 2, 1, -1) * probs
        shift -= probs * shift.sum()
        rounded = probs + 0.045 * shift
        distance = float(((rounded - probs) ** 2 / probs).sum() ** 0.5)
        num = samples_needed(probs, 0.05, alpha=0.01, power=0.9, rounding=distance)
        fits = [
            Fit.of(counts, probs, 0, distance) for counts in rng.multinomial(num, rounded, size=400)
        ]
        assert 0.001 < np.mean([fit.p_value < 0.01 for fit in fits]) < 0.03
        assert (
            np.mean(
                [Fit.of(c, probs).p_value < 0.01 for c in rng.multinomial(num, rounded, size=400)]
            )
            > 0.03
        )
        moved = probs + 0.05 / (0.5 * np.abs(shift).sum()) * shift
        fits = [
            Fit.of(counts, probs, 0, distance) for counts in rng.multinomial(num, moved, size=400)
        ]
        assert np.mean([fit.p_value < 0.01 for fit in fits]) > 0.87
        with pytest.raises(ValueError, match="rounding alone may move the outputs"):
            samples_needed(probs, 0.05, alpha=0.01, power=0.9, rounding=0.2)

    def test_bounds_close_in(self) -> None:
        (low, high), (lower, higher) = tv_bounds(0.2, 1000, 50), tv_bounds(0.2, 100_000, 50)
        assert low < lower < 0.2 < higher < high

    def test_holm(self) -> None:
        assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
        assert holm([]) == []


class Hungry(NGram):
    """A proposer that would load something, and knows how to do without it on a toy."""

    def __init__(self, heads: str, num_draft_tokens: int) -> None:
        super().__init__(num_draft_tokens)
        self.heads = heads

    @classmethod
    def toy(cls, target: CausalLM, seed: int, num_draft_tokens: int = 5) -> "Hungry":
        return cls(f"random heads for {target.vocab_size} tokens", num_draft_tokens)


class TestSubstitution:
    @pytest.mark.parametrize(
        "choice", sorted(path.stem for path in conf_dir().glob("proposer/*.yaml"))
    )
    def test_every_proposer_of_conf_can_be_certified(self, choice: str) -> None:
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            cfg = hydra.compose("certify", [f"+proposer={choice}"])
        try:
            proposer = build_on_toy(cfg.proposer, toy(), target())
            Engine(target(), proposer, max_batch_size=2)
        except ValueError as error:
            if hasattr(get_class(cfg.proposer["_target_"]), "toy"):
                raise
            pytest.skip(
                f"it needs a classmethod toy(target, seed, **settings), without which: {error}"
            )

    def test_models_are_replaced_wherever_they_stand(self) -> None:
        model = {"_target_": "specresearch.models.CausalLM.from_pretrained", "model": "${draft}"}
        inner = {
            "_target_": "specresearch.proposers.DraftModel",
            "draft": model,
            "num_draft_tokens": 3,
        }
        built = build_on_toy(
            OmegaConf.create({"_target_": "builtins.dict", "parts": [inner], "n": 2}),
            toy(),
            target(),
        )
        assert (
            built["parts"][0].draft.vocab_size,
            built["parts"][0].num_draft_tokens,
            built["n"],
        ) == (4, 3, 2)

    def test_a_class_that_builds_itself_is_asked_to(self) -> None:
        node = {"_target_": f"{__name__}.Hungry", "num_draft_tokens": 2, "dtype": "${target.dtype}"}
        built = build_on_toy(OmegaConf.create(node), toy(), target())
        assert (built.heads, built.num_draft_tokens) == ("random heads for 4 tokens", 2)
        with pytest.raises(ValueError, match=r"Hungry: .*unexpected keyword argument 'depth'"):
            build_on_toy(OmegaConf.create(node | {"depth": 3}), toy(), target())


@pytest.fixture
def command(typed: Typed) -> Run:
    """`python -m specresearch.certify` with few samples, in an empty folder; overrides are added."""
    few = [
        "visible_tv=0.2",
        "toy.vocab_size=4",
        "num_greedy_prompts=4",
        "trials.mixed.stress=[top_k]",
    ]
    few += [f"~trials.{name}" for name in ("crowded", "equal_seeds", "wide", "float32", "bfloat16")]
    few += ["~greedy.plain", "~greedy.penalties"]
    few += [
        f"~sampled.{name}"
        for name in ("short", "pairs", "cool", "top_p", "min_p", "penalties", "everything")
    ]
    return lambda *overrides: typed(certify.main, [*few, *overrides])


@pytest.mark.filterwarnings("ignore:unclosed file .*certify.log:ResourceWarning")
class TestTheCommand:
    def test_it_prints_its_verdict_and_leaves_a_certificate(self, command: Run) -> None:
        outcome = command("+proposer=ngram", "hydra.run.dir=out")
        assert outcome.code == 0, outcome.err
        assert "CERTIFIED" in outcome.out
        told = json.loads(Path("out/certificate.json").read_text())
        assert (told["method"], told["rule"], told["verdict"]) == (
            "ngram",
            "rejection",
            "certified",
        )
        assert {"packages", "git_commit", "code_fingerprint", "seed"} <= told["provenance"].keys()
        assert told["config"]["proposer"]["num_draft_tokens"] == 10
        assert told["config"]["sampled"]["top_k"]["top_k"] == 2
        again = command("+proposer=ngram", "hydra.run.dir=out")
        assert again.code == 2
        assert "already holds counts; add resume=true" in again.err
        assert command("+proposer=ngram", "hydra.run.dir=out", "resume=true").code == 0

    @pytest.mark.parametrize(("strength", "tv"), [("quick", 0.1), ("sharp", 0.01)])
    def test_one_knob_sets_how_sharp_all_trials_are(
        self, tmp_path: Path, strength: str, tv: float
    ) -> None:
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            cfg = hydra.compose("certify", [f"strength={strength}"], return_hydra_config=True)
        HydraConfig.instance().set_config(cfg)
        made = certify.build(cfg, tmp_path)
        assert made.demands.visible_tv == tv
        assert [trial.name for trial in made.trials] == [*cfg.trials]
        assert {trial.toy.vocab_size for trial in made.trials} == {5, 9}
        assert {str(trial.toy.dtype) for trial in made.trials} == {
            "torch.float64",
            "torch.float32",
            "torch.bfloat16",
        }
        assert any(trial.settings.is_crowded for trial in made.trials)
        assert any(trial.settings.equal_seeds for trial in made.trials)
        assert all(tv <= trial.settings.coarseness * tv <= 0.2 for trial in made.trials)

    def test_own_code_by_its_name_and_a_refutation_by_exit_code(self, command: Run) -> None:
        own_rule = f"acceptance._target_={__name__}.AboveAFloor"
        outcome = command(f"+proposer._target_={__name__}.Copycat", own_rule, "hydra.run.dir=out")
        assert outcome.code == certify.NOT_CERTIFIED, outcome.err
        assert "REFUTED" in outcome.out
        assert json.loads(Path("out/certificate.json").read_text())["method"] == "copycat"

    def test_a_multirun_shares_the_adversaries_and_ends_with_a_matrix(self, command: Run) -> None:
        outcome = command(
            "-m", "+proposer=draft_model,ngram", "acceptance=rejection", "hydra.sweep.dir=sweep"
        )
        assert outcome.code == 0, outcome.err
        rows = list(csv.DictReader(io.StringIO(Path("sweep/matrix.csv").read_text())))
        told = [(row["method"], row["variant"], row["rule"], row["verdict"]) for row in rows]
        assert told == [(name, "", "rejection", "certified") for name in ("draft_model", "ngram")]
        drawn = {path.stem.rpartition("-")[0] for path in Path("sweep/stress").iterdir()}
        assert drawn == {f"mixed-{name}" for name in ATTACKS}
        assert not list(Path("sweep").glob("*/stress"))

    def test_ctrl_c_says_how_to_continue(
        self, command: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(self: Certifier, **_: object) -> Certificate:
            raise KeyboardInterrupt

        monkeypatch.setattr(Certifier, "run", interrupt)
        outcome = command("+proposer=ngram", "hydra.run.dir=out")
        assert outcome.code == certify.INTERRUPTED
        assert f"hydra.run.dir={Path('out').absolute()} resume=true" in outcome.out

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("+nope=1", "unknown key 'nope'"),
            ("+toy.nope=1", "unexpected keyword argument 'nope'"),
            ("toy.vocab_size=2", "toy.vocab_size=2 must be at least 3"),
            ("sampled.plain.top_p=0.0", "sampling.top_p=0.0 must be a number in (0, 1]"),
            ("+proposer=nope", "there is no proposer=nope"),
        ],
    )
    def test_bad_input_is_one_line_and_exit_code_2(
        self, command: Run, override: str, message: str
    ) -> None:
        outcome = command(override if "top_p" not in override else f"+{override}")
        assert outcome.code == 2
        assert message in outcome.err.strip().splitlines()[-1]
        assert "Traceback" not in outcome.err
