"""The rows of a load folder: the passes of every side, and what they say of two sides that decoded the same requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float

from specresearch.files.jsonl import read_jsonl
from specresearch.loadtest.folder import KEYS, PASSES, read_steps
from specresearch.loadtest.rows import PassRow
from specresearch.loadtest.side import PERCENTS, LoadSide
from specresearch.loadtest.summary import latency_ratios, signature_of
from specresearch.loadtest.window import NUM_BLOCKS, Limits, Window
from specresearch.reporting.comparisons import PARTS
from specresearch.reporting.estimates import Estimate, paired_ratio
from specresearch.results.folder import REQUESTS, STEPS
from specresearch.rows import RequestRow

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
    def of(folder: Path, concurrency: int | None, limits: Limits) -> "LoadRows":
        try:
            times, notes = _times(folder / STEPS), ()
        except _UNREADABLE:
            times, notes = {}, (NO_STEPS,)
        try:
            passes = [PassRow.from_json(row) for row in read_jsonl(folder / PASSES, KEYS[PASSES])]
            requests = [
                RequestRow.from_json(row) for row in read_jsonl(folder / REQUESTS, KEYS[REQUESTS])
            ]
        except (KeyError, TypeError):
            return LoadRows({}, times, notes)
        places = [row.key for row in passes]
        names = dict.fromkeys(place.side for place in places)
        try:
            steps = {name: read_steps(folder, places, name) for name in names}
        except _UNREADABLE:
            steps, notes = {}, (NO_STEPS,)
        sides = {
            name: LoadSide.of(name, passes, requests, steps.get(name, {}), concurrency, limits)
            for name in names
        }
        return LoadRows(sides, times, notes)


def throughput_ratio(own: LoadSide, plain: LoadSide) -> Estimate | None:
    """Return tokens per second over plain decoding's, stretches of time at one place together."""
    shared = sorted(own.windows.keys() & plain.windows.keys())
    slow = min(own.num_slow, plain.num_slow)
    rates = [side.totals(shared)[:, [0, 3]] for side in (own, plain)]
    return paired_ratio(rates[0], rates[1], slow)


def latency_ratio(own: LoadSide, plain: LoadSide) -> Estimate | None:
    """Return plain decoding's mean time from arrival to last token over this side's, of the requests that both answered.

    Requests that arrive together wait for one another: stretches of arrival time are the units, those of all passes at one
    place together, with the other side's requests of the same stretch.
    """
    shared = sorted(own.windows.keys() & plain.windows.keys())
    totals = np.sum(
        [
            np.zeros((NUM_BLOCKS, 3)),
            *(_by_arrival(own.windows[r], plain.windows[r]) for r in shared),
        ],
        axis=0,
    )
    slow = min(own.num_slow, plain.num_slow)
    return paired_ratio(totals[:, [1, 2]], totals[:, [0, 2]], slow) if totals[:, 2].any() else None


def tpot_ratios(
    own: LoadSide, plain: LoadSide, category: str
) -> tuple[Estimate | None, Estimate | None]:
    """Return time per output token of a class of requests over plain decoding's: its median and its 99th percentile."""
    found = [
        Estimate.of(ratio, between)
        for ratio, between in latency_ratios(own, plain, "tpot", category)
    ]
    return found[PERCENTS.index(50)], found[PERCENTS.index(99)]


def has_signature(median: Estimate | None, slowest: Estimate | None) -> bool | None:
    """Of `tpot_ratios`: do the slowest requests pay for a faster median? None where that cannot be said."""
    return signature_of(*(ratio and ratio.interval for ratio in (median, slowest)))


def _by_arrival(own: Window, plain: Window) -> Float[np.ndarray, "blocks 3"]:
    """Return for each stretch of the windows: seconds of this side, of plain decoding, and how many requests both answered."""
    theirs = {row.id: row.e2el for row in plain.rows}
    shared = [row for row in own.rows if row.id in theirs]
    begin, end = max(own.begin, plain.begin), min(own.end, plain.end)
    if end <= begin:
        return np.zeros((NUM_BLOCKS, 3))
    seconds = [row.e2el for row in shared], [theirs[row.id] for row in shared]
    arrivals, edges = [row.arrival for row in shared], np.linspace(begin, end, NUM_BLOCKS + 1)
    columns = [
        np.histogram(arrivals, edges, weights=column)[0]
        for column in (*seconds, np.ones(len(shared)))
    ]
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
        total = {name: float(own[name].sum()) for name in names if name != "side"} | {
            "num_steps": float(len(own))
        }
        named = sum(
            total[part]
            for part in ("control", "propose", "verify", "accept", "commit")
            if part in total
        )
        sums[str(side)] = total | {"host": max(total["total"] - named, 0.0)}
    return sums
