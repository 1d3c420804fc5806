"""Numbered files that a killed run leaves whole: each is there with its checksum, or not at all."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock
from safetensors import SafetensorError

from specresearch.files import means_full, replace_text, written_whole

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"


class ShardStore:
    """Shards in one folder, and in `manifest.json` what they depend on, their checksums and what was noted of each.

    settings: whatever the contents depend on, of JSON types. Raises ValueError for a folder of other settings, naming the first
    that differs.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], suffix: str) -> None:
        self.folder = folder
        self.suffix = suffix
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        self.shards: dict[str, dict[str, Any]] = {}
        self._read_manifest()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One process writes; others wait here, and then find what it has written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".lock"):
            self._read_manifest()
            yield

    def holds(self, number: int) -> bool:
        """Is this shard there, and the file as it was written? A damaged one is logged and counts as missing."""
        name = self._name(number)
        if name not in self.shards:
            return False
        file = self.folder / name
        if file.exists() and _checksum(file) == self.shards[name]["sha256"]:
            return True
        logger.warning("%s is damaged or gone; it will be made again", file)
        return False

    def path(self, number: int) -> Path:
        return self.folder / self._name(number)

    def write(self, number: int, save: Callable[[Path], object], **facts: Any) -> None:
        """`save` writes the file that it is given; facts: to be noted in the manifest.

        A full disk is an OSError that says what has been kept.
        """
        path = self.path(number)
        try:
            with written_whole(path) as part:
                save(part)
            entry = {"sha256": _checksum(path), "num_bytes": path.stat().st_size, **facts}
            shards = {**self.shards, path.name: entry}
            manifest = json.dumps({"settings": self.settings, "shards": shards}, indent=1)
            replace_text(self.folder / MANIFEST, manifest + "\n")
        except (OSError, SafetensorError) as error:
            if path.name not in self.shards:
                path.unlink(missing_ok=True)
            if not means_full(error):
                raise
            raise OSError(
                f"the disk of {self.folder} is full: shard {number} was not written; {len(self.shards)} shards of "
                f"{self.num_bytes:,} bytes are kept, and the same command continues from there once there is room"
            ) from error
        self.shards = shards

    @property
    def num_bytes(self) -> int:
        return sum(entry["num_bytes"] for entry in self.shards.values())

    def _name(self, number: int) -> str:
        return f"shard-{number:05d}{self.suffix}"

    def _read_manifest(self) -> None:
        file = self.folder / MANIFEST
        if not file.exists():
            return
        try:
            manifest = json.loads(file.read_text(encoding="utf-8"))
            held, self.shards = manifest["settings"], manifest["shards"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} is damaged ({error}); delete {self.folder}, or choose another folder"
            ) from error
        for key in sorted({*held, *self.settings}):
            if held.get(key) != self.settings.get(key):
                raise ValueError(
                    f"{self.folder} holds data of {key}={held.get(key)!r}, and this run has {key}={self.settings.get(key)!r}; "
                    "choose another folder, or delete that one"
                )


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
