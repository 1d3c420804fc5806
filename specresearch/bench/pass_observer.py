"""Observe every step of a pass: with a recorder, an output check, an advisor, or several."""

from dataclasses import dataclass

from specresearch.bench.advice import Advisor
from specresearch.bench.output_check import OutputCheck, OutputScores
from specresearch.engine import Step
from specresearch.recording.recorder import Recorder


@dataclass
class PassObserver:
    """A `StepObserver` that passes steps on to others."""

    recorder: Recorder | None = None
    check: OutputCheck | None = None
    advisor: Advisor | None = None

    def __call__(self, step: Step) -> None:
        for observe in (self.recorder, self.check, self.advisor):
            if observe is not None:
                observe(step)

    def begin(self, side: str, repeat: int = 0, group: int = 0) -> None:
        """Begin a pass. Earlier steps, such as a warm-up's, do not belong to it."""
        if self.recorder is not None:
            self.recorder.begin(side, repeat, group)
        if self.check is not None:
            self.check.pop()
        if self.advisor is not None:
            self.advisor.side = side

    def end(self) -> OutputScores | None:
        """End the pass and return its output's scores, or None if the output is not checked."""
        if self.recorder is not None:
            self.recorder.end()
        if self.advisor is not None:
            self.advisor.side = None
        return None if self.check is None else self.check.pop()
