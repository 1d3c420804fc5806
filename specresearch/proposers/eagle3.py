"""EAGLE-3 (arXiv 2503.01840): the module reads hidden states of three target layers and has an LM head of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

from specresearch.models.eagle import EagleHead
from specresearch.proposers.eagle import Eagle


class Eagle3(Eagle):
    """Drafts with an EAGLE-3 head, raw or in the speculators layout. Everything but these two is as in `Eagle`.

    layer_ids: the target layers that the head was trained on; None: what its config says, else the usual three.
    id_convention: whether the ids are those of layer `inputs` or `outputs`; None: as the config's author means them.
    """

    version = 3

    def __init__(
        self,
        head: str | EagleHead | None = None,
        num_draft_tokens: int = 60,
        tree: str = "dynamic",
        paths: Sequence[Sequence[int]] | str | None = None,
        depth: int = 7,
        top_k: int = 10,
        sample: bool = True,
        layer_ids: Sequence[int] | None = None,
        id_convention: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        revision: str | None = None,
    ) -> None:
        super().__init__(head, num_draft_tokens, tree, paths, depth, top_k, sample, overrides, revision)
        self._layers = {"layer_ids": layer_ids, "id_convention": id_convention}
