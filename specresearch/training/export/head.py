"""Export a trained head; heads that a layout cannot express are rejected."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from specresearch.files import check_writable
from specresearch.models.eagle_head import EagleHead
from specresearch.models.head_writing import (
    medusa_config,
    own_keys,
    read_provenance,
    tensors_of,
    write_head,
)
from specresearch.models.loading import DTYPES, ModelNotLoadedError
from specresearch.models.medusa import SAVED_NAME, MedusaHeads
from specresearch.training.export.contents import Contents, TargetConfig
from specresearch.training.export.eagle import eagle_contents
from specresearch.training.publishing import Publication

LAYOUTS = ("eagle", "eagle_sglang", "eagle3", "speculators", "medusa")
PICKLED_NAME = "medusa_lm_head.pt"
AnyModule = TypeVar("AnyModule", bound=nn.Module)


def export_head(
    head: str,
    format: str,
    output: str | Path,
    *,
    base_model: str | None = None,
    revision: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    num_draft_tokens: int = 5,
    pickle: bool = False,
    push_to_hub: str | None = None,
    private: bool = False,
    license: str | None = None,
) -> str:
    """Write a head in one of `LAYOUTS` and return a summary line.

    Args:
        head: Folder, hub id or zoo name.
        base_model: The head's target, of which only config.json is read; None uses the one that the
            head names.
        overrides: Keys of an EAGLE head's config to replace.
        dtype: Dtype of the weights; None keeps it.
        num_draft_tokens: Draft length that the speculators layout proposes to vLLM.
        pickle: Also write medusa_lm_head.pt.
        push_to_hub: Repository to upload to, user/name; see `Publication`.
        private: Create the repository as a private one.
        license: Licence of the weights, for the model card.

    Raises:
        ValueError: if head, target and layout do not go together.
    """
    folder = Path(output)
    publication = Publication(push_to_hub, private=private, license=license)
    if format not in LAYOUTS:
        raise ValueError(f"format={format!r} is unknown; choose one of {', '.join(LAYOUTS)}")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is unknown; choose one of {', '.join(DTYPES)}")
    if num_draft_tokens < 1:
        raise ValueError(f"num_draft_tokens={num_draft_tokens} must be at least 1")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"output={folder} is not an empty folder; choose another")
    check_writable(folder, "output")
    if format == "medusa" and overrides:
        raise ValueError(
            f"overrides={dict(overrides)} are for EAGLE heads; Medusa heads have no config to read"
        )
    if format != "medusa" and pickle:
        raise ValueError(f"pickle=true is for format=medusa; format={format} is safetensors alone")
    publication.check()
    try:
        loaded = _load(head, format == "medusa", revision, overrides)
    except ModelNotLoadedError:
        _check_family(head, format, revision)
        raise
    if isinstance(loaded, MedusaHeads):
        heads = _cast(loaded, dtype)
        target = TargetConfig.read(base_model or heads.base_model)
        contents = _medusa_contents(heads, head, target)
    else:
        target = TargetConfig.read(base_model or loaded.format.base_model)
        contents = eagle_contents(_cast(loaded, dtype), target, format, num_draft_tokens)
    provenance = read_provenance(head, revision=revision)
    config = contents.config | own_keys(contents.method, provenance)
    write_head(folder, contents.weights_name, config, contents.tensors)
    if pickle:
        torch.save(contents.tensors, folder / PICKLED_NAME)
    url = publication.publish(
        folder,
        contents.method,
        base_model or provenance.get("target", {}).get("model") or target.name,
        provenance,
        layout=format,
    )
    published = "" if url is None else f"; published at {url}"
    return f"wrote {folder}: {contents.summary}{published}"


def _load(
    head: str,
    is_medusa: bool,
    revision: str | None,
    overrides: Mapping[str, Any] | None = None,
) -> MedusaHeads | EagleHead:
    if is_medusa:
        return MedusaHeads.from_pretrained(head, revision=revision)
    return EagleHead.from_pretrained(head, revision=revision, overrides=overrides)


def _check_family(head: str, format: str, revision: str | None) -> None:
    """Raise ValueError if the head loads as one of the other family, with the formats for that."""
    try:
        other = _load(head, format != "medusa", revision)
    except ModelNotLoadedError:
        return
    if isinstance(other, MedusaHeads):
        raise ValueError(f"format={format}: {head} holds Medusa heads; use format=medusa")
    layouts = " or ".join(other.format.layouts)
    raise ValueError(
        f"format={format}: {head} is an EAGLE-{other.format.version} head; use format={layouts}"
    )


def _cast(module: AnyModule, dtype: str | None) -> AnyModule:
    return module if dtype is None else module.to(DTYPES[dtype])


def _medusa_contents(heads: MedusaHeads, name: str, target: TargetConfig) -> Contents:
    if not heads.fits(target.hidden_size, target.vocab_size):
        raise ValueError(
            f"{name} is for hidden states of {heads.hidden_size} and "
            f"{heads.vocab_size or 'any number of'} tokens, and {target.name} has "
            f"{target.hidden_size} and {target.vocab_size}; "
            "set base_model= to the model it was trained for"
        )
    if heads.vocab_size is None and heads.num_layers != 1:
        raise ValueError(
            f"{name} has {heads.num_layers} layers a head and no LM heads; format=medusa without "
            "LM heads (version 2) has 1 layer"
        )
    heads.base_model = target.name
    tensors = tensors_of(heads)
    dtype = tensors["0.0.linear.weight"].dtype
    return Contents(
        config=medusa_config(heads),
        tensors=tensors,
        weights_name=SAVED_NAME,
        method="medusa",
        summary=f"{len(heads)} Medusa heads of {target.name}, in {dtype}",
    )
