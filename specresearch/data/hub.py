"""The dataset hub: the local cache, or a download once a quick probe has reached the hub.

Without a network, the hub's own libraries would retry for the better part of a minute.
"""

import os
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from specresearch.data.files import Record, read_records

PROBE_SECONDS = 2.0


class HubUnavailableError(Exception):
    """The hub cannot give this dataset; the message is the reason."""


@dataclass(frozen=True)
class HubDataset:
    """A dataset on the hub.

    Attributes:
        id: `owner/name`.
        config: As in the `datasets` library, like `split`.
        revision: A commit or branch. None means the newest, or the one in the local cache.
        file: A file of the repository to read as it is, in place of a config and a split.
        streaming: Download rows while they are read, unless the local cache has a copy.
    """

    id: str
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    file: str | None = None
    streaming: bool = False

    def __str__(self) -> str:
        return " ".join(filter(None, (self.id, self.config, self.split, self.file)))


@dataclass(frozen=True)
class HubRecords:
    """The records of a dataset, and whether they were cached or downloaded."""

    kind: Literal["cache", "hub"]
    location: str
    records: Iterator[Record]


def load(dataset: HubDataset) -> HubRecords:
    """Return the records of a dataset from the local cache, or else download them.

    Raises:
        HubUnavailableError: Within seconds, if the hub is switched off (HF_HUB_OFFLINE,
            HF_DATASETS_OFFLINE), unreachable, or does not give the dataset.
        ValueError: If the dataset has no such config or split.
    """
    try:
        return _load(dataset, offline=True)
    except HubUnavailableError:
        pass
    switch = offline_switch()
    if switch:
        raise HubUnavailableError(
            f"{switch} is set and the local cache has no usable copy of {dataset}"
        )
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    reason = probe(endpoint)
    if reason:
        raise HubUnavailableError(f"hub unreachable ({endpoint}: {reason})")
    return _load(dataset, offline=False)


def offline_switch() -> str | None:
    """Return the name of the environment variable that forbids the network, if one does."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        if os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"}:
            return name
    return None


def probe(endpoint: str, seconds: float = PROBE_SECONDS) -> str | None:
    """Return why an endpoint does not answer in time, or None if it does.

    Proxies of the environment are used. Any answer will do, also a refusal or an unknown
    certificate: the library that downloads is the judge of those.
    """
    reasons: list[str | None] = []

    def ask() -> None:
        try:
            with urlopen(Request(endpoint, method="HEAD"), timeout=seconds):
                reasons.append(None)
        except HTTPError as error:
            reasons.append(f"HTTP {error.code}" if error.code >= 500 else None)
        except URLError as error:
            answered = isinstance(error.reason, ssl.SSLCertVerificationError)
            reasons.append(None if answered else str(error.reason))
        except (OSError, ValueError) as error:
            reasons.append(str(error))

    # A name lookup ignores urlopen's timeout, hence a thread that can be left behind.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds + 0.5)
    return reasons[0] if reasons else f"no answer in {seconds:g} s"


def _load(dataset: HubDataset, *, offline: bool) -> HubRecords:
    try:
        if dataset.file is not None:
            return _load_file(dataset, dataset.file, offline=offline)
        if dataset.streaming and not offline:
            return _stream_split(dataset)
        return _load_split(dataset, offline=offline)
    except HubUnavailableError:
        raise
    except ValueError as error:
        if offline:
            raise HubUnavailableError(f"not in the local cache: {error}") from error
        raise ValueError(f"the hub's {dataset}: {error}") from error
    except Exception as error:
        # A download can fail in many ways; the caller reports it, and may use another source.
        first_line = f"{dataset}: {type(error).__name__}: {error}".splitlines()[0]
        raise HubUnavailableError(first_line) from error


def _load_split(dataset: HubDataset, *, offline: bool) -> HubRecords:
    from datasets import Dataset, load_dataset

    with _offline_datasets() if offline else nullcontext():
        table = load_dataset(
            dataset.id, name=dataset.config, split=dataset.split, revision=dataset.revision
        )
    if not isinstance(table, Dataset):
        raise _splits_error(table)
    files = table.cache_files
    commit = Path(files[0]["filename"]).parent.name if files else "unknown"
    if offline and dataset.revision not in (None, commit):
        raise HubUnavailableError(
            f"the cached copy of {dataset} is revision {commit}, not {dataset.revision}"
        )
    records = (Record(f"row {number}", dict(row)) for number, row in enumerate(table, start=1))
    return HubRecords("cache" if offline else "hub", f"{dataset} @ {commit}", records)


def _stream_split(dataset: HubDataset) -> HubRecords:
    """Return records that are downloaded while they are read, of a commit that is known."""
    from datasets import IterableDataset, load_dataset
    from huggingface_hub import HfApi

    commit = HfApi().dataset_info(dataset.id, revision=dataset.revision).sha
    table = load_dataset(
        dataset.id, name=dataset.config, split=dataset.split, revision=commit, streaming=True
    )
    if not isinstance(table, IterableDataset):
        raise _splits_error(table)
    return HubRecords("hub", f"{dataset} @ {commit}", _streamed(dataset, table))


def _streamed(dataset: HubDataset, table: Iterable[Mapping[str, Any]]) -> Iterator[Record]:
    number = 0
    try:
        for number, row in enumerate(table, start=1):
            yield Record(f"row {number}", dict(row))
    except Exception as error:
        # A download can fail in many ways, here after rows of it were used.
        raise ValueError(
            f"the hub's {dataset}, after row {number}: {type(error).__name__}: {error}; try again, "
            "or set dataset.streaming=false to download it first"
        ) from error


def _splits_error(splits: Iterable[Any]) -> ValueError:
    """Return the error for a dataset that was loaded with all its splits."""
    names = ", ".join(map(str, splits))
    return ValueError(f"it has the splits {names}; choose one with dataset.split=")


def _load_file(dataset: HubDataset, path: str, *, offline: bool) -> HubRecords:
    from huggingface_hub import hf_hub_download

    downloaded = hf_hub_download(
        dataset.id,
        path,
        repo_type="dataset",
        revision=dataset.revision,
        local_files_only=offline,
    )
    file = Path(downloaded)
    commit = file.parents[len(Path(path).parts) - 1].name
    kind = "cache" if offline else "hub"
    return HubRecords(kind, f"{dataset} @ {commit}", read_records(file))


@contextmanager
def _offline_datasets() -> Iterator[None]:
    """Switch `datasets` offline for a while.

    The library reads its environment variable only once, at import, into this variable.
    """
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
