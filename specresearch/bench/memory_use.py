"""The memory that target and drafter take, as results report it."""

from collections.abc import Mapping
from typing import Any

from specresearch.bench.decoding_memory import DecodingMemory
from specresearch.bench.formatting import amount
from specresearch.models import CausalLM
from specresearch.models.memory import module_of, peak_bytes, weight_bytes
from specresearch.models.slot_model import SlotModel
from specresearch.proposers import Proposer

MEMORY_DEFINITIONS = {
    "memory_target_weights, memory_draft_weights": "bytes of parameters, buffers and copies packed "
    "for a CPU's kernels; a drafter's without what it shares with the target, null if none drafts",
    "memory_target_cache, memory_draft_cache": "bytes of the keys and values of all slots, which "
    "are allocated before decoding; of all sides that share it",
    "memory_graphs": "bytes that CUDA graphs of all models took when they were captured; null "
    "without graphs",
    "memory_device_peak": "most bytes in use since the process began: of tensors on all GPUs, or "
    "without a GPU of the whole process, with its libraries. A resumed measurement reports the "
    "largest of all its sessions",
    "memory_foretold": "bytes of tensors that weights, caches and passes were expected to take at "
    "most, with prompts that fill the context; provenance.memory has them by part",
}


def memory_use(
    target: CausalLM,
    proposer: Proposer | None,
    before: Mapping[str, Any],
    foretold: DecodingMemory,
) -> dict[str, int | None]:
    """Return the bytes in use by name.

    Args:
        before: The summary of an earlier session, whose figures count if they are larger.
        foretold: What was expected before the caches were allocated.
    """
    figures: dict[str, int | None] = {
        "memory_target_weights": weight_bytes([target.module]),
        "memory_target_cache": target.cache.num_bytes,
        "memory_draft_weights": None,
        "memory_draft_cache": None,
        "memory_graphs": _graph_bytes(target, proposer),
        "memory_device_peak": peak_bytes(target.device),
        "memory_foretold": foretold.total,
    }
    if proposer is not None:
        caches = [model.cache for model in proposer.models if isinstance(model, SlotModel)]
        modules = [module_of(model) for model in proposer.models]
        figures["memory_draft_weights"] = weight_bytes(modules, besides=[target.module])
        figures["memory_draft_cache"] = sum(cache.num_bytes for cache in caches)
    for name, num_bytes in figures.items():
        if num_bytes is not None:
            figures[name] = max(num_bytes, before.get(name) or 0)
    return figures


def _graph_bytes(target: CausalLM, proposer: Proposer | None) -> int | None:
    models = [target, *(() if proposer is None else proposer.models)]
    passes = [model.passes for model in models if isinstance(model, SlotModel)]
    held = [part.graphs.num_bytes for part in passes if part is not None]
    return sum(held) if held else None


def describe_memory(summary: Mapping[str, Any]) -> str | None:
    """Return a line such as "target 46.0 MB + cache 8.4 MB; at most 0.83 GB in all".

    Returns None for results that lack the figures.
    """
    if summary.get("memory_device_peak") is None:
        return None
    parts = []
    for side, name in (("target", "target"), ("drafter", "draft")):
        weights, cache = summary[f"memory_{name}_weights"], summary[f"memory_{name}_cache"]
        if weights is not None and weights + cache:
            parts.append(f"{side} {amount(weights)} + cache {amount(cache)}")
    return f"{', '.join(parts)}; at most {amount(summary['memory_device_peak'])} in all"
