"""From any folders to what can be reported of them, and a note on everything that cannot."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from specresearch.bench.folder import GROUPS
from specresearch.reporting.comparisons import Comparison, Trace
from specresearch.reporting.folder_reader import read_folder
from specresearch.reporting.labels import name_policies, name_workloads
from specresearch.reporting.predictions import (
    CheckedPrediction,
    Prediction,
    check_predictions,
    read_simulation,
)
from specresearch.reporting.workload import Workload
from specresearch.results.folder import CONFIG, REQUESTS, RESULTS
from specresearch.rows import check_schema

SIMULATION = "simulation"
KINDS = {None: "runs", "load": "load runs", SIMULATION: "simulations"}
ROWS = (REQUESTS, GROUPS)
UNFINISHED = "unfinished: these are the figures of what was measured until it stopped"
NO_TURNS = "sides did not take turns: the machine's drift falls on one of them"
UNMEASURED = (
    "a simulation, and none of its settings was measured at its load: nothing to lay it over"
)


@dataclass(frozen=True)
class Note:
    """What a reader must know of a folder.

    Attributes:
        is_used: Whether it is reported all the same.
    """

    folder: Path
    text: str
    is_used: bool = True


@dataclass
class Material:
    """Everything that the folders hold.

    Attributes:
        definitions: Of terms, by the kind of folder.
        limits: The limits that load tests were started with, each once.
        predictions: Of simulations; `checked` are those that were measured as well.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    predictions: list[Prediction] = field(default_factory=list)
    checked: list[CheckedPrediction] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    provenance: dict[Path, dict[str, Any]] = field(default_factory=dict)
    definitions: dict[str, dict[str, str]] = field(default_factory=dict)
    limits: list[dict[str, float]] = field(default_factory=list)


def gather(folders: Sequence[Path]) -> Material:
    """Read every run, load test and simulation in these folders and below.

    Raises:
        ValueError: If none of them compares a method with the baseline.
    """
    missing = [str(folder) for folder in folders if not folder.exists()]
    if missing:
        raise ValueError(
            f"there is no {', '.join(missing)}; give folders of runs, such as outputs/"
        )
    material = Material()
    files: dict[Path, None] = {}
    for folder in folders:
        results = list(_find(folder, material.notes))
        if not results:
            is_empty = folder.is_dir() and not any(folder.iterdir())
            what = "is empty" if is_empty else f"holds no {RESULTS}"
            text = f"{what}: nothing was measured here, or not to its end"
            material.notes.append(Note(folder, text, is_used=False))
        files |= dict.fromkeys(results)
    for file in files:
        try:
            _read(file, material)
        except KeyError as error:
            text = f"its settings or results lack {error}"
            material.notes.append(Note(file.parent, text, is_used=False))
        except (ValueError, OSError, yaml.YAMLError) as error:
            material.notes.append(Note(file.parent, str(error), is_used=False))
    if not material.comparisons:
        reasons = "; ".join(f"{note.folder}: {note.text}" for note in material.notes)
        raise ValueError(
            f"nothing here compares a method with plain decoding ({reasons}); "
            "measure one: python -m specresearch.run +proposer=ngram dataset=cnndm"
        )
    named = name_policies(material.comparisons, material.traces)
    material.comparisons, material.traces = name_workloads(*named)
    material.checked = check_predictions(material.predictions, material.comparisons)
    material.notes += _notes(material)
    return material


def _find(folder: Path, notes: list[Note]) -> Iterator[Path]:
    """Return results files in natural order; folders with rows but no results get a note."""
    if folder.is_file():
        folder = folder.parent
    for config in sorted(folder.rglob(CONFIG), key=_natural_order):
        run = config.parent
        has_rows = any((run / name).exists() for name in ROWS)
        if run.name != ".hydra" and has_rows and not (run / RESULTS).exists():
            text = f"has rows but no {RESULTS}; the run's command with resume=true writes it"
            notes.append(Note(run, text, is_used=False))
    for file in sorted(folder.rglob(RESULTS), key=_natural_order):
        yield file.resolve()


def _read(file: Path, material: Material) -> None:
    """Add what a folder holds.

    Raises:
        ValueError: If it cannot be used.
    """
    folder = file.parent
    results = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(results, dict):
        raise ValueError("not the results of a run")
    kind = results.get("kind")
    if kind not in KINDS:
        raise ValueError(f"results of another kind ({kind})")
    if not {"provenance", "complete"} <= results.keys():
        raise ValueError(f"a {RESULTS} that no run of this project wrote")
    check_schema(results, RESULTS)
    if kind == SIMULATION:
        material.predictions += read_simulation(folder, results)
    else:
        content = read_folder(folder, results)
        material.comparisons += content.comparisons
        material.traces += content.traces
        material.notes += [Note(folder, text) for text in content.notes]
        if content.limits and content.limits not in material.limits:
            material.limits.append(content.limits)
    material.provenance[folder] = results["provenance"]
    material.definitions.setdefault(KINDS[kind], {}).update(results["definitions"])


def _notes(material: Material) -> Iterator[Note]:
    checked = {pair.prediction.folder for pair in material.checked}
    for folder in dict.fromkeys(prediction.folder for prediction in material.predictions):
        if folder not in checked:
            yield Note(folder, UNMEASURED, is_used=False)
    by_folder = {comparison.folder: comparison for comparison in material.comparisons}
    for folder, comparison in by_folder.items():
        if not comparison.is_complete:
            yield Note(folder, UNFINISHED)
        if not comparison.is_interleaved:
            yield Note(folder, NO_TURNS)
    prompts: dict[Workload, dict[str, Path]] = defaultdict(dict)
    for comparison in material.comparisons:
        prompts[comparison.workload].setdefault(comparison.fingerprint, comparison.folder)
    for workload, folders in prompts.items():
        if len(folders) > 1:
            text = (
                f"{workload.label} was measured with {len(folders)} different sets of prompts, "
                "this folder's among them: each speedup is paired with its own baseline, "
                "comparisons between folders are looser"
            )
            yield Note(next(iter(folders.values())), text)


def _natural_order(path: Path) -> list[str | int]:
    words = re.split(r"(\d+)", str(path))
    return [int(word) if word.isdigit() else word for word in words]
