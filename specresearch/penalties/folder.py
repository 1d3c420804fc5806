"""The folder of a table: a row for everything that was decoded or compared, and the results."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specresearch.files.jsonl import read_jsonl
from specresearch.results.fingerprint import DECODING
from specresearch.results.folder import RunFolder

ROWS = "rows.jsonl"
KEY = ("kind", "target", "draft", "temperature", "prompt", "length")
CONTINUATION, DIVERGENCE, OVERLAP = "continuation", "divergence", "overlap"
TRIAL, DECODED, MODEL = "trial", "decoded", "model"  # kinds of rows


@dataclass(frozen=True, kw_only=True)
class PenaltyResults:
    """The content of results.json.

    Attributes:
        complete: Whether everything was measured.
        summary: `targets` and `cells`, each a list of figures.
    """

    complete: bool
    summary: dict[str, Any] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)


class PenaltyFolder(RunFolder):
    """The folder of `python -m specresearch.penalty`; a resumed run measures what it lacks.

    Attributes:
        rows: What was measured, by the values of `KEY`.
    """

    code = (*DECODING, "penalties")

    def __init__(self, path: Path, config: Mapping[str, Any], *, resume: bool = False) -> None:
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        super().__init__(path, config, resume=resume)

    def _load(self) -> None:
        self.rows = {key_of(row): row for row in read_jsonl(self.path / ROWS, KEY)}

    def find(self, kind: str, **key: Any) -> dict[str, Any] | None:
        """Return a row, or None if it has not been measured."""
        return self.rows.get(key_of({"kind": kind, **key}))

    def add(self, kind: str, *, figures: Mapping[str, Any], **key: Any) -> dict[str, Any]:
        """Append a row."""
        row: dict[str, Any] = {**dict.fromkeys(KEY), "kind": kind, **key, **figures}
        self._append(ROWS, [row])
        self.rows[key_of(row)] = row
        return row

    def of_kind(self, kind: str, **key: Any) -> list[dict[str, Any]]:
        """Return the rows of a kind that have these values."""
        wanted = {"kind": kind, **key}.items()
        return [row for row in self.rows.values() if wanted <= {k: row[k] for k in KEY}.items()]


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in KEY)
