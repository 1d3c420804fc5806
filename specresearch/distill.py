"""`python -m specresearch.distill +proposer=draft_model`: train a drafter towards its target."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from transformers.utils.logging import disable_progress_bar

from specresearch.cli import INTERRUPTED, check_keys, entry_point, is_sweep
from specresearch.files.lock import lock_folder
from specresearch.training.run import TrainingRun
from specresearch.training.run_folder import Processes, TrainFolder
from specresearch.training.trainer import TrainingStoppedError

TRAINABLE = ("draft_model", "medusa", "eagle", "eagle3")


def main() -> None:
    entry_point(distill, "distill")


def distill(cfg: DictConfig) -> None:
    """Run one training into Hydra's output folder."""
    check_keys(cfg, "distill", "proposer", "draft", "draft_device", "heads")
    hydra_cfg = HydraConfig.get()
    choices: dict[str, str] = dict(hydra_cfg.runtime.choices)
    _check_method(choices)
    folder = TrainFolder(
        path=Path(hydra_cfg.runtime.output_dir),
        is_named=any(key.startswith("hydra.run.dir=") for key in hydra_cfg.overrides.hydra),
        is_sweep=is_sweep(),
    )
    processes = Processes.from_environment()
    is_main = processes.rank == 0
    settings: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    with lock_folder(folder.path) if is_main else nullcontext():
        if is_main:
            folder.open(settings, processes)
        if processes.count > 1 and torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        if not (cfg.progress and sys.stderr.isatty()):
            disable_progress_bar()
        try:
            TrainingRun(cfg, settings, choices, folder, processes).run()
        except KeyboardInterrupt:
            command = folder.resume_command(sys.argv[1:])
            print(f"interrupted; resume from the last checkpoint with:\n  {command}")
            sys.exit(INTERRUPTED)
        except TrainingStoppedError as error:
            remedy = folder.stopped_remedy(sys.argv[1:], cfg.train.learning_rate)
            raise ValueError(f"{error}; {remedy}") from error


def _check_method(choices: dict[str, str]) -> None:
    method, student = choices.get("proposer"), choices.get("student")
    if method not in TRAINABLE:
        raise ValueError(
            f"proposer={method} has nothing to train; choose one of {', '.join(TRAINABLE)}"
        )
    if student != method:
        raise ValueError(f"student={student} is not for proposer={method}; leave student= out")


if __name__ == "__main__":
    main()
