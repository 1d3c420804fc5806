"""Folders as `run` and `load` write them, with figures that a test chooses."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from specresearch.reporting import gather
from specresearch.reporting.material import Material
from specresearch.rows import SCHEMA

Interval = tuple[float, float | None, float | None]  # value, low, high
LATENCIES = ("ttft", "tpot", "itl", "e2el")
OUTPUT = {
    "output_statement": "output unchanged",
    "num_outputs_compared": 200,
    "num_outputs_equal": 200,
    "num_rounding_ties": 0,
    "output_differences": [],
    "output_p_value": None,
    "baseline_output_p_value": None,
}
HISTOGRAM = {"edges": [0.0, 0.5, 1.0], "counts": [1, 3], "p10": 0.4, "p50": 0.8, "p90": 0.9}


def estimate(
    value: float, low: float | None = None, high: float | None = None
) -> dict[str, float | None]:
    return {"value": value, "low": low, "high": high, "freedom": None}


def acceptance() -> dict[str, Any]:
    share = estimate(0.8)
    position = {"num_reached": 20, "unconditional": share, "conditional": share}
    return {
        "rate": estimate(0.8, 0.7, 0.9),
        "p10": estimate(0.4),
        "histogram": HISTOGRAM,
        "positions": [{"position": at} | position for at in (1, 2)],
    }


def comparison(
    gain: dict[str, float | None] | None, basis: str = "throughput", **rest: Any
) -> dict[str, Any]:
    empty = {"decode_speedup": None, "ideal_speedup": None, "classes": []}
    return {"gain": gain, "basis": basis} | empty | rest


def write_run(
    folder: Path,
    speedup: Interval | None = (1.5, 1.4, 1.6),
    *,
    method: str | None = "ngram",
    data: str = "cnndm",
    batch_size: int = 1,
    length: int | None = 5,
    temperature: float = 0.0,
    tpot_p99: tuple[float, float] = (0.02, 0.01),
    complete: bool = True,
    machine: str = "CPU",
    controller: str = "Fixed",
    trees: bool = False,
    proposer: Mapping[str, Any] | None = None,
    **summary: Any,
) -> Path:
    """Write a run.

    Args:
        speedup: None for a run without a paired baseline.
        tpot_p99: Of the baseline and of the method; the other latencies follow.
        trees: Whether the method drafts trees.
        proposer: Its settings.
        summary: Figures of the summary, such as those of the output.
    """
    num_different = 200 - summary.get("num_outputs_equal", 200)
    summary.setdefault("output_differences", [{"logits": {}}] * num_different)
    sides: dict[str, dict[str, Any]] = {}
    for name, p99, rate in (("baseline", tpot_p99[0], 100.0), ("method", tpot_p99[1], 150.0)):
        latencies = {f"{metric}_p{p}": p99 * p / 99 for metric in LATENCIES for p in (50, 90, 99)}
        sides[name] = {"throughput": rate, "num_requests": 200} | latencies
    measured = comparison(
        speedup and estimate(*speedup),
        decode_speedup=estimate(1.8, 1.7, 1.9),
        ideal_speedup=2.0,
    )
    results = {
        "schema": SCHEMA,
        "complete": complete,
        "summary": {"method": method} | OUTPUT | summary,
        "sides": sides,
        "side_intervals": {name: {} for name in sides},
        "acceptance": {"method": acceptance()},
        "step_times": {},
        "comparisons": {"method": measured},
        "definitions": {"speedup": "baseline wall time / method wall time"},
        "provenance": provenance(data, machine)
        | {"method": method and describe_method(method, length or 2, trees=trees)},
    }
    if proposer is None and method:
        proposer = {"_target_": "specresearch.proposers.NGram", "num_draft_tokens": length}
    config = {"batch_size": batch_size, "proposer": proposer, "sampling": sampling(temperature)}
    config |= {"controller": {"_target_": f"specresearch.controllers.{controller}"}}
    return write(folder, results, config)


def write_load(
    folder: Path,
    speedup: Interval = (1.5, 1.4, 1.6),
    *,
    method: str = "ngram",
    controller: str = "goodput",
    data: str = "cnndm",
    concurrency: int | None = 4,
    qps: float | None = None,
    temperature: float = 0.0,
    fixed: Mapping[int, float] | None = None,
    tpot_p99: tuple[float, float] = (0.02, 0.01),
    plain: bool = True,
    classes: Mapping[str, Any] | None = None,
    class_signature: Sequence[str] = (),
    limits: Mapping[str, float] | None = None,
    complete: bool = True,
    stopped: str | None = None,
    overloaded: Sequence[str] = (),
    answered: bool = True,
    controller_estimates: Sequence[Mapping[str, float]] = (),
    bound: int | None = None,
    settings: Mapping[str, Any] | None = None,
    variants: Mapping[str, tuple[Mapping[str, Any], Interval]] | None = None,
    proposer: Mapping[str, Any] | None = None,
    short: Sequence[str] = (),
    turn_seconds: float | None = 0.5,
    trees: bool = False,
) -> Path:
    """Write a load test.

    Args:
        tpot_p99: Of the baseline and of the method, within 1%; the other latencies follow.
        fixed: Speedup by draft length.
        overloaded: Sides that did not answer what came.
        answered: False if the overloaded sides answered nothing that counts.
        bound: Drafts that the proposer makes without its settings saying so.
        settings: Of the controller.
        variants: Changes and speedup of each variant.
        proposer: Its settings.
        short: Sides whose passes had no middle.
        trees: Whether the method drafts trees.
    """
    fixed, variants = fixed or {}, variants or {}
    speeds = (
        ({"baseline": 1.0} if plain else {})
        | {"method": speedup[0]}
        | {f"fixed-{k}": v for k, v in fixed.items()}
    )
    speeds |= {name: gain[0] for name, (_, gain) in variants.items()}
    sides: dict[str, dict[str, Any]] = {}
    intervals: dict[str, dict[str, list[float]]] = {}
    for name, speed in speeds.items():
        p99 = tpot_p99[name != "baseline"]
        figures = {f"{metric}_p{p}": p99 * p / 99 for metric in LATENCIES for p in (50, 90, 99)}
        figures |= {"throughput": 100 * speed}
        intervals[name] = {key: [0.99 * value, 1.01 * value] for key, value in figures.items()}
        drafted = {"mean_draft_length": 3.0}
        sides[name] = figures | {"num_requests": 200} | (drafted if name != "baseline" else {})
        if name in overloaded:
            lost = (
                {} if answered else dict.fromkeys([key for key in figures if key != "throughput"])
            )
            sides[name] |= lost | {"overloaded": True}
        if name in short:
            sides[name] |= dict.fromkeys(figures)
    most = bound or (proposer or {}).get("num_draft_tokens") or 10
    best = max(fixed, key=lambda length: fixed[length], default=None)
    load = (
        {"arrivals": "closed_loop", "concurrency": concurrency}
        if qps is None
        else {"arrivals": "poisson", "qps": qps}
    )
    summary: dict[str, Any] = {
        "method": method,
        "controller": controller,
        **load,
        "speedup": None if "method" in short else speedup[0],
        "max_running": 32,
        "turn_seconds": turn_seconds,
    }
    summary |= {"best_fixed": best and f"fixed-{best}", "speedup_over_best": 1.01}
    intervals_of = {"speedup": speedup[1:], "speedup_over_best": [0.99, 1.03]}
    for name, (_, gain) in variants.items():
        summary |= {f"speedup_{name}": gain[0], f"speedup_over_best_{name}": 1.05}
        intervals_of |= {f"speedup_{name}": gain[1:], f"speedup_over_best_{name}": [1.02, 1.08]}
    timeline = {
        name: [
            {
                "second": float(at),
                "waiting": 0.0,
                "running": 4.0,
                "acceptance": 0.8,
                "draft_length": 3.0,
            }
            | {"tokens_per_second": 100 * speed}
            for at in range(3)
        ]
        for name, speed in speeds.items()
    }
    comparisons = {}
    for name, speed in speeds.items():
        if name == "baseline":
            continue
        gain = estimate(speed, speed * 0.99 / 1.01, speed * 1.01 / 0.99)
        if name == "method":
            gain = estimate(*speedup)
        elif name in variants:
            gain = estimate(*variants[name][1])
        basis = "throughput"
        if qps is not None and "baseline" not in overloaded and name not in overloaded:
            ratio = tpot_p99[0] / tpot_p99[1]
            gain = estimate(ratio, ratio * 0.99 / 1.01, ratio * 1.01 / 0.99)
            basis = "latency"
        changes = []
        for label, of_sides in (classes or {}).items():
            ratios: dict[str, Any] = {"median": None, "slowest": None}
            if name in of_sides:
                own, base = of_sides[name], of_sides["baseline"]
                ratios["median"] = estimate(own["tpot_p50"] / base["tpot_p50"])
                ratios["slowest"] = estimate(own["tpot_p99"] / base["tpot_p99"])
            signature = label in class_signature if name == "method" else None
            changes.append({"name": label, "has_signature": signature} | ratios)
        comparisons[name] = comparison(None if name in short else gain, basis, classes=changes)
    results = {
        "schema": SCHEMA,
        "kind": "load",
        "complete": complete,
        "stopped": stopped,
        "summary": summary,
        "intervals": intervals_of,
        "sides": sides,
        "side_intervals": intervals,
        "acceptance": {name: acceptance() for name in comparisons},
        "step_times": {},
        "comparisons": comparisons,
        "classes": classes or {},
        "timeline": timeline,
        "controller": {name: list(controller_estimates) for name in ("method", *variants)},
        "limits": limits or {},
        "definitions": {"goodput": "requests per second within the limits"},
        "provenance": provenance(data)
        | {
            "method": describe_method(method, most, trees=trees),
            "controller": controller,
        },
        "outputs": {
            name: OUTPUT | {"num_outputs_compared": 9, "num_outputs_equal": 9} for name in speeds
        },
    }
    config = {
        "sampling": sampling(temperature),
        "proposer": proposer or {"num_draft_tokens": None if bound else 10},
        "controller": dict(settings or {}),
        "variants": {name: dict(changes) for name, (changes, _) in variants.items()},
    }
    return write(folder, results, config)


def describe_method(name: str, num_draft_tokens: int, *, trees: bool) -> dict[str, Any]:
    return {
        "name": name,
        "lossless": True,
        "num_draft_tokens": num_draft_tokens,
        "trees": trees,
    }


def sampling(temperature: float) -> dict[str, Any]:
    return {"temperature": temperature, "max_new_tokens": 32}


def provenance(data: str, machine: str = "CPU") -> dict[str, Any]:
    return {
        "started": "2026-01-01T00:00:00+00:00",
        "command": "python -m specresearch.run",
        "target": {
            "model": "zoo:tiny",
            "num_parameters": 1_000_000,
            "dtype": "float32",
            "device": "cpu",
        },
        "machine": {"device": machine, "num_torch_threads": 1},
        "dataset": {"name": data, "fingerprint": f"{data}-1"},
    }


def write(folder: Path, results: Mapping[str, Any], config: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config)))
    return folder


def notes(material: Material, *, is_used: bool | None = None) -> dict[str, str]:
    return {
        note.folders[0].name: note.text
        for note in material.notes
        if is_used in (None, note.is_used)
    }


def labels(folder: Path) -> list[str]:
    return [comparison.setting.label for comparison in gather([folder]).comparisons]
