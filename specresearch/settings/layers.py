"""Settings of the command that chooses which layers a target skips."""

from typing import Annotated, Any

from specresearch.settings.base import Settings, key, progress_key, seed_key
from specresearch.settings.data import DATASET
from specresearch.settings.decoding import Temperature
from specresearch.settings.drafting import MAX_DRAFTS, MODEL


def _unused(example: Any) -> Any:
    """Return a key that targets bring for other proposers."""
    return key("of other proposers; not used here", example, default=None)


class LayersSchema(Settings):
    target: Annotated[Any, MODEL] = key("the model that drafts for itself", None)
    draft: str | None = _unused("zoo:tiny_draft")
    draft_device: str | None = _unused("cuda:1")
    draft_weights: str | None = _unused("random")
    draft_gguf_file: str | None = _unused("draft.gguf")
    heads: dict[str, str] | None = _unused({"eagle": "out/student"})
    dataset: Annotated[Any, DATASET] = key("the prompts", "gsm8k")
    num_prompts: int = key("prompts that the target continues", 8, ge=1)
    max_new_tokens: int = key("tokens of its text after each, at each temperature", 64, ge=1)
    temperatures: list[Temperature] = key(
        "temperatures of its text, which count alike", [0.0, 1.0], min_length=1
    )
    max_share: float = key("largest share of the sublayers to skip one by one", 0.5, gt=0, lt=1)
    max_draft_tokens: int = key("longest chain to consider", 10, ge=1, le=MAX_DRAFTS)
    seed: int = seed_key("of the text")
    output: str | None = key(
        "write the fastest here, for proposer.skip_file; a table and a picture go beside it",
        "layers.json",
        min_length=1,
    )
    progress: bool = progress_key()
