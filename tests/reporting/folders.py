"""Folders as `run` and `load` write them, with figures that a test chooses."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

Interval = tuple[float, float, float]  # value, low, high
LATENCIES = ("ttft", "tpot", "itl", "e2el")


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
    **summary: Any,
) -> Path:
    """tpot_p99: of plain decoding and of the method; the other latencies follow. speedup None: no paired baseline."""
    told: dict[str, Any] = {
        "method": method,
        "speedup": speedup and speedup[0],
        "speedup_ci95": speedup and speedup[1:],
    }
    told |= {
        "ideal_speedup": 2.0,
        "decode_speedup": 1.8,
        "decode_speedup_ci95": [1.7, 1.9],
        "num_requests": 200,
    }
    told |= {
        "output_statement": "output unchanged",
        "num_outputs_compared": 200,
        "num_outputs_equal": 200,
    }
    told |= {
        "num_draft_tokens": 100,
        "draft_acceptance_rate": 0.8,
        "draft_acceptance_rate_ci95": [0.7, 0.9],
    }
    told |= {"tokens_per_second": 150.0, "baseline_tokens_per_second": 100.0}
    for prefix, p99 in (("baseline_", tpot_p99[0]), ("", tpot_p99[1])):
        told |= {f"{prefix}{name}_p{p}": p99 * p / 99 for name in LATENCIES for p in (50, 90, 99)}
    position = {"num_reached": 20, "num_accepted": 16, "unconditional": 0.8, "conditional": 0.8}
    histogram = {"edges": [0.0, 0.5, 1.0], "counts": [1, 3], "p10": 0.4, "p50": 0.8, "p90": 0.9}
    results = {
        "complete": complete,
        "summary": told | summary,
        "per_position": [{"position": at} | position for at in (1, 2)],
        "histogram": {"draft_acceptance_rate": histogram},
        "definitions": {"speedup": "baseline wall time / method wall time"},
        "provenance": provenance(data, machine)
        | {"method": method and {"name": method, "lossless": True}},
    }
    proposer = (
        {"_target_": "specresearch.proposers.NGram", "num_draft_tokens": length} if method else None
    )
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
    class_unclear: Sequence[str] = (),
    limits: Mapping[str, float] | None = None,
    complete: bool = True,
    stopped: str | None = None,
    overloaded: Sequence[str] = (),
    answered: bool = True,
    thoughts: Sequence[Mapping[str, float]] = (),
    reset: bool = True,
    bound: int | None = None,
    settings: Mapping[str, Any] | None = None,
    variants: Mapping[str, tuple[Mapping[str, Any], Interval]] | None = None,
    proposer: Mapping[str, Any] | None = None,
    short: Sequence[str] = (),
    turn_seconds: float | None = 0.5,
) -> Path:
    """fixed: length -> speedup. tpot_p99: of plain decoding and of the method, within 1%; the other latencies follow.
    overloaded: sides; answered False: they answered nothing that counts. thoughts: of the controller. bound: drafts that the
    proposer makes without its settings saying so. settings: of the controller. variants: name -> its changes and speedup.
    proposer: its settings. short: sides whose passes had no middle."""
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
        drafted = {"draft_acceptance_rate": 0.8, "acceptance_p10": 0.4, "mean_draft_length": 3.0}
        sides[name] = figures | {"num_requests": 200} | (drafted if name != "baseline" else {})
        if name in overloaded:
            lost = (
                {} if answered else dict.fromkeys([key for key in figures if key != "throughput"])
            )
            sides[name] |= lost | {"overloaded": True}
        if name in short:
            sides[name] |= dict.fromkeys(figures)
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
    results = {
        "kind": "load",
        "complete": complete,
        "stopped": stopped,
        "summary": summary,
        "intervals": intervals_of,
        "sides": sides,
        "side_intervals": intervals,
        "classes": classes or {},
        "class_signature": list(class_signature),
        "class_unclear": list(class_unclear),
        "timeline": timeline,
        "controller": {name: list(thoughts) for name in ("method", *variants)} if thoughts else {},
        "limits": limits or {},
        "definitions": {"goodput": "requests per second within the limits"},
        "provenance": provenance(data)
        | {
            "method": {"name": method, "lossless": True, "num_draft_tokens": bound},
            "controller": controller,
        },
        "outputs": {
            name: {
                "output_statement": "output unchanged",
                "num_outputs_compared": 9,
                "num_outputs_equal": 9,
            }
            for name in speeds
        },
    }
    config = {
        "sampling": sampling(temperature),
        "reset": reset,
        "proposer": proposer or {"num_draft_tokens": None if bound else 10},
        "controller": dict(settings or {}),
        "variants": {name: dict(changes) for name, (changes, _) in variants.items()},
    }
    return write(folder, results, config)


def write_simulation(
    folder: Path,
    *,
    concurrency: int = 4,
    fixed: Sequence[int] = (),
    timing: str = "Fitted",
    error: float = 1.1,
) -> Path:
    """Of what `write_load` wrote. error: of every figure, as a factor."""
    figures = {
        f"{metric}_p{p}": error * 0.01 * p / 99 for metric in LATENCIES for p in (50, 90, 99)
    }
    sides = {
        name: figures | {"throughput": 150 * error}
        for name in ("baseline", "method", *(f"fixed-{k}" for k in fixed))
    }
    told = provenance("cnndm")
    recorded = {"target": told["target"], "machine": "CPU", "method": "ngram"}
    recorded |= {
        "config": {
            "sampling": sampling(0.0),
            "dataset": {"name": "cnndm"},
            "proposer": {"num_draft_tokens": 10},
        }
    }
    results = {
        "kind": "simulation",
        "complete": True,
        "summary": {"arrivals": "closed_loop", "concurrency": concurrency, "max_running": 8},
        "sides": sides,
        "definitions": {},
        "provenance": {
            "recorded": recorded,
            "controller": "goodput",
            "num_draft_tokens": 10,
            "timing": "as it was told",
        },
    }
    return write(folder, results, {"timing": {"_target_": f"specresearch.simulation.{timing}"}})


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
