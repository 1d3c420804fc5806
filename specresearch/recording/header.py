"""The header of a recording, which says what was recorded."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FORMAT = 2
_METADATA = b"specresearch"


@dataclass(frozen=True)
class Header:
    """What was recorded.

    Attributes:
        target: model, num_parameters, dtype, device, vocab_size and max_len.
        machine: The device it ran on.
        acceptance: Name of the acceptance rule.
        lossless: Whether the rule is.
        kind: The kind of the drafts, as in `DraftKind`.
        num_draft_tokens: The most that the proposer makes.
        fixed: Drafts per step of every side that always asks for the same number; None for a side
            whose controller chose.
        config: The run's settings.
        package: Version of this package.
    """

    target: Mapping[str, Any]
    machine: str
    method: str | None
    acceptance: str
    lossless: bool
    kind: Mapping[str, Any]
    num_draft_tokens: int
    fixed: Mapping[str, int | None]
    config: Mapping[str, Any]
    package: str = ""
    format: int = FORMAT

    def written_into(self, schema: pa.Schema) -> pa.Schema:
        """Return a schema with this header in its metadata."""
        text = json.dumps(asdict(self), ensure_ascii=False)
        return schema.with_metadata({_METADATA: text.encode()})

    @staticmethod
    def of(path: Path) -> "Header":
        """Read the header of a file, or raise ValueError if it is no recording of this format."""
        try:
            text = (pq.read_schema(path).metadata or {}).get(_METADATA)
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"{path} cannot be read ({error}); record the run again") from error
        if text is None:
            raise ValueError(f"{path} is no recording of specresearch; make one with record=true")
        header = json.loads(text)
        if header.get("format") != FORMAT:
            raise ValueError(
                f"{path} has format {header.get('format')} (specresearch {header.get('package')}), "
                f"and this version reads format {FORMAT}; record the run again, or read it with "
                "that version"
            )
        return Header(**header)

    @property
    def longest_side(self) -> str:
        """Return the side with the longest fixed drafts, which shows most of what is accepted."""

        def length(side: str) -> float:
            fixed = self.fixed[side]
            return 0.5 if fixed is None else float(fixed)

        return max(self.fixed, key=length)

    def check(self, path: Path, expected: Mapping[str, Any], whose: str) -> None:
        """Raise ValueError if the target differs from the expected one.

        Args:
            path: The recording.
            whose: What the expected target belongs to, for the error.
        """
        differences = []
        for key, value in expected.items():
            if key in self.target and self.target[key] != value:
                differences.append(f"{key} is {self.target[key]!r} and not {value!r}")
        if differences:
            raise ValueError(
                f"{path} was recorded with another target than {whose}: {'; '.join(differences)}"
            )
