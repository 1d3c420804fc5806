"""`python -m specresearch.penalty 'targets=[bf16,int8]' 'drafts=[bf16,int8,int4]'`."""

from omegaconf import DictConfig

from specresearch.cli import (
    entry_point,
    exit_interrupted,
    open_folder,
    quick_imports,
    stay_offline_without_hub,
    warn_of_busy_cores,
)

PROGRAM = "specresearch.penalty"


def main() -> None:
    entry_point(penalty, "penalty")


def penalty(cfg: DictConfig) -> None:
    """Measure what quantising targets and drafts costs, into Hydra's output folder."""
    # Wrong settings have been refused by now, without waiting for these imports.
    with quick_imports():
        from specresearch.penalties.build import build_penalty_runner
        from specresearch.penalties.folder import PenaltyFolder
        from specresearch.penalties.picture import save_picture
        from specresearch.penalties.report import print_penalties, save_table

    stay_offline_without_hub(cfg)
    warn_of_busy_cores()
    folder = open_folder(cfg, PenaltyFolder)
    results = build_penalty_runner(cfg, folder).run(progress=cfg.progress)
    print_penalties(results, folder.path)
    save_table(results, folder.path)
    if results.summary["cells"]:
        save_picture(results, folder.path)
    if not results.complete:
        exit_interrupted(folder.path, PROGRAM)


if __name__ == "__main__":
    main()
