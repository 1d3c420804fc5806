"""Which code and which packages decided what a folder holds, and how that differs from those at hand."""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from specresearch.results.provenance import describe_process, package_version

PACKAGE = Path(__file__).parents[1]
PACKAGES = ("torch", "transformers", "tokenizers", "numpy")  # that outputs depend on
DECODING = (
    "acceptance",
    "batch.py",
    "clock.py",
    "controllers",
    "data",
    "engine",
    "metrics",
    "models",
    "proposal.py",
    "proposers",
    "sampling.py",
    "sampling_params.py",
)  # what decides the outputs of a request, and what is counted and timed of it
WHOLE_PACKAGE = ("",)


def describe_software(code: Sequence[str], *parts: object) -> dict[str, dict[str, Any]]:
    """Versions of packages, and a hash of every source file.

    code: files and folders of this package. parts: objects; `modules` are those that define their
    classes, where they are not of this package.
    """
    return {
        "packages": {name: package_version(name) for name in PACKAGES},
        "code": {
            name: digest for name, digest in _package_hashes().items() if _is_below(name, code)
        },
        "modules": {
            name: digest for part in parts for name, digest in _foreign_hashes(type(part)).items()
        },
    }


def code_fingerprint(*parts: object) -> str:
    """A hash of the package's source, of the modules that define the classes of `parts`, and of the versions of packages."""
    return fingerprint_of(describe_software(WHOLE_PACKAGE, *parts))


def fingerprint_of(software: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(software, sort_keys=True).encode()).hexdigest()[:16]


def differing_software(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a phrase for every package and file that differs between two `describe_software`.

    Which modules a run has is told by its settings, so that only those are compared that both have.
    """
    told = []
    for name in PACKAGES:
        versions = [str(side["packages"].get(name)) for side in (before, now)]
        if versions[0] != versions[1]:
            told.append(f"{name} was {versions[0]} and is now {versions[1]}")
    for name in sorted(before["code"].keys() | now["code"].keys()):
        if name not in before["code"]:
            told.append(f"{name} is new")
        elif name not in now["code"]:
            told.append(f"{name} is gone")
        elif before["code"][name] != now["code"][name]:
            told.append(f"{name} has changed")
    shared = sorted(before["modules"].keys() & now["modules"].keys())
    return told + [
        f"{name} has changed" for name in shared if before["modules"][name] != now["modules"][name]
    ]


@cache
def _package_hashes() -> dict[str, str]:
    """Of the source as it was at the first call, which is closest to what this process has loaded."""
    return {
        file.relative_to(PACKAGE).as_posix(): _hash(file) for file in sorted(PACKAGE.rglob("*.py"))
    }


def _foreign_hashes(kind: type) -> dict[str, str]:
    """Of the modules that define the class and its bases, without those that a version stands for already."""
    known = {"specresearch", *PACKAGES, *sys.stdlib_module_names} - {"__main__"}
    names = {
        base.__module__ for base in kind.__mro__ if base.__module__.partition(".")[0] not in known
    }
    files = {name: getattr(sys.modules.get(name), "__file__", None) or "" for name in sorted(names)}
    return {name: _hash(Path(file)) for name, file in files.items() if file.endswith(".py")}


def _is_below(name: str, code: Sequence[str]) -> bool:
    return any(not part or name == part or name.startswith(f"{part}/") for part in code)


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def describe(device: torch.device, code: str, seed: int) -> dict[str, Any]:
    """Software, machine, command and time."""
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "code_fingerprint": code,
        **describe_process(("-m", "specresearch.certify"), device),
        "seed": seed,
    }
