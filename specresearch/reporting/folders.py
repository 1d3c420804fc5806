"""From any folders to what can be reported of them, and a note on everything that cannot."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from specresearch.bench.folder import GROUPS
from specresearch.reporting.comparisons import Comparison, Trace, Workload
from specresearch.reporting.load_folder import read_load
from specresearch.reporting.run_folder import read_run
from specresearch.reporting.simulation_folder import Foreseen, Prediction, overlay, read_simulation
from specresearch.results.folder import CONFIG, REQUESTS, RESULTS

LOAD, SIMULATION = "load", "simulation"
KINDS = {None: "runs", LOAD: "load runs", SIMULATION: "simulations"}
DISTINCTIONS = {
    "max_new_tokens": "{} new tokens",
    "max_prompt_tokens": "{} prompt tokens",
    "target": "{}",
    "machine": "{}",
}  # of workloads that are called the same
TRACES_OF_A_RUN = (REQUESTS, GROUPS)


@dataclass(frozen=True)
class Note:
    """What a reader must know of a folder. is_used: it is reported all the same."""

    folder: Path
    text: str
    is_used: bool = True


@dataclass
class Material:
    """Everything that the folders held. definitions: of terms, by the kind of folder. limits: those that load runs were started
    with, each once. predictions: of simulations; foreseen: those of them that were measured, too."""

    comparisons: list[Comparison] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    predictions: list[Prediction] = field(default_factory=list)
    foreseen: list[Foreseen] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    provenance: dict[Path, dict[str, Any]] = field(default_factory=dict)
    definitions: dict[str, dict[str, str]] = field(default_factory=dict)
    limits: list[dict[str, float]] = field(default_factory=list)


def gather(folders: Sequence[Path]) -> Material:
    """Read every run and load run in these folders and below.

    Raises ValueError when none of them compares a method with plain decoding.
    """
    material = Material()
    missing = [str(folder) for folder in folders if not folder.exists()]
    if missing:
        raise ValueError(
            f"there is no {', '.join(missing)}; give folders of runs, such as outputs/"
        )
    found: dict[Path, None] = {}
    for folder in folders:
        own = list(_find(folder, material.notes))
        if not own:
            what = (
                "is empty"
                if folder.is_dir() and not any(folder.iterdir())
                else f"holds no {RESULTS}"
            )
            material.notes.append(
                Note(folder, f"{what}: nothing was measured here, or not to its end", is_used=False)
            )
        found |= dict.fromkeys(own)
    for file in found:
        _read(file, material)
    if not material.comparisons:
        reasons = "; ".join(f"{note.folder}: {note.text}" for note in material.notes)
        raise ValueError(
            f"nothing here compares a method with plain decoding ({reasons}); "
            "measure one: python -m specresearch.run +proposer=ngram dataset=cnndm"
        )
    told = _tell_apart(material.comparisons)
    policies = {
        (one.folder, one.policy): new.policy
        for one, new in zip(material.comparisons, told, strict=True)
    }
    material.traces = [
        trace.named(policies.get((trace.folder, trace.policy), trace.policy))
        for trace in material.traces
    ]
    material.comparisons = told
    _name_workloads(material)
    _overlay(material)
    material.notes += _notes(material.comparisons)
    return material


def _find(folder: Path, notes: list[Note]) -> Iterator[Path]:
    """Results files in natural order; folders that were left without one get a note."""
    if folder.is_file():
        folder = folder.parent
    for config in sorted(folder.rglob(CONFIG), key=_natural):
        run = config.parent
        if (
            run.name != ".hydra"
            and not (run / RESULTS).exists()
            and any((run / n).exists() for n in TRACES_OF_A_RUN)
        ):
            notes.append(
                Note(
                    run,
                    f"has rows but no {RESULTS}; the run's command with resume=true writes it",
                    False,
                )
            )
    yield from (file.resolve() for file in sorted(folder.rglob(RESULTS), key=_natural))


def _read(file: Path, material: Material) -> None:
    folder = file.parent
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(results, dict):
            raise ValueError("not the results of a run")
        kind = results.get("kind")
        if kind == LOAD:
            load = read_load(folder, results)
            material.comparisons += load.comparisons
            material.traces += load.traces
            material.notes += [Note(folder, text) for text in load.notes]
            if load.limits and load.limits not in material.limits:
                material.limits.append(load.limits)
        elif kind == SIMULATION:
            material.predictions += read_simulation(folder, results)
        elif (
            kind is None
            and isinstance(results.get("summary"), dict)
            and isinstance(results.get("provenance"), dict)
        ):
            material.comparisons.append(read_run(folder, results))
        else:
            what = (
                f"results of another kind ({kind})"
                if kind
                else "a results.json that no run of this project wrote"
            )
            material.notes.append(Note(folder, what, is_used=False))
            return
    except KeyError as error:
        material.notes.append(
            Note(folder, f"has no {error}: written by another version", is_used=False)
        )
        return
    except (ValueError, OSError, yaml.YAMLError) as error:
        material.notes.append(Note(folder, str(error), is_used=False))
        return
    material.provenance[folder] = results.get("provenance") or {}
    material.definitions.setdefault(KINDS[kind], {}).update(results.get("definitions") or {})


def _tell_apart(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Where settings of the same method and label differ, the label says which."""
    alike: dict[tuple[Any, ...], list[Comparison]] = defaultdict(list)
    for comparison in comparisons:
        alike[comparison.workload, comparison.policy].append(comparison)
    told = []
    for comparison in comparisons:
        group = alike[comparison.workload, comparison.policy]
        values: dict[str, set[str]] = defaultdict(set)
        for other in group:
            for key in {key for one in group for key in one.settings}:
                values[key].add(str(other.settings.get(key)))
        differing = sorted(key for key, seen in values.items() if len(seen) > 1)
        words = [
            comparison.policy.variant,
            *(f"{key} {comparison.settings.get(key)}" for key in differing),
        ]
        policy = replace(comparison.policy, variant=", ".join(word for word in words if word))
        told.append(replace(comparison, policy=policy))
    return told


