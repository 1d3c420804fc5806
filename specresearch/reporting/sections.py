"""The figures and tables of a report, in sections."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from specresearch.reporting import figures
from specresearch.reporting.comparisons import Comparison, Trace
from specresearch.reporting.decision import Decision
from specresearch.reporting.drawing import Picture, Table
from specresearch.reporting.folders import Material
from specresearch.reporting.formatting import NOTHING, interval, seconds_with_interval
from specresearch.reporting.limits import Limits
from specresearch.reporting.verdicts import RULE_OF_THUMB

MOST_PICTURES = 8  # of a kind; tables have all
METRICS = ("ttft", "tpot", "itl", "e2el")
SPEEDUP = (
    "How many times as fast as plain decoding of the same requests, measured beside it. Where "
    "requests are always in flight or come in batches, that is tokens per second; where they "
    "arrive by themselves both sides do the same work, and it is how much sooner a request is "
    "done; once more arrive than a side can answer, it is tokens per second again."
)
LENGTH = (
    "How many tokens to draft at a step. More are worth it only while they are accepted and the "
    "target's pass stays cheap."
)
LATENCY = (
    "Half of the requests are faster than P50, 99 of 100 than P99. Speculation can improve the "
    "first and worsen the second: some requests accept little and pay for it."
)
ACCEPTANCE = (
    "A mean hides the requests that gain nothing; the 10th percentile (P10) shows them. A tree "
    "offers several drafts at a position, so that its rate is not comparable with a chain's. "
)
POSITIONS = (
    "Later drafts count only if all before them were accepted. Bands are 95% intervals over "
    "prompts."
)
STEPS = (
    "A step with drafts takes longer than a plain one and yields more tokens; it pays when tokens "
    "grow by more than time."
)
PREDICTED = (
    "What the step times allow, beside what was reached: the difference is what the host and "
    "bookkeeping cost."
)
SIMULATED = " And what simulations predicted, where their setting was measured, too."
TRACES = (
    "Draft lengths and acceptance over time, and the throughput beside plain decoding and, where "
    "any was measured, the fixed length that turned out best; then what the controller reckoned "
    "with, and what came of it. "
)
OF_RECOMMENDED = (
    "Of the recommended settings that a load run had as its controller, at the lowest and the "
    "highest load of each."
)
OF_MEASURED = (
    "Of the controllers measured, none of which is recommended, at the lowest and the highest load "
    "of each."
)
CLASSES = (
    "A mean over a mixed workload can hide a class that pays for the others: better at the median, "
    "worse among its slowest requests."
)
ALL = "Every method that was measured beside plain decoding, with 95% intervals."
HEADER = (
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

Item = TypeVar("Item")
Scene = TypeVar("Scene", Comparison, Trace)


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        name: Its anchor.
    """

    name: str
    title: str
    introduction: str
    pictures: tuple[Picture, ...] = ()
    table: Table | None = None


