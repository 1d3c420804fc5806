"""What decoding is foretold to take, beside what it takes."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from specresearch import CausalLM, Engine, SamplingParams
from specresearch.bench.decoding_memory import Forecast
from specresearch.models.loading import load_model
from specresearch.proposers import DraftModel, Eagle, NGram, Proposer, TokenRecycling

MAX_LEN, NUM_REQUESTS = 300, 4
FACTOR = 2.5  # that a forecast may exceed what requests take whose prompts fill the context
NUCLEUS: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9}


def zoo(name: str, **settings: Any) -> CausalLM:
    model, tokenizer = load_model(f"zoo:{name}", device="cpu")
    settings = {"max_len": MAX_LEN, "pack_weights": False, "self_test": False} | settings
    return CausalLM(model, tokenizer, **settings)


DRAFTERS: dict[str, Callable[[], Proposer | None]] = {
    "plain": lambda: None,
    "ngram": lambda: NGram(7),
    "draft_model": lambda: DraftModel(zoo("tiny_draft"), 5),
    "eagle": lambda: Eagle("zoo:tiny_eagle"),
    "token_recycling": lambda: TokenRecycling(),
}


def peak(work: Callable[[], object]) -> int:
    """Return the most bytes of tensors that were allocated at once by `work`."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        kept = work()
    profiler: Any = trace.profiler
    events = profiler.kineto_results.events()
    sizes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    del kept
    return max(accumulate(size for _, size in sorted(sizes, key=lambda pair: pair[0])))


def decode(engine: Engine, sampling: SamplingParams) -> None:
    generator = torch.Generator().manual_seed(1)
    num_tokens = MAX_LEN - sampling.max_new_tokens
    shape = (NUM_REQUESTS, num_tokens)
    prompts = torch.randint(5, 500, shape, generator=generator).tolist()
    engine.generate_all(prompts, sampling)


@pytest.mark.parametrize(
    ("drafter", "settings"),
    [
        ("plain", {}),
        ("ngram", NUCLEUS),
        ("draft_model", {"temperature": 1.0}),
        ("eagle", {}),
        ("eagle", NUCLEUS),
        ("token_recycling", NUCLEUS),
    ],
)
def test_the_forecast_holds_and_is_not_far_above(drafter: str, settings: dict[str, Any]) -> None:
    """It is at least what is used, and at most `FACTOR` times as much."""
    target, proposer = zoo("tiny", prefill_chunk=128), DRAFTERS[drafter]()
    sampling = SamplingParams(max_new_tokens=8, ignore_eos=True, **settings)
    forecast = Forecast(target, proposer, [sampling])
    memory = forecast.of(NUM_REQUESTS)
    assert target.cache.num_bytes == 0

    def work() -> Engine:
        engine = Engine(target, proposer, max_batch_size=NUM_REQUESTS)
        decode(engine, sampling)
        return engine

    used = peak(work)
    assert memory.target_cache == target.cache.num_bytes
    assert used <= memory.additional <= FACTOR * used


def test_caches_and_state_are_foretold_to_the_byte() -> None:
    target, proposer = zoo("tiny"), TokenRecycling()
    memory = Forecast(target, proposer, [SamplingParams()], num_sides=2).of(3)
    assert memory.draft_state == 0 if proposer.warm else proposer.slot_bytes * 6
    drafters = [DraftModel(zoo("tiny_draft"), 5), Eagle("zoo:tiny_eagle")]
    for drafter in drafters:
        memory = Forecast(target, drafter, [SamplingParams()], num_sides=2).of(3)
        Engine(target, drafter, max_batch_size=6)
        (model,) = drafter.models
        if isinstance(drafter, Eagle):
            decode(Engine(target, drafter, max_batch_size=6), SamplingParams(max_new_tokens=2))
        assert memory.target_cache <= target.cache.num_bytes
        assert memory.draft_cache == model.cache.num_bytes > 0


def test_states_of_prompts_are_held_beside_every_pass() -> None:
    """A head that has not drafted yet keeps them while the target decodes."""
    target = zoo("tiny")
    head, none = (
        Forecast(target, proposer, [SamplingParams()]).of(3)
        for proposer in (Eagle("zoo:tiny_eagle"), None)
    )
    config: Any = target.module.config
    assert head.draft_state == 3 * target.max_len * config.hidden_size * target.dtype.itemsize
    assert none.draft_state == 0


def test_sampling_and_limits_of_a_step_change_what_is_foretold() -> None:
    target = zoo("tiny", prefill_chunk=128)
    greedy = Forecast(target, NGram(7), [SamplingParams()]).of(8)
    sampled = Forecast(target, NGram(7), [SamplingParams(), SamplingParams(temperature=1.0)]).of(8)
    penalized = Forecast(target, NGram(7), [SamplingParams(presence_penalty=1.0)]).of(8)
    limited = Forecast(target, NGram(7), [SamplingParams()], max_step_tokens=64).of(8)
    assert greedy.sampling == 0 < sampled.sampling < penalized.sampling
    assert penalized.draft_state == 2 * 8 * target.vocab_size * 4
    assert limited.target_prefill < greedy.target_prefill
    assert greedy.total == greedy.target_weights + greedy.additional
    assert greedy.by_part()["total"] == greedy.total
