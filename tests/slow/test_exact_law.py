"""The engine's outputs follow a distribution that is computed without this package.

The distribution is enumerated with the transformers library alone: plain forward passes over whole
prefixes, without a cache, and its own logits processors; presence and frequency penalties, which it
lacks, are written out below. Each test is held to `ALPHA` over the number of tests (Bonferroni),
which rejects something exactly when Holm's correction does.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import shape_checks
import torch
from scipy import stats
from tiny_models import build
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.acceptance import AcceptanceSampler, Block, Rejection
from specresearch.controllers import (
    AcceptanceGate,
    BatchSizeCutoff,
    Confidence,
    Controller,
    Fixed,
    Goodput,
    Heuristic,
)
from specresearch.engine import SchedulerSettings
from specresearch.engine.seeds import Seeds
from specresearch.proposal import Proposal, Verdict
from specresearch.proposers import (
    Cascade,
    DraftModel,
    Eagle,
    Eagle3,
    Lookahead,
    Medusa,
    NGram,
    Proposer,
    Suffix,
    TokenRecycling,
)
from specresearch.sampling import SamplingBatch

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:the target is:UserWarning")]

VOCAB = 6
ALPHA = 1e-3
NUM_SAMPLES, NUM_ROUNDS = 2000, 1600
GROUP = 256  # requests that are submitted together; the last of each run in smaller batches
Prompt = tuple[int, ...]
SETTINGS: dict[str, tuple[Prompt, SamplingParams]] = {
    "plain": ((3, 1, 4, 1), SamplingParams(temperature=1.0, max_new_tokens=3)),
    "cut": (
        (2, 5),
        SamplingParams(temperature=0.9, top_k=4, top_p=0.85, max_new_tokens=4, stop_token_ids=(0,)),
    ),
    "repetition": (
        (1, 2, 1, 2, 1),
        SamplingParams(temperature=1.3, min_p=0.1, repetition_penalty=1.4, max_new_tokens=3),
    ),
    "penalties": (
        (5,),
        SamplingParams(
            temperature=0.8,
            repetition_penalty=0.8,
            presence_penalty=0.4,
            frequency_penalty=0.5,
            max_new_tokens=3,
        ),
    ),
}


class OutputPenalties(LogitsProcessor):
    """Apply presence and frequency penalties by their definition."""

    def __init__(self, num_prompt_tokens: int, presence: float, frequency: float) -> None:
        self.num_prompt_tokens, self.presence, self.frequency = (
            num_prompt_tokens,
            presence,
            frequency,
        )

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        counts = torch.stack(
            [row[self.num_prompt_tokens :].bincount(minlength=VOCAB) for row in input_ids]
        )
        return scores - self.frequency * counts - self.presence * (counts > 0)


def processors(prompt: Prompt, sampling: SamplingParams) -> LogitsProcessorList:
    """Return the logits processors in the order that `specresearch.sampling` documents."""
    result = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        result.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    result.append(
        OutputPenalties(len(prompt), sampling.presence_penalty, sampling.frequency_penalty)
    )
    result.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        result.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        result.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        result.append(MinPLogitsWarper(sampling.min_p))
    return result


@torch.inference_mode()
def enumerate_law(
    model: PreTrainedModel, prompt: Prompt, sampling: SamplingParams
) -> dict[Prompt, float]:
    """Return the probability of every output."""
    process = processors(prompt, sampling)
    unfinished, finished = {(): 1.0}, {}
    for _ in range(sampling.max_new_tokens):
        contexts = torch.tensor([[*prompt, *output] for output in unfinished])
        logits = model(input_ids=contexts, use_cache=False).logits[:, -1]
        rows = process(contexts, logits).softmax(-1).tolist()
        longer: dict[Prompt, float] = {}
        for (output, mass), row in zip(unfinished.items(), rows, strict=True):
            for token, probability in enumerate(row):
                if probability > 0:
                    destination = finished if token in sampling.stop_token_ids else longer
                    destination[*output, token] = mass * probability
        unfinished = longer
    return finished | unfinished


def p_value(counts: Counter[Prompt], law: dict[Prompt, float]) -> float:
    """Return the p-value of Pearson's chi-square; outputs with fewer than 5 expected are pooled."""
    assert sum(law.values()) == pytest.approx(1)
    if counts.keys() - law.keys():
        return 0.0
    num = counts.total()
    rare = [output for output, probability in law.items() if probability * num < 5]
    common = [output for output in law if output not in set(rare)]
    observed = [*(counts[output] for output in common), sum(counts[output] for output in rare)]
    expected = (
        np.array([*(law[output] for output in common), sum(law[output] for output in rare)]) * num
    )
    if expected[-1] < 5:  # the rare ones join the last of the common ones
        observed = [*observed[:-2], observed[-2] + observed[-1]]
        expected = np.array([*expected[:-2], expected[-2] + expected[-1]])
    return float(stats.chisquare(observed, expected * sum(observed) / expected.sum()).pvalue)


@lru_cache
def model(architecture: str) -> PreTrainedModel:
    return build(architecture, seed=5, spread=1.0, vocab_size=VOCAB)


