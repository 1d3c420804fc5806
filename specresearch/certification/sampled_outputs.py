"""Sample many outputs through the engine, in bursts or in waves, and count them by chunk."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from specresearch.certification.cases import ANY_SEED, CHUNK_SIZE, Case
from specresearch.certification.counts import CountsFile, Tally, events_needed, rare_events
from specresearch.engine import Engine, RequestOutput
from specresearch.progress import Progress
from specresearch.request import Request

STEPS_PER_BURST = 4  # on average
WAVES_PER_CHUNK = 256  # fewer than samples, since waves take longer
WAVES_TOGETHER = 64
MOST_ROUNDS = 4  # of sampling, where drafts or preemptions are too rare


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
    """Sample the chunks that the file lacks, and return the counts of each setting.

    A method with short or few drafts may preempt, or draft, too seldom for so many samples to show
    its errors. Then as many are sampled again. That depends on how often it did, and not on what
    the outputs are.
    """
    totals = _sample_round(engine, case, seed, file, progress, number=0)
    for number in range(1, MOST_ROUNDS):
        if case.stress or not _needs_more(case, totals):
            break
        progress.extend(sum(setting.num_samples for setting in case.settings))
        totals = _sample_round(engine, case, seed, file, progress, number=number)
    return totals


def _sample_round(
    engine: Engine, case: Case, seed: int, file: CountsFile, progress: Progress, *, number: int
) -> dict[str, Tally]:
    """Sample a round, and return the counts of each setting in all rounds so far."""
    if case.trial.settings.equal_seeds:
        chunk_size, decode = WAVES_PER_CHUNK, _decode_waves
    else:
        chunk_size, decode = CHUNK_SIZE, _decode_bursts
    largest = max(setting.num_samples for setting in case.settings)
    firsts = range(0, largest, chunk_size)
    seed += number << 64  # beyond the seeds of all cases
    for chunk, first in enumerate(firsts):
        row = number * len(firsts) + chunk
        if row in file.chunks:
            missing = [max(setting.num_samples - first, 0) for setting in case.settings]
            progress.skip(sum(min(num, chunk_size) for num in missing))
        else:
            file.add(row, _count(case, decode(engine, case, chunk, seed), progress))
    totals = {}
    for setting in case.settings:
        rows = range((number + 1) * len(firsts))
        totals[setting.name] = Tally.total([file.chunks[row][setting.name] for row in rows])
    return totals


def _needs_more(case: Case, totals: Mapping[str, Tally]) -> bool:
    """Return whether events are too rare, and all rounds together may bring enough of them.

    The number needed grows with the root of the samples.
    """
    is_crowded = case.trial.settings.is_crowded
    needs_more = False
    for setting in case.settings:
        tally = totals[setting.name]
        num_samples = sum(tally.counts) + tally.num_impossible
        needed = events_needed(setting.visible_tv(num_samples), num_samples)
        most = math.sqrt(MOST_ROUNDS * setting.num_samples / num_samples)
        if rare_events(tally, needed / most, is_crowded=is_crowded):
            return False
        needs_more |= bool(rare_events(tally, needed, is_crowded=is_crowded))
    return needs_more


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
