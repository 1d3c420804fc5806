"""Settings of the models that a command works with."""

from typing import Annotated, Any

from specresearch.settings.base import Settings, key
from specresearch.settings.drafting import MODEL


class PairSchema(Settings):
    """A target, and what drafts for it."""

    target: Annotated[Any, MODEL] = key("the model to decode with", None)
    draft: str | None = key(
        "folder, hub id or zoo: name of a draft model", "Qwen/Qwen3-0.6B", default=None
    )
    draft_device: str | None = key("where the draft model runs", "cuda:1", default=None)
    draft_weights: str | None = key(
        "of the draft model and of heads, like target.weights", "random", default=None
    )
    draft_gguf_file: str | None = key(
        "GGUF file of the draft model, like target.gguf_file", "draft.gguf", default=None
    )
    heads: dict[str, str] | None = key(
        "heads made for the target, by proposer", {"eagle": "out/student"}, default=None
    )