@lru_cache
def target(architecture: str) -> CausalLM:
    return CausalLM(copy.deepcopy(model(architecture)), name=architecture)


@lru_cache
def draft() -> CausalLM:
    return CausalLM(build("llama", seed=6, spread=1.0, vocab_size=VOCAB), name="draft")


@lru_cache
def law(architecture: str, name: str) -> dict[Prompt, float]:
    return enumerate_law(model(architecture), *SETTINGS[name])


PROPOSERS: dict[str, Callable[[CausalLM], Proposer]] = {
    "ngram": lambda _: NGram(4, n_max=2, n_min=1),
    "draft_model": lambda _: DraftModel(draft(), 3),
    "draft_likeliest": lambda _: DraftModel(draft(), 3, sample=False),
    "draft_static": lambda _: DraftModel(
        draft(), tree="static", paths=[[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
    ),
    "draft_dynamic": lambda _: DraftModel(draft(), 20, tree="dynamic", depth=3, top_k=4),
    "suffix": lambda _: Suffix(4, offset=2.0),
    "suffix_warm": lambda _: Suffix(4, offset=2.0, use_global=True),
    "token_recycling": lambda _: TokenRecycling(8, top_k=3, depth=3),
    "token_recycling_warm": lambda _: TokenRecycling(8, top_k=3, depth=3, warm=True),
    "lookahead": lambda _: Lookahead(3, 3, 2),
    "cascade": lambda _: Cascade([NGram(2, n_max=2, n_min=2), DraftModel(draft(), 3)]),
    "medusa": lambda target: Medusa.toy(target, 1),
    "eagle": lambda target: Eagle.toy(target, 1),
    "eagle_chain": lambda target: Eagle.toy(target, 1, tree="chain"),
    "eagle3": lambda target: Eagle3.toy(target, 1),
}
CHAINS = ("ngram", "draft_model", "cascade", "eagle_chain")
HEADS = ("medusa", "eagle", "eagle_chain", "eagle3")
CONTROLLERS: dict[str, Callable[[], Controller]] = {
    "gate": lambda: AcceptanceGate(min_acceptance=0.4, window=1, probe_every=1),
    "cutoff": lambda: BatchSizeCutoff(50),
    "confidence": lambda: Confidence(0.3),
    "heuristic": Heuristic,
    "goodput": lambda: Goodput(),
}
CROWDED = SchedulerSettings(max_step_tokens=96, max_cache_tokens=400)


@dataclass(frozen=True)
class Case:
    """One way of decoding."""

    proposer: str
    architecture: str = "llama"
    rule: Callable[[], AcceptanceSampler] = Rejection
    controller: Callable[[], Controller] = Fixed
    limits: SchedulerSettings = field(default_factory=SchedulerSettings)
    name: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.architecture, self.proposer, self.name)))


CASES = [
    *(Case(name) for name in PROPOSERS),
    *(Case(name, rule=Block, name="block") for name in CHAINS),
    *(
        Case(name, limits=CROWDED, name="crowded")
        for name in ("ngram", "draft_model", "draft_dynamic", "eagle", "suffix_warm")
    ),
    *(
        Case("draft_model", controller=controller, name=name)
        for name, controller in CONTROLLERS.items()
    ),
    *(Case(name, "gpt2") for name in PROPOSERS if name not in HEADS),
]
LEVEL = ALPHA / (len(CASES) * len(SETTINGS))


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """Run long tests without shape checks, which would take most of the time."""
    with shape_checks.unchecked():
        yield


def decode(case: Case, num_samples: int = NUM_SAMPLES) -> dict[str, Counter[Prompt]]:
    """Decode all settings in the same batches of 64; every request has its own seed."""
    engine = Engine(
        target(case.architecture),
        PROPOSERS[case.proposer](target(case.architecture)),
        case.rule(),
        case.controller(),
        max_batch_size=64,
        scheduling=case.limits,
    )
    requests = [
        Request(prompt, replace(sampling, seed=seed * len(SETTINGS) + number), f"{name}/{seed}")
        for seed, (number, (name, (prompt, sampling))) in product(
            range(num_samples), enumerate(SETTINGS.items())
        )
    ]
    counts: dict[str, Counter[Prompt]] = {name: Counter() for name in SETTINGS}
    num_drafts = 0
    for begin in range(0, len(requests), GROUP):
        for output in engine.generate(requests[begin : begin + GROUP]):
            counts[output.id.partition("/")[0]][output.token_ids] += 1
            num_drafts += output.record.counts.num_draft_tokens
    assert num_drafts > len(requests) * (0.2 if case.controller is Fixed else 0.02)
    return counts


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_have_the_enumerated_distribution(case: Case) -> None:
    counts = decode(case)
    p_values = {name: p_value(counts[name], law(case.architecture, name)) for name in SETTINGS}
    assert min(p_values.values()) > LEVEL, p_values


