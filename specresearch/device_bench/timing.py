"""Time our engine beside others, in turns, and look into its steps."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from specresearch.device_bench.bench import Bench
from specresearch.device_bench.device import Device
from specresearch.device_bench.measurement import Measurement, at_least, at_most, reason_of
from specresearch.engine import Engine, RequestOutput
from specresearch.metrics import StepRecord
from specresearch.models.slot_model import SlotModel
from specresearch.request import Request
from specresearch.sampling import SamplingParams

EAGER = "without graphs"
MAX_HOST_GAP = 3.0  # percent of a step


@dataclass(frozen=True)
class TimedDecoding:
    """Decoding without prefill and the first step.

    Attributes:
        seconds: On the engine's clock.
    """

    seconds: float
    records: tuple[StepRecord, ...]
    outputs: tuple[tuple[int, ...], ...]

    @property
    def num_tokens(self) -> int:
        return sum(sum(record.num_new_tokens) for record in self.records)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def seconds_per_step(self) -> float:
        return self.seconds / len(self.records)

    @property
    def tokens_per_step(self) -> float:
        return self.num_tokens / len(self.records)

    def mean(self, part: str) -> float:
        """Return the mean seconds of a part of `StepTimes`."""
        return statistics.fmean(getattr(record.times, part) for record in self.records)


def decode(
    device: Device, engine: Engine, prompts: Sequence[Sequence[int]], num_new_tokens: int
) -> TimedDecoding:
    """Decode prompts greedily, all from the first step on."""
    ids = _begin(engine, prompts, num_new_tokens)
    outputs: dict[str, RequestOutput] = {}
    records: list[StepRecord] = []
    device.wait()
    begin = engine.clock.now()
    while len(outputs) < len(ids):
        record = engine.step()
        assert record is not None
        records.append(record)
        outputs |= {output.id: output.checked() for output in engine.pop_finished()}
    device.wait()
    seconds = engine.clock.now() - begin
    tokens = tuple(outputs[id].token_ids for id in ids)
    return TimedDecoding(seconds, tuple(records), tokens)


@contextmanager
def without_graphs(engine: Engine) -> Iterator[None]:
    """Let the models of an engine run without graphs in this block."""
    models = [engine.target, *engine.proposer.models]
    kept = [(model, model.passes) for model in models if isinstance(model, SlotModel)]
    for model, _ in kept:
        model.passes = None
    try:
        yield
    finally:
        for model, passes in kept:
            model.passes = passes


def _begin(engine: Engine, prompts: Sequence[Sequence[int]], num_new_tokens: int) -> list[str]:
    """Prefill the prompts and decode one step."""
    engine.abort()
    list(engine.pop_finished())
    sampling = SamplingParams(max_new_tokens=num_new_tokens, ignore_eos=True)
    ids = [engine.submit(Request(prompt, sampling)) for prompt in prompts]
    engine.step()
    return ids


@dataclass
class Turns:
    """What several sides measured in turns.

    Attributes:
        values: By side and repeat; a side that failed has none.
        failures: Why a side failed.
    """

    values: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def ratios(self, side: str, other: str) -> list[float]:
        return [a / b for a, b in zip(self.values[side], self.values[other], strict=False)]


def take_turns(bench: Bench, sides: Mapping[str, Callable[[], float]], repeats: int) -> Turns:
    """Call every side once to warm up, then in turns, in alternating order.

    A side that raises leaves the turns to the others. The first repeat is always measured; later
    ones as long as the case has time.
    """
    turns = Turns({name: [] for name in sides})
    for number in range(-1, repeats):
        if number > 0 and bench.is_late:
            break
        order = list(sides)
        for name in order if number % 2 else order[::-1]:
            if name in turns.failures:
                continue
            try:
                value = sides[name]()
            except Exception as error:
                turns.failures[name] = reason_of(error)
                turns.values[name] = []
                bench.device.release()
                continue
            if number >= 0:
                turns.values[name].append(value)
    return turns


def compared(
    name: str, turns: Turns, side: str, other: str, how: str, least: float | None = None
) -> Measurement:
    """Return by how many times a side's values exceed another's, or why that is not known."""
    for measured in (side, other):
        if measured in turns.failures:
            return Measurement(name, "x", reason=turns.failures[measured], how=how)
    expectation = None if least is None else at_least(least)
    return Measurement.of(name, turns.ratios(side, other), "x", how, expectation)


def over_eager(turns: Turns, side: str, how: str) -> Measurement:
    """Return how much faster a side is with graphs, and compiled layers if it has them."""
    return compared("graphs over passes without", turns, side, EAGER, how, least=1.0)


def host_gap(
    bench: Bench,
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    seconds_per_step: float,
) -> list[Measurement]:
    """Return how much of a step the device idles, and how many kernels it runs."""
    device, num_steps = bench.device, bench.scale.num_profiled
    records: list[StepRecord | None] = []
    try:
        decode(device, engine, prompts, bench.scale.num_new_tokens)  # all graphs are captured
        _begin(engine, prompts, bench.scale.num_new_tokens)
        device.wait()
        activity = device.activity(lambda: records.extend(engine.step() for _ in range(num_steps)))
    finally:
        engine.abort()
    num_done = sum(record is not None for record in records)
    busy = activity.busy / num_done
    idle = 100 * max(0.0, 1 - busy / seconds_per_step)
    kernels = activity.num_kernels / num_done
    return [
        Measurement.of("host gap", idle, "% of a step", device.how_busy, at_most(MAX_HOST_GAP)),
        Measurement.of("kernels a step", kernels, "", "counted by the profiler"),
    ]
