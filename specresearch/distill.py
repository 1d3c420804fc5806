"""`python -m specresearch.distill +proposer=draft_model`: train a drafter towards its target."""

import sys
from contextlib import nullcontext
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from specresearch.cli import (
    INTERRUPTED,
    entry_point,
    is_named,
    is_sweep,
    output_folder,
    quick_imports,
    resume_command,
    stay_offline_without_hub,
)
from specresearch.files.lock import lock_folder

PROGRAM = "specresearch.distill"


def main() -> None:
    entry_point(distill, "distill")


def distill(cfg: DictConfig) -> None:
    """Run one training into Hydra's output folder."""
    with quick_imports():
        from transformers.utils.logging import disable_progress_bar

        from specresearch.training.run import TrainingRun, check_method
        from specresearch.training.run_folder import Processes, TrainFolder
        from specresearch.training.trainer import TrainingStoppedError

    stay_offline_without_hub(cfg)
    choices: dict[str, str] = dict(HydraConfig.get().runtime.choices)
    check_method(choices)
    folder = TrainFolder(output_folder(), is_named=is_named(), is_sweep=is_sweep())
    settings: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    processes = Processes.from_environment()
    is_main = processes.rank == 0
    with lock_folder(folder.path) if is_main else nullcontext():
        if is_main:
            folder.open(settings, processes)
        processes.select_device()
        if not (cfg.progress and sys.stderr.isatty()):
            disable_progress_bar()
        command = resume_command(sys.argv[1:], folder.path, PROGRAM)
        try:
            TrainingRun(cfg, settings, choices, folder, processes).run()
        except KeyboardInterrupt:
            print(f"interrupted; resume from the last checkpoint with:\n  {command}")
            sys.exit(INTERRUPTED)
        except TrainingStoppedError as error:
            remedy = folder.stopped_remedy(command, cfg.train.learning_rate)
            raise ValueError(f"{error}; {remedy}") from error


if __name__ == "__main__":
    main()
