"""Build a table's runner from its configuration."""

import sys
from dataclasses import fields
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from transformers.utils.logging import disable_progress_bar

from specresearch.models import CausalLM, TargetCopy
from specresearch.penalties.folder import PenaltyFolder
from specresearch.penalties.runner import PenaltyRunner, PenaltySettings
from specresearch.penalties.variants import full_precision, variants_of

OF_MODELS = ("attention", "prefill_chunk", "compile", "pack_weights", "graphs")


def build_penalty_runner(cfg: DictConfig, folder: PenaltyFolder) -> PenaltyRunner:
    """Construct everything that the configuration names; each checkpoint is read once."""
    if not (cfg.progress and sys.stderr.isatty()):
        disable_progress_bar()
    precisions: Any = OmegaConf.to_container(cfg, resolve=True)
    targets, drafts = variants_of(precisions["targets"]), variants_of(precisions["drafts"])
    dtype = full_precision(precisions["targets"])
    settings = {field.name: cfg[field.name] for field in fields(PenaltySettings)}
    dataset = instantiate(cfg.dataset, _convert_="all")
    target: CausalLM = instantiate(cfg.target, dtype=dtype, _convert_="all")
    draft: Any = instantiate(cfg.proposer.draft, dtype=dtype, _convert_="all")
    for variant in (*targets, *drafts):
        variant.check(target)
    return PenaltyRunner(
        target=target,
        draft=target if isinstance(draft, TargetCopy) else draft,
        targets=targets,
        drafts=drafts,
        dataset=dataset,
        settings=PenaltySettings(**settings),
        folder=folder,
        target_settings={name: cfg.target[name] for name in OF_MODELS},
        draft_settings={name: cfg.proposer.draft[name] for name in OF_MODELS},
    )
