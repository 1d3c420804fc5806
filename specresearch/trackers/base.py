"""The interface of trackers, and the tracker that records nothing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from specresearch.metrics import RequestRecord, StepRecord

WANDB_RUN, MLFLOW_RUN = "wandb_run.txt", "mlflow_run.txt"  # hold the id of a run
TENSORBOARD, MLRUNS = "tensorboard", "mlruns"
TRACKER_FILES = {"wandb", WANDB_RUN, TENSORBOARD, MLRUNS, MLFLOW_RUN}  # left in a results folder


@runtime_checkable
class Tracker(Protocol):
    """Receives the metrics of a run; called only while no clock runs.

    The `side` of a record is baseline or method.
    """

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        """Start tracking, before anything is decoded.

        Args:
            folder: The results folder of the run.

        Raises:
            ValueError: If tracking cannot work.
        """
        ...

    def log_step(self, side: str, record: StepRecord) -> None: ...

    def log_request(self, side: str, record: RequestRecord) -> None: ...

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Log the metrics of a training step."""
        ...

    def finish(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Finish tracking.

        Args:
            files: What the run left in its folder, subfolders included.
        """
        ...


class NoTracker:
    """Records nothing; the results folder has it all."""

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        pass

    def log_step(self, side: str, record: StepRecord) -> None:
        pass

    def log_request(self, side: str, record: RequestRecord) -> None:
        pass

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        pass

    def finish(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        pass
