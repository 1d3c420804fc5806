"""The machine that a recording was made on."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain, compress
from pathlib import Path

import numpy as np
from jaxtyping import Float

from specresearch.recording.recording import Recording
from specresearch.simulation import parts
from specresearch.simulation.parts import Features, StepPart
from specresearch.simulation.recordings import open_recording
from specresearch.simulation.timing import Timing, Work

FEATURES: dict[str, Features] = {
    "propose": parts.of_propose,
    "verify": parts.of_verify,
    "overhead": parts.of_overhead,
    "prefill": parts.of_prefill,
    "lazy_prefill": parts.of_lazy_prefill,
    "between": parts.of_between,
}
_DECODE = ("propose", "verify", "overhead")
_NOISE = {"decode": _DECODE, "prefill": ("prefill",)}  # parts that vary together
_LEAST_STEPS = 20
_BLOCK = 32  # steps whose noise is taken together: a machine is slow for a while
_EXTENTS = ("num_rows", "num_tokens", "context", "num_prefill_tokens")
_MARGIN = 1.25  # of what was recorded; beyond it a step is called an extrapolation


@dataclass(frozen=True)
class RecordedSteps:
    """What recorded steps had to do, and the seconds of each part."""

    works: list[Work]
    seconds: dict[str, Float[np.ndarray, " n"]]

    @staticmethod
    def of(recording: Recording) -> "RecordedSteps":
        """Return the steps of every side."""
        steps, fixed = recording.steps, recording.header.fixed
        names = [field.name for field in fields(Work) if field.name != "can_draft"]
        can_draft = [fixed.get(side) != 0 for side in steps["side"]]
        columns = [steps[name].tolist() for name in names]
        works = []
        for drafts, *values in zip(can_draft, *columns, strict=True):
            works.append(Work(**dict(zip(names, values, strict=True)), can_draft=drafts))
        prefill = steps["prefill"] - steps["lazy_prefill"]
        overhead = steps["total"] - steps["propose"] - steps["verify"] + steps["schedule"]
        seconds = {"prefill": prefill, "overhead": overhead}
        for name in ("propose", "verify", "lazy_prefill", "between"):
            seconds[name] = steps[name]
        arrays = {name: column.to_numpy(dtype=float) for name, column in seconds.items()}
        return RecordedSteps(works, arrays)

    @staticmethod
    def joined(recorded: "Sequence[RecordedSteps]") -> "RecordedSteps":
        """Return all steps, in order."""
        works = list(chain.from_iterable(steps.works for steps in recorded))
        seconds = {}
        for name in FEATURES:
            seconds[name] = np.concatenate([steps.seconds[name] for steps in recorded])
        return RecordedSteps(works, seconds)


class Noise:
    """Draws by what factor steps deviate from their prediction, a recorded block at a time."""

    def __init__(self, ratios: Float[np.ndarray, " n"]) -> None:
        self.ratios = ratios
        self._block: list[float] = []

    def restart(self) -> None:
        self._block = []

    def draw(self, rng: np.random.Generator) -> float:
        """Return measured over predicted seconds of the next step."""
        if not self._block:
            begin = int(rng.integers(len(self.ratios)))
            self._block = self.ratios[begin : begin + _BLOCK].tolist()
        return self._block.pop()


class Fitted(Timing):
    """Fits each part of a step to the recorded steps of every side.

    Args:
        noise: Vary steps as the recorded ones did, a stretch of them at a time; False takes their
            mean.
        recordings: More folders to fit to, of the same target and machine, such as other batch
            sizes.
    """

    def __init__(self, noise: bool = True, recordings: Sequence[str] = ()) -> None:
        self.noise = noise
        self.folders = tuple(recordings)

    def bind(self, recording: Recording) -> None:
        others = [open_recording(Path(folder)) for folder in self.folders]
        for other in others:
            _check_same(recording, other)
        steps = RecordedSteps.joined(list(map(RecordedSteps.of, (recording, *others))))
        if len(steps.works) < _LEAST_STEPS:
            raise ValueError(
                f"{recording.path} holds {len(steps.works)} steps, and a timing model needs "
                f"{_LEAST_STEPS}; record more prompts, or give the times with timing=linear or "
                "timing=roofline"
            )
        self.parts = {}
        for name, features in FEATURES.items():
            self.parts[name] = _fit(name, features, steps)
        self._noise = {name: Noise(self._ratios(steps, names)) for name, names in _NOISE.items()}
        self._median_error = float(np.median(np.abs(self._noise["decode"].ratios - 1)))
        self._num_steps = len(steps.works)
        self._extents: dict[str, int] = {}
        for name in _EXTENTS:
            self._extents[name] = max(getattr(work, name) for work in steps.works)
        self.restart(0)

    def restart(self, seed: int) -> None:
        self._rng = np.random.default_rng([seed, 3])
        self._factors: dict[str, float] = {}  # of the current step
        for noise in self._noise.values():
            noise.restart()
        self.num_simulated = 0
        self.num_beyond = 0

    def prefill_seconds(self, work: Work) -> float:
        return self._seconds("prefill", work, "prefill")

    def lazy_prefill_seconds(self, work: Work) -> float:
        return self._seconds("lazy_prefill", work)

    def propose_seconds(self, work: Work) -> float:
        return self._seconds("propose", work)

    def verify_seconds(self, work: Work) -> float:
        return self._seconds("verify", work)

    def overhead_seconds(self, work: Work) -> float:
        # A step without rows draws no noise.
        return self._seconds("overhead", work) if work.num_rows else 0.0

    def between_seconds(self, work: Work) -> float:
        self._factors = {}
        self.num_simulated += 1
        extents = self._extents.items()
        self.num_beyond += any(getattr(work, name) > _MARGIN * most for name, most in extents)
        return self.parts["between"].seconds(work)

    def describe(self) -> str:
        rows, tokens, context, _ = self._extents.values()
        return (
            f"fitted to {self._num_steps:,} steps of up to {rows} requests, {tokens} tokens and "
            f"{context:,} tokens of context; half of them fit within {self._median_error:.1%}"
        )

    def caution(self) -> str | None:
        if not self.num_beyond:
            return None
        share = self.num_beyond / self.num_simulated
        return (
            f"{share:.0%} of the simulated steps are larger than any recorded: their times are "
            "extrapolated"
        )

    def _ratios(self, steps: RecordedSteps, names: Sequence[str]) -> Float[np.ndarray, " m"]:
        """Return measured over predicted seconds of steps with work, in order; 1 on average."""
        measured = np.sum([steps.seconds[name] for name in names], axis=0)
        predicted = np.zeros(len(steps.works))
        for i, work in enumerate(steps.works):
            predicted[i] = sum(self.parts[name].seconds(work) for name in names)
        has_work = predicted > 0
        if not has_work.any():
            return np.ones(1)
        ratios = measured[has_work] / predicted[has_work]
        return ratios / ratios.mean()

    def _seconds(self, part: str, work: Work, noise: str = "decode") -> float:
        """Return the time of a part, with the noise that all such parts of a step share."""
        if self.noise and noise not in self._factors:
            self._factors[noise] = self._noise[noise].draw(self._rng)
        return self.parts[part].seconds(work) * self._factors.get(noise, 1.0)


def _fit(name: str, features: Features, steps: RecordedSteps) -> StepPart:
    seconds = steps.seconds[name]
    if name != "between":
        return StepPart.fit(features, steps.works, seconds)
    # The time between steps is unknown where no step followed.
    is_known = np.isfinite(seconds)
    works = list(compress(steps.works, is_known))
    return StepPart.fit(features, works, seconds[is_known], keep_sum=False)


def _check_same(first: Recording, other: Recording) -> None:
    """Raise ValueError for times of another target, machine or proposer."""
    other.header.check(other.path, first.header.target, str(first.path))
    for name in ("machine", "method"):
        expected, value = getattr(first.header, name), getattr(other.header, name)
        if value != expected:
            raise ValueError(
                f"{other.path} was recorded with {name} {value!r} and {first.path} with "
                f"{expected!r}; use recordings of one {name}"
            )
