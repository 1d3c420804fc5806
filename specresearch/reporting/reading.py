"""What both kinds of folders have in common: tolerant access to files that an older version, or a crash, may have left."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from specresearch.reporting.comparisons import CONCURRENCY, Acceptance, Load, Workload
from specresearch.reporting.estimates import Estimate, estimate_of, percentiles
from specresearch.results.folder import CONFIG
from specresearch.statistics import SHARE, Histogram, Statistic

Row = Mapping[str, Any]
PERCENTS = (50, 90, 99)
LATENCIES = ("ttft", "tpot", "itl", "e2el")
SAMPLING = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
FIXED = "fixed"
OWN = (
    "_target_",
    "draft",
    "num_draft_tokens",
)  # keys of a proposer that are told in another way, or say nothing


def number(value: Any) -> float | None:
    """The value where it is a finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def estimate(value: Any, interval: Any, freedom: Any = None) -> Estimate | None:
    pair = interval if isinstance(interval, list | tuple) and len(interval) == 2 else (None, None)
    low, high = (number(bound) for bound in pair)
    return Estimate.of(
        number(value), None if low is None or high is None else (low, high), number(freedom)
    )


def inner(value: Any, *keys: str) -> dict[str, Any]:
    """A mapping inside mappings; {} where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return dict(value) if isinstance(value, Mapping) else {}


def read_config(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    told = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None
    return told if isinstance(told, dict) else {}


def workload_of(config: Row, provenance: Row) -> Workload:
    target, machine = inner(provenance, "target"), inner(provenance, "machine")
    sampling = inner(config, "sampling")
    words = (
        [f"temperature {sampling.get('temperature', 0):g}"] if sampling else ["sampling unknown"]
    )
    words += [
        f"{name} {sampling[name]}"
        for name, usual in SAMPLING.items()
        if sampling.get(name, usual) != usual
    ]
    size = number(target.get("num_parameters"))
    details = [f"{size / 1e6:,.1f}M parameters"] if size else []
    details += [str(target["dtype"])] if target.get("dtype") else []
    on_cpu = target.get("device") == "cpu" and machine.get("num_torch_threads")
    threads = f", {machine['num_torch_threads']} threads" if on_cpu else ""
    return Workload(
        str(
            inner(provenance, "dataset").get("name")
            or inner(config, "dataset").get("name")
            or "unknown data"
        ),
        ", ".join(words),
        sampling.get("max_new_tokens"),
        inner(config, "dataset").get("max_prompt_tokens"),
        str(target.get("model") or "unknown target")
        + (f" ({', '.join(details)})" if details else ""),
        str(machine.get("device") or "unknown machine")
        + threads.replace(" 1 threads", " 1 thread"),
    )


def load_workload_of(config: Row, provenance: Row) -> Workload:
    """Of a load run, whose requests may be of several classes."""
    plain = workload_of(config, provenance)
    names = list(inner(config, "classes"))
    if len(names) < 2:
        return plain
    return replace(plain, data=f"mix of {' and '.join(names)}", sampling="temperature by class")


def load_of(summary: Row) -> Load:
    """ValueError where it says nothing of one."""
    if number(summary.get("concurrency")):
        return Load(CONCURRENCY, float(summary["concurrency"]))
    if number(summary.get("qps")):
        spread = f", cv {summary['cv']:g}" if number(summary.get("cv")) else ""
        return Load(f"{summary.get('arrivals', 'open')}{spread}", float(summary["qps"]))
    raise ValueError("its summary names neither concurrency nor qps: written by another version")


def fixed_length_of(side: str) -> int | None:
    """Drafts of a side `fixed-k` of a load run."""
    found = re.fullmatch(r"fixed-(\d+)", side)
    return int(found[1]) if found else None


def controller_of(config: Row, provenance: Row) -> str:
    """As it is chosen: `batch_size_cutoff` for `specresearch.controllers.BatchSizeCutoff`."""
    if isinstance(provenance.get("controller"), str):
        return provenance["controller"]
    name = str(inner(config, "controller").get("_target_") or "Fixed").rpartition(".")[2]
    return "".join(
        f"_{letter.lower()}" if letter.isupper() else letter for letter in name
    ).removeprefix("_")


def most_drafts(config: Row, provenance: Row) -> int | None:
    """Of a step, nodes of a tree included: what the proposer was bound to, or else what its settings say."""
    told = [inner(provenance, "method"), inner(config, "proposer")]
    return next(
        (n for n in (part.get("num_draft_tokens") for part in told) if isinstance(n, int)), None
    )


def drafts_asked(config: Row, provenance: Row) -> int | None:
    """By a fixed controller: its own number, or all that the proposer makes."""
    own = inner(config, "controller").get("num_draft_tokens")
    return own if isinstance(own, int) else most_drafts(config, provenance)


def settings_of(config: Row, controller: str, most: int | None) -> dict[str, Any]:
    """Of the proposer, the rule and an adaptive controller, for telling settings of a method apart. most: drafts of a step, which
    a fixed controller's label says already."""
    settings = {key: value for key, value in inner(config, "proposer").items() if key not in OWN}
    draft = inner(config, "proposer", "draft").get("model")
    settings |= {"draft": draft} if draft else {}
    rule = str(inner(config, "acceptance").get("_target_", "")).rpartition(".")[2]
    settings |= {"rule": rule.lower()} if rule else {}
    if controller == FIXED:
        return settings
    own = {
        key: value
        for key, value in inner(config, "controller").items()
        if key not in ("_target_", "trace_every")
    }
    return (
        settings
        | {"num_draft_tokens": most}
        | {f"controller.{key}": value for key, value in own.items()}
    )


