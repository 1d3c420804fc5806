"""Fingerprints of the code and packages that produced a result, and how two of them differ."""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from specresearch.machine import package_version

PACKAGE = Path(__file__).parents[1]
PACKAGES = ("torch", "transformers", "tokenizers", "numpy")  # that outputs depend on
DECODING = (
    "acceptance",
    "batch.py",
    "clock.py",
    "controllers",
    "data",
    "drawing.py",
    "engine",
    "files",
    "grammar.py",
    "judgement.py",
    "machine.py",
    "metrics",
    "models",
    "proposal.py",
    "proposal_check.py",
    "proposers",
    "readback.py",
    "request.py",
    "sampling.py",
    "sampling_params.py",
    "shape_store",
    "token_counts.py",
    "topology.py",
    "tree_paths.py",
)  # code that determines a request's outputs, counts and times
WHOLE_PACKAGE = ("",)


def describe_software(code: Sequence[str], *parts: object) -> dict[str, dict[str, Any]]:
    """Return package versions and the hash of every source file.

    Args:
        code: files and folders of this package.
        parts: objects; the modules that define their classes are hashed too, unless they belong
            to this package or to one with a version.
    """
    hashes = _package_hashes()
    modules: dict[str, str] = {}
    for part in parts:
        modules |= _foreign_hashes(type(part))
    return {
        "packages": {name: package_version(name) for name in PACKAGES},
        "code": {name: hashes[name] for name in hashes if _is_below(name, code)},
        "modules": modules,
    }


def code_fingerprint(*parts: object) -> str:
    """Return a hash of this package, of package versions, and of the modules of `parts`."""
    return fingerprint_of(describe_software(WHOLE_PACKAGE, *parts))


def fingerprint_of(software: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(software, sort_keys=True).encode()).hexdigest()[:16]


def differing_software(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a phrase for every package and file that differs between two `describe_software`.

    Modules of only one side are ignored: which ones a run uses follows from its settings.
    """
    phrases = []
    for name in PACKAGES:
        old, new = str(before["packages"].get(name)), str(now["packages"].get(name))
        if old != new:
            phrases.append(f"{name} was {old} and is now {new}")
    for name in sorted(before["code"].keys() | now["code"].keys()):
        if name not in before["code"]:
            phrases.append(f"{name} is new")
        elif name not in now["code"]:
            phrases.append(f"{name} is gone")
        elif before["code"][name] != now["code"][name]:
            phrases.append(f"{name} has changed")
    shared = sorted(before["modules"].keys() & now["modules"].keys())
    changed = [name for name in shared if before["modules"][name] != now["modules"][name]]
    return phrases + [f"{name} has changed" for name in changed]


@cache
def _package_hashes() -> dict[str, str]:
    """Return the hashes at the first call, which is closest to what this process has loaded."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {file.relative_to(PACKAGE).as_posix(): _hash(file) for file in files}


def _foreign_hashes(cls: type) -> dict[str, str]:
    """Return the hashes of the modules that define a class and its bases."""
    known = {"specresearch", *PACKAGES, *sys.stdlib_module_names} - {"__main__"}
    hashes = {}
    for name in sorted({base.__module__ for base in cls.__mro__}):
        file = getattr(sys.modules.get(name), "__file__", None) or ""
        if name.partition(".")[0] not in known and file.endswith(".py"):
            hashes[name] = _hash(Path(file))
    return hashes


def _is_below(name: str, code: Sequence[str]) -> bool:
    return any(not part or name == part or name.startswith(f"{part}/") for part in code)


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
