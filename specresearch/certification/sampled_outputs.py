"""Sample many outputs of one drafter through the engine, and count them chunk by chunk."""

from collections.abc import Callable, Iterator

import numpy as np

from specresearch.batch import Request
from specresearch.certification.cases import ANY_SEED, CHUNK_SIZE, Case
from specresearch.certification.counts import CountsFile, Tally
from specresearch.certification.decoding import Decoded, in_bursts, in_waves
from specresearch.engine import Engine, RequestOutput

WAVES_PER_CHUNK = 256  # fewer than samples, since waves take longer


def setting_name(output: RequestOutput) -> str:
    """Return the name of the setting that an output was sampled with."""
    return output.id.rpartition("/")[0]


def sample_outputs(
    engine: Engine, case: Case, seed: int, file: CountsFile, on_progress: Callable[[int], None]
) -> dict[str, Tally]:
    """Sample the chunks that the file lacks, and return the counts of each setting.

    Args:
        on_progress: called after each chunk with its number of samples.
    """
    if case.trial.settings.equal_seeds:
        chunk_size, decode = WAVES_PER_CHUNK, _decode_waves
    else:
        chunk_size, decode = CHUNK_SIZE, _decode_bursts
    largest = max(setting.num_samples for setting in case.settings)
    for first in range(0, largest, chunk_size):
        chunk = first // chunk_size
        if chunk not in file.chunks:
            file.add(chunk, _count(case, decode(engine, case, chunk, seed)))
        missing = [max(setting.num_samples - first, 0) for setting in case.settings]
        on_progress(sum(min(num, chunk_size) for num in missing))
    totals = {}
    for setting in case.settings:
        parts = [tallies[setting.name] for tallies in file.chunks.values()]
        totals[setting.name] = Tally.total(parts)
    return totals


def _count(case: Case, decoded: Iterator[Decoded]) -> dict[str, Tally]:
    distributions = {setting.name: setting.distribution for setting in case.settings}
    tallies = {name: Tally([0] * len(d.outputs)) for name, d in distributions.items()}
    for item in decoded:
        name = setting_name(item.output)
        tallies[name].add(item.output, distributions[name], was_chunked=item.was_chunked)
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
