"""`python -m specresearch.layers` chooses the sublayers that a target skips to draft for itself."""

import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from specresearch.cli import entry_point, quick_imports, stay_offline_without_hub
from specresearch.files import check_writable


def main() -> None:
    entry_point(layers, "layers")


def layers(cfg: DictConfig) -> None:
    """Print acceptance and predicted speed by depth, and write the fastest to `output`."""
    with quick_imports():
        from hydra.utils import instantiate
        from transformers.utils.logging import disable_progress_bar

        from specresearch.layer_choice.choice import choose

    stay_offline_without_hub(cfg)
    if not (cfg.progress and sys.stderr.isatty()):
        disable_progress_bar()
    output = Path(cfg.output) if cfg.output else None
    if output is not None:
        check_writable(output.parent, "output")
    dataset: Any = instantiate(cfg.dataset, limit=cfg.num_prompts, _convert_="all")
    target: Any = instantiate(cfg.target, _convert_="all")
    choose(
        target,
        dataset,
        temperatures=list(cfg.temperatures),
        max_new_tokens=cfg.max_new_tokens,
        max_share=cfg.max_share,
        max_draft_tokens=cfg.max_draft_tokens,
        seed=cfg.seed,
        output=output,
    )


if __name__ == "__main__":
    main()
