"""Finds and reads the files of a drafting head, whatever format its author chose."""

import itertools
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from specresearch.models.loading import (
    INDEXES,
    ModelNotLoadedError,
    model_inside,
    read_json,
    read_weight_map,
    resolve,
    saved_as,
    why_unread,
)
from specresearch.models.random_weights import Weights, random_head, randomized

WHOLE_MODEL = tuple(itertools.chain(*INDEXES.items()))
UNREADABLE = (
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    OSError,
)


@dataclass(frozen=True)
class HeadFiles:
    """name: as the user gave it. config: its config.json. tensors: as stored, on the CPU."""

    name: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]


def read_head(
    checkpoint: str,
    weights: Sequence[str] = WHOLE_MODEL,
    *,
    revision: str | None = None,
    prefix: str = "",
    values: Weights = "trained",
) -> HeadFiles:
    """Read the config and tensors of a folder, a hub id or a `zoo:` name.

    Pickles are read as bare tensors, never as code.

    Args:
        weights: File names to look for; the first that exists is read.
        prefix: Only tensors with this prefix are read from the files of a whole model.
        values: `random` puts random values in the place of the stored ones. The hub is not asked
            then: instead of its id, name a shape that ships with the package.

    Raises:
        ModelNotLoadedError: With the reason.
    """
    if values == "random":
        if checkpoint.startswith("zoo:") or Path(checkpoint).is_dir():
            files = read_head(checkpoint, weights, prefix=prefix)
            return HeadFiles(checkpoint, files.config, randomized(files.tensors))
        return HeadFiles(checkpoint, *random_head(checkpoint))
    config = _locate(checkpoint, "config.json", revision)
    if config is None and Path(checkpoint).is_dir():
        raise ModelNotLoadedError(
            f"the folder {checkpoint} does not hold a drafting head: it has no config.json"
            f"{model_inside(Path(checkpoint))}"
        )
    if config is None:
        raise ModelNotLoadedError(
            f"{checkpoint!r} has no config.json: it is neither the folder of a drafting head nor "
            "one that the hub has; check the spelling and the network"
        )
    for name in weights:
        file = _locate(checkpoint, name, revision)
        if file is not None:
            if name not in WHOLE_MODEL:
                prefix = ""
            tensors = _read_tensors(checkpoint, file, revision, prefix)
            return HeadFiles(checkpoint, read_json(config), tensors)
    raise ModelNotLoadedError(
        f"{checkpoint!r} has no weights for this; looked for {', '.join(weights)}"
        f"{saved_as(read_json(config))}"
    )


def _locate(checkpoint: str, name: str, revision: str | None) -> Path | None:
    path = resolve(checkpoint)
    if Path(path).is_dir():
        return Path(path, name) if Path(path, name).is_file() else None
    try:
        return Path(hf_hub_download(path, name, revision=revision))
    except EntryNotFoundError:
        return None
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelNotLoadedError(
            f"{checkpoint!r} is neither a local folder nor reachable on the hub: {reason}; check "
            "the spelling and the network"
        ) from error


def _read_tensors(
    checkpoint: str, file: Path, revision: str | None, prefix: str
) -> dict[str, Tensor]:
    if not file.name.endswith(".index.json"):
        return _read_weights(file, prefix)
    weight_map = read_weight_map(file)
    shards = {key: weight_map[key] for key in weight_map if key.startswith(prefix)}
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(shards.values())):
        shard = _locate(checkpoint, name, revision)
        if shard is None:
            raise ModelNotLoadedError(
                f"{checkpoint!r} lacks {name}, which its {file.name} lists; fetch it again"
            )
        tensors |= _read_weights(shard, prefix)
    missing = sorted(shards.keys() - tensors.keys())
    if missing:
        raise ModelNotLoadedError(
            f"{checkpoint!r} lacks {len(missing)} tensors that its {file.name} lists, such as "
            f"{missing[0]!r} in {shards[missing[0]]}; fetch both again"
        )
    return tensors


def _read_weights(file: Path, prefix: str) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as stored:
                keys = [key for key in stored.keys() if key.startswith(prefix)]  # noqa: SIM118
                return {key: stored.get_tensor(key) for key in keys}
        tensors = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
    except SafetensorError as error:
        raise ModelNotLoadedError(f"{file} is damaged ({error}); fetch it again") from error
    except UNREADABLE as error:
        raise ModelNotLoadedError(
            f"{file} is damaged, or holds more than tensors: {why_unread(error)}"
        ) from error
    if not isinstance(tensors, Mapping):
        raise ModelNotLoadedError(
            f"{file} holds a {type(tensors).__name__} instead of named tensors"
        )
    tensors = {str(key): tensors[key] for key in tensors if str(key).startswith(prefix)}
    for key, value in tensors.items():
        if not isinstance(value, Tensor):
            raise ModelNotLoadedError(
                f"{file} holds a {type(value).__name__} as {key!r} instead of a tensor"
            )
    return tensors


def load_tensors(module: nn.Module, name: str, tensors: Mapping[str, Tensor]) -> None:
    """Give a module, which may be on the meta device, its tensors.

    Raises:
        ModelNotLoadedError: Unless all of them fit.
    """
    expected = {key: list(value.shape) for key, value in module.state_dict().items()}
    wrong_shapes: list[str] = []
    for key in sorted(expected.keys() & tensors.keys()):
        shape = list(tensors[key].shape)
        if shape != expected[key]:
            wrong_shapes.append(f"{key} {shape} instead of {expected[key]}")
    problems = {
        "missing": sorted(expected.keys() - tensors.keys()),
        "unexpected": sorted(tensors.keys() - expected.keys()),
        "of another shape": wrong_shapes,
    }
    reasons = [f"{kind}: {', '.join(keys[:8])}" for kind, keys in problems.items() if keys]
    if reasons:
        raise ModelNotLoadedError(
            f"the tensors of {name!r} are not what its config describes; {'; '.join(reasons)}"
        )
    module.load_state_dict(dict(tensors), assign=True)
