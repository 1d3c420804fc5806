"""MLflow: settings, live curves, summary, histograms and results, on a server or in a database.

A run that is resumed in its folder continues the same MLflow run, whose id is kept there.
"""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specresearch.files import replace_text
from specresearch.trackers.base import MLFLOW_RUN
from specresearch.trackers.metrics import MetricsTracker, check_imports

if TYPE_CHECKING:
    from mlflow.entities import Metric

logger = logging.getLogger(__name__)

MAX_METRICS = 1000  # in one call, MLflow's own limit
MAX_PARAMETERS = 100
MAX_LENGTH = 6000  # of a parameter
SECONDS_BETWEEN_CALLS = 5.0
RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"


class MlflowTracker(MetricsTracker):
    """Logs to MLflow.

    Args:
        uri: A server, or a database such as sqlite:///mlflow.db. None takes MLFLOW_TRACKING_URI, or
            else mlflow.db in the working directory, where `mlflow ui` looks.
        name: Name of the run; None takes the results folder's.
        every: Steps averaged into one point of the live curves.
    """

    def __init__(
        self,
        uri: str | None = None,
        experiment: str = "specresearch",
        name: str | None = None,
        every: int = 10,
    ) -> None:
        super().__init__(every)
        self.uri, self.experiment, self.name = uri, experiment, name
        check_imports("mlflow", "mlflow", "sqlalchemy", "alembic")
        self._metrics: list[Metric] = []  # not sent yet
        self._texts: dict[str, str] = {}
        self._last_call = 0.0

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
        from sqlalchemy.exc import SQLAlchemyError

        os.environ.setdefault(RETRIES, "2")  # by default, a missing server is noticed after minutes
        try:
            self.client = MlflowClient(tracking_uri=self.uri)
            self.run_id = self._open_run(config, folder)
        except (MlflowException, SQLAlchemyError) as error:
            raise ValueError(
                f"MLflow cannot start: {error}; check the server or database tracker.uri="
                f"{self.uri}, or use tracker=none"
            ) from error

    def _open_run(self, config: Mapping[str, Any], folder: Path) -> str:
        """Continue the run whose id the folder holds, or create one; return its id."""
        id_file = folder / MLFLOW_RUN
        if id_file.exists():
            run_id = id_file.read_text(encoding="utf-8").strip()
            self.client.update_run(run_id, status="RUNNING")
            return run_id
        experiment = self.client.get_experiment_by_name(self.experiment)
        if experiment is None:
            experiment_id = self.client.create_experiment(self.experiment)
        else:
            experiment_id = experiment.experiment_id
        run_id = self.client.create_run(
            experiment_id, run_name=self.name or folder.name
        ).info.run_id
        self._log_parameters(run_id, config)
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(id_file, run_id + "\n")
        return run_id

    def _log_parameters(self, run_id: str, config: Mapping[str, Any]) -> None:
        import pandas as pd
        from mlflow.entities import Param

        flat = pd.json_normalize(dict(config)).to_dict("records")[0]
        parameters = [Param(str(key), str(value)[:MAX_LENGTH]) for key, value in flat.items()]
        for first in range(0, len(parameters), MAX_PARAMETERS):
            self.client.log_batch(run_id, params=parameters[first : first + MAX_PARAMETERS])

    def log_values(self, values: Mapping[str, Any], step: int) -> None:
        from mlflow.entities import Metric

        now = time.time()
        for name, value in values.items():
            if isinstance(value, str):
                self._texts[f"{name}/step_{step}.txt"] = value
            else:
                self._metrics.append(Metric(name, float(value), int(1e3 * now), step))
        if now - self._last_call >= SECONDS_BETWEEN_CALLS:
            self._send()

    def _send(self) -> None:
        """Send what is pending. While the server does not answer, keep it for the next call."""
        from mlflow.exceptions import MlflowException

        try:
            while self._metrics:
                self.client.log_batch(self.run_id, metrics=self._metrics[:MAX_METRICS])
                del self._metrics[:MAX_METRICS]
            for name, text in list(self._texts.items()):
                self.client.log_text(self.run_id, text, name)
                del self._texts[name]
        except MlflowException as error:
            logger.warning("MLflow does not answer, and gets these figures later: %s", error)
        self._last_call = time.time()

    def log_histograms(self, histograms: Mapping[str, Sequence[float]]) -> None:
        from matplotlib.figure import Figure

        for name, values in histograms.items():
            figure = Figure(layout="constrained")
            axes = figure.subplots()
            axes.hist(values, bins="auto")
            axes.set(xlabel=name, ylabel="count")
            self.client.log_figure(self.run_id, figure, f"histograms/{name}.png")

    def finish(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        from mlflow.exceptions import MlflowException

        try:
            super().finish(summary, files)
        except MlflowException as error:
            logger.warning(
                "MLflow did not get everything (%s); the results folder holds it all", error
            )

    def end(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        numbers = {name: x for name, x in summary.items() if isinstance(x, (int, float))}
        self.log_values(numbers, 0)
        self._send()
        self.client.log_dict(self.run_id, dict(summary), "summary.json")
        for file in files:
            if file.is_dir():
                self.client.log_artifacts(self.run_id, str(file), file.name)
            else:
                self.client.log_artifact(self.run_id, str(file))
        self.client.set_terminated(self.run_id)

    def last_step(self, curve: str) -> int:
        history = self.client.get_metric_history(self.run_id, curve)
        return max((metric.step for metric in history), default=0)
