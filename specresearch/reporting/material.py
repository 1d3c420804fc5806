"""From any folders to what can be reported of them, and a note on everything that cannot."""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from specresearch.bench.folder import GROUPS
from specresearch.files import check_exist
from specresearch.progress import Progress
from specresearch.reporting.comparison import Comparison
from specresearch.reporting.names import name_settings, name_workloads
from specresearch.reporting.predictions import CheckedPrediction, check_predictions
from specresearch.reporting.reader import read_measurements, read_predictions
from specresearch.reporting.workload import WorkloadKey
from specresearch.results.folder import CONFIG, REQUESTS, RESULTS
from specresearch.rows import check_schema
from specresearch.trackers.base import TRACKER_FILES

SIMULATION = "simulation"
KINDS = {None: "runs", "load": "load runs", SIMULATION: "simulations"}
TOO_SHORT = "too short to have a middle between warm-up and tail"
UNFINISHED = "unfinished: these are the figures of what was measured until it stopped"
NO_TURNS = "the sides did not take turns, so drift of the machine affects only one of them"
UNPAIRED = "unpaired: {}, so the speedup holds whatever else changed in between"
FAILED = "requests that got no answer: {}; figures are of the others"
UNMEASURED = (
    "a simulation, and none of its settings was measured at its load: nothing to compare it with"
)


@dataclass(frozen=True)
class Note:
    """What a reader must know of some folders.

    Attributes:
        is_used: Whether they are reported all the same.
    """

    text: str
    folders: tuple[Path, ...]
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
    predictions: list[Comparison] = field(default_factory=list)
    checked: list[CheckedPrediction] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    provenance: dict[Path, dict[str, Any]] = field(default_factory=dict)
    definitions: dict[str, dict[str, str]] = field(default_factory=dict)
    limits: list[dict[str, float]] = field(default_factory=list)

    def note(self, folder: Path, text: str, *, is_used: bool = True) -> None:
        """Add a note on a folder."""
        self.notes.append(Note(text, (folder,), is_used))


def gather(folders: Sequence[Path]) -> Material:
    """Read every run, load test and simulation in these folders and below.

    Raises:
        ValueError: If none of them compares a method with the baseline.
    """
    check_exist(folders)
    material = Material()
    files: dict[Path, None] = {}  # in order, and each once where the folders overlap
    for folder in folders:
        files |= dict.fromkeys(_find(folder, material))
    with Progress(len(files), "folders", what="reading") as progress:
        for file in files:
            try:
                _read(file, material)
            except KeyError as error:
                material.note(file.parent, f"its settings or results lack {error}", is_used=False)
            except (ValueError, OSError, yaml.YAMLError) as error:
                material.note(file.parent, str(error), is_used=False)
            progress.advance()
    if not material.comparisons:
        reasons = "; ".join(f"{note.folders[0]}: {note.text}" for note in material.notes)
        raise ValueError(
            f"nothing here compares a method with plain decoding ({reasons}); "
            "measure one: python -m specresearch.run +proposer=ngram dataset=cnndm"
        )
    material.comparisons = name_workloads(name_settings(material.comparisons))
    material.checked = check_predictions(material.predictions, material.comparisons)
    _add_notes(material)
    return material


def _find(folder: Path, material: Material) -> list[Path]:
    """Return results files in natural order; what holds none gets a note."""
    top = folder.parent if folder.is_file() else folder
    for config in _search(top, CONFIG):
        run = config.parent
        has_rows = any((run / name).exists() for name in (REQUESTS, GROUPS))
        if run.name != ".hydra" and has_rows and not (run / RESULTS).exists():
            text = f"has rows but no {RESULTS}; the run's command with resume=true writes it"
            material.note(run, text, is_used=False)
    files = [file.resolve() for file in _search(top, RESULTS)]
    if not files:
        what = "is empty" if not any(top.iterdir()) else f"holds no {RESULTS}"
        text = f"{what}: nothing was measured here, or not to its end"
        material.note(folder, text, is_used=False)
    return files


def _search(top: Path, name: str) -> list[Path]:
    """Return the files of a name in natural order, without the copies that trackers keep."""
    files = []
    for file in sorted(top.rglob(name), key=_natural_order):
        if TRACKER_FILES.isdisjoint(file.relative_to(top).parts):
            files.append(file)
    return files


def _natural_order(path: Path) -> list[str | int]:
    words = re.split(r"(\d+)", str(path))
    return [int(word) if word.isdigit() else word for word in words]


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
        raise ValueError(f"a {RESULTS} of neither run, load nor simulate")
    check_schema(results, RESULTS)
    if kind == SIMULATION:
        material.predictions += read_predictions(folder, results)
    else:
        _add_measurements(folder, results, material)
    material.provenance[folder] = results["provenance"]
    material.definitions.setdefault(KINDS[kind], {}).update(results["definitions"])


def _add_measurements(folder: Path, results: dict[str, Any], material: Material) -> None:
    measurements = read_measurements(folder, results)
    usable = [measurement for measurement in measurements if measurement.is_usable]
    stopped = results.get("stopped")
    if not usable:
        reason = f"; stopped early: {stopped}" if stopped else ""
        raise ValueError(
            f"every pass was {TOO_SHORT}: nothing to compare; send more requests{reason}"
        )
    material.comparisons += usable
    left_out = [each.setting.label for each in measurements if not each.is_usable]
    if left_out:
        words = f"left out, since its passes were {TOO_SHORT}; send more requests"
        material.note(folder, f"{'; '.join(left_out)}: {words}")
    if stopped:
        material.note(folder, f"stopped early: {stopped}; these are the figures until then")
    limits = results.get("limits")
    if limits and limits not in material.limits:
        material.limits.append(limits)


def _add_notes(material: Material) -> None:
    """Add notes on what the folders say together."""
    checked = {pair.predicted.folder for pair in material.checked}
    for folder in dict.fromkeys(prediction.folder for prediction in material.predictions):
        if folder not in checked:
            material.note(folder, UNMEASURED, is_used=False)
    # One note per folder, though a load test has a comparison for every side.
    by_folder = {comparison.folder: comparison for comparison in material.comparisons}
    for folder, comparison in by_folder.items():
        if not comparison.is_complete:
            material.note(folder, UNFINISHED)
        if comparison.failures:
            material.note(folder, FAILED.format(comparison.failures))
        if comparison.unpaired:
            material.note(folder, UNPAIRED.format(comparison.unpaired))
        elif not comparison.is_interleaved:
            material.note(folder, NO_TURNS)
    prompts: dict[WorkloadKey, dict[str, Path]] = defaultdict(dict)
    for comparison in material.comparisons:
        prompts[comparison.workload].setdefault(comparison.fingerprint, comparison.folder)
    for workload, folders in prompts.items():
        if len(folders) > 1:
            text = (
                f"{workload.label} was measured with {len(folders)} different sets of prompts, "
                "one of them in this folder: each speedup is paired with its own baseline, but "
                "folders are compared less precisely"
            )
            material.note(next(iter(folders.values())), text)
