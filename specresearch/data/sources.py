"""Where a dataset's records come from: a local file, the hub or its cache, or the sample in the package."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specresearch.data import hub
from specresearch.data.files import Record, find_file, read_records

logger = logging.getLogger(__name__)

SAMPLES = Path(__file__).parent / "samples"

Kind = Literal["file", "hub", "cache", "sample"]
Choice = Literal["auto", "hub", "sample"]
CHOICES = ("auto", "hub", "sample")


@dataclass(frozen=True)
class Source:
    """What a result says about its prompts.

    kind: "file" (dataset.path), "hub" (downloaded), "cache" (the hub's local cache) or "sample" (shipped).
    location: the path, the hub id with its commit, or the sample's name.
    fingerprint: 16 hexadecimal digits of SHA-256 over the rows that are used, in their order.
    num_rows: rows that are used.
    note: why this source, and what was skipped.
    """

    kind: Kind
    location: str
    fingerprint: str
    num_rows: int
    note: str


@dataclass(frozen=True)
class Origin:
    """A source that has been found and not yet read."""

    kind: Kind
    location: str
    records: Iterator[Record]
    note: str


def find(name: str, path: str | None, choice: Choice, copy: hub.HubCopy | None) -> Origin:
    """The origin of dataset `name`: `path` if given, else as `choice` says; "auto" is the hub, then the sample.

    Falling back to the sample is logged as a warning with its reason. ValueError if what was asked for cannot be had.
    """
    if choice not in CHOICES:
        raise ValueError(f"dataset.source={choice} is not known; use one of {', '.join(CHOICES)}")
    if path is not None:
        if choice != "auto":
            raise ValueError(
                f"dataset.path={path} and dataset.source={choice} contradict each other; drop one of them"
            )
        file = find_file(path)
        return Origin("file", str(file), read_records(file), "dataset.path")
    if choice == "sample":
        return _sample(name, "dataset.source=sample")
    try:
        if copy is None:
            raise hub.HubUnavailableError("no hub copy is known for it")
        found = hub.load(copy)
        return Origin(
            found.kind,
            found.location,
            found.records,
            "local cache" if found.kind == "cache" else "hub",
        )
    except hub.HubUnavailableError as error:
        if choice == "hub":
            raise ValueError(
                f"dataset {name}, source=hub: {error}; use dataset.path=<file> or dataset.source=sample"
            ) from error
        origin = _sample(name, str(error))
        logger.warning(
            "dataset %s: using the small sample that ships with the package (%s); dataset.path=<file> reads a file",
            name,
            error,
        )
        return origin


def _sample(name: str, note: str) -> Origin:
    file = SAMPLES / f"{name}.jsonl"
    if not file.exists():
        raise ValueError(
            f"dataset {name}: {note}, and no sample of it ships with the package; use dataset.path=<file>"
        )
    return Origin("sample", f"samples/{file.name}", read_records(file), note)
