"""The folder of a run: never overwritten, and resumed only with the same settings and software."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from specresearch.files import PART, replace_text
from specresearch.files.jsonl import append_rows
from specresearch.files.lock import LOCK, lock_folder
from specresearch.results.config import CONFIG, PROVENANCE, RESULTS, differing_settings, read_config
from specresearch.results.fingerprint import (
    DECODING,
    describe_software,
    differing_software,
    fingerprint_of,
)
from specresearch.trackers.base import TRACKER_FILES

logger = logging.getLogger(__name__)

MAX_LISTED = 4  # of the settings that differ

REQUESTS, STEPS = "requests.jsonl", "steps.parquet"
BEFORE_ROWS = {CONFIG, RESULTS, PROVENANCE, *TRACKER_FILES}  # may exist before anything is decoded
INDIFFERENT = ("resume", "progress", "tracker")  # keys that a resumed run may change
IDENTITY = (
    ("dataset", "fingerprint"),
    ("target", "num_parameters"),
    ("target", "dtype"),
    ("machine", "device"),
)


class RunFolder:
    """The folder of a run. No other process can open it while this object lives.

    Subclasses override `_load` to read what an earlier session left.

    Attributes:
        may_change: settings that a resumed run may change.
        chosen: settings for which `auto` means what the first session chose.
        code: source files that the rows depend on.
        identity: what of the provenance may not change between sessions.
        is_resumed: the folder holds rows of an earlier session.

    Raises:
        ValueError: the folder holds another run, or one with different settings.
        FolderInUseError: another process writes to the folder.
    """

    may_change: tuple[str, ...] = INDIFFERENT
    chosen: tuple[str, ...] = ()
    code: tuple[str, ...] = DECODING
    identity: tuple[tuple[str, str], ...] = IDENTITY

    def __init__(self, path: Path, config: Mapping[str, Any], *, resume: bool = False) -> None:
        self.path = path
        self.config = dict(config)
        self._lock = lock_folder(path)
        files = self._files()
        is_run = CONFIG in files
        self.is_resumed = resume and is_run
        if files and not self.is_resumed:
            content = "a run" if is_run else f"other files ({', '.join(sorted(files)[:3])})"
            remedy = "add resume=true to continue it, or " if is_run else ""
            raise ValueError(
                f"{path} already holds {content}; {remedy}choose another hydra.run.dir"
            )
        if self.is_resumed:
            before = read_config(path)
            for key in self.chosen:
                if self.config.get(key) == "auto":
                    self.config[key] = before.get(key)
            remedy = "repeat the original command with resume=true, or choose another hydra.run.dir"
            check_settings(path, self.config, self.may_change, remedy)
            try:
                self._load()
            except (KeyError, TypeError) as error:
                raise ValueError(
                    f"{path} has rows of another version ({error}); choose another hydra.run.dir"
                ) from error

    def _files(self) -> set[str]:
        """Return the names of files that a new run must not overwrite."""
        files = set()
        for path in self.path.iterdir():
            if path.name not in (".hydra", LOCK) and path.suffix not in (".log", PART):
                files.add(path.name)
        disposable = BEFORE_ROWS if CONFIG in files else TRACKER_FILES
        return set() if files <= disposable and not self._is_complete else files

    def _load(self) -> None:
        """Read the rows of an earlier session, and drop those of unfinished work."""

    @property
    def _is_complete(self) -> bool:
        results = read_results(self.path)
        return results is not None and bool(results.get("complete"))

    def begin(self, provenance: Mapping[str, Any], *parts: object) -> dict[str, Any]:
        """Record settings and provenance, after loading models and before decoding anything.

        Args:
            parts: objects whose classes determine what is decoded.

        Returns:
            The provenance to report.

        Raises:
            ValueError: existing rows come from other models, prompts, packages or code.
        """
        software = describe_software(self.code, *parts)
        packages = {**provenance.get("packages", {}), **software["packages"]}
        merged: dict[str, Any] = {**provenance, **software, "packages": packages, "num_sessions": 1}
        if self.is_resumed:
            before = check_software(self.path, software)
            for part, key in self.identity:
                old, new = before[part][key], merged[part][key]
                if old != new:
                    raise ValueError(
                        f"{self.path} was measured with {part} {key} {old!r}, which is now "
                        f"{new!r}; continue it where it was started, or choose another "
                        "hydra.run.dir"
                    )
            merged = self._continued(before, merged) | {"num_sessions": before["num_sessions"] + 1}
        self.path.mkdir(parents=True, exist_ok=True)
        config = yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True)
        replace_text(self.path / CONFIG, config)
        write_json(self.path / PROVENANCE, merged)
        fingerprint = fingerprint_of({key: merged[key] for key in software})
        del merged["code"], merged["modules"]
        return merged | {"code_fingerprint": fingerprint}

    def _continued(self, before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
        """Return the provenance of a resumed run, from the first session's and this one's."""
        return before

    def _append(self, name: str, rows: Sequence[Mapping[str, Any]], *, sync: bool = True) -> None:
        append_rows(self.path / name, rows, sync=sync)

    def provenance(self) -> dict[str, Any]:
        """Return the provenance that an earlier session wrote; empty without one."""
        return (read_json(self.path / PROVENANCE) if self.is_resumed else None) or {}

    def summary(self) -> dict[str, Any]:
        """Return the summary that an earlier session wrote; empty without one."""
        results = read_results(self.path) if self.is_resumed else None
        return {} if results is None else dict(results.get("summary") or {})

    def write_results(self, results: Any) -> None:
        """Write results.json from a dataclass."""
        write_json(self.path / RESULTS, asdict(results))


def read_results(folder: Path) -> dict[str, Any] | None:
    """Return the content of results.json, or None if it is missing or damaged."""
    return read_json(folder / RESULTS)


def read_json(file: Path) -> dict[str, Any] | None:
    """Return a JSON object, or None if the file is missing or damaged; damage is logged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        logger.warning("%s is damaged and will be rewritten", file)
        return None
    return content


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    replace_text(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def check_settings(
    folder: Path, settings: Mapping[str, Any], may_change: Sequence[str], remedy: str
) -> None:
    """Raise ValueError if the run in `folder` was started with other settings."""
    differing = differing_settings(read_config(folder), settings, may_change)
    if differing:
        changes = [
            f"{key} was {old!r} and is now {new!r}" for key, old, new in differing[:MAX_LISTED]
        ]
        if len(differing) > MAX_LISTED:
            changes.append(f"{len(differing) - MAX_LISTED} more differ")
        raise ValueError(
            f"{folder} was started with other settings: {'; '.join(changes)}; {remedy}"
        )


def check_software(
    folder: Path, now: Mapping[str, Any], remedy: str = "choose another hydra.run.dir"
) -> dict[str, Any]:
    """Return the provenance of the run in `folder`, if it was started with the same software.

    Args:
        now: the present `describe_software`.
        remedy: what the error suggests besides going back to the former software.

    Raises:
        ValueError: packages or code differ; the error names all of them.
    """
    before = read_json(folder / PROVENANCE)
    if before is None or not before.keys() >= now.keys():
        raise ValueError(
            f"{folder} does not say with which code it was started, having no readable "
            f"{PROVENANCE}; new rows could not be compared with those it holds: {remedy}"
        )
    differing = differing_software(before, now)
    if differing:
        commit = before.get("git_commit")
        back = f"go back to that (commit {commit})" if commit else "go back to that"
        raise ValueError(
            f"{folder} was started with other software: {'; '.join(differing)}; rows of the two "
            f"cannot be compared: {back}, or {remedy}"
        )
    return before
