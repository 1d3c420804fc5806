"""A folder of `python -m specresearch.load`: a comparison for the method and for every fixed draft length beside it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from specresearch.bench.folder import REQUESTS, STEPS
from specresearch.bench.jsonl import read_jsonl
from specresearch.bench.load_folder import PASSES, read_steps
from specresearch.bench.load_records import CONTROLLED, PLAIN, LoadRow, PassRow
from specresearch.bench.load_side import LoadSide
from specresearch.bench.load_summary import summarize_load
from specresearch.bench.load_window import Limits
from specresearch.reporting.comparisons import (
    CONCURRENCY,
    PARTS,
    Acceptance,
    Classes,
    Comparison,
    Load,
    Output,
    Policy,
    Side,
    Trace,
    Workload,
)
from specresearch.reporting.estimates import Estimate, paired_ratio, ratio_of
from specresearch.reporting.reading import (
    FIXED,
    acceptance_of,
    controller_of,
    estimate,
    inner,
    number,
    read_config,
    settings_of,
    workload_of,
)

FIXED_SIDE = re.compile(r"fixed-(\d+)")
NO_ROWS = "its rows are missing or of another version: acceptance comes without histograms, ratios with wider intervals"


@dataclass
class LoadFolder:
    """What one folder adds to a report. limits: that it was run with, seconds."""

    comparisons: list[Comparison] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    classes: list[Classes] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)


def read_load(folder: Path, results: Mapping[str, Any]) -> LoadFolder:
    """ValueError where no side stands beside plain decoding."""
    return _Reader(folder, results).read()


class _Reader:
    def __init__(self, folder: Path, results: Mapping[str, Any]) -> None:
        self.folder, self.results = folder, dict(results)
        self.config, self.provenance = read_config(folder), inner(results, "provenance")
        if not inner(results, "sides"):
            self._rebuild()
        self.summary, self.intervals = inner(self.results, "summary"), inner(self.results, "intervals")
        self.sides = {name: inner(figures) for name, figures in inner(self.results, "sides").items()}
        self.workload = self._workload()

    def read(self) -> LoadFolder:
        others = [name for name in self.sides if name != PLAIN]
        if not self.sides:
            raise ValueError("was stopped before a side had decoded all requests once: nothing to compare")
        if PLAIN not in self.sides:
            raise ValueError(f"no plain decoding beside {', '.join(others)}: without a paired baseline, not used")
        if not others:
            raise ValueError("plain decoding only, without a method beside it: not used for the decision")
        found = LoadFolder([self._comparison(name) for name in others], limits=inner(self.results, "limits"))
        if self.results.get("stopped"):
            found.notes.append(f"stopped early: {self.results['stopped']}; these are the figures until then")
        if CONTROLLED in self.sides:
            found.traces += self._trace()
            found.classes += self._classes()
        return found

    def _rebuild(self) -> None:
        """The figures of a run that was killed before it wrote any, from its finished passes."""
        sides = {name: side for name, side in self.rows.items() if side.passes}
        if sides:
            most = int(self.config.get("max_running") or 1)
            figures = summarize_load(sides, self._limits, most, seed=int(self.config.get("seed") or 0))
            self.results |= {
                name: getattr(figures, name) for name in ("sides", "side_intervals", "intervals", "classes")
            }
            method = inner(self.provenance, "method").get("name")
            setting = {"method": method} | inner(self.provenance, "arrivals")
            self.results |= {"summary": setting | figures.summary, "timeline": figures.timeline}

    @cached_property
    def rows(self) -> dict[str, LoadSide]:
        """The passes of every side with their middles; empty where rows are missing, or of another version."""
        try:
            return self._passes()
        except (KeyError, TypeError):
            return {}

    def _passes(self) -> dict[str, LoadSide]:
        passes = [PassRow.from_json(row) for row in read_jsonl(self.folder / PASSES)]
        requests = [LoadRow.from_json(row) for row in read_jsonl(self.folder / REQUESTS)]
        concurrency = inner(self.provenance, "arrivals").get("concurrency")
        seed = int(self.config.get("seed") or 0)
        places = [row.place for row in passes]
        return {
            name: LoadSide.of(
                name, passes, requests, read_steps(self.folder, places, name), concurrency, self._limits, seed
            )
            for name in dict.fromkeys(place.side for place in places)
        }

    @property
    def _limits(self) -> Limits:
        told = inner(self.results, "limits") or inner(self.config, "limits")
        return Limits(float(told.get("ttft", 1.0)), float(told.get("tpot", 0.1)))

    @cached_property
    def steps(self) -> dict[str, dict[str, float]]:
        return _steps(self.folder / STEPS)

    @property
    def load(self) -> Load:
        summary = self.summary
        if number(summary.get("concurrency")):
            return Load(CONCURRENCY, float(summary["concurrency"]))
        if number(summary.get("qps")):
            spread = f", cv {summary['cv']:g}" if number(summary.get("cv")) else ""
            return Load(f"{summary.get('arrivals', 'open')}{spread}", float(summary["qps"]))
        raise ValueError("its summary names neither concurrency nor qps: written by another version")

    @property
    def best_fixed(self) -> str:
        best = str(self.summary.get("best_fixed") or "")
        return f"fixed-{best}" if best.isdigit() else best

    def _workload(self) -> Workload:
        plain = workload_of(self.config, self.provenance)
        names = list(inner(self.config, "classes"))
        if len(names) < 2:
            return plain
        return replace(plain, data=f"mix of {' and '.join(names)}", sampling="temperature by class")

    def policy(self, side: str) -> Policy:
        method = str(self.summary.get("method") or inner(self.provenance, "method").get("name") or "method")
        fixed = FIXED_SIDE.fullmatch(side)
        if fixed:
            return Policy(method, FIXED, int(fixed[1]))
        controller = controller_of(self.config, self.provenance)
        length = inner(self.config, "controller").get("num_draft_tokens")
        length = length or inner(self.config, "proposer").get("num_draft_tokens")
        return Policy(method, controller, length if controller == FIXED else None)

    def _comparison(self, name: str) -> Comparison:
        plain, own, policy = self._side(PLAIN), self._side(name), self.policy(name)
        gain = (
            self._throughput_ratio(name, own, plain) if self.load.is_closed else self._latency_ratio(name, own, plain)
        )
        output, output_is = self._output(name)
        return Comparison(
            self.folder,
            self.workload,
            self.load,
            policy,
            gain,
            "throughput" if self.load.is_closed else "latency",
            plain,
            own,
            self._ideal(name),
            self._decode(name),
            output,
            output_is,
            is_complete=bool(self.results.get("complete")),
            num_requests=int(self.sides[name].get("num_requests") or 0),
            fingerprint=str(inner(self.provenance, "dataset").get("fingerprint") or ""),
            started=str(self.provenance.get("started") or ""),
            settings=settings_of(self.config, policy.controller),
            missing=() if self.rows else (NO_ROWS,),
            is_behind=bool(self.sides[name].get("overloaded")),
            is_plain_behind=bool(self.sides[PLAIN].get("overloaded")),
        )

    def _throughput_ratio(self, name: str, own: Side, plain: Side) -> Estimate | None:
        if name == CONTROLLED and number(self.summary.get("speedup")):
            return estimate(self.summary["speedup"], self.intervals.get("speedup"))
        if name in self.rows and PLAIN in self.rows:
            sides = self.rows[name], self.rows[PLAIN]
            shared = sorted(sides[0].windows.keys() & sides[1].windows.keys())
            return paired_ratio(*(side.totals(shared)[:, [0, 3]] for side in sides))
        if name == self.best_fixed and number(self.summary.get("speedup_best_fixed")):
            return estimate(self.summary["speedup_best_fixed"], self.intervals.get("speedup_best_fixed"))
        return ratio_of(own["throughput"], plain["throughput"])

    def _latency_ratio(self, name: str, own: Side, plain: Side) -> Estimate | None:
        """Where requests come by themselves, both sides do the same work; the faster one has each done sooner."""
        times = [_totals(self.rows[side].counted) if side in self.rows else {} for side in (PLAIN, name)]
        shared = sorted(times[0].keys() & times[1].keys())
        ratio = paired_ratio(*([of_side[id] for id in shared] for of_side in times)) if shared else None
        return ratio or ratio_of(plain["e2el_p50"], own["e2el_p50"])

    def _side(self, name: str) -> Side:
        intervals = inner(self.results, "side_intervals", name)
        told = {key: estimate(value, intervals.get(key)) for key, value in self.sides[name].items()}
        figures = {key: figure for key, figure in told.items() if figure is not None}
        sums = self.steps.get(name, {})
        num_steps = sums.get("num_steps", 0.0)
        parts = {part: sums[part] / num_steps for part in PARTS if part in sums and part != "prefill"}
        tokens = sums["num_new_tokens"] / num_steps if num_steps else None
        return Side(figures, self._acceptance(name, figures) if name != PLAIN else None, parts, tokens)

    def _acceptance(self, name: str, figures: Mapping[str, Estimate]) -> Acceptance | None:
        """The folder's own figures, with histogram and positions of the requests that count."""
        rows = [row.to_json() for row in self.rows[name].counted] if name in self.rows else []
        found = acceptance_of(rows, "id") or Acceptance(None, None, None)
        rate, p10 = figures.get("draft_acceptance_rate") or found.rate, figures.get("acceptance_p10") or found.p10
        if p10 is not None and not p10.has_interval and found.p10 is not None:
            p10 = found.p10
        return Acceptance(rate, p10, found.histogram, found.positions) if rate else None

    def _ideal(self, name: str) -> float | None:
        plain, own = self.steps.get(PLAIN), self.steps.get(name)
        if not plain or not own:
            return None
        busy = (own["propose"] + own["verify"]) / own["num_new_tokens"]
        return plain["verify"] / plain["num_new_tokens"] / busy if busy else None

    def _decode(self, name: str) -> Estimate | None:
        """Of decoding alone: seconds of steps per token, without prefill and waiting."""
        plain, own = self.steps.get(PLAIN), self.steps.get(name)
        if not plain or not own or not own["total"]:
            return None
        return Estimate(plain["total"] / plain["num_new_tokens"] / (own["total"] / own["num_new_tokens"]))

    def _output(self, name: str) -> tuple[str, Output]:
        told = inner(self.results, "outputs", name) or self.summary
        lossless = inner(self.provenance, "method").get("lossless")
        statement = str(told.get("output_statement") or "outputs were not compared")
        if lossless is False:
            return statement, Output.MOVED
        if told.get("num_outputs_compared"):
            num_same = (told.get("num_outputs_equal") or 0) + (told.get("num_rounding_ties") or 0)
            return statement, Output.SAME if num_same >= told["num_outputs_compared"] else Output.WRONG
        return statement, Output.SAME if lossless and told is not self.summary else Output.UNKNOWN

    def _trace(self) -> list[Trace]:
        timeline = inner(self.results, "timeline")
        if not timeline.get(CONTROLLED):
            return []
        names = {CONTROLLED: self.policy(CONTROLLED).label, PLAIN: "plain decoding"}
        if self.best_fixed in self.sides:
            names |= {self.best_fixed: f"{self.policy(self.best_fixed).label}, best in hindsight"}
        figures = {
            label: estimate(
                self.sides[name].get("throughput"), inner(self.results, "side_intervals", name).get("throughput")
            )
            for name, label in names.items()
        }
        return [
            Trace(
                self.folder,
                self.workload,
                self.load,
                self.policy(CONTROLLED),
                {label: timeline[name] for name, label in names.items() if timeline.get(name)},
                {label: figure for label, figure in figures.items() if figure is not None},
                names.get(self.best_fixed, ""),
                estimate(self.summary.get("speedup_over_best"), self.intervals.get("speedup_over_best")),
            )
        ]

    def _classes(self) -> list[Classes]:
        table = {name: inner(sides) for name, sides in inner(self.results, "classes").items()}
        signature = tuple(str(name) for name in self.results.get("class_signature") or ())
        own = (self.folder, self.workload, self.load, self.policy(CONTROLLED))
        return [Classes(*own, table, signature)] if len(table) > 1 else []


def _totals(rows: list[LoadRow]) -> dict[str, tuple[float, float]]:
    """By request: its seconds from arrival to last token in all repeats, and their number."""
    found: dict[str, tuple[float, float]] = {}
    for row in rows:
        seconds, times = found.get(row.id, (0.0, 0.0))
        found[row.id] = seconds + row.e2el, times + 1
    return found


def _steps(file: Path) -> dict[str, dict[str, float]]:
    """Of every side: its seconds by part, its steps and its new tokens, added up."""
    if not file.is_file():
        return {}
    schema = pq.read_schema(file).names
    if not {"side", "num_new_tokens", "propose", "verify", "total"} <= set(schema):
        return {}
    names = [name for name in ("side", "num_new_tokens", "total", *PARTS) if name in schema]
    frame = pq.read_table(file, columns=names).to_pandas()
    frame["num_new_tokens"] = frame["num_new_tokens"].map(sum)
    sums: dict[str, dict[str, float]] = {}
    for side, own in frame.groupby("side"):
        total = {name: float(own[name].sum()) for name in names if name != "side"} | {"num_steps": float(len(own))}
        named = sum(total[part] for part in ("propose", "verify", "accept", "commit") if part in total)
        sums[str(side)] = total | {"host": max(total["total"] - named, 0.0)}
    return sums