def _name_workloads(material: Material) -> None:
    """Where workloads are called the same, the label says what differs."""
    alike: dict[str, list[Workload]] = defaultdict(list)
    parts = (material.comparisons, material.traces)
    for workload in dict.fromkeys(one.workload for part in parts for one in part):
        alike[workload.label].append(workload)
    renamed = {}
    for group in alike.values():
        differing = [
            name
            for name in DISTINCTIONS
            if len({getattr(workload, name) for workload in group}) > 1
        ]
        for workload in group:
            words = [
                DISTINCTIONS[name].format(getattr(workload, name) or "all") for name in differing
            ]
            renamed[workload] = replace(workload, distinction=", ".join(words))
    material.comparisons = [
        replace(one, workload=renamed[one.workload]) for one in material.comparisons
    ]
    material.traces = [replace(one, workload=renamed[one.workload]) for one in material.traces]


def _overlay(material: Material) -> None:
    """Simulations of what nobody measured get a note."""
    material.foreseen = overlay(material.predictions, material.comparisons)
    seen = {one.prediction.folder for one in material.foreseen}
    text = "a simulation, and none of its settings was measured at its load: nothing to lay it over"
    folders = dict.fromkeys(prediction.folder for prediction in material.predictions)
    material.notes += [
        Note(folder, text, is_used=False) for folder in folders if folder not in seen
    ]


def _notes(comparisons: Sequence[Comparison]) -> Iterator[Note]:
    seen: set[Path] = set()
    for comparison in comparisons:
        if comparison.folder in seen:
            continue
        seen.add(comparison.folder)
        if not comparison.is_complete:
            yield Note(
                comparison.folder,
                "unfinished: these are the figures of what was measured until it stopped",
            )
        for text in comparison.missing:
            yield Note(comparison.folder, text)
    prompts: dict[Workload, dict[str, Path]] = defaultdict(dict)
    for comparison in comparisons:
        prompts[comparison.workload].setdefault(comparison.fingerprint, comparison.folder)
    for workload, folders in prompts.items():
        if len(folders) > 1:
            text = (
                f"{workload.label} was measured with {len(folders)} different sets of prompts, this folder's among them: each "
                "speedup is paired with its own baseline, comparisons between folders are looser"
            )
            yield Note(next(iter(folders.values())), text)


def _natural(path: Path) -> list[str | int]:
    return [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", str(path))]
