"""TensorBoard: live curves, histograms, configuration and summary, in the results folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from specresearch.trackers.base import TENSORBOARD
from specresearch.trackers.metrics import MetricsTracker, check_imports

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardTracker(MetricsTracker):
    """Writes to <results folder>/tensorboard, which `tensorboard --logdir` shows.

    TensorBoard stores no files: the results lie in the folder above.
    """

    def __init__(self, every: int = 10) -> None:
        super().__init__(every)
        check_imports("tensorboard", "tensorboard")

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        self.folder = folder / TENSORBOARD
        self._is_resumed = self.folder.exists()
        self._config = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        self.writer = self._open()

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        if self._is_resumed:
            # Hides what an earlier session logged after the checkpoint that training resumes from.
            self.writer.close()
            self.writer = self._open(purge_step=step)
            self._is_resumed = False
        super().log(step, values)

    def log_values(self, values: Mapping[str, Any], step: int) -> None:
        for name, value in values.items():
            if isinstance(value, str):
                self.writer.add_text(name, value, step)
            else:
                self.writer.add_scalar(name, value, step)

    def log_histograms(self, histograms: Mapping[str, Sequence[float]]) -> None:
        for name, values in histograms.items():
            self.writer.add_histogram(name, np.asarray(values))

    def end(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        text = json.dumps(dict(summary), indent=2, ensure_ascii=False)
        self.writer.add_text("summary", f"```json\n{text}\n```")
        self.writer.close()

    def last_step(self, curve: str) -> int:
        from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

        events = EventAccumulator(str(self.folder), size_guidance={SCALARS: 1}).Reload()
        if curve not in events.Tags()["scalars"]:
            return 0
        return events.Scalars(curve)[-1].step

    def _open(self, purge_step: int | None = None) -> "SummaryWriter":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(self.folder), purge_step=purge_step)
        writer.add_text("config", f"```yaml\n{self._config}```")
        return writer
