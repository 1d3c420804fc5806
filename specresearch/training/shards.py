"""Numbered files with checksums; after a kill each is complete or absent."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from safetensors import SafetensorError

from specresearch.files import means_full, replace_text, written_whole
from specresearch.training.progress import TokenProgress

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Shard:
    """The content of one file, to be written by `save`."""

    save: Callable[[Path], object]
    num_examples: int
    num_tokens: int


class ShardStore:
    """Shards in one folder, with checksums and everything they depend on in `manifest.json`.

    A folder with other settings is rejected; the ValueError names the first difference.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], suffix: str) -> None:
        self.folder = folder
        self.suffix = suffix
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        self.shards: dict[str, dict[str, Any]] = {}
        self._read_manifest()

    def fill(
        self,
        sizes: Sequence[int],
        start: Callable[[Sequence[int]], Callable[[int], Shard]],
        *,
        title: str,
        unit: str,
    ) -> None:
        """Compute the missing shards; other processes wait and then reuse them.

        `start` gets the numbers of the missing shards, if any, and returns the function that
        computes a shard. The progress bar counts `sizes`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".lock"):
            self._read_manifest()
            missing = [number for number in range(len(sizes)) if not self.holds(number)]
            if not missing:
                return
            compute = start(missing)
            num_done = sum(sizes) - sum(sizes[number] for number in missing)
            with TokenProgress(title, sum(sizes), unit, num_done) as progress:
                for number in missing:
                    shard = compute(number)
                    self.write(number, shard)
                    progress.add(sizes[number], shard.num_tokens)

    def holds(self, number: int) -> bool:
        """Return True if the shard is there and intact; damage is logged."""
        name = self.path(number).name
        if name not in self.shards:
            return False
        file = self.folder / name
        if file.exists() and _checksum(file) == self.shards[name]["sha256"]:
            return True
        logger.warning("%s is damaged or missing; computing it again", file)
        return False

    def path(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}{self.suffix}"

    def write(self, number: int, shard: Shard) -> None:
        """Write one shard and its manifest entry."""
        path = self.path(number)
        try:
            with written_whole(path) as part:
                shard.save(part)
            entry = {
                "sha256": _checksum(path),
                "num_bytes": path.stat().st_size,
                "num_examples": shard.num_examples,
                "num_tokens": shard.num_tokens,
            }
            shards = {**self.shards, path.name: entry}
            manifest = json.dumps({"settings": self.settings, "shards": shards}, indent=1)
            replace_text(self.folder / MANIFEST, manifest + "\n")
        except (OSError, SafetensorError) as error:
            if path.name not in self.shards:
                path.unlink(missing_ok=True)
            if not means_full(error):
                raise
            raise OSError(
                f"the disk of {self.folder} is full: shard {number} was not written; "
                f"{len(self.shards)} shards of {self.num_bytes:,} bytes are kept, and the same "
                "command continues from there once there is room"
            ) from error
        self.shards = shards

    @property
    def num_bytes(self) -> int:
        return sum(entry["num_bytes"] for entry in self.shards.values())

    def _read_manifest(self) -> None:
        file = self.folder / MANIFEST
        if not file.exists():
            return
        try:
            manifest = json.loads(file.read_text(encoding="utf-8"))
            stored, self.shards = manifest["settings"], manifest["shards"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} is damaged ({error}); delete {self.folder}, or choose another folder"
            ) from error
        for key in sorted({*stored, *self.settings}):
            if stored.get(key) != self.settings.get(key):
                raise ValueError(
                    f"{self.folder} holds data of {key}={stored.get(key)!r}, and this run has "
                    f"{key}={self.settings.get(key)!r}; choose another folder, or delete that one"
                )


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
