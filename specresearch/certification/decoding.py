"""How the requests of a certificate reach the engine: in bursts among many others, or in waves that share a seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specresearch.batch import Request
from specresearch.engine import Engine, RequestOutput

BURST_EVERY = 4  # steps, on average


@dataclass(frozen=True)
class Decoded:
    """An output. was_chunked: its prompt, or what a preemption left to read again, took several steps."""

    output: RequestOutput
    was_chunked: bool = False


def in_bursts(
    engine: Engine, requests: Sequence[Request], rng: np.random.Generator
) -> Iterator[Decoded]:
    """Decode requests that arrive now and then, up to two batches at once, so that the number running rises and falls."""
    coming = list(reversed(requests))
    chunked: set[str] = set()
    try:
        while coming or engine.has_work:
            if coming and (not engine.has_work or rng.random() < 1 / BURST_EVERY):
                num = rng.integers(1, 2 * engine.scheduler.max_batch_size, endpoint=True)
                for _ in range(min(int(num), len(coming))):
                    engine.submit(coming.pop())
            engine.step()
            chunked.update(row.id for row in engine.scheduler.running if not row.is_prefilled)
            yield from (
                Decoded(output.checked(), output.id in chunked) for output in engine.pop_finished()
            )
    finally:
        engine.abort()


def in_waves(engine: Engine, waves: Sequence[Sequence[Request]]) -> Iterator[Decoded]:
    """Decode every wave twice over, its requests side by side, and yield the second outputs only.

    All requests of a wave share one seed, which no other wave has. Proposer and controller begin each wave with nothing learnt;
    what they learn from the first outputs goes into the drafts of the second ones. In a lossless engine the second output of a
    setting follows its law, whatever was decoded before, so that those of different waves are independent. First and second
    output of one wave may be equal (in an engine that isolates requests they are), which is why only one is counted.
    """
    for wave in waves:
        engine.proposer.reset()
        engine.controller.reset()
        for output in engine.generate(
            [replace(request, id=f"before {request.id}") for request in wave]
        ):
            output.checked()
        yield from (Decoded(output.checked()) for output in engine.generate(wave))
