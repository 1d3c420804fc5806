"""A folder that holds one run: never overwritten, and continued only by the run that began it."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from specresearch.bench.jsonl import replace_text, to_line

CONFIG, RESULTS, REQUESTS, STEPS = "config.yaml", "results.json", "requests.jsonl", "steps.parquet"
INDIFFERENT = ("resume", "progress", "tracker")  # keys a resumed run may change
IDENTITY = (("dataset", "fingerprint"), ("target", "num_parameters"), ("target", "dtype"), ("machine", "device"))


class RunFolder:
    """Raises ValueError when the folder holds another run, or one with different settings.

    A kind of run says in `_load` what it finds there when it is resumed, and in `may_change` which settings may be others then.
    """

    may_change: tuple[str, ...] = INDIFFERENT

    def __init__(self, path: Path, config: Mapping[str, Any], *, resume: bool = False) -> None:
        self.path = path
        self.config = dict(config)
        found = (
            {p.name for p in path.iterdir() if p.name != ".hydra" and p.suffix != ".log"} if path.is_dir() else set()
        )
        is_run = CONFIG in found
        if is_run and found <= {CONFIG, RESULTS, "wandb"}:  # stopped before anything was decoded
            found = set()
        self.is_resumed = resume and is_run and bool(found)
        if found and not self.is_resumed:
            holds = "a run" if is_run else f"other files ({', '.join(sorted(found)[:3])})"
            remedy = "add resume=true to continue it, or " if is_run else ""
            raise ValueError(f"{path} already holds {holds}; {remedy}choose another hydra.run.dir")
        if self.is_resumed:
            self._check_config()
            self._load()

    def _check_config(self) -> None:
        differing = differing_settings(read_config(self.path), self.config, self.may_change)
        if differing:
            told = "; ".join(f"{key} was {before!r} and is now {now!r}" for key, before, now in differing)
            raise ValueError(
                f"{self.path} was started with other settings: {told}; repeat the original command with "
                "resume=true, or choose another hydra.run.dir"
            )

    def _load(self) -> None:
        """Read what an earlier session left, and drop what it did not finish."""

    def begin(self, provenance: Mapping[str, Any]) -> dict[str, Any]:
        """Call when everything is loaded and before anything is decoded. Returns the provenance to report."""
        merged: dict[str, Any] = dict(provenance) | {"num_sessions": 1}
        if self.is_resumed and (self.path / RESULTS).exists():
            before = json.loads((self.path / RESULTS).read_text(encoding="utf-8"))["provenance"]
            for part, key in IDENTITY:
                if before[part][key] != merged[part][key]:
                    raise ValueError(
                        f"{self.path} was measured with {part} {key} {before[part][key]!r}, which is now {merged[part][key]!r}; "
                        "continue it where it was started, or choose another hydra.run.dir"
                    )
            merged = before | {"num_sessions": before["num_sessions"] + 1}
        self.path.mkdir(parents=True, exist_ok=True)
        replace_text(self.path / CONFIG, yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True))
        return merged

    def _append(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as stream:
            stream.write("".join(to_line(row) for row in rows))

    def write_results(self, results: Any) -> None:
        """results: a data class."""
        replace_text(self.path / RESULTS, json.dumps(asdict(results), indent=2, ensure_ascii=False) + "\n")


def read_config(folder: Path) -> dict[str, Any]:
    """The settings that a run was started with. Raises FileNotFoundError where there is none."""
    return yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))


def differing_settings(
    one: Mapping[str, Any], other: Mapping[str, Any], indifferent: Collection[str] = ()
) -> list[tuple[str, Any, Any]]:
    """Dotted keys that two runs differ in, and both values. indifferent: keys that do not count, nor those below them."""
    first, second = _flatten(one), _flatten(other)
    keys = [key for key in sorted(first.keys() | second.keys()) if not {key, *_parents(key)} & set(indifferent)]
    return [(key, first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)]


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
