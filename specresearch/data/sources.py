"""Where a dataset's records come from: a local file, the hub or its cache, or a shipped sample."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specresearch.data import hub
from specresearch.data.files import Record, find_file, read_records

logger = logging.getLogger(__name__)

SAMPLES = Path(__file__).parent / "samples"

SourceKind = Literal["file", "hub", "cache", "sample"]
SourceChoice = Literal["auto", "hub", "sample"]
CHOICES = ("auto", "hub", "sample")


@dataclass(frozen=True)
class DatasetSource:
    """What a result records about its prompts.

    Attributes:
        kind: "file" (dataset.path), "hub" (downloaded), "cache" (the hub's local cache) or
            "sample" (shipped).
        location: The path, the hub id with its commit, or the sample's name.
        fingerprint: 16 hexadecimal digits of SHA-256 over the rows in use, in their order.
        num_rows: Rows in use.
        note: Why this source, and what was skipped.
    """

    kind: SourceKind
    location: str
    fingerprint: str
    num_rows: int
    note: str


@dataclass(frozen=True)
class Origin:
    """A source that was found and is not read yet."""

    kind: SourceKind
    location: str
    records: Iterator[Record]
    note: str


def find(
    name: str, path: str | None, choice: SourceChoice, on_hub: hub.HubDataset | None
) -> Origin:
    """Find the records of a dataset.

    Falling back to the sample is logged as a warning with its reason.

    Args:
        path: A local file, which takes precedence.
        choice: "auto" tries the hub, then the sample.
        on_hub: The dataset on the hub, if there is one.

    Raises:
        ValueError: If the requested source is not available.
    """
    if choice not in CHOICES:
        raise ValueError(f"dataset.source={choice} is unknown; use one of {', '.join(CHOICES)}")
    if path is not None:
        if choice != "auto":
            raise ValueError(
                f"dataset.path={path} and dataset.source={choice} contradict each other; "
                "drop one of them"
            )
        file = find_file(path)
        return Origin("file", str(file), read_records(file), "dataset.path")
    if choice == "sample":
        return _sample(name, "dataset.source=sample")
    try:
        if on_hub is None:
            raise hub.HubUnavailableError("it has no location on the hub")
        found = hub.load(on_hub)
    except hub.HubUnavailableError as error:
        if choice == "hub":
            raise ValueError(
                f"dataset {name}, source=hub: {error}; "
                "use dataset.path=<file> or dataset.source=sample"
            ) from error
        origin = _sample(name, str(error))
        logger.warning(
            "dataset %s: using the small sample that ships with the package (%s); "
            "dataset.path=<file> reads a file",
            name,
            error,
        )
        return origin
    note = "local cache" if found.kind == "cache" else "hub"
    return Origin(found.kind, found.location, found.records, note)


def _sample(name: str, note: str) -> Origin:
    file = SAMPLES / f"{name}.jsonl"
    if not file.exists():
        raise ValueError(
            f"dataset {name}: {note}, and no sample of it ships with the package; "
            "use dataset.path=<file>"
        )
    return Origin("sample", f"samples/{file.name}", read_records(file), note)
