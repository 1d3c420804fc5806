"""A load test from its configuration."""

import sys
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from transformers.utils.logging import disable_progress_bar

from specresearch.acceptance import Threshold
from specresearch.acceptance.threshold import WORKLOADS
from specresearch.controllers import Controller
from specresearch.data import PromptDataset
from specresearch.loadtest.folder import LoadFolder
from specresearch.loadtest.runner import LoadRunner
from specresearch.loadtest.settings import LoadSettings
from specresearch.loadtest.window import Limits
from specresearch.loadtest.workload import RequestClass

CLASS_KEYS = ("share", "dataset", "sampling", "acceptance", "num_draft_tokens")
NUM_TO_CHOOSE_FROM = (
    1000  # rows of a public dataset, where prompts are chosen by the lengths of a trace
)
SETTINGS = (
    "num_requests",
    "max_running",
    "repeats",
    "max_waiting",
    "max_seconds",
    "length_spread",
    "warmup",
    "seed",
    "reset",
    "turn_seconds",
)


def build_settings(cfg: DictConfig) -> LoadSettings:
    return LoadSettings(
        **{name: cfg[name] for name in SETTINGS},
        compare=list(cfg.compare),
        limits=Limits(**cfg.limits),
    )


def build_runner(cfg: DictConfig, settings: LoadSettings, folder: LoadFolder) -> LoadRunner:
    """Construct everything that the configuration names."""
    if not (cfg.progress and sys.stderr.isatty()):
        disable_progress_bar()
    tracker = instantiate(cfg.tracker, _convert_="all")
    arrivals = instantiate(cfg.arrivals, _convert_="all")
    acceptance = instantiate(cfg.acceptance, _convert_="all")
    num_rows = settings.count(arrivals) if arrivals.rows is None else None
    classes = classes_of(cfg, num_rows, uses_threshold=isinstance(acceptance, Threshold))
    choices = HydraConfig.get().runtime.choices
    return LoadRunner(
        instantiate(cfg.target, _convert_="all"),
        classes,
        arrivals,
        settings,
        folder,
        proposer=instantiate(cfg.proposer, _convert_="all") if cfg.get("proposer") else None,
        method=choices.get("proposer"),
        acceptance=acceptance,
        controller=instantiate(cfg.controller, _convert_="all"),
        controller_name=choices.get("controller"),
        variants=variants_of(cfg),
        scheduling=instantiate(cfg.scheduler, _convert_="all"),
        tracker=tracker,
        record=cfg.record,
    )


def variants_of(cfg: DictConfig) -> dict[str, Controller]:
    """The run's controller with changed settings."""
    merged = {
        str(name): OmegaConf.merge(cfg.controller, changes)
        for name, changes in cfg.variants.items()
    }
    return {name: instantiate(controller, _convert_="all") for name, controller in merged.items()}


def classes_of(
    cfg: DictConfig, num_rows: int | None, *, uses_threshold: bool
) -> list[RequestClass]:
    """The classes of requests; without any, all are alike. Those that name no dataset share the run's.

    num_rows: of a dataset that are used; None: all there are to choose from. uses_threshold: the rule is the one that
    acceptance presets are for.
    """
    if not cfg.classes:
        return [
            RequestClass(
                _dataset(cfg.dataset, num_rows), instantiate(cfg.sampling, _convert_="all")
            )
        ]
    shared = None
    classes = []
    for key, part in cfg.classes.items():
        name = str(key)
        strange = [own for own in part if own not in CLASS_KEYS]
        if strange:
            raise ValueError(
                f"classes.{name} has an unknown key {strange[0]!r}; there are: {', '.join(CLASS_KEYS)}"
            )
        if "share" not in part:
            raise ValueError(
                f"classes.{name} has no share; give its weight among the classes, such as share: 0.6"
            )
        if part.get("dataset") is None and shared is None:
            shared = _dataset(cfg.dataset, num_rows)
        dataset = shared if part.get("dataset") is None else _dataset(part.dataset, num_rows)
        assert dataset is not None
        changes: dict[str, Any] = dict(part.get("sampling") or {})
        if part.get("acceptance") is not None:
            changes["draft_threshold"] = _threshold(name, part.acceptance, uses_threshold)
        sampling = instantiate(OmegaConf.merge(cfg.sampling, changes), _convert_="all")
        classes.append(
            RequestClass(dataset, sampling, name, part.share, part.get("num_draft_tokens"))
        )
    return classes


def _dataset(cfg: DictConfig, num_rows: int | None) -> PromptDataset:
    most = NUM_TO_CHOOSE_FROM if num_rows is None and cfg.get("path") is None else num_rows
    limits = [limit for limit in (cfg.get("limit"), most) if limit is not None]
    return instantiate(cfg, limit=min(limits, default=None), _convert_="all")


def _threshold(name: str, preset: Any, uses_threshold: bool) -> float:
    """Of an acceptance preset: what the threshold rule would take for such a workload."""
    if preset not in WORKLOADS:
        raise ValueError(
            f"classes.{name}.acceptance={preset} is not known; use one of {', '.join(WORKLOADS)}"
        )
    if not uses_threshold:
        raise ValueError(
            f"classes.{name}.acceptance={preset} is for acceptance=threshold; add that, or leave it out"
        )
    return WORKLOADS[preset]
