"""A folder of `python -m specresearch.load`: a comparison for the method and for every fixed draft length beside it."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from specresearch.loadtest.outputs import check_of
from specresearch.loadtest.summary import LoadFigures, summarize_load
from specresearch.loadtest.window import Limits
from specresearch.reporting.comparisons import (
    PARTS,
    Acceptance,
    ClassChange,
    Comparison,
    Load,
    Output,
    Policy,
    Side,
    Trace,
)
from specresearch.reporting.estimates import Estimate, ratio_of
from specresearch.reporting.load_rows import (
    LoadRows,
    has_signature,
    latency_ratio,
    throughput_ratio,
    tpot_ratios,
)
from specresearch.reporting.reading import (
    FIXED,
    acceptance_of,
    controller_of,
    drafts_asked,
    estimate,
    fixed_length_of,
    inner,
    load_of,
    load_workload_of,
    most_drafts,
    number,
    read_config,
    settings_of,
)
from specresearch.rows import BASELINE, METHOD

TPOTS = ("tpot_p50", "tpot_p99")
TOO_SHORT = "too short to have a middle between warm-up and tail"
NO_TURNS = "sides did not take turns: the machine's drift falls on one of them"
NO_ROWS = "its rows are missing or of another version: acceptance comes without histograms, ratios with wider intervals"


@dataclass
class LoadFolder:
    """What one folder adds to a report. limits: that it was run with, seconds."""

    comparisons: list[Comparison] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
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
        self.summary, self.intervals = (
            inner(self.results, "summary"),
            inner(self.results, "intervals"),
        )
        self.sides = {
            name: inner(figures) for name, figures in inner(self.results, "sides").items()
        }
        self.workload = load_workload_of(self.config, self.provenance)

    def read(self) -> LoadFolder:
        others = [name for name in self.sides if name != BASELINE]
        if not self.sides:
            raise ValueError(
                "was stopped before a side had decoded all requests once: nothing to compare"
            )
        if BASELINE not in self.sides:
            raise ValueError(
                f"no plain decoding beside {', '.join(others)}: without a paired baseline, not used"
            )
        if not others:
            raise ValueError(
                "plain decoding only, without a method beside it: not used for the decision"
            )
        every = [self._comparison(name) for name in others]
        found = LoadFolder(
            [c for c in every if c.gain is not None or c.is_overloaded],
            limits=inner(self.results, "limits"),
        )
        if not found.comparisons:
            stopped = f"; {self._stopped}" if self._stopped else ""
            raise ValueError(
                f"every pass was {TOO_SHORT}: nothing to compare; send more requests{stopped}"
            )
        short = [c.policy.label for c in every if c not in found.comparisons]
        if short:
            found.notes.append(
                f"{'; '.join(short)}: left out, since its passes were {TOO_SHORT}; send more requests"
            )
        if self._stopped:
            found.notes.append(f"{self._stopped}; these are the figures until then")
        found.notes += self.rows.notes
        found.traces += [
            self._trace(name)
            for name in others
            if fixed_length_of(name) is None and self._timeline(name)
        ]
        return found

    @property
    def _stopped(self) -> str:
        return f"stopped early: {self.results['stopped']}" if self.results.get("stopped") else ""

    def _rebuild(self) -> None:
        """The figures of a run that was killed before it wrote any, from its finished passes."""
        sides = {name: side for name, side in self.rows.sides.items() if side.passes}
        if sides:
            most = int(self.config.get("max_running") or 1)
            figures = summarize_load(sides, self._limits, most)
            self.results |= {part.name: getattr(figures, part.name) for part in fields(LoadFigures)}
            setting = {"method": inner(self.provenance, "method").get("name")}
            setting |= inner(self.provenance, "arrivals") | {"max_running": most}
            self.results |= {"summary": setting | figures.summary, "limits": asdict(self._limits)}

    @cached_property
    def rows(self) -> LoadRows:
        concurrency = inner(self.provenance, "arrivals").get("concurrency")
        return LoadRows.of(self.folder, concurrency, self._limits)

    @property
    def _limits(self) -> Limits:
        told = inner(self.results, "limits") or inner(self.config, "limits")
        return Limits(float(told.get("ttft", 1.0)), float(told.get("tpot", 0.1)))

    @property
    def load(self) -> Load:
        return load_of(self.summary)

    @property
    def best_fixed(self) -> str:
        best = str(self.summary.get("best_fixed") or "")
        return f"fixed-{best}" if best.isdigit() else best

    def policy(self, side: str) -> Policy:
        method = str(
            self.summary.get("method") or inner(self.provenance, "method").get("name") or "method"
        )
        length = fixed_length_of(side)
        if length is not None:
            return Policy(method, FIXED, length)
        is_other = "_target_" in inner(self.config, "variants", side)
        controller = controller_of(self._config_of(side), {} if is_other else self.provenance)
        variant = "" if side == METHOD else side
        return Policy(
            method, controller, self._length(side) if controller == FIXED else None, variant
        )

    def _config_of(self, side: str) -> dict[str, Any]:
        """The run's, with the settings of a side's own variant of the controller."""
        changes = inner(self.config, "variants", side)
        return {**self.config, "controller": {**inner(self.config, "controller"), **changes}}

    def _length(self, side: str) -> int | None:
        """Drafts that a fixed controller asks for; where nothing says it, the deepest drafts seen."""
        asked = drafts_asked(self._config_of(side), self.provenance)
        rows = self.rows.sides[side].counted if asked is None and side in self.rows.sides else []
        return asked or max((len(row.counts.reached) for row in rows), default=0) or None

    def _comparison(self, name: str) -> Comparison:
        plain, own, policy = self._side(BASELINE), self._side(name), self.policy(name)
        is_behind, is_plain_behind = (
            bool(self.sides[side].get("overloaded")) for side in (name, BASELINE)
        )
        by_throughput = self.load.is_closed or is_behind or is_plain_behind
        gain = (
            self._throughput_ratio(name, own, plain)
            if by_throughput
            else self._latency_ratio(name, own, plain)
        )
        has_rows = name in self.rows.sides and BASELINE in self.rows.sides
        return Comparison(
            self.folder,
            self.workload,
            self.load,
            policy,
            gain,
            "throughput" if by_throughput else "latency" if has_rows else "median latency",
            plain,
            own,
            self._ideal(name),
            self._decode(name),
            self._output(name),
            is_complete=bool(self.results.get("complete")),
            num_requests=int(self.sides[name].get("num_requests") or 0),
            fingerprint=str(inner(self.provenance, "dataset").get("fingerprint") or ""),
            started=str(self.provenance.get("started") or ""),
            settings=settings_of(
                self._config_of(name), policy.controller, most_drafts(self.config, self.provenance)
            ),
            missing=self._missing(),
            is_behind=is_behind,
            is_plain_behind=is_plain_behind,
            classes=self._classes(name),
            max_running=self.summary.get("max_running"),
            is_interleaved=self.summary.get("turn_seconds") is not None,
        )

    def _missing(self) -> tuple[str, ...]:
        takes_no_turns = "turn_seconds" in self.summary and self.summary["turn_seconds"] is None
        return (() if self.rows.sides else (NO_ROWS,)) + ((NO_TURNS,) if takes_no_turns else ())

    def _told(self, name: str, side: str) -> Estimate | None:
        """A figure of the summary of the controller or of one of its variants."""
        key = name if side == METHOD else f"{name}_{side}"
        return estimate(self.summary.get(key), self.intervals.get(key))

    def _throughput_ratio(self, name: str, own: Side, plain: Side) -> Estimate | None:
        sides = self.rows.sides
        if name in sides and BASELINE in sides:
            return throughput_ratio(sides[name], sides[BASELINE])
        told = self._told("speedup", name)
        if told is not None:
            return told
        if name == self.best_fixed and number(self.summary.get("speedup_best_fixed")):
            return estimate(
                self.summary["speedup_best_fixed"], self.intervals.get("speedup_best_fixed")
            )
        return ratio_of(own["throughput"], plain["throughput"])

    def _latency_ratio(self, name: str, own: Side, plain: Side) -> Estimate | None:
        """Where requests come by themselves, both sides do the same work; the faster one has each done sooner."""
        sides = self.rows.sides
        if name in sides and BASELINE in sides:
            return latency_ratio(sides[name], sides[BASELINE])
        return ratio_of(plain["e2el_p50"], own["e2el_p50"])

    def _side(self, name: str) -> Side:
        intervals = inner(self.results, "side_intervals", name)
        told = {key: estimate(value, intervals.get(key)) for key, value in self.sides[name].items()}
        figures = {key: figure for key, figure in told.items() if figure is not None}
        sums = self.rows.times.get(name, {})
        num_steps = sums.get("num_steps", 0.0)
        parts = {
            part: sums[part] / num_steps for part in PARTS if part in sums and part != "prefill"
        }
        tokens = sums["num_new_tokens"] / num_steps if num_steps else None
        return Side(
            figures, self._acceptance(name, figures) if name != BASELINE else None, parts, tokens
        )

    def _acceptance(self, name: str, figures: Mapping[str, Estimate]) -> Acceptance | None:
        """The folder's own figures, with histogram and positions of the requests that count."""
        rows = (
            [row.to_json() for row in self.rows.sides[name].counted]
            if name in self.rows.sides
            else []
        )
        found = acceptance_of(rows, "id") or Acceptance(None, None, None)
        rate, p10 = (
            figures.get("draft_acceptance_rate") or found.rate,
            figures.get("acceptance_p10") or found.p10,
        )
        if p10 is not None and not p10.has_interval and found.p10 is not None:
            p10 = found.p10
        return Acceptance(rate, p10, found.histogram, found.positions) if rate else None

    def _ideal(self, name: str) -> float | None:
        plain, own = self.rows.times.get(BASELINE), self.rows.times.get(name)
        if not plain or not own:
            return None
        busy = (own["propose"] + own["verify"]) / own["num_new_tokens"]
        return plain["verify"] / plain["num_new_tokens"] / busy if busy else None

    def _decode(self, name: str) -> Estimate | None:
        """Of decoding alone: seconds of steps per token, without prefill and waiting."""
        plain, own = self.rows.times.get(BASELINE), self.rows.times.get(name)
        if not plain or not own or not own["total"]:
            return None
        return Estimate(
            plain["total"] / plain["num_new_tokens"] / (own["total"] / own["num_new_tokens"])
        )

    def _output(self, name: str) -> Output:
        told, lossless = (
            inner(self.results, "outputs", name),
            inner(self.provenance, "method").get("lossless"),
        )
        if told:
            return Output.of(told, lossless)
        return Output.of(self._check(name) or self.summary, None if lossless else lossless)

    def _check(self, name: str) -> dict[str, Any]:
        """What was found in a side's sampled outputs, where a run was killed before it wrote any figures; empty without."""
        method = inner(self.provenance, "method")
        passes = [row for side in self.rows.sides.values() for row in side.passes.values()]
        found = check_of(
            passes, name, str(method.get("acceptance")), lossless=bool(method.get("lossless"))
        )
        return found.figures if found.p_values else {}

    def _timeline(self, name: str) -> list[dict[str, Any]]:
        return inner(self.results, "timeline").get(name) or []

    def _trace(self, own: str) -> Trace:
        names = {own: self.policy(own).label, BASELINE: "plain decoding"}
        if self.best_fixed in self.sides:
            names |= {self.best_fixed: f"{self.policy(self.best_fixed).label}, best in hindsight"}
        figures = {
            label: estimate(
                self.sides[name].get("throughput"),
                inner(self.results, "side_intervals", name).get("throughput"),
            )
            for name, label in names.items()
        }
        return Trace(
            self.folder,
            self.workload,
            self.load,
            self.policy(own),
            {label: self._timeline(name) for name, label in names.items() if self._timeline(name)},
            {label: figure for label, figure in figures.items() if figure is not None},
            names.get(self.best_fixed, ""),
            self._told("speedup_over_best", own),
            self._thoughts(own),
        )

    def _thoughts(self, name: str) -> tuple[dict[str, float], ...]:
        """The controller's own figures of every pass. One that remembers repeats what it wrote in the passes before."""
        told = inner(self.results, "controller").get(name) or []
        passes: dict[float, list[dict[str, float]]] = defaultdict(list)
        for row in told:
            passes[row.get("repeat", 0.0)].append(dict(row))
        kept, last = [], 0.0
        for rows in passes.values():
            steps = [row["step"] for row in rows]
            kept += [row for row in rows if row["step"] > last or max(steps) <= last]
            last = 0.0 if self.config.get("reset", True) else max(steps)
        return tuple(kept)

    def _classes(self, name: str) -> tuple[ClassChange, ...]:
        table = inner(self.results, "classes")
        changes = tuple(
            self._class_change(label, inner(sides, BASELINE), inner(sides, name), name)
            for label, sides in table.items()
        )
        return changes if len(changes) > 1 else ()

    def _class_change(
        self, label: str, plain: dict[str, Any], own: dict[str, Any], side: str
    ) -> ClassChange:
        """With intervals from the requests; without them, what the folder says of its method."""
        sides = self.rows.sides
        if side in sides and BASELINE in sides:
            median, slowest = tpot_ratios(sides[side], sides[BASELINE], label)
            signature = has_signature(median, slowest)
        else:
            median, slowest = (
                ratio_of(estimate(own.get(n), None), estimate(plain.get(n), None)) for n in TPOTS
            )
            is_told = side == METHOD and label not in (self.results.get("class_unclear") or ())
            signature = label in (self.results.get("class_signature") or ()) if is_told else None
        return ClassChange(label, plain, own, median, slowest, signature)
