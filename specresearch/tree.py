"""`python -m specresearch.tree run=FOLDER` finds the draft tree that would have been fastest."""

from pathlib import Path

from omegaconf import DictConfig

from specresearch.cli import entry_point, quick_imports
from specresearch.files import check_writable


def main() -> None:
    entry_point(tree, "tree")


def tree(cfg: DictConfig) -> None:
    """Print the best trees, and write the fastest to `output`."""
    with quick_imports():
        from specresearch.results.config import read_config
        from specresearch.tree_tuning.choice import choose, print_choice, save_choice, use
        from specresearch.tree_tuning.measurement import measure

    if cfg.output:
        check_writable(Path(cfg.output).parent, "output")
    folders = [cfg.run] if isinstance(cfg.run, str) else cfg.run
    runs = [Path(folder) for folder in folders]
    measurement = measure(*runs)
    proposer = read_config(runs[0]).get("proposer") or {}
    if cfg.output and "paths" not in proposer:
        raise ValueError(
            f"output={cfg.output} would hold a tree for proposer.paths, a setting that the "
            f"proposer of {runs[0]} does not have; leave output out"
        )
    choices = choose(measurement, cfg.max_draft_tokens, cfg.max_depth)
    print_choice(measurement, choices)
    if cfg.output:
        save_choice(choices[0], measurement, runs, Path(cfg.output))
    advice = use(choices[0], proposer, cfg.output)
    if advice:
        print(f"use it with: {advice}")
    elif "paths" in proposer:
        print("to draft it, repeat the command with output=tree.json, which writes it")


if __name__ == "__main__":
    main()
