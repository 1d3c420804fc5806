"""Sample many outputs through the engine, in bursts or in waves, and count them by chunk."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from specresearch.certification.cases import ANY_SEED, CHUNK_SIZE, Case
from specresearch.certification.counts import CountsFile, Tally
from specresearch.engine import Engine, RequestOutput
from specresearch.progress import Progress
from specresearch.request import Request

STEPS_PER_BURST = 4  # on average
WAVES_PER_CHUNK = 256  # fewer than samples, since waves take longer
WAVES_TOGETHER = 64


@dataclass(frozen=True)
class Decoded:
    """An output.

    Attributes:
        was_chunked: prefill took several steps, at first or after a preemption.
    """

    output: RequestOutput
    was_chunked: bool = False


def in_bursts(
    engine: Engine, requests: Sequence[Request], rng: np.random.Generator
) -> Iterator[Decoded]:
    """Decode requests that arrive in bursts of up to two batches, so that the batch size varies."""
    waiting = list(reversed(requests))
    chunked: set[str] = set()
    try:
        while waiting or engine.has_work:
            if waiting and (not engine.has_work or rng.random() < 1 / STEPS_PER_BURST):
                num = rng.integers(1, 2 * engine.scheduler.max_batch_size, endpoint=True)
                for _ in range(min(int(num), len(waiting))):
                    engine.submit(waiting.pop())
            engine.step()
            chunked.update(row.id for row in engine.scheduler.running if not row.is_prefilled)
            for output in engine.pop_finished():
                yield Decoded(output.checked(), output.id in chunked)
    finally:
        engine.abort()


def in_waves(engine: Engine, waves: Sequence[Sequence[Request]]) -> Iterator[Decoded]:
    """Decode each wave twice, its requests side by side, and yield only the second outputs.

    The requests of a wave share a seed that no other wave has. Proposer and controller are reset
    before each wave, so drafts of the second outputs come from what was learned from the first.
    In a lossless engine the second outputs still follow the target's distribution, and those of
    different waves are independent. First and second output may be equal (and are, if the engine
    isolates requests), so only one of them counts. Where the engine isolates requests, several
    waves are decoded together.
    """
    num_together = WAVES_TOGETHER if engine.isolates_requests else 1
    for begin in range(0, len(waves), num_together):
        requests = list(chain.from_iterable(waves[begin : begin + num_together]))
        engine.proposer.reset()
        engine.controller.reset()
        first_round = [replace(request, id=f"before {request.id}") for request in requests]
        for output in engine.generate(first_round):
            output.checked()
        for output in engine.generate(requests):
            yield Decoded(output.checked())


def setting_name(output: RequestOutput) -> str:
    """Return the name of the setting that an output was sampled with."""
    return output.id.rpartition("/")[0]


def sample_outputs(
    engine: Engine, case: Case, seed: int, file: CountsFile, progress: Progress
) -> dict[str, Tally]:
    """Sample the chunks that the file lacks, and return the counts of each setting."""
    if case.trial.settings.equal_seeds:
        chunk_size, decode = WAVES_PER_CHUNK, _decode_waves
    else:
        chunk_size, decode = CHUNK_SIZE, _decode_bursts
    largest = max(setting.num_samples for setting in case.settings)
    for first in range(0, largest, chunk_size):
        chunk = first // chunk_size
        if chunk in file.chunks:
            missing = [max(setting.num_samples - first, 0) for setting in case.settings]
            progress.skip(sum(min(num, chunk_size) for num in missing))
        else:
            file.add(chunk, _count(case, decode(engine, case, chunk, seed), progress))
    totals = {}
    for setting in case.settings:
        parts = [tallies[setting.name] for tallies in file.chunks.values()]
        totals[setting.name] = Tally.total(parts)
    return totals


def _count(case: Case, decoded: Iterator[Decoded], progress: Progress) -> dict[str, Tally]:
    distributions = {setting.name: setting.distribution for setting in case.settings}
    tallies = {name: Tally([0] * len(d.outputs)) for name, d in distributions.items()}
    for item in decoded:
        name = setting_name(item.output)
        tallies[name].add(item.output, distributions[name], was_chunked=item.was_chunked)
        progress.advance()
    return tallies


def _decode_bursts(engine: Engine, case: Case, chunk: int, seed: int) -> Iterator[Decoded]:
    """Decode all settings mixed in the same batches."""
    requests: list[Request] = []
    for setting in case.settings:
        requests += setting.requests(chunk, seed)
    rng = np.random.default_rng((seed, chunk))
    return in_bursts(engine, [requests[i] for i in rng.permutation(len(requests))], rng)


def _decode_waves(engine: Engine, case: Case, chunk: int, seed: int) -> Iterator[Decoded]:
    """Decode waves of one request for each setting that still lacks samples."""
    seeds = np.random.default_rng((seed, chunk)).integers(ANY_SEED, size=WAVES_PER_CHUNK).tolist()
    waves = []
    for number, wave_seed in enumerate(seeds, start=chunk * WAVES_PER_CHUNK):
        active = [setting for setting in case.settings if number < setting.num_samples]
        if active:
            waves.append([setting.request(number, wave_seed) for setting in active])
    return in_waves(engine, waves)
