"""A folder that holds one run: never overwritten, and continued only by the run that began it."""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from specresearch.files import PART, replace_text
from specresearch.files.jsonl import append_rows
from specresearch.files.lock import LOCK, lock_folder
from specresearch.results.fingerprint import (
    DECODING,
    describe_software,
    differing_software,
    fingerprint_of,
)
from specresearch.trackers.wandb import RUN_ID

logger = logging.getLogger(__name__)

CONFIG, RESULTS, REQUESTS, STEPS = "config.yaml", "results.json", "requests.jsonl", "steps.parquet"
PROVENANCE = "provenance.json"
BEFORE_ROWS = {
    CONFIG,
    RESULTS,
    PROVENANCE,
    "wandb",
    RUN_ID,
}  # what there is before anything was decoded
INDIFFERENT = ("resume", "progress", "tracker")  # keys a resumed run may change
IDENTITY = (
    ("dataset", "fingerprint"),
    ("target", "num_parameters"),
    ("target", "dtype"),
    ("machine", "device"),
)


class RunFolder:
    """A folder that no other process can open as long as this object lives.

    A kind of run says in `_load` what it finds there when it is resumed, in `may_change` which settings may be others then, and
    in `code` which source files its rows depend on.

    Raises ValueError when the folder holds another run, or one with different settings, and FolderInUseError when another process
    writes to it.
    """

    may_change: tuple[str, ...] = INDIFFERENT
    code: tuple[str, ...] = DECODING

    def __init__(self, path: Path, config: Mapping[str, Any], *, resume: bool = False) -> None:
        self.path = path
        self.config = dict(config)
        self._lock = lock_folder(path)
        found = {
            p.name
            for p in path.iterdir()
            if p.name not in (".hydra", LOCK) and p.suffix not in (".log", PART)
        }
        is_run = CONFIG in found
        if (
            found <= BEFORE_ROWS
            and not self._is_complete
            and (is_run or found <= {"wandb", RUN_ID})
        ):
            found = set()
        self.is_resumed = resume and is_run and bool(found)
        if found and not self.is_resumed:
            holds = "a run" if is_run else f"other files ({', '.join(sorted(found)[:3])})"
            remedy = "add resume=true to continue it, or " if is_run else ""
            raise ValueError(f"{path} already holds {holds}; {remedy}choose another hydra.run.dir")
        if self.is_resumed:
            self._check_config()
            try:
                self._load()
            except (KeyError, TypeError) as error:
                raise ValueError(
                    f"{path} has rows of another version ({error}); choose another hydra.run.dir"
                ) from error

    def _check_config(self) -> None:
        differing = differing_settings(read_config(self.path), self.config, self.may_change)
        if differing:
            told = "; ".join(
                f"{key} was {before!r} and is now {now!r}" for key, before, now in differing
            )
            raise ValueError(
                f"{self.path} was started with other settings: {told}; repeat the original command with "
                "resume=true, or choose another hydra.run.dir"
            )

    def _load(self) -> None:
        """Read what an earlier session left, and drop what it did not finish."""

    @property
    def _is_complete(self) -> bool:
        results = read_results(self.path)
        return results is not None and bool(results.get("complete"))

    def begin(self, provenance: Mapping[str, Any], *parts: object) -> dict[str, Any]:
        """Call when everything is loaded and before anything is decoded. Returns the provenance to report.

        parts: objects whose classes decide what is decoded. Raises ValueError where rows that are there were made by other
        models, prompts, packages or code.
        """
        software = describe_software(self.code, *parts)
        packages = {**provenance.get("packages", {}), **software["packages"]}
        merged: dict[str, Any] = {**provenance, **software, "packages": packages, "num_sessions": 1}
        if self.is_resumed:
            before = check_software(self.path, software)
            for part, key in IDENTITY:
                if before[part][key] != merged[part][key]:
                    raise ValueError(
                        f"{self.path} was measured with {part} {key} {before[part][key]!r}, which is now {merged[part][key]!r}; "
                        "continue it where it was started, or choose another hydra.run.dir"
                    )
            merged = before | {"num_sessions": before["num_sessions"] + 1}
        self.path.mkdir(parents=True, exist_ok=True)
        replace_text(
            self.path / CONFIG, yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True)
        )
        write_json(self.path / PROVENANCE, merged)
        told = {key: value for key, value in merged.items() if key not in ("code", "modules")}
        return told | {"code_fingerprint": fingerprint_of({key: merged[key] for key in software})}

    def _append(self, name: str, rows: Sequence[Mapping[str, Any]], *, sync: bool = True) -> None:
        append_rows(self.path / name, rows, sync=sync)

    def write_results(self, results: Any) -> None:
        """results: a data class."""
        write_json(self.path / RESULTS, asdict(results))


def read_config(folder: Path) -> dict[str, Any]:
    """Return the settings that a run was started with.

    Raises FileNotFoundError where there are none, and ValueError for a damaged file.
    """
    try:
        config = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        config = None
    if not isinstance(config, dict):
        raise ValueError(
            f"{folder / CONFIG} is damaged: it holds no settings; choose another hydra.run.dir"
        )
    return config


def read_results(folder: Path) -> dict[str, Any] | None:
    """Return what results.json holds; None where it is missing or damaged, since a run can make it again from its rows."""
    return read_json(folder / RESULTS)


def read_json(file: Path) -> dict[str, Any] | None:
    """Return a mapping; None where the file is missing or, which is logged, damaged."""
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        told = None
    if not isinstance(told, dict):
        logger.warning("%s is damaged, and is made again", file)
        return None
    return told


def write_json(file: Path, told: Mapping[str, Any]) -> None:
    replace_text(file, json.dumps(told, indent=2, ensure_ascii=False) + "\n")


def check_software(
    folder: Path, now: Mapping[str, Any], remedy: str = "choose another hydra.run.dir"
) -> dict[str, Any]:
    """Return the provenance of the run in `folder`, unless it was started with other packages or code than `now`.

    remedy: besides going back to what it was started with. Raises ValueError naming every package and file that differs.
    """
    before = read_json(folder / PROVENANCE)
    if before is None or not before.keys() >= now.keys():
        raise ValueError(
            f"{folder} does not say with which code it was started, having no readable {PROVENANCE}; new rows could not be "
            f"compared with those it holds: {remedy}"
        )
    differing = differing_software(before, now)
    if differing:
        commit = before.get("git_commit")
        back = f"go back to that (commit {commit})" if commit else "go back to that"
        raise ValueError(
            f"{folder} was started with other software: {'; '.join(differing)}; rows of the two cannot be compared: {back}, or "
            f"{remedy}"
        )
    return before


def differing_settings(
    one: Mapping[str, Any], other: Mapping[str, Any], indifferent: Collection[str] = ()
) -> list[tuple[str, Any, Any]]:
    """Dotted keys that two runs differ in, and both values. indifferent: keys that do not count, nor those below them."""
    first, second = _flatten(one), _flatten(other)
    keys = [
        key
        for key in sorted(first.keys() | second.keys())
        if not {key, *_parents(key)} & set(indifferent)
    ]
    return [
        (key, first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)
    ]


def _parents(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:num]) for num in range(1, len(parts))]


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat
