"""The figures and tables of a report, in sections."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specresearch.reporting import figures
from specresearch.reporting.comparisons import Comparison
from specresearch.reporting.decision import Decision, Limits
from specresearch.reporting.drawing import Picture, Table
from specresearch.reporting.folders import Material
from specresearch.reporting.verdicts import RULE_OF_THUMB
from specresearch.reporting.wording import NOTHING, interval, seconds_with_interval

MOST_PICTURES = 8  # of a kind; tables have all
SPEEDUP = (
    "How many times as fast as plain decoding of the same requests, measured beside it. Where requests are always in "
    "flight or come in batches, that is tokens per second; where they arrive by themselves both sides do the same work, and "
    "it is how much sooner a request is done; once more arrive than a side can answer, it is tokens per second again."
)
LENGTH = "How many tokens to draft at a step. More are worth it only while they are accepted and the target's pass stays cheap."
LATENCY = (
    "Half of the requests are faster than P50, 99 of 100 than P99. Speculation can improve the first and worsen the second: some "
    "requests accept little and pay for it."
)
ACCEPTANCE = (
    "A mean hides the requests that gain nothing; the 10th percentile (P10) shows them. A tree offers several drafts at a "
    "position, so that its rate is not comparable with a chain's. "
)
POSITIONS = "Later drafts count only if all before them were accepted. Bands are 95% intervals over prompts."
STEPS = "A step with drafts takes longer than a plain one and yields more tokens; it pays when tokens grow by more than time."
PREDICTED = "What the step times allow, beside what was reached: the difference is what the host and bookkeeping cost."
FORESEEN = " And what simulations foresaw, where their setting was measured, too."
TRACES = (
    "Draft lengths and acceptance over time, and the throughput beside plain decoding and, where any was measured, the fixed "
    "length that turned out best; then what the controller reckoned with, and what came of it. "
)
OF_RECOMMENDED = "Of the recommended settings that a load run had as its controller, at the lowest and the highest load of each."
OF_MEASURED = "Of the controllers measured, none of which is recommended, at the lowest and the highest load of each."
CLASSES = (
    "A mean over a mixed workload can hide a class that pays for the others: better at the median, worse among its slowest "
    "requests."
)
ALL = "Every method that was measured beside plain decoding, with 95% intervals."


@dataclass(frozen=True)
class Section:
    """name: its anchor."""

    name: str
    title: str
    introduction: str
    pictures: tuple[Picture, ...] = ()
    table: Table | None = None


def compose_sections(
    material: Material, decisions: Sequence[Decision], limits: Limits
) -> tuple[Section, ...]:
    """In the order of the page; those with nothing to show are left out."""
    speed, length, steps = [], [], []
    latency: list[Picture | None] = []
    for number, decision in enumerate(decisions, start=1):
        speed.append(figures.by_load(decision, f"speedup-{number}"))
        length.append(figures.by_length(decision, f"draft-length-{number}"))
        steps.append(figures.step_times(decision, f"step-{number}"))
        latency += [
            figures.latencies(decision, m, limits, f"{m}-{number}")
            for m in ("ttft", "tpot", "itl", "e2el")
        ]
    shown = [_with_histogram(decision) for decision in decisions[:MOST_PICTURES]]
    histograms = [figures.histogram(c, f"acceptance-{n}") for n, c in enumerate(shown, start=1)]
    positions = [figures.by_position(c, f"positions-{n}") for n, c in enumerate(shown, start=1)]
    chosen = {(decision.workload, decision.policy) for decision in decisions}
    own = [trace for trace in material.traces if (trace.workload, trace.policy) in chosen]
    shown_traces = list(enumerate(_ends(own or material.traces), start=1))
    traces: list[Picture | None] = [figures.trace(t, f"controller-{n}") for n, t in shown_traces]
    traces += [figures.thoughts(t, f"thoughts-{n}") for n, t in shown_traces]
    mixed = [
        point.comparison
        for decision in decisions
        for point in decision.points
        if point.comparison.classes
    ]
    classes = [figures.by_class(c, f"classes-{n}") for n, c in enumerate(_ends(mixed), start=1)]
    sections = [
        Section("speedup", "Speedup by load and batch", SPEEDUP, _kept(speed)),
        Section("draft-length", "Draft length", LENGTH, _kept(length)),
        Section("latency", "Latency", LATENCY, _kept(latency)),
        Section(
            "acceptance", "Acceptance by request", ACCEPTANCE + RULE_OF_THUMB, _kept(histograms)
        ),
        Section("positions", "Acceptance by position", POSITIONS, _kept(positions)),
        Section("steps", "Where a step's time goes", STEPS, _kept(steps)),
        Section(
            "predicted",
            "Predicted and measured",
            PREDICTED + (FORESEEN if material.foreseen else ""),
            _kept(
                [
                    figures.predicted(material.comparisons, "predicted-1"),
                    figures.foreseen(material.foreseen, "predicted-2"),
                ]
            ),
        ),
        Section(
            "controllers",
            "What the controllers did",
            TRACES + (OF_RECOMMENDED if own else OF_MEASURED),
            _kept(traces),
        ),
        Section("classes", "Classes of a mixed workload", CLASSES, _kept(classes)),
        Section("all", "Every comparison", ALL, table=_everything(material.comparisons)),
    ]
    return tuple(section for section in sections if section.pictures or section.table)


def _with_histogram(decision: Decision) -> Comparison:
    """At the lowest load whose requests are known."""
    found = [point.comparison for point in decision.points]
    known = [
        c for c in found if c.own.acceptance is not None and c.own.acceptance.histogram is not None
    ]
    return (known or found)[0]


def _kept(pictures: Sequence[Picture | None]) -> tuple[Picture, ...]:
    return tuple(picture for picture in pictures if picture is not None)


def _ends(found: Sequence[Any]) -> list[Any]:
    """Of every workload and policy the lowest and the highest load, as many as fit."""
    scenes: dict[Any, list[Any]] = {}
    for one in sorted(found, key=lambda one: one.load):
        scenes.setdefault((one.workload, one.policy, one.load.axis), []).append(one)
    ends = [one for own in scenes.values() for one in (own if len(own) < 3 else [own[0], own[-1]])]
    return ends[:MOST_PICTURES]


def _everything(comparisons: Sequence[Comparison]) -> Table:
    header = (
        "Workload",
        "Load",
        "Setting",
        "Speedup",
        "Tokens/s, plain",
        "Tokens/s",
        "TTFT P99",
        "TPOT P99",
        "Accepted",
        "P10",
        "Folder",
    )
    rows = tuple(
        (
            c.workload.label,
            c.load.label,
            c.policy.label,
            interval(c.gain),
            interval(c.plain["throughput"], 1).removesuffix(" (no interval)"),
            interval(c.own["throughput"], 1).removesuffix(" (no interval)"),
            seconds_with_interval(c.own["ttft_p99"]),
            seconds_with_interval(c.own["tpot_p99"]),
            interval(c.own.acceptance.rate) if c.own.acceptance else NOTHING,
            interval(c.own.acceptance.p10) if c.own.acceptance else NOTHING,
            c.folder.name,
        )
        for c in comparisons
    )
    return Table(header, rows)
