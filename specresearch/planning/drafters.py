"""What each way of drafting adds to a deployment."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig

from specresearch.planning.head_size import HeadSize, eagle_size, medusa_size
from specresearch.planning.model_size import ModelSize
from specresearch.settings.base import TARGET

AUTO_DRAFTS = 5  # planned where a measurement would choose the number
_PACKAGE = "specresearch.proposers."
_ON_HOST = ("NGram", "Suffix")  # chains or small trees, found without a model
_TREES = ("dynamic", "static")
_TREE_NODES = {"dynamic": 60, "static": 24}


@dataclass(frozen=True)
class Drafter:
    """A way of drafting, as memory and time depend on it.

    Attributes:
        model: The draft model or head; None if drafts are found on the host.
        num_nodes: Drafts of a request's step.
        depth: Drafts of its longest path.
        num_passes: Passes of `model` for them.
        samples: True if draft probabilities are kept for verification.
        num_features: Hidden states of the target that it reads for each token.
        borrows_lm_head: Its passes read the target's LM head.
    """

    kind: str
    model: ModelSize | None
    num_nodes: int
    depth: int
    num_passes: int
    samples: bool = False
    num_features: int = 0
    borrows_lm_head: bool = False

    @property
    def is_chain(self) -> bool:
        return self.num_nodes == self.depth

    @property
    def label(self) -> str:
        return self.kind if self.model is None else self.model.name


SizeOf = Callable[[Mapping[str, Any]], ModelSize]


def build_drafter(
    settings: Mapping[str, Any], target: PreTrainedConfig, draft_size: SizeOf
) -> Drafter:
    """Return the drafter that a choice of conf/proposer describes.

    Args:
        target: The target's configuration.
        draft_size: Returns the size of the draft model that `proposer.draft` describes.

    Raises:
        ValueError: If it is no single method of this package.
    """
    path = str(settings[TARGET])
    kind = path.removeprefix(_PACKAGE)
    if kind == "Synthetic":
        return build_drafter(settings["drafter"], target, draft_size)
    if kind == "DraftModel":
        size = draft_size(settings["draft"])
        return _grown("draft model", size, settings, samples=bool(settings.get("sample", True)))
    if kind in ("Eagle", "Eagle3"):
        version = 3 if kind == "Eagle3" else 1
        head = eagle_size(version, settings.get("head"), target, settings.get("revision"))
        return _with_head(_grown(kind, head.size, settings), head)
    if kind == "Medusa":
        head = medusa_size(settings.get("head"), target, settings.get("revision"))
        num_nodes = _number(settings, AUTO_DRAFTS)
        depth = min(num_nodes, AUTO_DRAFTS)
        return _with_head(Drafter(kind, head.size, num_nodes, depth, num_passes=1), head)
    if kind in _ON_HOST:
        num_nodes = _number(settings, AUTO_DRAFTS)
        return Drafter(kind, None, num_nodes, num_nodes, num_passes=0)
    raise ValueError(
        f"proposer={path}: its memory cannot be planned; choose draft_model, eagle, eagle3, "
        "medusa, ngram or suffix, of a cascade the proposer that takes most"
    )


def new_eagle3(target: PreTrainedConfig, num_drafts: int) -> Drafter:
    """Return an EAGLE-3 head that is made for the target and drafts chains."""
    head = eagle_size(3, None, target)
    chain = Drafter("Eagle3", head.size, num_drafts, num_drafts, num_passes=num_drafts)
    return _with_head(chain, head)


def _grown(
    kind: str, size: ModelSize, settings: Mapping[str, Any], *, samples: bool = False
) -> Drafter:
    """Return a drafter that takes a pass for each level of a chain or tree."""
    tree = settings.get("tree", "chain")
    if tree not in _TREES:
        num_nodes = _number(settings, AUTO_DRAFTS)
        return Drafter(kind, size, num_nodes, num_nodes, num_passes=num_nodes, samples=samples)
    num_nodes, depth = _number(settings, _TREE_NODES[tree]), int(settings.get("depth", 6))
    return Drafter(kind, size, num_nodes, min(depth, num_nodes), num_passes=depth)


def _number(settings: Mapping[str, Any], default: int) -> int:
    value = settings.get("num_draft_tokens")
    return value if isinstance(value, int) else default


def _with_head(drafter: Drafter, head: HeadSize) -> Drafter:
    return Drafter(
        **vars(drafter)
        | {"num_features": head.num_features, "borrows_lm_head": not head.has_lm_head}
    )
