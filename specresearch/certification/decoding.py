"""Submit requests to the engine in bursts, or in waves whose requests share a seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specresearch.batch import Request
from specresearch.controllers import Adaptive as Controller
from specresearch.engine import Engine, RequestOutput

STEPS_PER_BURST = 4  # on average


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
            for output in engine.finished():
                yield Decoded(output.checked(), output.id in chunked)
    finally:
        engine.abort()


def in_waves(engine: Engine, waves: Sequence[Sequence[Request]]) -> Iterator[Decoded]:
    """Decode each wave twice, its requests side by side, and yield only the second outputs.

    The requests of a wave share a seed that no other wave has. Proposer and controller are reset
    before each wave, so drafts of the second outputs come from what was learned from the first.
    In a lossless engine the second outputs still follow the target's distribution, and those of
    different waves are independent. First and second output may be equal (and are, if the engine
    isolates requests), so only one of them counts.
    """
    for wave in waves:
        engine.proposer.reset()
        if isinstance(engine.controller, Controller):
            engine.controller.reset()
        first_round = [replace(request, id=f"before {request.id}") for request in wave]
        for output in engine.generate(first_round):
            output.checked()
        for output in engine.generate(wave):
            yield Decoded(output.checked())
