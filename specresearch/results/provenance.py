"""Where a number comes from: software, machine, models, data, seeds and the command."""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from specresearch.acceptance import AcceptanceSampler
from specresearch.data import PromptDataset
from specresearch.models import CausalLM
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
    """Everything about this process that a reader needs to judge or repeat the measurement. program: the module that runs."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **describe_process(("-m", program), target.device),
        "target": {
            "model": target.name,
            "num_parameters": target.num_parameters,
            "dtype": str(target.dtype).removeprefix("torch."),
            "device": str(target.device),
            "max_len": target.max_len,
        },
        "dataset": _describe_all(datasets),
        "seed": seed,
    }


def _describe_all(datasets: Sequence[PromptDataset]) -> dict[str, Any]:
    """Of several: what tells them apart, joined; the fingerprint is of theirs."""
    told: list[dict[str, Any]] = [
        {"name": dataset.name} | asdict(dataset.source) for dataset in datasets
    ]
    if len(told) == 1:
        return told[0]
    joined: dict[str, Any] = {key: " + ".join(str(each[key]) for each in told) for key in told[0]}
    fingerprint = hashlib.sha256(joined["fingerprint"].encode()).hexdigest()[:16]
    return joined | {"fingerprint": fingerprint, "num_rows": sum(each["num_rows"] for each in told)}


def describe_method(
    name: str | None, proposer: Proposer | None, rule: AcceptanceSampler
) -> dict[str, Any] | None:
    """What was measured beside plain decoding. The proposer is bound, so that it can say what it has loaded, and how much it
    drafts in a step at most where the configuration leaves that to it."""
    if proposer is None:
        return None
    return {
        "name": name,
        "description": proposer.describe(),
        "memory": proposer.memory,
        "num_draft_tokens": proposer.num_draft_tokens,
        "acceptance": type(rule).__name__.lower(),
        "lossless": rule.lossless,
    }


def describe_process(program: Sequence[str], device: torch.device) -> dict[str, Any]:
    """Command, software and machine of a process that was started as `python *program`."""
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


def package_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_commit(folder: Path) -> str | None:
    """The commit of the checkout that holds `folder`, with "-dirty" after local changes; None outside of one."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(folder), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if not git("ls-files", "--", "."):
        return None
    commit = git("rev-parse", "HEAD")
    return (
        f"{commit}-dirty"
        if commit and git("status", "--porcelain", "--untracked-files=no")
        else commit
    )


def cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [
                line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()
