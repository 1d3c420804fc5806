"""Drafting at a set acceptance, beside plain decoding and the library's assisted generation."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from specresearch.device_bench.bench import Bench, BenchCase, sharing_weights, weights_read
from specresearch.device_bench.library import (
    AssistedGenerate,
    constant_assistant,
    library_model,
)
from specresearch.device_bench.measurement import Measurement, at_least, at_most
from specresearch.device_bench.scale import Variant
from specresearch.device_bench.timing import (
    EAGER,
    TimedDecoding,
    compared,
    decode,
    host_gap,
    over_eager,
    take_turns,
    without_graphs,
)
from specresearch.engine import Engine
from specresearch.models import CausalLM
from specresearch.models.memory import weight_bytes
from specresearch.models.slot_model import SlotModel
from specresearch.proposers import DraftModel, Eagle3, NGram, Proposer, Synthetic

METHOD, PLAIN, ASSISTED = "method", "plain", "assisted generation"
CHAIN, HEAD_CHAIN, HEAD_DEPTH, LOOKUP = 5, 4, 7, 10  # drafts, or levels of a tree
LEAST_EFFICIENCY = 0.9
MOST_OVER_BYTES = 1.3
HEAD_ROOM = 64  # tokens behind an output


@dataclass(frozen=True)
class DraftingMethod:
    """A drafter and what stands beside it in the library.

    Attributes:
        num_passes: Passes of the drafter for one proposal.
        rival: Options of the library's `generate`.
    """

    name: str
    build: Callable[[Bench, Variant], Proposer]
    num_passes: int
    rival: Callable[[Bench], dict[str, Any]]


def _with_draft(bench: Bench) -> dict[str, Any]:
    return {"assistant_model": constant_assistant(library_model(bench.draft_weights), CHAIN)}


def _with_lookup(bench: Bench) -> dict[str, Any]:
    return {"prompt_lookup_num_tokens": LOOKUP}


def _eagle(bench: Bench, **shape: Any) -> Proposer:
    return Eagle3(bench.head, **shape)


METHODS = (
    DraftingMethod(
        f"draft model, chain of {CHAIN}",
        lambda bench, variant: DraftModel(bench.draft(variant), CHAIN),
        num_passes=CHAIN,
        rival=_with_draft,
    ),
    DraftingMethod(
        f"EAGLE-3, chain of {HEAD_CHAIN}",
        lambda bench, _: _eagle(bench, tree="chain", num_draft_tokens=HEAD_CHAIN),
        num_passes=HEAD_CHAIN,
        rival=_with_draft,
    ),
    DraftingMethod(
        "EAGLE-3, tree",
        lambda bench, _: _eagle(bench, num_draft_tokens=bench.scale.tree_size, depth=HEAD_DEPTH),
        num_passes=HEAD_DEPTH,
        rival=_with_draft,
    ),
    DraftingMethod(
        f"n-gram of {LOOKUP}",
        lambda *_: NGram(LOOKUP, n_min=1),
        num_passes=0,
        rival=_with_lookup,
    ),
)


def cases(bench: Bench) -> Iterator[BenchCase]:
    scale = bench.scale
    length = scale.period * scale.num_periods
    for variant in scale.variants:
        target = CausalLM(
            sharing_weights(bench.weights),
            max_len=length + scale.period + scale.num_new_tokens + HEAD_ROOM,
            self_test=False,
            **variant.options,
        )
        plain = Engine(target)
        prompt = _repeating_prompt(bench, plain)
        ahead = decode(bench.device, plain, [prompt], scale.num_new_tokens + LOOKUP + 1)
        for method in METHODS:
            for acceptance in scale.acceptances:
                name = f"{variant.name}, {method.name}, acceptance {acceptance:g}"
                measure = partial(
                    _measure, bench, method, variant, acceptance, plain, prompt, ahead.outputs[0]
                )
                yield BenchCase(name, measure)


def _repeating_prompt(bench: Bench, plain: Engine) -> list[int]:
    """Return a prompt that repeats an output of the target, so that lookups find matches."""
    period, device = bench.scale.period, bench.device
    (output,) = decode(device, plain, [[1, 2]], period).outputs
    return [*output * bench.scale.num_periods, *output[: period // 8]]


def _measure(
    bench: Bench,
    method: DraftingMethod,
    variant: Variant,
    acceptance: float,
    plain: Engine,
    prompt: list[int],
    output: tuple[int, ...],
) -> Iterator[Measurement]:
    device, num_new, target = bench.device, bench.scale.num_new_tokens, plain.target
    drafter = method.build(bench, variant)
    engine = Engine(target, Synthetic(drafter, acceptance))
    with without_graphs(engine):
        eager_engine = Engine(target, Synthetic(drafter, acceptance))
    runs: dict[str, list[TimedDecoding]] = {METHOD: [], PLAIN: []}

    def run(name: str, side: Engine) -> float:
        runs[name].append(decode(device, side, [prompt], num_new))
        return runs[name][-1].tokens_per_second

    def run_eagerly() -> float:
        with without_graphs(engine):
            return decode(device, eager_engine, [prompt], num_new).tokens_per_second

    assisted: list[AssistedGenerate] = []

    def run_assisted() -> float:
        if not assisted:
            model, options = library_model(bench.weights), method.rival(bench)
            assisted.append(AssistedGenerate(model, prompt, output, acceptance, **options))
        return assisted[0](num_new).tokens_per_second

    sides = {
        METHOD: partial(run, METHOD, engine),
        PLAIN: partial(run, PLAIN, plain),
        EAGER: run_eagerly,
        ASSISTED: run_assisted,
    }
    turns = take_turns(bench, sides, bench.scale.repeats)
    for side in (METHOD, PLAIN):
        if side in turns.failures:
            raise RuntimeError(turns.failures[side])
    drafted, alone = runs[METHOD][1:], runs[PLAIN][1:]
    tokens = [decoded.tokens_per_step for decoded in drafted]
    how = "tokens per second, decoding only, in turns"
    yield Measurement.of("tokens a step", tokens, "", "target's own included")
    yield compared("speedup over plain", turns, METHOD, PLAIN, how)
    yield compared("speedup over assisted generation", turns, METHOD, ASSISTED, how)
    yield over_eager(turns, METHOD, how)
    context = len(prompt)
    target_bytes = weights_read(bench.weights) + context * target.bytes_per_token
    byte_ratio = _pass_bytes(drafter, target, context) / target_bytes
    speedups = turns.ratios(METHOD, PLAIN)
    allowed = [tau / (1 + method.num_passes * byte_ratio) for tau in tokens]
    yield Measurement.of(
        "efficiency",
        [speedup / bound for speedup, bound in zip(speedups, allowed, strict=True)],
        "",
        "speedup over what these tokens a step and the ratio of bytes allow",
        at_least(LEAST_EFFICIENCY),
    )
    if method.num_passes:
        costs = [
            a.mean("propose") / method.num_passes / b.mean("verify")
            for a, b in zip(drafted, alone, strict=True)
        ]
        yield Measurement.of(
            "draft pass over target pass", costs, "", "drafting, by pass, over plain verification"
        )
        yield Measurement.of(
            "the same over the ratio of bytes",
            [cost / byte_ratio for cost in costs],
            "",
            f"a draft pass reads {byte_ratio:.3g} of a target pass",
            at_most(MOST_OVER_BYTES),
        )
    device.reset_peak()
    decode(device, engine, [prompt], num_new)
    yield Measurement.of(
        "peak memory beside weights and caches",
        (device.peak_bytes() - _resident_bytes(bench, drafter, target)) / 1e6,
        "MB",
        "most bytes in use while decoding, less all weights, and the caches of target and drafter",
    )
    step = statistics.median(decoded.seconds_per_step for decoded in drafted)

    def profiled() -> list[Measurement]:
        anew = Engine(target, Synthetic(method.build(bench, variant), acceptance))
        return host_gap(bench, anew, [prompt], step)

    bench.profiles.append(profiled)


def _pass_bytes(drafter: Proposer, target: CausalLM, context: int) -> int:
    """Return what a pass of the drafter reads; 0 without a model."""
    num_bytes = 0
    for model in _models(drafter):
        num_bytes += weight_bytes([model.module], besides=[target.module])
        num_bytes += context * model.bytes_per_token
    return num_bytes


def _resident_bytes(bench: Bench, drafter: Proposer, target: CausalLM) -> int:
    """Return the bytes of all weights in memory, and of the caches of target and drafter."""
    models = [target, *_models(drafter)]
    weights = weight_bytes([*bench.loaded, *(model.module for model in models)])
    return weights + sum(model.cache.num_bytes for model in models)


def _models(drafter: Proposer) -> list[SlotModel]:
    return [model for model in drafter.models if isinstance(model, SlotModel)]