def compose_sections(
    material: Material, decisions: Sequence[Decision], limits: Limits
) -> tuple[Section, ...]:
    """Return the sections in the order of the page, without those that have nothing to show."""
    comparisons = [_lowest_drafting(decision) for decision in decisions[:MOST_PICTURES]]
    latencies = []
    for number, decision in enumerate(decisions, start=1):
        for metric in METRICS:
            name = f"{metric}-{number}"
            latencies.append(figures.latencies(decision, metric, limits, name))
    predicted = [
        figures.ideal_speedups(material.comparisons, "predicted-1"),
        figures.simulated(material.checked, "predicted-2"),
    ]
    mixed = []
    for decision in decisions:
        mixed += [p.comparison for p in decision.points if p.comparison.classes]
    predicted_introduction = PREDICTED + (SIMULATED if material.checked else "")
    sections = [
        _section(
            "speedup",
            "Speedup by load and batch",
            SPEEDUP,
            _numbered(figures.by_load, decisions, "speedup"),
        ),
        _section(
            "draft-length",
            "Draft length",
            LENGTH,
            _numbered(figures.by_length, decisions, "draft-length"),
        ),
        _section("latency", "Latency", LATENCY, latencies),
        _section(
            "acceptance",
            "Acceptance by request",
            ACCEPTANCE + RULE_OF_THUMB,
            _numbered(figures.histogram, comparisons, "acceptance"),
        ),
        _section(
            "positions",
            "Acceptance by position",
            POSITIONS,
            _numbered(figures.by_position, comparisons, "positions"),
        ),
        _section(
            "steps",
            "Where a step's time goes",
            STEPS,
            _numbered(figures.step_times, decisions, "step"),
        ),
        _section("predicted", "Predicted and measured", predicted_introduction, predicted),
        _controllers(material, decisions),
        _section(
            "classes",
            "Classes of a mixed workload",
            CLASSES,
            _numbered(figures.by_class, _ends(mixed), "classes"),
        ),
        Section("all", "Every comparison", ALL, table=_everything(material.comparisons)),
    ]
    return tuple(section for section in sections if section.pictures or section.table)


def _controllers(material: Material, decisions: Sequence[Decision]) -> Section:
    """Return the traces of recommended controllers, or of all if none is recommended."""
    recommended = {(decision.workload, decision.policy) for decision in decisions}
    own = [trace for trace in material.traces if (trace.workload, trace.policy) in recommended]
    traces = _ends(own or material.traces)
    introduction = TRACES + (OF_RECOMMENDED if own else OF_MEASURED)
    pictures = _numbered(figures.timeline, traces, "controller")
    pictures += _numbered(figures.controller_estimates, traces, "controller-estimates")
    return _section("controllers", "What the controllers did", introduction, pictures)


def _section(
    name: str, title: str, introduction: str, pictures: Sequence[Picture | None]
) -> Section:
    """Return a section of the pictures that there are."""
    drawn = tuple(picture for picture in pictures if picture is not None)
    return Section(name, title, introduction, drawn)


def _numbered(
    draw: Callable[[Item, str], Picture | None], items: Sequence[Item], name: str
) -> list[Picture | None]:
    """Return a picture of each item, named with its number."""
    return [draw(item, f"{name}-{number}") for number, item in enumerate(items, start=1)]


def _lowest_drafting(decision: Decision) -> Comparison:
    """Return the comparison at the lowest load at which anything was drafted."""
    comparisons = [point.comparison for point in decision.points]
    drafting = [one for one in comparisons if one.speculative.acceptance is not None]
    return (drafting or comparisons)[0]


def _ends(items: Sequence[Scene]) -> list[Scene]:
    """Return the lowest and the highest load of every workload and policy, as many as fit."""
    groups: dict[tuple[object, ...], list[Scene]] = {}
    for item in sorted(items, key=lambda item: item.load):
        groups.setdefault((item.workload, item.policy, item.load.axis), []).append(item)
    ends = []
    for group in groups.values():
        ends += group if len(group) < 3 else [group[0], group[-1]]
    return ends[:MOST_PICTURES]


def _everything(comparisons: Sequence[Comparison]) -> Table:
    rows = []
    for comparison in comparisons:
        cells = [comparison.workload.label, comparison.load.label, comparison.policy.label]
        cells.append(interval(comparison.gain))
        for side in comparison.sides:
            cells.append(interval(side["throughput"], 1).removesuffix(" (no interval)"))
        speculative = comparison.speculative
        cells += [seconds_with_interval(speculative[name]) for name in ("ttft_p99", "tpot_p99")]
        acceptance = speculative.acceptance
        if acceptance is None:
            cells += [NOTHING, NOTHING]
        else:
            cells += [interval(acceptance.rate), interval(acceptance.p10)]
        rows.append((*cells, comparison.folder.name))
    return Table(HEADER, tuple(rows))
