"""`python -m specresearch.export head=... format=... output=...`: convert a head for an engine."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from specresearch.cli import entry_point, quick_imports, stay_offline_without_hub


def main() -> None:
    entry_point(export, "export")


def export(cfg: DictConfig) -> None:
    """Write the head and print a summary."""
    with quick_imports():
        from specresearch.training.export import export_head

    stay_offline_without_hub(cfg)
    settings: Any = OmegaConf.to_container(cfg, throw_on_missing=True)
    print(export_head(**settings))


if __name__ == "__main__":
    main()
