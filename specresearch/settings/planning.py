"""Settings of plans."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from specresearch.settings.base import MAX_BATCH, TARGET, Settings, key
from specresearch.settings.drafting import MODEL, PROPOSER

_UNPLANNED = frozenset(
    f"specresearch.proposers.{name}" for name in ("Cascade", "Lookahead", "TokenRecycling")
)
PLANNED = replace(PROPOSER, excluded=_UNPLANNED)
WeightFormat = Literal["auto", "float64", "float32", "bfloat16", "float16", "fp8", "int8", "int4"]


class PrecisionSchema(Settings):
    target: WeightFormat = key(
        "format of the target's linear layers; auto: as its config.json says, else target.dtype",
        "int8",
    )
    draft: WeightFormat = key("the same of the draft model or head", "bfloat16")
    cache: Literal["float32", "bfloat16", "fp8"] = key("format of keys and values", "fp8")


class PlanTimingSchema(Settings):
    bandwidth: float | None = key(
        "bytes per second of a GPU's memory; null: its vendor's figure", 3.35e12, gt=0
    )
    flops: float | None = key(
        "operations per second of a GPU; null: its vendor's for bfloat16", 9.9e14, gt=0
    )
    efficiency: float = key("fraction of bandwidth and flops that is reached", 0.7, gt=0, le=1)
    overhead: float = key("fixed seconds of every pass", 2e-5, ge=0)
    step_overhead: float = key("fixed seconds of every step", 1e-3, ge=0)


class PlanSchema(Settings):
    target: Annotated[Any, MODEL] = key("the model to serve", None)
    draft: str | None = key(
        "folder, hub id or zoo: name of a draft model", "Qwen/Qwen3-0.6B", default=None
    )
    draft_device: str | None = key("not used by a plan", "cuda:1", default=None)
    draft_weights: str | None = key("not used by a plan", "random", default=None)
    draft_gguf_file: str | None = key("not used by a plan", "draft.gguf", default=None)
    heads: dict[str, str] | None = key(
        "heads made for the target, by proposer", {"eagle": "out/student"}, default=None
    )
    proposer: Annotated[Any, PLANNED] = key("how drafts are made", "draft_model", default=None)
    gpu: str = key("how many of which GPU", "2xh100", min_length=1)
    gpu_memory: float | None = key(
        "GB (1e9 bytes) of one GPU; null: what its driver reports", 80.0, gt=0, le=1e5
    )
    utilization: float = key("share of that memory which the engine takes", 0.9, gt=0, le=1)
    context: int = key("tokens of a request, prompt and output together", 8192, ge=1)
    max_running: int = key(
        "most requests that decode together; buffers of a step are sized for them",
        128,
        ge=1,
        le=MAX_BATCH,
    )
    prefill_tokens: int = key("tokens of the largest prefill pass", 8192, ge=1)
    graphs: float = key("GB of a GPU for the CUDA graphs of each model", 0.5, ge=0, le=1e3)
    runtime: float = key("GB of a GPU for the driver and for communication", 1.0, ge=0, le=1e3)
    weights_only: bool = key("leave out graphs, runtime and activations", True)
    draft_acceptance: float = key(
        "assumed probability that a draft is accepted once all before it were", 0.8, ge=0, le=1
    )
    precision: PrecisionSchema = key("formats of weights and cache", None)
    timing: PlanTimingSchema = key("the roofline that break-even is computed with", None)

    def conflicts(self) -> Iterator[str]:
        if self.target.get("quantization"):
            yield (
                "target.quantization is for weights that are loaded, and a plan loads none; set "
                "precision.target=int8 or int4"
            )
        if self.target.get("gguf_file") or self.draft_gguf_file:
            yield (
                "a plan reads config.json, not GGUF files; leave out target.gguf_file and "
                "draft_gguf_file, and set precision.target"
            )
        path = (self.proposer or {}).get(TARGET)
        if path in _UNPLANNED or (path and path not in PLANNED.models):
            yield (
                f"proposer={path}: its memory cannot be planned; choose draft_model, eagle, "
                "eagle3, medusa, ngram or suffix, of a cascade the proposer that takes most"
            )
