"""Run an entry point as from a shell: `program <overrides>`, its exit code and its output."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]
Typed = Callable[[Callable[[], None], Sequence[str]], Outcome]
BuildLoad = Callable[
    [Sequence[str]], Any
]  # a LoadRunner, which the tests' conftest must not import yet


def call(main: Callable[[], None], overrides: Sequence[str], patch: pytest.MonkeyPatch) -> int:
    """Return the exit code. Flags such as -m go first, where Hydra expects them."""
    patch.delenv("HYDRA_FULL_ERROR", raising=False)
    patch.setattr(
        sys,
        "argv",
        ["program", *sorted(overrides, key=lambda override: not override.startswith("-"))],
    )
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def prompts_of(file: Path, texts: Sequence[str]) -> list[str]:
    """Write prompts to `file` and return the overrides that select them."""
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return ["dataset=prompts", f"dataset.path={file}"]
