"""Each request has its own draws, and isolated requests repeat their tokens."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from scenarios import ALL, FORGETFUL, PROPOSERS, shared_target

from specresearch import CausalLM, Engine, Request, SamplingParams
from specresearch.certification.enumeration import OutputDistribution, enumerate_outputs
from specresearch.certification.goodness_of_fit import Fit
from specresearch.certification.targets import Toy
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
from specresearch.proposers import Cascade, NGram, Proposer, Suffix, TokenRecycling
from specresearch.sampling import derive_seed

pytestmark = pytest.mark.filterwarnings(
    "ignore:the target is:UserWarning", "ignore:the draft has:UserWarning"
)

VOCAB = 6
LIMITED = (SchedulerSettings(max_step_tokens=40), SchedulerSettings(max_cache_tokens=90))


class Foreign(NGram):
    """A user's proposer that does not declare its memory."""


class Forgetting(NGram):
    memory = "cold"  # pyright: ignore[reportAssignmentType]


@pytest.mark.parametrize(
    ("proposer", "controller", "scheduling", "isolated"),
    [
        (NGram(3), Fixed(), SchedulerSettings(), True),
        (NGram(3), AcceptanceGate(), SchedulerSettings(), True),
        (NGram(3), Heuristic(), SchedulerSettings(), True),
        (PROPOSERS["draft_model"](), Confidence(), SchedulerSettings(), True),
        (NGram(3), BatchSizeCutoff(), SchedulerSettings(), False),
        (NGram(3), Goodput(), SchedulerSettings(), False),
        (NGram(3), Fixed(), LIMITED[0], False),
        (NGram(3), Fixed(), LIMITED[1], False),
        (None, Fixed(), LIMITED[0], True),
        (Suffix(4), Fixed(), SchedulerSettings(), True),
        (Suffix(4, use_global=True), Fixed(), SchedulerSettings(), False),
        (TokenRecycling(6, top_k=3, depth=3, warm=True), Fixed(), SchedulerSettings(), False),
        (
            Cascade([NGram(3), Suffix(4, branch=False, use_global=True)]),
            Fixed(),
            SchedulerSettings(),
            False,
        ),
        (Foreign(3), Fixed(), SchedulerSettings(), False),
        (Cascade([NGram(3), Foreign(3)]), Fixed(), SchedulerSettings(), False),
        (Forgetting(3), Fixed(), SchedulerSettings(), True),
    ],
)
def test_which_engines_isolate_requests(
    proposer: Proposer | None, controller: Controller, scheduling: SchedulerSettings, isolated: bool
) -> None:
    engine = Engine(
        shared_target(), proposer, controller=controller, max_batch_size=2, scheduling=scheduling
    )
    assert engine.isolates_requests is isolated


@pytest.mark.parametrize("name", ALL)
def test_isolated_requests_give_the_same_tokens_in_any_batch(target: CausalLM, name: str) -> None:
    """Alone, and in a batch whose other requests change."""
    sampling = SamplingParams(temperature=1.0, max_new_tokens=14, seed=7)
    watched = Request((1, 2, 3, 1, 2), sampling, "mine")
    (alone,) = Engine(target, ALL[name](), max_batch_size=1).generate([watched])
    engine = Engine(target, ALL[name](), max_batch_size=3)
    assert engine.isolates_requests
    others = [
        Request((3, 1) * (i + 1), replace(sampling, seed=i, max_new_tokens=2 + 3 * i), str(i))
        for i in range(5)
    ]
    together = {
        output.id: output for output in engine.generate([*others[:3], watched, *others[3:]])
    }
    assert together["mine"].token_ids == alone.token_ids


@pytest.mark.parametrize("scheduling", LIMITED)
def test_repeating_the_submissions_gives_the_same_tokens_without_isolation(
    target: CausalLM, scheduling: SchedulerSettings
) -> None:
    def outputs() -> dict[str, tuple[int, ...]]:
        engine = Engine(target, PROPOSERS["draft_model"](), max_batch_size=3, scheduling=scheduling)
        sampling = SamplingParams(temperature=1.0, max_new_tokens=14, seed=7)
        return {
            output.id: output.token_ids for output in engine.generate([[1, 2, 3]] * 5, sampling)
        }

    first = outputs()
    assert first == outputs()
    assert len(set(first.values())) == 5  # one seed, and yet no two share draws


@pytest.mark.parametrize("name", ["draft_model", *FORGETFUL])
def test_isolated_requests_of_one_seed_and_prompt_give_the_same_tokens(
    target: CausalLM, name: str
) -> None:
    sampling = SamplingParams(temperature=1.0, max_new_tokens=10, seed=7)
    outputs = list(
        Engine(target, ALL[name](), max_batch_size=3).generate([[1, 2, 3]] * 4, sampling)
    )
    assert len({output.token_ids for output in outputs}) == 1


def test_derived_seeds_of_different_engines_do_not_overlap() -> None:
    request = Request((1,))
    seeds = [
        Seeds(engine, isolated).of(request, n)
        for engine in range(50)
        for isolated in (True,)
        for n in range(200)
    ]
    assert len(set(seeds)) == len(seeds)


def test_a_derived_seed_depends_on_every_number_and_their_order() -> None:
    assert (
        len(
            {
                derive_seed(1, 2),
                derive_seed(2, 1),
                derive_seed(1),
                derive_seed(1, 2, 0),
                derive_seed(0, 1, 2),
            }
        )
        == 5
    )
    assert 0 <= derive_seed(2**64 - 1, 2**64 - 1) < 2**64


@lru_cache
def toy() -> Toy:
    return Toy(VOCAB, seed=3, sharpness=1.5)


@lru_cache
def toy_target() -> CausalLM:
    return toy().target()


@lru_cache
def law(prompt: tuple[int, ...]) -> OutputDistribution:
    return enumerate_outputs(toy(), prompt, SamplingParams(temperature=1.0, max_new_tokens=2))


WARM: dict[str, Callable[[], Proposer]] = {
    "suffix": lambda: Suffix(4, offset=4.0, min_probability=0.0, use_global=True),
    "token_recycling": lambda: TokenRecycling(paths=[[0], [0, 0]], top_k=2, warm=True),
}


def second_outputs(
    proposer: Proposer, prompts: Sequence[tuple[int, ...]], seeds: Sequence[int]
) -> Fit:
    """Return the fit of each round's last output, which follows a request of the same seed."""
    engine = Engine(toy_target(), proposer, max_batch_size=1, num_checked=0)
    counts_by_output: Counter[tuple[int, ...]] = Counter()
    for seed in seeds:
        proposer.reset()
        sampling = SamplingParams(temperature=1.0, max_new_tokens=2, seed=seed)
        *_, last = engine.generate(prompts, sampling)
        counts_by_output[last.token_ids] += 1
    distribution = law(prompts[-1])
    counts = np.array([counts_by_output[output] for output in distribution.outputs])
    return Fit.of(counts, distribution.probs, sum(counts_by_output.values()) - int(counts.sum()))


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    "name", ["token_recycling", pytest.param("suffix", marks=pytest.mark.slow)]
)
def test_a_warm_memory_with_equal_seeds_stays_lossless(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One output becomes the next request's draft. The control lets both share their draws."""
    prompts = [(1, 2, 3), (1, 2, 3)]
    assert second_outputs(WARM[name](), prompts, range(300)).p_value > 1e-3
    monkeypatch.setattr(Seeds, "of", lambda self, request, number: request.sampling.seed)
    assert second_outputs(WARM[name](), prompts, range(300)).p_value < 1e-9
