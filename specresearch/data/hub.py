"""The dataset hub: a copy from the local cache, or a download once a quick probe has found the hub.

Left to themselves the hub's libraries retry for the better part of a minute where there is no network.
"""

import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from specresearch.data.files import Record, read_records

PROBE_SECONDS = 2.0


class HubUnavailableError(Exception):
    """The hub cannot give this dataset; the message is the reason."""


@dataclass(frozen=True)
class HubCopy:
    """A dataset on the hub.

    id: `owner/name`. config, split: as the `datasets` library names them.
    file: a file of the repository to read as it is, in place of a config and a split.
    revision: a commit or branch; None means the newest, or whatever the local cache holds.
    """

    id: str
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        return " ".join(part for part in (self.id, self.config, self.split, self.file) if part)


@dataclass(frozen=True)
class HubRecords:
    kind: Literal["cache", "hub"]
    location: str
    records: Iterator[Record]


def load(copy: HubCopy) -> HubRecords:
    """Records of `copy`: from the local cache if it is there, otherwise downloaded.

    Raises HubUnavailableError, within seconds, if the hub is switched off (HF_HUB_OFFLINE, HF_DATASETS_OFFLINE), out of
    reach, or does not give the dataset; ValueError if the dataset has no such config or split.
    """
    try:
        return _load(copy, offline=True)
    except HubUnavailableError:
        pass
    if switch := offline_switch():
        raise HubUnavailableError(
            f"{switch} is set and the local cache has no usable copy of {copy}"
        )
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if reason := probe(endpoint):
        raise HubUnavailableError(f"hub unreachable ({endpoint}: {reason})")
    return _load(copy, offline=False)


def offline_switch() -> str | None:
    """The name of the environment variable that forbids the network, if one does."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        if os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"}:
            return name
    return None


def probe(endpoint: str, seconds: float = PROBE_SECONDS) -> str | None:
    """Why `endpoint` does not answer within `seconds`, or None if it does. Proxies of the environment are used.

    Any answer will do, a refusal or an unknown certificate included: the library that downloads is the judge of those.
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
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds + 0.5)
    return reasons[0] if reasons else f"no answer in {seconds:g} s"


def _load(copy: HubCopy, *, offline: bool) -> HubRecords:
    kind = "cache" if offline else "hub"
    try:
        if copy.file is not None:
            return _download_file(copy, kind, offline=offline)
        return _download_split(copy, kind, offline=offline)
    except ValueError as error:
        if offline:
            raise HubUnavailableError(f"not in the local cache: {error}") from error
        raise ValueError(f"the hub's {copy}: {error}") from error
    except HubUnavailableError:
        raise
    except (
        Exception
    ) as error:  # whatever breaks a download: the caller reports it and may use another source
        raise HubUnavailableError(
            f"{copy}: {type(error).__name__}: {error}".splitlines()[0]
        ) from error


def _download_split(copy: HubCopy, kind: Literal["cache", "hub"], *, offline: bool) -> HubRecords:
    from datasets import Dataset, load_dataset

    with _offline_datasets() if offline else nullcontext():
        table = load_dataset(copy.id, name=copy.config, split=copy.split, revision=copy.revision)
    if not isinstance(table, Dataset):
        raise ValueError(
            f"it has the splits {', '.join(str(name) for name in table)}; choose one with dataset.split="
        )
    files = table.cache_files
    commit = Path(files[0]["filename"]).parent.name if files else "unknown"
    if offline and copy.revision not in (None, commit):
        raise HubUnavailableError(
            f"the cached copy of {copy} is revision {commit}, not {copy.revision}"
        )
    records = (Record(f"row {number}", dict(row)) for number, row in enumerate(table, start=1))
    return HubRecords(kind, f"{copy} @ {commit}", records)


def _download_file(copy: HubCopy, kind: Literal["cache", "hub"], *, offline: bool) -> HubRecords:
    from huggingface_hub import hf_hub_download

    assert copy.file is not None
    file = Path(
        hf_hub_download(
            copy.id,
            copy.file,
            repo_type="dataset",
            revision=copy.revision,
            local_files_only=offline,
        )
    )
    commit = file.parents[len(Path(copy.file).parts) - 1].name
    return HubRecords(kind, f"{copy} @ {commit}", read_records(file))


@contextmanager
def _offline_datasets() -> Iterator[None]:
    """`datasets` reads its offline switch once, at import, into this variable."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
