"""What looks on at every step of a side: a recording, a check of the output, or both."""

from dataclasses import dataclass

from specresearch.batch import Batch, Delivery
from specresearch.bench.output_check import OutputCheck
from specresearch.bench.recorder import Recorder
from specresearch.metrics import StepRecord
from specresearch.models.causal_lm import ModelOutput
from specresearch.proposal import Proposal


@dataclass
class Watching:
    """A `Watcher` whose time is part of no figure: `take_seconds` is what it took, and the recording leaves it out too."""

    recorder: Recorder | None = None
    check: OutputCheck | None = None
    seconds: float = 0.0

    def __call__(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, delivery: Delivery, record: StepRecord
    ) -> None:
        if self.recorder is not None:
            self.recorder(batch, proposal, output, delivery, record)
        if self.check is not None:
            self.check(batch, proposal, output, delivery, record)
            self.seconds += self.check.last_seconds
            if self.recorder is not None:
                self.recorder.stand_still(self.check.last_seconds)

    def take_seconds(self) -> float:
        """Return the seconds spent on watching since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds + (0.0 if self.recorder is None else self.recorder.take_seconds())
