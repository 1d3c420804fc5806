"""A load test from its configuration."""

import sys
from collections.abc import Mapping
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from transformers.utils.logging import disable_progress_bar

from specresearch.acceptance import Threshold
from specresearch.acceptance.threshold import WORKLOADS
from specresearch.bench.build import method_name
from specresearch.controllers import Controller
from specresearch.data import PromptDataset
from specresearch.loadtest.folder import LoadFolder
from specresearch.loadtest.runner import LoadRunner
from specresearch.loadtest.settings import LoadSettings
from specresearch.loadtest.workload import RequestClass

CLASS_KEYS = ("share", "dataset", "sampling", "acceptance", "num_draft_tokens")
NUM_CANDIDATES = 1000  # rows of a public dataset from which prompts are chosen by length


def build_runner(cfg: DictConfig, settings: LoadSettings, folder: LoadFolder) -> LoadRunner:
    """Construct everything that the configuration names."""
    if not (cfg.progress and sys.stderr.isatty()):
        disable_progress_bar()
    tracker = instantiate(cfg.tracker, _convert_="all")
    arrivals = instantiate(cfg.arrivals, _convert_="all")
    acceptance = instantiate(cfg.acceptance, _convert_="all")
    num_rows = settings.count(arrivals) if arrivals.rows is None else None
    classes = build_classes(cfg, num_rows, uses_threshold=isinstance(acceptance, Threshold))
    target = instantiate(cfg.target, _convert_="all")
    proposer = instantiate(cfg.proposer, _convert_="all") if cfg.get("proposer") else None
    return LoadRunner(
        target,
        classes,
        arrivals,
        settings,
        folder,
        proposer=proposer,
        method=method_name(proposer),
        acceptance=acceptance,
        controller=instantiate(cfg.controller, _convert_="all"),
        controller_name=HydraConfig.get().runtime.choices.get("controller"),
        variants=_build_variants(cfg),
        scheduling=instantiate(cfg.scheduler, _convert_="all"),
        tracker=tracker,
        record=cfg.record,
    )


def _build_variants(cfg: DictConfig) -> dict[str, Controller]:
    """Return the run's controller with other settings, by name of the variant."""
    variants = {}
    for name, changes in cfg.variants.items():
        merged = OmegaConf.merge(cfg.controller, changes)
        variants[str(name)] = instantiate(merged, _convert_="all")
    return variants


def build_classes(
    cfg: DictConfig, num_rows: int | None, *, uses_threshold: bool
) -> list[RequestClass]:
    """Return the classes of requests, or a single one if there are none.

    Args:
        num_rows: Rows of a dataset to use; None uses as many as there are to choose from.
        uses_threshold: Whether the acceptance rule is the one that presets are for.
    """
    if not cfg.classes:
        sampling = instantiate(cfg.sampling, _convert_="all")
        return [RequestClass(_dataset(cfg.dataset, num_rows), sampling)]
    shared = None
    classes = []
    for key, part in cfg.classes.items():
        name = str(key)
        _check_class(name, part)
        if part.get("dataset") is not None:
            dataset = _dataset(part.dataset, num_rows)
        else:
            # Classes that name no dataset share the run's, which is read once.
            dataset = shared = shared or _dataset(cfg.dataset, num_rows)
        changes: dict[str, Any] = dict(part.get("sampling") or {})
        if part.get("acceptance") is not None:
            changes["draft_threshold"] = _threshold(name, part.acceptance, uses_threshold)
        sampling = instantiate(OmegaConf.merge(cfg.sampling, changes), _convert_="all")
        num_draft_tokens = part.get("num_draft_tokens")
        classes.append(RequestClass(dataset, sampling, name, part.share, num_draft_tokens))
    return classes


def _check_class(name: str, part: Mapping[Any, Any]) -> None:
    for key in part:
        if key not in CLASS_KEYS:
            raise ValueError(
                f"classes.{name} has an unknown key {key!r}; there are: {', '.join(CLASS_KEYS)}"
            )
    if "share" not in part:
        raise ValueError(
            f"classes.{name} has no share; give its weight among the classes, such as share: 0.6"
        )


def _dataset(cfg: DictConfig, num_rows: int | None) -> PromptDataset:
    if num_rows is None and cfg.get("path") is None:
        num_rows = NUM_CANDIDATES
    limits = [limit for limit in (cfg.get("limit"), num_rows) if limit is not None]
    return instantiate(cfg, limit=min(limits, default=None), _convert_="all")


def _threshold(name: str, preset: Any, uses_threshold: bool) -> float:
    """Return the threshold of an acceptance preset."""
    if preset not in WORKLOADS:
        raise ValueError(
            f"classes.{name}.acceptance={preset} is not known; use one of {', '.join(WORKLOADS)}"
        )
    if not uses_threshold:
        raise ValueError(
            f"classes.{name}.acceptance={preset} is for acceptance=threshold; add that, or leave "
            "it out"
        )
    return WORKLOADS[preset]
