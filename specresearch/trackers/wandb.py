"""Weights & Biases: configuration, live curves, summary, histograms and the results folder.

A run that is resumed in its folder continues the same W&B run, whose id is kept there.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specresearch.files import replace_text
from specresearch.trackers.base import WANDB_RUN
from specresearch.trackers.metrics import MetricsTracker, check_imports

if TYPE_CHECKING:
    from wandb import Run

MODES = ("online", "offline", "disabled")


class WandbTracker(MetricsTracker):
    """Logs to Weights & Biases.

    Args:
        mode: online needs a login, offline writes to <results folder>/wandb for a later
            `wandb sync`, disabled does nothing.
        every: Steps averaged into one point of the live curves.
    """

    def __init__(
        self,
        project: str = "specresearch",
        mode: str = "online",
        entity: str | None = None,
        name: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        every: int = 10,
    ) -> None:
        super().__init__(every)
        if mode not in MODES:
            raise ValueError(f"tracker.mode={mode} is unknown; use one of {', '.join(MODES)}")
        self.project, self.entity, self.name, self.group = project, entity, name, group
        self.mode: Literal["online", "offline", "disabled"] = mode  # type: ignore[assignment]
        self.tags = tuple(tags)
        check_imports("wandb", "wandb")

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        import wandb
        from wandb.errors import Error

        if self.mode == "online":
            _check_login()
        folder.mkdir(parents=True, exist_ok=True)
        id_file = folder / WANDB_RUN
        run_id = None
        if id_file.exists():
            run_id = id_file.read_text(encoding="utf-8").strip()
        try:
            self.run: Run = wandb.init(
                id=run_id,
                resume="allow",
                project=self.project,
                entity=self.entity,
                name=self.name or folder.name,
                group=self.group,
                tags=list(self.tags),
                mode=self.mode,
                dir=str(folder),
                config=dict(config),
                settings=wandb.Settings(silent=True, console="off", init_timeout=30),
            )
        except Error as error:
            raise ValueError(
                f"wandb cannot start: {error}; check the network, or use tracker.mode=offline "
                "and `wandb sync` later"
            ) from error
        replace_text(id_file, self.run.id + "\n")

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        super().log(step, {"optimiser_step": step, **values})

    def log_values(self, values: Mapping[str, Any], step: int) -> None:
        self.run.log(dict(values))  # wandb numbers the points of resumed runs by itself

    def log_histograms(self, histograms: Mapping[str, Sequence[float]]) -> None:
        import wandb

        self.run.log({name: wandb.Histogram(values) for name, values in histograms.items()})

    def end(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        import wandb

        self.run.summary.update(dict(summary))
        artifact = wandb.Artifact(f"results-{self.run.id}", type="results")
        for file in files:
            add = artifact.add_dir if file.is_dir() else artifact.add_file
            add(str(file), name=file.name)
        self.run.log_artifact(artifact)
        self.run.finish()


def _check_login() -> None:
    """Raise ValueError without a login, before wandb would ask, or wait, for one."""
    import wandb
    from wandb.errors import Error

    try:
        logged_in = wandb.login(prompt=False, verify=False)
    except Error:
        logged_in = False
    if not logged_in:
        raise ValueError(
            "wandb has no login: run `wandb login` once, or use tracker.mode=offline and "
            "`wandb sync` later"
        )
