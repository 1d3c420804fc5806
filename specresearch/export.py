"""`python -m specresearch.export head=... format=... output=...`: convert a head for an engine."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from specresearch.cli import check_keys, entry_point
from specresearch.training.export import export_head


def main() -> None:
    entry_point(export, "export")


def export(cfg: DictConfig) -> None:
    """Write the head and print a summary."""
    check_keys(cfg, "export")
    settings: Any = OmegaConf.to_container(cfg, throw_on_missing=True)
    print(export_head(**settings))


if __name__ == "__main__":
    main()
