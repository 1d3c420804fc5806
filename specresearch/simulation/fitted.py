"""The machine that a recording was made on."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
from jaxtyping import Float

from specresearch.recording.recording import Recording
from specresearch.simulation import parts
from specresearch.simulation.parts import Part
from specresearch.simulation.recordings import open_recording
from specresearch.simulation.timing import Seconds, Timing, Work

_LEAST_STEPS = 20
_BLOCK = 32  # steps whose noise is taken together: a machine is slow for a while
_EXTENTS = ("num_rows", "num_tokens", "context", "num_prefill_tokens")
_MARGIN = 1.25  # of what was recorded; beyond it a step is called an extrapolation


class Fitted(Timing):
    """Fits the recorded steps of every side: drafting, verification, overhead, prefill, reading late, and the time between steps.

    noise: steps vary as the recorded ones did, stretches of them at a time; False takes their mean. recordings: more folders
    to fit to, of the same target and machine, such as other batch sizes.
    """

    def __init__(self, noise: bool = True, recordings: Sequence[str] = ()) -> None:
        self.noise, self.folders = noise, tuple(recordings)

    def bind(self, recording: Recording) -> None:
        others = [open_recording(Path(folder)) for folder in self.folders]
        for other in others:
            _check_same(recording, other)
        every = [_works(one) for one in (recording, *others)]
        works = [work for part, _ in every for work in part]
        seconds = {
            name: np.concatenate([times[name] for _, times in every]) for name in every[0][1]
        }
        if len(works) < _LEAST_STEPS:
            raise ValueError(
                f"{recording.path} holds {len(works)} steps, and a timing model needs {_LEAST_STEPS}; record more prompts, or "
                "give the times with timing=linear or timing=roofline"
            )
        goes_on = np.isfinite(seconds["between"])
        going_on = [work for work, wanted in zip(works, goes_on.tolist(), strict=True) if wanted]
        self.parts = {
            "propose": Part.fit(parts.of_propose, works, seconds["propose"]),
            "verify": Part.fit(parts.of_verify, works, seconds["verify"]),
            "overhead": Part.fit(parts.of_overhead, works, seconds["overhead"]),
            "prefill": Part.fit(parts.of_prefill, works, seconds["prefill"]),
            "lazy_prefill": Part.fit(parts.of_lazy_prefill, works, seconds["lazy_prefill"]),
            "between": Part.fit(
                parts.of_between, going_on, seconds["between"][goes_on], keep_sum=False
            ),
        }
        ratio = self._ratios(works, seconds, ("propose", "verify", "overhead"))
        self._noise = {"decode": ratio, "prefill": self._ratios(works, seconds, ("prefill",))}
        self._error = float(np.median(np.abs(ratio - 1)))
        self._num_steps = len(works)
        self._most = {name: max(getattr(work, name) for work in works) for name in _EXTENTS}
        self.restart(0)

    def _ratios(
        self,
        works: Sequence[Work],
        seconds: Mapping[str, Float[np.ndarray, " n"]],
        names: Sequence[str],
    ) -> Float[np.ndarray, " m"]:
        """Measured over predicted seconds of the steps that had something to do, in their order; 1 on average."""
        predicted = np.array(
            [sum(self.parts[name].seconds(work) for name in names) for work in works]
        )
        measured = np.sum([seconds[name] for name in names], axis=0)
        ratio = measured[predicted > 0] / predicted[predicted > 0]
        return ratio / ratio.mean() if len(ratio) else np.ones(1)

    def restart(self, seed: int) -> None:
        self._rng = np.random.default_rng([seed, 3])
        self._left: dict[str, list[float]] = {name: [] for name in self._noise}
        self.num_simulated = self.num_beyond = 0

    def step(self, work: Work) -> Seconds:
        self.num_simulated += 1
        self.num_beyond += any(
            getattr(work, name) > _MARGIN * most for name, most in self._most.items()
        )
        told = {name: part.seconds(work) for name, part in self.parts.items()}
        decode = self._factor("decode") if work.num_rows else 1.0
        prefill = self._factor("prefill") if work.num_prefill_tokens else 1.0
        return Seconds(
            told["propose"] * decode,
            told["verify"] * decode,
            told["overhead"] * decode,
            told["prefill"] * prefill,
            told["lazy_prefill"] * decode,
            told["between"],
        )

    def _factor(self, name: str) -> float:
        if not self.noise:
            return 1.0
        left = self._left[name]
        if not left:
            begin = int(self._rng.integers(len(self._noise[name])))
            left += self._noise[name][begin : begin + _BLOCK].tolist()
        return left.pop()

    def describe(self) -> str:
        rows, tokens, context, _ = self._most.values()
        return (
            f"fitted to {self._num_steps:,} steps of up to {rows} requests, {tokens} tokens and {context:,} tokens of context; "
            f"half of them within {self._error:.1%}"
        )

    def caution(self) -> str | None:
        if not self.num_beyond:
            return None
        share = self.num_beyond / self.num_simulated
        return f"{share:.0%} of the simulated steps are larger than any recorded: their times are extrapolated"


def _works(recording: Recording) -> tuple[list[Work], dict[str, Float[np.ndarray, " n"]]]:
    """What the recorded steps had to do, and the seconds they took for it."""
    steps, fixed = recording.steps, recording.header.fixed
    names = [f.name for f in fields(Work) if f.name not in ("can_draft", "is_asked")]
    columns = zip(*(steps[name].tolist() for name in names), strict=True)
    drafts = [fixed.get(side) != 0 for side in steps["side"]]
    works = [
        Work(**dict(zip(names, told, strict=True)), can_draft=has_method, is_asked=has_method)
        for told, has_method in zip(columns, drafts, strict=True)
    ]
    seconds = {
        name: steps[name].to_numpy(dtype=float)
        for name in ("propose", "verify", "lazy_prefill", "between")
    }
    seconds["prefill"] = (steps["prefill"] - steps["lazy_prefill"]).to_numpy(dtype=float)
    overhead = steps["total"] - steps["propose"] - steps["verify"] + steps["schedule"]
    return works, seconds | {"overhead": overhead.to_numpy(dtype=float)}


def _check_same(first: Recording, other: Recording) -> None:
    """Raises ValueError for times of another target, machine or proposer."""
    other.header.check(other.path, first.header.target, str(first.path))
    for name in ("machine", "method"):
        own, theirs = getattr(first.header, name), getattr(other.header, name)
        if own != theirs:
            raise ValueError(
                f"{other.path} was recorded with {name} {theirs!r} and {first.path} with {own!r}"
            )
