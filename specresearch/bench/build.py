"""Build a paired run from its configuration."""

import sys
from dataclasses import fields

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig
from transformers.utils.logging import disable_progress_bar

from specresearch.bench.folder import ResultsFolder
from specresearch.bench.runner import Runner
from specresearch.bench.settings import RunSettings
from specresearch.proposers import Proposer
from specresearch.recording.recorder import Recorder, describe_recording
from specresearch.rows import BASELINE, METHOD


def build_settings(cfg: DictConfig) -> RunSettings:
    """Return the settings of a run, or raise ValueError if one is invalid."""
    return RunSettings(**{field.name: cfg[field.name] for field in fields(RunSettings)})


def method_name(proposer: Proposer | None) -> str | None:
    """Return the chosen file of conf/proposer, or the name of a class from the command line."""
    chosen = HydraConfig.get().runtime.choices.get("proposer")
    if chosen is None and proposer is not None:
        return type(proposer).__name__.lower()
    return chosen


def build_runner(cfg: DictConfig, settings: RunSettings, folder: ResultsFolder) -> Runner:
    """Construct everything that the configuration names."""
    sampling = instantiate(cfg.sampling, _convert_="all")
    if not (cfg.progress and sys.stderr.isatty()):
        disable_progress_bar()
    tracker = instantiate(cfg.tracker, _convert_="all")
    limits = [limit for limit in (cfg.dataset.get("limit"), settings.num_prompts) if limit]
    dataset = instantiate(cfg.dataset, limit=min(limits, default=None), _convert_="all")
    target = instantiate(cfg.target, _convert_="all")
    proposer = instantiate(cfg.proposer, _convert_="all") if cfg.get("proposer") else None
    method = method_name(proposer)
    acceptance = instantiate(cfg.acceptance, _convert_="all")
    controller = instantiate(cfg.controller, _convert_="all")
    recorder = None
    if cfg.record:
        controllers = {BASELINE: None}
        if proposer is not None:
            controllers[METHOD] = controller
        header = describe_recording(
            target=target,
            proposer=proposer,
            rule=acceptance,
            method=method,
            controllers=controllers,
            config=folder.config,
        )
        recorder = Recorder(folder.path, header)
    return Runner(
        target,
        dataset,
        sampling,
        settings,
        folder,
        proposer=proposer,
        method=method,
        acceptance=acceptance,
        controller=controller,
        scheduling=instantiate(cfg.scheduler, _convert_="all"),
        tracker=tracker,
        recorder=recorder,
    )
