"""`python -m specresearch.tree run=FOLDER`: which draft tree would have been fastest, going by what was measured?"""

from pathlib import Path

from omegaconf import DictConfig

from specresearch.cli import entry_point
from specresearch.tree_tuning.choice import choose, measure, print_choice, save_choice


def main() -> None:
    entry_point(tree, "tree")


def tree(cfg: DictConfig) -> None:
    """Print the best trees, and write the fastest where `output` says."""
    runs = [Path(run) for run in ([cfg.run] if isinstance(cfg.run, str) else cfg.run)]
    measured = measure(*runs)
    choices = choose(measured, cfg.max_draft_tokens, cfg.max_depth)
    print_choice(measured, choices)
    if cfg.output:
        save_choice(choices[0], measured, runs, Path(cfg.output))
        print(f"use it with: proposer.tree=static proposer.paths={cfg.output}")


if __name__ == "__main__":
    main()
