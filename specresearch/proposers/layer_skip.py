"""The target drafts for itself with some of its sublayers left out.

Early exit: LayerSkip (Elhoushi et al., arXiv 2404.16710). Any sublayers: Draft & Verify (Zhang et
al., arXiv 2309.08168).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specresearch.models.causal_lm import CausalLM
from specresearch.models.layer_view import Sublayers, from_lists, skip_sublayers
from specresearch.models.loading import OWN
from specresearch.proposers.draft_model import DraftModel
from specresearch.proposers.draft_shape import NumDrafts
from specresearch.proposers.tree_proposer import TreeProposer


class LayerSkip(DraftModel):
    """A draft model that shares the target's weights; its cache holds the layers that it runs.

    Args:
        exit_layer: Draft with the first `exit_layer` layers. None runs all but what is skipped by
            name; if nothing is, what the target was trained to do without, or half of its layers.
        skip_attention: Layers whose attention is left out, counted from 0.
        skip_mlp: Layers whose MLP is left out.
        skip_file: A JSON file with both lists, as `python -m specresearch.layers` writes it.
        num_draft_tokens: As in `DraftModel`, like the arguments that follow.
    """

    draft: CausalLM

    def __init__(
        self,
        exit_layer: int | None = None,
        skip_attention: Sequence[int] = (),
        skip_mlp: Sequence[int] = (),
        skip_file: str | None = None,
        num_draft_tokens: NumDrafts | None = None,
        sample: bool = True,
        tree: str = "chain",
        paths: Sequence[Sequence[int]] | str | None = None,
        depth: int = 6,
        top_k: int = 8,
    ) -> None:
        self.exit_layer = exit_layer
        self.skipped = Sublayers.of(skip_attention, skip_mlp)
        if skip_file is not None:
            self.skipped |= read_skipped(skip_file)
        self._target: CausalLM | None = None
        # the draft is a view of the target, which `bind` brings
        TreeProposer.__init__(self, tree, num_draft_tokens, paths, depth, top_k, sample=sample)

    @classmethod
    def toy(cls, target: CausalLM, seed: int, **settings: Any) -> "LayerSkip":
        """Return it for a toy target, with as few layers as that has; weights are the target's."""
        names = ("skip_attention", "skip_mlp")
        if any(settings.get(name) for name in (*names, "skip_file")):
            settings |= {"skip_attention": [1], "skip_mlp": [0, 1], "skip_file": None}
        if settings.get("exit_layer") is not None:
            settings["exit_layer"] = target.num_layers - 1
        return cls(**settings)

    @property
    def compiled(self) -> bool:
        return self._target is not None and self._target.compiled

    def bind(self, target: CausalLM, num_slots: int) -> None:
        if self._target is not target:
            self.draft = skip_sublayers(target, self.skipped_of(target))
            self._target = target
        self.allocate(target, num_slots)

    def skipped_of(self, target: CausalLM) -> Sublayers:
        """Return what is left out of a target.

        Raises:
            ValueError: If it has no such layer.
        """
        exit_layer, num_layers = self.exit_layer, target.num_layers
        if exit_layer is None and not self.skipped:
            own = getattr(target.model.config, OWN, None) or {}
            if "skip_attention" in own:
                return from_lists(own)
            exit_layer = (num_layers + 1) // 2
        if exit_layer is None:
            exit_layer = num_layers
        if not 1 <= exit_layer <= num_layers:
            raise ValueError(
                f"proposer.exit_layer={exit_layer} must lie between 1 and {num_layers}, the "
                "target's number of layers"
            )
        return self.skipped | Sublayers.behind(exit_layer, num_layers)

    def describe(self) -> str:
        return f"drafts with {self.draft.name}"


def read_skipped(file: str) -> Sublayers:
    """Read which sublayers a JSON file says to skip.

    Raises:
        ValueError: If it cannot be read or does not say so.
    """
    remedy = "write one with python -m specresearch.layers"
    if not Path(file).is_file():
        raise ValueError(f"proposer.skip_file={file}: there is no such file; {remedy}")
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
        return from_lists(content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"proposer.skip_file={file}: no lists skip_attention and skip_mlp "
            f"({type(error).__name__}: {error}); {remedy}"
        ) from error
