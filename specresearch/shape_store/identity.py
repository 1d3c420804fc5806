"""What a measured shape is valid for: machine, versions, target, proposer and batch size."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specresearch.machine import cpu_model, device_name, package_version
from specresearch.models.causal_lm import CausalLM
from specresearch.models.memory import stored_tensors
from specresearch.models.slot_model import SlotModel
from specresearch.proposers.base import Proposer

CALIBRATION = 6  # to be raised with what calibration measures and foretells
PACKAGES = ("specresearch", "torch", "transformers")
SET_BY_SHAPE = ("chosen", "num_draft_tokens", "sample")  # attributes that `draft_as` may change
NUM_SAMPLED = 16  # numbers of every weight: weights that were trained differ in nearly all


@dataclass(frozen=True)
class Identity:
    """Whatever speed and acceptance depend on, but for the requests.

    Attributes:
        packages: Their versions. A checkout under development keeps the version of the release
            before it, so `CALIBRATION` tells its measurements from older ones.
        proposer: Its class, settings and weights, and those of the proposers it combines.
    """

    machine: dict[str, Any]
    packages: dict[str, str | None]
    calibration: int
    target: dict[str, Any]
    proposer: dict[str, Any]
    batch_size: int

    @staticmethod
    def of(target: CausalLM, proposer: Proposer, batch_size: int) -> "Identity":
        """Return the identity of a proposer that was bound to the target."""
        return Identity(
            machine={
                "cpu": cpu_model(),
                "device": device_name(target.device),
                "num_threads": torch.get_num_threads(),
            },
            packages={name: package_version(name) for name in PACKAGES},
            calibration=CALIBRATION,
            target={
                "name": target.name,
                "weights": weights_fingerprint(target),
                "dtype": str(target.dtype),
                "device": str(target.device),
                "attention": target.attention,
                "linear_kernels": target.linear_kernels,
                "compiled": target.compile,
                "graphs": target.passes is not None,
            },
            proposer=_describe(proposer),
            batch_size=batch_size,
        )

    @property
    def key(self) -> str:
        """Return a short hash of it all."""
        text = json.dumps(asdict(self), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def weights_fingerprint(model: SlotModel | nn.Module) -> str:
    """Return a hash of names, shapes and some numbers of all weights, without reading them all."""
    module = model if isinstance(model, nn.Module) else model.module
    digest = hashlib.sha256()
    samples: list[Tensor] = []
    for name, weight in module.named_parameters():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        for part in stored_tensors(weight.detach()):
            flat = part.flatten()
            stride = max(len(flat) // NUM_SAMPLED, 1)
            samples.append(flat[::stride][:NUM_SAMPLED].double())
    for device in sorted({str(sample.device) for sample in samples}):
        here = [sample for sample in samples if str(sample.device) == device]
        digest.update(torch.cat(here).cpu().numpy().tobytes())  # sync
    return digest.hexdigest()[:16]


def _describe(proposer: Proposer) -> dict[str, Any]:
    kind = type(proposer)
    plain = (int, float, str, bool, type(None))
    settings = {
        name: value
        for name, value in vars(proposer).items()
        if isinstance(value, plain) and not name.startswith("_") and name not in SET_BY_SHAPE
    }
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "settings": settings | {"shapes": list(map(asdict, proposer.shapes))},
        "weights": [weights_fingerprint(model) for model in proposer.models],
        "proposers": list(map(_describe, proposer.proposers)),
    }