class Mislabelled(Rejection):
    """Label drafts as drawn from a flat distribution, whatever they were drawn from."""

    def __call__(
        self, proposal: Proposal, target_logits: Tensor, sampling: SamplingBatch
    ) -> Verdict:
        flat = torch.full_like(target_logits, 1 / VOCAB)
        return super().__call__(replace(proposal, draft_probs=flat), target_logits, sampling)


@pytest.mark.parametrize("proposer", CHAINS)
def test_negative_control_drafts_that_were_not_drawn_as_labelled(proposer: str) -> None:
    counts = decode(Case(proposer, rule=Mislabelled))
    assert p_value(counts["plain"], law("llama", "plain")) < LEVEL


@pytest.mark.parametrize("name", SETTINGS)
def test_negative_control_settings_differ_visibly(name: str) -> None:
    """Each processor has an effect, and their order matters for one of them at least."""
    prompt, sampling = SETTINGS[name]
    other = replace(sampling, temperature=sampling.temperature * 1.3)
    expected = law("llama", name)
    rng = np.random.default_rng(0)
    other_law = enumerate_law(model("llama"), prompt, other)
    outputs = list(other_law)
    counts = rng.multinomial(
        NUM_SAMPLES, np.array(list(other_law.values())) / sum(other_law.values())
    ).tolist()
    assert (
        p_value(Counter({o: n for o, n in zip(outputs, counts, strict=True) if n}), expected)
        < LEVEL
    )


WARM: dict[str, Callable[[], Proposer]] = {
    "suffix": lambda: Suffix(4, offset=4.0, min_probability=0.0, use_global=True),
    "token_recycling": lambda: TokenRecycling(paths=[[0], [0, 0]], top_k=2, warm=True),
}


def second_of_equal_seeds(proposer: Proposer) -> Counter[Prompt]:
    """Return outputs that follow a request of the same prompt and seed; each round has its seed."""
    prompt, sampling = SETTINGS["plain"]
    engine = Engine(target("llama"), proposer)
    counts: Counter[Prompt] = Counter()
    for seed in range(NUM_ROUNDS):
        proposer.reset()
        *_, second = engine.generate([prompt, prompt], replace(sampling, seed=seed))
        counts[second.token_ids] += 1
    return counts


@pytest.mark.parametrize("name", WARM)
def test_a_warm_memory_with_equal_seeds_stays_lossless(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the negative control, a request shares its draws with the one that taught its drafts."""
    assert p_value(second_of_equal_seeds(WARM[name]()), law("llama", "plain")) > LEVEL
    monkeypatch.setattr(Seeds, "of", lambda self, request, number: request.sampling.seed)
    assert p_value(second_of_equal_seeds(WARM[name]()), law("llama", "plain")) < LEVEL


ZOO: dict[str, Callable[[], Proposer]] = {
    "ngram": NGram,
    "draft_model": lambda: DraftModel(zoo("tiny_draft")),
    "draft_static": lambda: DraftModel(zoo("tiny_draft"), tree="static"),
    "draft_dynamic": lambda: DraftModel(zoo("tiny_draft"), tree="dynamic"),
    "suffix": Suffix,
    "suffix_warm": lambda: Suffix(use_global=True),
    "token_recycling": TokenRecycling,
    "token_recycling_warm": lambda: TokenRecycling(warm=True),
    "lookahead": lambda: Lookahead(7, 5, 7),
    "cascade": lambda: Cascade([NGram(), DraftModel(zoo("tiny_draft"))]),
    "medusa": lambda: Medusa("zoo:tiny_medusa"),
    "eagle": lambda: Eagle("zoo:tiny_eagle"),
    "eagle3": lambda: Eagle3("zoo:tiny_eagle3"),
}
QUESTIONS = (
    "The harbour at Castle Brennock will stay shut until Friday after a dredger struck the old "
    "stone pier. " * 2,
    "A baker on the quay said she had given away two hundred loaves because nobody came to buy "
    "them. A baker on",
    "Nobody was hurt, but the town council said that",
)


@lru_cache
def zoo(name: str) -> CausalLM:
    return CausalLM.from_pretrained(f"zoo:{name}", dtype="float64")


@lru_cache
def generated() -> list[Sequence[int]]:
    """Return the tokens of the library's own `generate` after each question."""
    plain: Any = copy.deepcopy(zoo("tiny").model)
    plain.set_attn_implementation("sdpa")
    tokenizer: Any = zoo("tiny").tokenizer
    outputs = []
    for question in QUESTIONS:
        prompt = torch.tensor([tokenizer(question)["input_ids"]])
        output_ids = plain.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=64
        )
        outputs.append(tuple(output_ids[0, prompt.shape[1] :].tolist()))
    return outputs


@pytest.mark.parametrize("name", ZOO)
def test_greedy_outputs_of_a_trained_model_are_those_of_generate(name: str) -> None:
    engine = Engine(zoo("tiny"), ZOO[name](), max_batch_size=2)
    outputs = {
        int(output.id): output
        for output in engine.generate(QUESTIONS, SamplingParams(max_new_tokens=64))
    }
    assert [outputs[i].token_ids for i in range(len(QUESTIONS))] == generated()
    assert sum(output.record.counts.num_accepted_tokens for output in outputs.values()) > 0
