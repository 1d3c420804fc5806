"""Weights & Biases: configuration, live curves, summary, histograms, and the results folder as an artifact.

What is resumed in its folder goes on as the same run, whose id lies there.
"""

import importlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specresearch.files import replace_text
from specresearch.metrics import RequestRecord, StepRecord

if TYPE_CHECKING:
    from wandb import Run

MODES = ("online", "offline", "disabled")
RUN_ID = "wandb_run.txt"


class WandbTracker:
    """mode: online needs a login, offline writes to <results folder>/wandb for a later `wandb sync`, disabled does nothing.

    every: steps averaged into one point of the live curves.
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
        if mode not in MODES:
            raise ValueError(f"tracker.mode={mode} is not known; use one of {', '.join(MODES)}")
        if every < 1:
            raise ValueError(f"tracker.every={every} must be at least 1")
        self.project, self.entity, self.name, self.group = project, entity, name, group
        self.mode: Literal["online", "offline", "disabled"] = mode  # type: ignore[assignment]
        _check_import()
        self.tags = tuple(tags)
        self.every = every
        self._pending: dict[str, list[StepRecord]] = defaultdict(list)
        self._rates: dict[str, list[float]] = defaultdict(list)
        self._gaps: dict[str, list[float]] = defaultdict(list)

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        import wandb
        from wandb.errors import Error

        if self.mode == "online":
            _check_login()
        folder.mkdir(parents=True, exist_ok=True)
        known = folder / RUN_ID
        try:
            self.run: Run = wandb.init(
                id=known.read_text(encoding="utf-8").strip() if known.exists() else None,
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
                f"wandb cannot start: {error}; check the network, or use tracker.mode=offline and `wandb sync` later"
            ) from error
        replace_text(known, self.run.id + "\n")

    def log_step(self, side: str, record: StepRecord) -> None:
        self._pending[side].append(record)
        if len(self._pending[side]) >= self.every:
            self._log_steps(side)

    def _log_steps(self, side: str) -> None:
        records = self._pending.pop(side)
        num = len(records)
        self.run.log(
            {
                f"{side}/new_tokens_per_step": sum(sum(r.num_new_tokens) for r in records) / num,
                f"{side}/draft_tokens_per_step": sum(sum(r.num_draft_tokens) for r in records)
                / num,
                f"{side}/accepted_tokens_per_step": sum(sum(r.num_accepted_tokens) for r in records)
                / num,
                f"{side}/step_ms": 1e3 * sum(r.times.total for r in records) / num,
                f"{side}/propose_ms": 1e3 * sum(r.times.propose for r in records) / num,
                f"{side}/verify_ms": 1e3 * sum(r.times.verify for r in records) / num,
            }
        )

    def log_request(self, side: str, record: RequestRecord) -> None:
        counts = record.counts
        if counts.num_draft_tokens:
            self._rates[side].append(counts.draft_acceptance_rate)
        self._gaps[side].extend(record.itl)
        self.run.log(
            {
                f"{side}/ttft": record.ttft,
                f"{side}/tpot": record.tpot,
                f"{side}/e2el": record.e2el,
                f"{side}/tokens_per_target_forward": counts.tokens_per_target_forward,
                f"{side}/mean_acceptance_length": counts.mean_acceptance_length,
                f"{side}/draft_acceptance_rate": counts.draft_acceptance_rate,
            }
        )

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        self.run.log({"optimiser_step": step, **values})

    def finish(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        import wandb

        for side in list(self._pending):
            self._log_steps(side)
        histograms = {
            f"{side}/request_acceptance_rate": values for side, values in self._rates.items()
        }
        histograms |= {f"{side}/itl": values for side, values in self._gaps.items()}
        self.run.log(
            {name: wandb.Histogram(values) for name, values in histograms.items() if values}
        )
        self.run.summary.update(dict(summary))
        artifact = wandb.Artifact(f"results-{self.run.id}", type="results")
        for file in files:
            (artifact.add_dir if file.is_dir() else artifact.add_file)(str(file), name=file.name)
        self.run.log_artifact(artifact)
        self.run.finish()


def _check_import() -> None:
    """Raises ValueError, before a model is loaded, where wandb is missing or broken."""
    try:
        importlib.import_module("wandb")
    except ImportError as error:
        raise ValueError(
            f"wandb cannot be imported ({error}); install it with `pip install wandb`, or use tracker=none"
        ) from error


def _check_login() -> None:
    """Raises ValueError before wandb would ask, or wait, for a login."""
    import wandb
    from wandb.errors import Error

    try:
        logged_in = wandb.login(prompt=False, verify=False)
    except Error:
        logged_in = False
    if not logged_in:
        raise ValueError(
            "wandb has no login: run `wandb login` once, or use tracker.mode=offline and `wandb sync` later"
        )
