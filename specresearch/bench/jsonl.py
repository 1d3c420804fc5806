"""Files of rows that a killed run leaves readable: a line of JSON for each, and files that are replaced as a whole."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def to_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a file whose last line may have been torn off. No file, no rows; damage elsewhere is a ValueError."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number} is damaged ({error}); choose another hydra.run.dir") from error
    return rows


def replace_text(path: Path, text: str) -> None:
    """Write all of a file or nothing."""
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
