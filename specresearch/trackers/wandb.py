"""Weights & Biases: configuration, live curves, summary, histograms and the results folder.

A run that is resumed in its folder continues the same W&B run, whose id is kept there.
"""

import importlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from specresearch.files import replace_text
from specresearch.metrics import RequestRecord, StepRecord

if TYPE_CHECKING:
    from wandb import Run

MODES = ("online", "offline", "disabled")
RUN_ID = "wandb_run.txt"


class WandbTracker:
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
        if mode not in MODES:
            raise ValueError(f"tracker.mode={mode} is unknown; use one of {', '.join(MODES)}")
        if every < 1:
            raise ValueError(f"tracker.every={every} must be at least 1")
        self.project, self.entity, self.name, self.group = project, entity, name, group
        self.mode: Literal["online", "offline", "disabled"] = mode  # type: ignore[assignment]
        _check_import()
        self.tags = tuple(tags)
        self.every = every
        self._pending: dict[str, list[StepRecord]] = defaultdict(list)
        self._acceptance_rates: dict[str, list[float]] = defaultdict(list)
        self._itls: dict[str, list[float]] = defaultdict(list)

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        import wandb
        from wandb.errors import Error

        if self.mode == "online":
            _check_login()
        folder.mkdir(parents=True, exist_ok=True)
        id_file = folder / RUN_ID
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

    def log_step(self, side: str, record: StepRecord) -> None:
        self._pending[side].append(record)
        if len(self._pending[side]) >= self.every:
            self._log_pending(side)

    def _log_pending(self, side: str) -> None:
        """Log the means of the pending steps."""
        records = self._pending.pop(side)
        times = [record.times for record in records]
        means = {
            "new_tokens_per_step": _mean_total(record.num_new_tokens for record in records),
            "draft_tokens_per_step": _mean_total(record.num_draft_tokens for record in records),
            "accepted_tokens_per_step": _mean_total(
                record.num_accepted_tokens for record in records
            ),
            "step_ms": 1e3 * fmean(time.total for time in times),
            "propose_ms": 1e3 * fmean(time.propose for time in times),
            "verify_ms": 1e3 * fmean(time.verify for time in times),
        }
        self.run.log({f"{side}/{name}": value for name, value in means.items()})

    def log_request(self, side: str, record: RequestRecord) -> None:
        counts = record.counts
        if counts.num_draft_tokens:
            self._acceptance_rates[side].append(counts.draft_acceptance_rate)
        self._itls[side].extend(record.itl)
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
            self._log_pending(side)
        histograms: dict[str, Any] = {}
        for name, by_side in (
            ("request_acceptance_rate", self._acceptance_rates),
            ("itl", self._itls),
        ):
            for side, values in by_side.items():
                if values:
                    histograms[f"{side}/{name}"] = wandb.Histogram(values)
        self.run.log(histograms)
        self.run.summary.update(dict(summary))
        artifact = wandb.Artifact(f"results-{self.run.id}", type="results")
        for file in files:
            add = artifact.add_dir if file.is_dir() else artifact.add_file
            add(str(file), name=file.name)
        self.run.log_artifact(artifact)
        self.run.finish()


def _mean_total(counts: Iterable[Sequence[int]]) -> float:
    """Return the mean over steps of the total over rows."""
    return fmean(map(sum, counts))


def _check_import() -> None:
    """Raise ValueError if wandb is missing or broken, before a model is loaded."""
    try:
        importlib.import_module("wandb")
    except ImportError as error:
        raise ValueError(
            f"wandb cannot be imported ({error}); install it with `pip install wandb`, "
            "or use tracker=none"
        ) from error


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