def latencies(rows: Sequence[Row], unit: str) -> dict[str, Estimate]:
    """ttft_p50 and so on in seconds; rows with one value of their key `unit` belong together."""
    figures: dict[str, Estimate] = {}
    for name in LATENCIES:
        if name == "itl":
            values = [(gap, str(row[unit])) for row in rows for gap in row.get("itl") or ()]
        else:
            values = [
                (row[name], str(row[unit])) for row in rows if number(row.get(name)) is not None
            ]
        found = percentiles([value for value, _ in values], [name for _, name in values], PERCENTS)
        figures |= {f"{name}_p{percent}": point for percent, point in found.items()}
    return figures


def acceptance_of(rows: Sequence[Row], unit: str) -> Acceptance | None:
    """Of rows with their counts; None where nothing was drafted."""
    drafted = [row for row in rows if row.get("num_draft_tokens")]
    if not drafted:
        return None
    by_unit: dict[str, list[Row]] = defaultdict(list)
    for row in drafted:
        by_unit[str(row[unit])].append(row)
    rates = [row["num_accepted_tokens"] / _num_judged(row) for row in drafted]
    deepest = max(len(row.get("reached") or ()) for row in drafted)
    totals = np.zeros((len(by_unit), 2 + 2 * deepest))
    for total, own in zip(totals, by_unit.values(), strict=True):
        for row in own:
            total[:2] += row["num_accepted_tokens"], _num_judged(row)
            for offset, name in ((2, "reached"), (2 + deepest, "accepted")):
                counts = row.get(name) or ()
                total[offset : offset + len(counts)] += counts
    share: Statistic = lambda t: t[..., 0] / t[..., 1]  # noqa: E731
    positions = tuple(
        {
            "position": at + 1,
            "num_reached": int(totals[:, 2 + at].sum()),
            "unconditional": estimate_of(totals, _survival(2, 2 + deepest, at + 1), SHARE),
            "conditional": estimate_of(totals[:, [2 + deepest + at, 2 + at]], share, SHARE),
        }
        for at in range(deepest)
    )
    p10 = percentiles(rates, [str(row[unit]) for row in drafted], [10])[10]
    return Acceptance(estimate_of(totals[:, :2], share, SHARE), p10, Histogram.of(rates), positions)


def _num_judged(row: Row) -> int:
    """Return the draft tokens that an output's end did not cut off; rows without their number have none that it did."""
    return row["num_draft_tokens"] - (row.get("num_unjudged_tokens") or 0)


def _survival(reached: int, accepted: int, depth: int) -> Statistic:
    """Return the product of the conditional acceptance rates of the first `depth` positions, from the columns they begin at."""
    return lambda t: (t[..., accepted : accepted + depth] / t[..., reached : reached + depth]).prod(
        -1
    )
