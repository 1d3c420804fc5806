"""`python -m specresearch.run +proposer=ngram dataset=cnndm`: measure a method's speedup."""

from omegaconf import DictConfig

from specresearch.cli import (
    entry_point,
    exit_interrupted,
    open_folder,
    quick_imports,
    stay_offline_without_hub,
    warn_of_busy_cores,
)

PROGRAM = "specresearch.run"


def main() -> None:
    entry_point(run, "run")


def run(cfg: DictConfig) -> None:
    """Measure one method into Hydra's output folder."""
    # Wrong settings have been refused by now, without waiting for these imports.
    with quick_imports():
        from specresearch.bench import ResultsFolder, print_report
        from specresearch.bench.build import build_runner, build_settings

    stay_offline_without_hub(cfg)
    warn_of_busy_cores()
    settings = build_settings(cfg)
    folder = open_folder(cfg, ResultsFolder)
    results = build_runner(cfg, settings, folder).run(progress=cfg.progress)
    print_report(results, folder.path)
    if not results.complete:
        exit_interrupted(folder.path, PROGRAM)


if __name__ == "__main__":
    main()
