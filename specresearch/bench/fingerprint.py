"""Which code a certificate speaks of, and where it was tried."""

import hashlib
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from specresearch.bench.provenance import describe_process

PACKAGE = Path(__file__).parents[1]


def code_fingerprint(*parts: object) -> str:
    """A hash of the package's source and of the modules that define the classes of `parts`, wherever those lie."""
    digest = hashlib.sha256(_package_digest())
    for file in sorted({file for part in parts for file in _sources(type(part))}):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:16]


@cache
def _package_digest() -> bytes:
    """Of the source as it was at the first call, which is closest to what this process has loaded."""
    digest = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        digest.update(str(file.relative_to(PACKAGE)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.digest()


def _sources(kind: type) -> list[str]:
    """Source files of the class and its bases, those of this package left out."""
    modules = [
        sys.modules.get(base.__module__) for base in kind.__mro__ if not base.__module__.startswith("specresearch.")
    ]
    files = [getattr(module, "__file__", None) or "" for module in modules]
    return [file for file in files if file.endswith(".py")]


def describe(device: torch.device, code: str, seed: int) -> dict[str, Any]:
    """Software, machine, command and time."""
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "code_fingerprint": code,
        **describe_process(("-m", "specresearch.certify"), device),
        "seed": seed,
    }
