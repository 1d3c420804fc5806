"""What every tracker is, and the one that keeps nothing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from specresearch.metrics import RequestRecord, StepRecord


@runtime_checkable
class Tracker(Protocol):
    """Called while no clock runs. side: baseline or method."""

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        """Before anything is decoded. folder: the run's results folder. Raises ValueError when tracking cannot work."""
        ...

    def log_step(self, side: str, record: StepRecord) -> None: ...

    def log_request(self, side: str, record: RequestRecord) -> None: ...

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Figures of a training step."""
        ...

    def finish(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        """files: what the run left in its folder, subfolders among them."""
        ...


class NoTracker:
    """Keeps nothing; the results folder has it all."""

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
