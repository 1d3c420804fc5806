"""Plain decoding beside the memory roofline and the library's two ways to decode."""

import statistics
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch

from specresearch.device_bench.bench import (
    Bench,
    BenchCase,
    UnreadPrompts,
    sharing_weights,
    weights_read,
)
from specresearch.device_bench.library import (
    PrefilledGenerate,
    generate_batch,
    library_model,
)
from specresearch.device_bench.measurement import Measurement, at_least
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
from specresearch.models.kv_cache import available_bytes

OURS, GENERATE, CONTINUOUS = "ours", "generate", "generate_batch"
LEAST_ROOFLINE = 70.0  # percent, at batch 1
LEAST_OVER_GENERATE = 3.0  # times


def cases(bench: Bench) -> Iterator[BenchCase]:
    scale = bench.scale
    pairs = [(batch, context) for batch in scale.batches for context in scale.contexts]
    for variant in scale.variants:
        target = UnreadPrompts(
            sharing_weights(bench.weights),
            max_len=max(scale.contexts) + scale.num_new_tokens,
            self_test=False,
            **variant.options,
        )
        for batch, context in sorted(pairs, key=lambda pair: pair[0] * pair[1]):
            name = f"{variant.name}, batch {batch}, context {context}"
            measure = partial(_measure, bench, target, batch, context)
            yield BenchCase(name, partial(_freeing, target, measure))


def _freeing(
    target: UnreadPrompts, measure: Callable[[], Iterable[Measurement]]
) -> Iterator[Measurement]:
    """Measure, and free the cache, which later cases would find in memory."""
    try:
        yield from measure()
    finally:
        target.free_cache()


def _measure(
    bench: Bench, target: UnreadPrompts, batch: int, context: int
) -> Iterator[Measurement]:
    num_new = bench.scale.num_new_tokens
    engine = _filled_engine(bench, target, batch, context)
    with without_graphs(engine):
        eager_engine = Engine(target, max_batch_size=batch)
    prompts: list[list[int]] = []
    for row in range(batch):
        prompts.append([(7 * i + 3 * row) % target.vocab_size for i in range(context)])
    decoded: list[TimedDecoding] = []

    def ours() -> float:
        decoded.append(decode(bench.device, engine, prompts, num_new))
        return decoded[-1].tokens_per_second

    def eager() -> float:
        with without_graphs(engine):
            return decode(bench.device, eager_engine, prompts, num_new).tokens_per_second

    sides = {OURS: ours, EAGER: eager} | _library_sides(bench, target.bytes_per_token, prompts)
    turns = take_turns(bench, sides, bench.scale.repeats)
    if OURS in turns.failures:
        raise RuntimeError(turns.failures[OURS])
    steps = [run.seconds_per_step for run in decoded[1:]]
    num_bytes = weights_read(bench.weights) + batch * context * target.bytes_per_token
    floor = num_bytes / bench.bandwidth
    how = f"{len(steps)} turns of {num_new - 1} steps behind a filled cache"
    yield Measurement.of("step", [1e3 * step for step in steps], "ms", how)
    yield Measurement.of(
        "share of the roofline",
        [100 * floor / step for step in steps],
        "%",
        f"{num_bytes / 1e9:.3g} GB of weights, keys and values at the measured copy bandwidth, "
        "over the step",
        at_least(LEAST_ROOFLINE) if batch == 1 else None,
    )
    how = "tokens per second, decoding only, in turns"
    yield compared("over generate", turns, OURS, GENERATE, how, LEAST_OVER_GENERATE)
    yield compared("over generate_batch", turns, OURS, CONTINUOUS, how)
    yield over_eager(turns, OURS, how)

    def profiled() -> list[Measurement]:
        anew = _filled_engine(bench, target, batch, context)
        return host_gap(bench, anew, prompts, statistics.median(steps))

    bench.profiles.append(partial(_freeing, target, profiled))


def _filled_engine(bench: Bench, target: UnreadPrompts, batch: int, context: int) -> Engine:
    """Return an engine whose cache has the room for a case, filled with random numbers."""
    target.free_cache()
    bench.device.release()
    target.max_len = context + bench.scale.num_new_tokens
    engine = Engine(target, max_batch_size=batch)
    with torch.inference_mode():
        for keys, values in target.cache.buffers:
            keys.normal_()
            values.normal_()
    return engine


def _library_sides(
    bench: Bench, bytes_per_token: int, prompts: list[list[int]]
) -> dict[str, Callable[[], float]]:
    """Return the library's sides; each allocates its memory at its first turn."""
    num_new, model = bench.scale.num_new_tokens, library_model(bench.weights)
    paged = sharing_weights(model)
    num_tokens = sum(map(len, prompts))
    prefilled: list[PrefilledGenerate] = []

    def check_memory() -> None:
        needed, free = num_tokens * bytes_per_token, available_bytes(bench.device.device)
        if needed > free:
            raise MemoryError(
                f"its cache needs {needed / 1e9:.3g} GB beside ours, and {free / 1e9:.3g} are free"
            )

    def by_generate() -> float:
        if not prefilled:
            check_memory()
            prefilled.append(PrefilledGenerate(model, len(prompts), len(prompts[0]) - 1))
        return prefilled[0](prompts, num_new).tokens_per_second

    def by_continuous_batching() -> float:
        if num_tokens > bench.scale.max_prefill:
            raise ValueError(
                f"left out, since {num_tokens:,} prompt tokens would be prefilled for each turn"
            )
        check_memory()
        return generate_batch(paged, prompts, num_new)

    return {GENERATE: by_generate, CONTINUOUS: by_continuous_batching}
