"""What looks on at every step of a side: a recording, a check of the output, or both."""

from dataclasses import dataclass

from specresearch.batch import Batch, Delivery
from specresearch.bench.output_check import OutputCheck, OutputScores
from specresearch.metrics import StepRecord
from specresearch.models.causal_lm import ModelOutput
from specresearch.proposal import Proposal
from specresearch.recording.recorder import Recorder


@dataclass
class Watching:
    """A `Watcher` whose time is part of no figure: `take_seconds` is what it took, and the recording leaves it out too."""

    recorder: Recorder | None = None
    check: OutputCheck | None = None
    seconds: float = 0.0

    def __call__(
        self,
        batch: Batch,
        proposal: Proposal,
        output: ModelOutput,
        delivery: Delivery,
        record: StepRecord,
    ) -> None:
        if self.recorder is not None:
            self.recorder(batch, proposal, output, delivery, record)
        if self.check is not None:
            self.check(batch, proposal, output, delivery, record)
            self.seconds += self.check.last_seconds
            if self.recorder is not None:
                self.recorder.stand_still(self.check.last_seconds)

    def begin(self, side: str, repeat: int = 0, group: int = 0) -> None:
        """Begin a pass, of which what was seen before, such as a warm-up, is no part."""
        if self.recorder is not None:
            self.recorder.begin(side, repeat, group)
        if self.check is not None:
            self.check.take()
        self.take_seconds()

    def end(self) -> OutputScores | None:
        """Return what the check has found in the pass; None without one."""
        if self.recorder is not None:
            self.recorder.end()
        return None if self.check is None else self.check.take()

    def stand_still(self, seconds: float) -> None:
        """The pass was not under way for so long."""
        if self.recorder is not None:
            self.recorder.stand_still(seconds)

    def take_seconds(self) -> float:
        """Return the seconds spent on watching since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds + (0.0 if self.recorder is None else self.recorder.take_seconds())
