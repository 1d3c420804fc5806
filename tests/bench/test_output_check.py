"""Sound rules pass the output check as often as they should; broken ones do not."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from tiny_models import build

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.acceptance import Rejection
from specresearch.batch import Batch
from specresearch.bench import Runner, RunSettings
from specresearch.bench.output_check import CHANGED, OutputCheck, OutputScores, score
from specresearch.clock import Clock
from specresearch.proposal import Proposal, Verdict
from specresearch.proposers import DraftModel, NGram, Proposer
from specresearch.rows import METHOD

pytestmark = pytest.mark.filterwarnings("ignore:the target is 1.0 times the draft")
VARIED = SamplingParams(
    temperature=0.9,
    top_k=20,
    top_p=0.95,
    repetition_penalty=1.3,
    frequency_penalty=0.2,
    max_new_tokens=24,
)


@pytest.fixture(scope="module")
def model() -> CausalLM:
    return CausalLM(build("llama", seed=3), max_len=60)


@pytest.fixture(scope="module")
def draft() -> CausalLM:
    return CausalLM(build("llama", seed=4), max_len=60)


def checked(
    target: CausalLM,
    proposer: Proposer | None,
    rule: Rejection | None = None,
    *,
    num: int,
    seed: int = 0,
) -> OutputScores:
    check = OutputCheck()
    engine = Engine(target, proposer, rule, max_batch_size=32, observers=[check])
    prompts = np.random.default_rng(seed).integers(0, 26, (num, 6)).tolist()
    requests = [
        Request(prompt, replace(VARIED, seed=1000 * seed + i), str(i))
        for i, prompt in enumerate(prompts)
    ]
    outputs = list(engine.generate(requests))
    scores = check.pop()
    assert scores.num_tokens == sum(len(output.token_ids) for output in outputs)
    assert check.pop() == OutputScores()
    return scores


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("drafter", ["chain", "tree", "ngram", "plain"])
def test_p_values_of_lossless_decoding_are_uniform(
    model: CausalLM, draft: CausalLM, drafter: str
) -> None:
    makers: dict[str, Callable[[], Proposer | None]] = {
        "chain": lambda: DraftModel(draft, 4),
        "tree": lambda: DraftModel(draft, 8, tree="dynamic", depth=3, top_k=3),
        "ngram": lambda: NGram(4, 3, 1),
        "plain": lambda: None,
    }
    found = [checked(model, makers[drafter](), num=8, seed=seed) for seed in range(20)]
    assert stats.kstest([scores.p_value for scores in found], "uniform").pvalue > 0.001
    assert max(abs(z) for scores in found for z in scores.z.values()) < 5


class Gullible(Rejection):
    """Accepts every draft, and says that it is lossless."""

    def __call__(self, proposal: Proposal, target_logits, sampling) -> Verdict:
        verdict = super().__call__(proposal, target_logits, sampling)
        index = torch.arange(proposal.token_ids.shape[1])
        path = torch.where(index < proposal.lengths[:, None], index, -1)
        return Verdict(path, proposal.lengths - 1, verdict.next_token)


class Mislabelled(DraftModel):
    """Chooses the likeliest tokens, and says that they were drawn."""

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        proposal = super().propose(batch, budget)
        if proposal.draft_probs is None:  # nothing was asked for
            return proposal
        likeliest = proposal.draft_probs.argmax(-1)
        tokens = torch.cat([proposal.token_ids[:, :1], likeliest[:, :-1]], dim=1)
        return replace(proposal, token_ids=tokens)


@pytest.mark.parametrize("broken", ["rule", "drafts"])
def test_negative_control_broken_decoding_is_seen(
    model: CausalLM, draft: CausalLM, broken: str
) -> None:
    proposer = DraftModel(draft, 4) if broken == "rule" else Mislabelled(draft, 1)
    rule = Gullible() if broken == "rule" else Rejection()
    assert checked(model, proposer, rule, num=128).p_value < 1e-6


def test_a_token_that_the_target_excludes_is_enough() -> None:
    probs = torch.tensor([[0.5, 0.5, 0.0]]).repeat(4, 1)
    assert score(probs, torch.tensor([0, 1, 0, 1])).p_value > 0.01
    assert score(probs, torch.tensor([0, 1, 2, 1])).p_value == 0.0


def test_tokens_without_a_choice_say_nothing() -> None:
    scores = score(torch.eye(3).repeat(5, 1), torch.arange(3).repeat(5))
    assert (scores.p_value, set(scores.z.values())) == (1.0, {0.0})
    assert score(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)) == OutputScores()


def test_scores_are_martingale_differences_with_the_stated_covariance() -> None:
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    probs = torch.tensor(rng.dirichlet(np.full(6, 0.4), 4000))
    drawn = [
        score(p[None], token[None])
        for p, token in zip(
            probs, torch.multinomial(probs, 1, generator=generator)[:, 0], strict=True
        )
    ]
    excess = np.array([own.excess for own in drawn])
    stated = np.mean([own.covariance for own in drawn], axis=0).reshape(3, 3)
    assert np.abs(excess.mean(0) / np.sqrt(stated.diagonal() / len(drawn))).max() < 4
    assert np.cov(excess.T) == pytest.approx(stated, abs=0.1 * float(stated.diagonal().max()))


def test_a_run_states_what_it_found_and_keeps_it(make_runner: Callable[..., Runner]) -> None:
    sampling = SamplingParams(temperature=1.0, max_new_tokens=12)
    settings = RunSettings(seed=1, warmup=1)
    sound = make_runner(
        proposer=NGram(4, 3, 1), method="ngram", sampling=sampling, settings=settings
    )
    summary = sound.run(progress=False).summary
    assert summary["output_p_value"] > CHANGED
    assert summary["baseline_output_p_value"] > CHANGED
    assert set(summary["output_z"]) == {"log p", "p", "rank"}
    rows = [row for row in sound.folder.groups if row.key.side == METHOD]
    assert (
        sum(row.scores.num_tokens for row in rows if row.scores) == summary["num_generated_tokens"]
    )
    again = make_runner(
        proposer=NGram(4, 3, 1), method="ngram", sampling=sampling, settings=settings, resume=True
    )
    assert again.run(progress=False).summary["output_p_value"] == summary["output_p_value"]


def test_a_run_with_a_broken_rule_says_so(make_runner: Callable[..., Runner]) -> None:
    sampling = SamplingParams(temperature=0.5, top_k=3, max_new_tokens=20)
    runner = make_runner(
        proposer=NGram(4, 2, 1),
        method="broken",
        acceptance=Gullible(),
        sampling=sampling,
        settings=RunSettings(warmup=0),
    )
    summary = runner.run(progress=False).summary
    assert summary["output_statement"].startswith("OUTPUT DISTRIBUTION CHANGED: ")
    assert summary["output_p_value"] < CHANGED < summary["baseline_output_p_value"]


def test_the_check_takes_no_time_of_a_run(
    make_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check advances the clock by an hour, which must not show in any figure."""
    from specresearch.bench import output_check

    read, skipped = Clock._read, [0.0]
    monkeypatch.setattr(Clock, "_read", lambda self: read(self) + skipped[0])
    score_step = output_check.score_step

    def slow(*parts: object) -> OutputScores:
        skipped[0] += 3600.0
        return score_step(*parts)  # type: ignore[arg-type]

    monkeypatch.setattr(output_check, "score_step", slow)
    sampling = SamplingParams(temperature=1.0, max_new_tokens=6)
    runner = make_runner(
        proposer=NGram(4, 3, 1), method="ngram", sampling=sampling, settings=RunSettings(warmup=1)
    )
    summary = runner.run(progress=False).summary
    assert summary["wall_seconds"] < 600
    assert summary["e2el_p50"] < 600
    assert skipped[0] > 3600.0
