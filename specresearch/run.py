"""`python -m specresearch.run +proposer=ngram dataset=cnndm`: how much faster is this method, on these prompts, here?"""

import sys
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from transformers.utils.logging import disable_progress_bar

from specresearch.bench import ResultsFolder, Runner, RunSettings, print_report, resume_command
from specresearch.cli.entry import check_keys, entry_point
from specresearch.cli.signals import INTERRUPTED
from specresearch.recording.recorder import Recorder, describe_recording
from specresearch.results.folder import RunFolder
from specresearch.rows import BASELINE, METHOD

OPTIONAL = ("proposer", "draft", "draft_device", "heads")


def main() -> None:
    entry_point(run, "run")


def run(cfg: DictConfig) -> None:
    """One measurement, into Hydra's output folder."""
    check_keys(cfg, "run", *OPTIONAL)
    settings = RunSettings(**{field.name: cfg[field.name] for field in fields(RunSettings)})
    folder = open_folder(cfg, ResultsFolder)
    runner = build(cfg, settings, folder)
    results = runner.run(progress=cfg.progress)
    print_report(results, folder.path)
    if not results.complete:
        print(
            "interrupted; everything so far is kept, and this continues it:\n  "
            + resume_command(
                sys.argv[1:], folder.path, is_sweep=HydraConfig.get().mode == RunMode.MULTIRUN
            )
        )
        sys.exit(INTERRUPTED)


Folder = TypeVar("Folder", bound=RunFolder)


def open_folder(cfg: DictConfig, kind: type[Folder]) -> Folder:
    """Hydra's output folder, for a kind of run."""
    hydra_cfg = HydraConfig.get()
    config = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(config, dict)
    path = Path(hydra_cfg.runtime.output_dir)
    named = hydra_cfg.mode == RunMode.MULTIRUN or any(
        key.startswith("hydra.run.dir=") for key in hydra_cfg.overrides.hydra
    )
    if cfg.resume and not named:
        raise ValueError(
            "resume=true needs the folder of the run to continue: add hydra.run.dir=<folder>"
        )
    return kind(path, {str(key): value for key, value in config.items()}, resume=cfg.resume)


def build(cfg: DictConfig, settings: RunSettings, folder: ResultsFolder) -> Runner:
    """Everything the configuration names, constructed."""
    sampling = instantiate(cfg.sampling, _convert_="all")
    if not (cfg.progress and sys.stderr.isatty()):
        disable_progress_bar()
    tracker = instantiate(cfg.tracker, _convert_="all")
    limits = [
        limit for limit in (cfg.dataset.get("limit"), settings.num_prompts) if limit is not None
    ]
    dataset = instantiate(cfg.dataset, limit=min(limits, default=None), _convert_="all")
    target = instantiate(cfg.target, _convert_="all")
    proposer = instantiate(cfg.proposer, _convert_="all") if cfg.get("proposer") else None
    method = HydraConfig.get().runtime.choices.get("proposer")
    acceptance = instantiate(cfg.acceptance, _convert_="all")
    controller = instantiate(cfg.controller, _convert_="all")
    recorder = None
    if cfg.record:
        controllers = {BASELINE: None} | ({} if proposer is None else {METHOD: controller})
        header = describe_recording(
            target, proposer, acceptance, method, controllers, folder.config
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


if __name__ == "__main__":
    main()
