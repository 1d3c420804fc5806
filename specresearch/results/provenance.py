"""Provenance of a measurement: command, software, machine, models, data and seed."""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from specresearch.acceptance import AcceptanceSampler
from specresearch.data import PromptDataset
from specresearch.machine import cpu_model, device_name, package_version
from specresearch.models import CausalLM
from specresearch.models.memory import stored_bytes
from specresearch.models.quantizer import short
from specresearch.proposers import Proposer

PACKAGES = (
    "specresearch",
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "numpy",
    "hydra-core",
)


def describe(
    target: CausalLM,
    datasets: Sequence[PromptDataset],
    seed: int,
    program: str = "specresearch.run",
) -> dict[str, Any]:
    """Return what a reader needs to judge or repeat a measurement.

    Args:
        program: the module that runs.
    """
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **describe_process(("-m", program), target.device),
        "target": {
            "model": target.name,
            "num_parameters": target.num_parameters,
            "weight_bytes": stored_bytes([target.module]),
            "dtype": target.dtype_name,
            **describe_weights(target),
            "attention": target.attention,
            "graphs": target.passes is not None,
            "linear_kernels": target.linear_kernels,
            "device": str(target.device),
            "max_len": target.max_len,
        },
        "dataset": describe_datasets(datasets),
        "seed": seed,
    }


def describe_weights(model: CausalLM) -> dict[str, str]:
    """Return how the weights and the cached keys and values of a model are stored."""
    return {"weights": model.weights, "cache_dtype": short(model.cache_dtype)}


def describe_datasets(datasets: Sequence[PromptDataset]) -> dict[str, Any]:
    """Return one description; several datasets have their values joined by plus signs."""
    rows = [{"name": dataset.name, **asdict(dataset.source)} for dataset in datasets]
    if len(rows) == 1:
        return rows[0]
    joined: dict[str, Any] = {key: " + ".join(str(row[key]) for row in rows) for key in rows[0]}
    digest = hashlib.sha256(joined["fingerprint"].encode()).hexdigest()
    return joined | {"fingerprint": digest[:16], "num_rows": sum(row["num_rows"] for row in rows)}


def describe_method(
    name: str | None, proposer: Proposer | None, rule: AcceptanceSampler
) -> dict[str, Any] | None:
    """Return a description of the method, or None for plain decoding.

    The proposer must be bound: only then does it know its models and its number of drafts.
    """
    if proposer is None:
        return None
    return {
        "name": name,
        "description": proposer.describe(),
        "memory": proposer.memory,
        "num_draft_tokens": proposer.num_draft_tokens,
        "trees": proposer.kind.trees,
        "acceptance": type(rule).__name__.lower(),
        "lossless": rule.lossless,
        "models": [
            {
                "model": model.name,
                "num_parameters": model.num_parameters,
                "dtype": model.dtype_name,
                "weight_bytes": stored_bytes([model.module]),
                **describe_weights(model),
            }
            for model in proposer.models
            if isinstance(model, CausalLM)
        ],
    }


def describe_process(program: Sequence[str], device: torch.device) -> dict[str, Any]:
    """Return command, software and machine of a process started as `python *program`."""
    return {
        "command": shlex.join(["python", *program, *sys.argv[1:]]),
        "git_commit": git_commit(Path(__file__).parent),
        "packages": {name: package_version(name) for name in PACKAGES},
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "cpu": cpu_model(),
            "num_cpus": os.cpu_count(),
            "num_torch_threads": torch.get_num_threads(),
            "device": device_name(device),
            "cuda": torch.version.cuda,
        },
    }


def git_commit(folder: Path) -> str | None:
    """Return the commit of the checkout that tracks `folder`, or None outside of one.

    The commit ends in "-dirty" if tracked files have changed.
    """
    if not _git(folder, "ls-files", "--", "."):
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if commit and _git(folder, "status", "--porcelain", "--untracked-files=no"):
        return f"{commit}-dirty"
    return commit


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints, or None if it fails."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
