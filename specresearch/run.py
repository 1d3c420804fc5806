"""`python -m specresearch.run +proposer=ngram dataset=cnndm`: measure a method's speedup."""

from omegaconf import DictConfig

from specresearch.bench import ResultsFolder, print_report
from specresearch.bench.build import build_runner, build_settings
from specresearch.cli import check_keys, entry_point, exit_interrupted, open_folder

PROGRAM = "specresearch.run"
OPTIONAL = ("proposer", "draft", "draft_device", "heads")  # keys that only some methods have


def main() -> None:
    entry_point(run, "run")


def run(cfg: DictConfig) -> None:
    """Measure one method into Hydra's output folder."""
    check_keys(cfg, "run", *OPTIONAL)
    settings = build_settings(cfg)
    folder = open_folder(cfg, ResultsFolder)
    results = build_runner(cfg, settings, folder).run(progress=cfg.progress)
    print_report(results, folder.path)
    if not results.complete:
        exit_interrupted(folder.path, PROGRAM)


if __name__ == "__main__":
    main()
