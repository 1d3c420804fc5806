"""The rows of a load folder: the passes of every side, and what they say of two sides that decoded the same requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float

from specresearch.bench.folder import REQUESTS, STEPS
from specresearch.bench.jsonl import read_jsonl
from specresearch.bench.load_folder import KEYS, PASSES, read_steps
from specresearch.bench.load_records import LoadRow, PassRow
from specresearch.bench.load_side import PERCENTS, LoadSide, latency, owners_of, resampled
from specresearch.bench.load_summary import LEAST_RANKED, signature_of
from specresearch.bench.load_window import NUM_BLOCKS, Limits, Window
from specresearch.bench.stats import LEAST_UNITS, quantile_interval
from specresearch.reporting.comparisons import PARTS
from specresearch.reporting.estimates import Estimate, paired_ratio

NO_STEPS = f"{STEPS} cannot be read: no step times"
_UNREADABLE = (pa.ArrowException, OSError, KeyError)


@dataclass(frozen=True)
class LoadRows:
    """sides: empty where rows are missing, or of another version. times: of every side, seconds of its steps by part, its steps
    and its new tokens, added up; empty where they cannot be read, of which `notes` tell."""

    sides: Mapping[str, LoadSide]
    times: Mapping[str, Mapping[str, float]]
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(folder: Path, concurrency: int | None, limits: Limits, seed: int) -> "LoadRows":
        try:
            times, notes = _times(folder / STEPS), ()
        except _UNREADABLE:
            times, notes = {}, (NO_STEPS,)
        try:
            passes = [PassRow.from_json(row) for row in read_jsonl(folder / PASSES, KEYS[PASSES])]
            requests = [LoadRow.from_json(row) for row in read_jsonl(folder / REQUESTS, KEYS[REQUESTS])]
        except (KeyError, TypeError):
            return LoadRows({}, times, notes)
        places = [row.place for row in passes]
        names = dict.fromkeys(place.side for place in places)
        try:
            steps = {name: read_steps(folder, places, name) for name in names}
        except _UNREADABLE:
            steps, notes = {}, (NO_STEPS,)
        sides = {
            name: LoadSide.of(name, passes, requests, steps.get(name, {}), concurrency, limits, seed) for name in names
        }
        return LoadRows(sides, times, notes)


def throughput_ratio(own: LoadSide, plain: LoadSide) -> Estimate | None:
    """Tokens per second over plain decoding's, stretches of time drawn together."""
    shared = sorted(own.windows.keys() & plain.windows.keys())
    return paired_ratio(*(side.totals(shared)[:, [0, 3]] for side in (own, plain)))


def latency_ratio(own: LoadSide, plain: LoadSide) -> Estimate | None:
    """Plain decoding's mean time from arrival to last token over this side's, of the requests that both answered.

    Requests that arrive together wait for one another, so that they are no independent units: stretches of arrival time are
    drawn, with the other side's requests of the same stretch. There is no interval of fewer than `LEAST_UNITS`.
    """
    shared = sorted(own.windows.keys() & plain.windows.keys())
    stretches = [_by_arrival(own.windows[repeat], plain.windows[repeat]) for repeat in shared]
    totals = np.concatenate([np.zeros((0, 3)), *stretches])
    totals = totals[totals[:, 2] > 0]
    if not len(totals):
        return None
    ratio = paired_ratio(totals[:, [1, 2]], totals[:, [0, 2]])
    return ratio if ratio is None or len(totals) >= LEAST_UNITS else Estimate(ratio.value)


def tpot_ratios(own: LoadSide, plain: LoadSide, category: str) -> tuple[Estimate | None, Estimate | None]:
    """Of the requests of a class: time per output token over plain decoding's, its median and its 99th percentile. Paired by
    request; there is no interval of a percentile that too few requests have."""
    rows = [[row for row in side.counted if row.category == category and row.itl] for side in (own, plain)]
    if not all(rows):
        return None, None
    owners = owners_of([row for of_side in rows for row in of_side])
    drawn = [resampled(of_side, "tpot", owners, own.seed) for of_side in rows]
    values = [latency(of_side, "tpot") for of_side in rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = drawn[0] / drawn[1]
    median, slowest = (Estimate.of(float(np.percentile(values[0], p) / np.percentile(values[1], p))) for p in (50, 99))
    if median is not None:
        median = Estimate.of(median.value, quantile_interval(ratios[:, PERCENTS.index(50)]))
    if slowest is not None and min(map(len, rows)) >= LEAST_RANKED:
        slowest = Estimate.of(slowest.value, quantile_interval(ratios[:, PERCENTS.index(99)]))
    return median, slowest


def has_signature(median: Estimate | None, slowest: Estimate | None) -> bool | None:
    """Of `tpot_ratios`: do the slowest requests pay for a faster median? None where that cannot be said."""
    return signature_of(*(ratio and ratio.interval for ratio in (median, slowest)))


def _by_arrival(own: Window, plain: Window) -> Float[np.ndarray, "blocks 3"]:
    """For each stretch: seconds of this side, of plain decoding, and how many requests both answered.

    A stretch is a `NUM_BLOCKS`th of the window, or as long as nine of ten requests take, if that is longer: otherwise those of
    one would still be waiting for those of the one before.
    """
    theirs = {row.id: row.e2el for row in plain.rows}
    shared = [row for row in own.rows if row.id in theirs]
    begin, end = max(own.begin, plain.begin), min(own.end, plain.end)
    if end <= begin or not shared:
        return np.zeros((0, 3))
    seconds = [row.e2el for row in shared], [theirs[row.id] for row in shared]
    num_stretches = int(np.clip((end - begin) / np.percentile(seconds, 90), 1, NUM_BLOCKS))
    edges = np.linspace(begin, end, num_stretches + 1)
    arrivals = [row.arrival for row in shared]
    columns = [np.histogram(arrivals, edges, weights=column)[0] for column in (*seconds, np.ones(len(shared)))]
    return np.stack(columns, axis=1)


def _times(file: Path) -> dict[str, dict[str, float]]:
    """Nothing of a file that is not there. Raises KeyError for one of another version."""
    if not file.is_file():
        return {}
    schema = set(pq.read_schema(file).names)
    for name in ("side", "num_new_tokens", "propose", "verify", "total"):
        if name not in schema:
            raise KeyError(name)
    names = [name for name in ("side", "num_new_tokens", "total", *PARTS) if name in schema]
    frame = pq.read_table(file, columns=names).to_pandas()
    frame["num_new_tokens"] = frame["num_new_tokens"].map(sum)
    sums: dict[str, dict[str, float]] = {}
    for side, own in frame.groupby("side"):
        total = {name: float(own[name].sum()) for name in names if name != "side"} | {"num_steps": float(len(own))}
        named = sum(total[part] for part in ("control", "propose", "verify", "accept", "commit") if part in total)
        sums[str(side)] = total | {"host": max(total["total"] - named, 0.0)}
    return sums
