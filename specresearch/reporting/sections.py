"""The figures and tables of a report, in sections."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from matplotlib import style

from specresearch.reporting import figures
from specresearch.reporting.comparison import Comparison
from specresearch.reporting.decision import Decision
from specresearch.reporting.drawing import STYLE, Picture, TextTable
from specresearch.reporting.formatting import NOTHING, interval, seconds_with_interval
from specresearch.reporting.material import Material
from specresearch.reporting.requirements import Requirements
from specresearch.reporting.tails import ends

PROSE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("prose.yaml").read_text("utf-8"))
MOST_PICTURES = 8  # of a kind; tables have all
METRICS = ("ttft", "tpot", "itl", "e2el")
HEADER = [
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
]

Item = TypeVar("Item")


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        name: Its anchor.
    """

    name: str
    title: str
    introduction: str
    pictures: Sequence[Picture] = ()
    table: TextTable | None = None


def compose_sections(
    material: Material, decisions: Sequence[Decision], requirements: Requirements
) -> list[Section]:
    """Return the sections in the order of the page, without those that have nothing to show."""
    additions = {"acceptance": PROSE["rule_of_thumb"]}
    controlled = [comparison for comparison in material.comparisons if comparison.history]
    recommended = {(decision.workload, decision.setting) for decision in decisions}
    chosen = [each for each in controlled if (each.workload, each.setting) in recommended]
    additions["controllers"] = PROSE["additions"]["recommended" if chosen else "measured"]
    if material.checked:
        additions["predicted"] = PROSE["additions"]["simulated"]
    with style.context(STYLE):
        pictures = _draw(material, decisions, requirements, _ends(chosen or controlled))
    sections = []
    for name, words in PROSE["sections"].items():
        introduction = " ".join(filter(None, (words["introduction"], additions.get(name))))
        table = _everything(material.comparisons) if name == "all" else None
        if pictures.get(name) or table:
            drawn = pictures.get(name, ())
            sections.append(Section(name, words["title"], introduction, drawn, table))
    return sections


def _draw(
    material: Material,
    decisions: Sequence[Decision],
    requirements: Requirements,
    controlled: Sequence[Comparison],
) -> Mapping[str, list[Picture]]:
    """Return the pictures of every section.

    Args:
        controlled: What the controllers' figures show.
    """
    lowest = [_lowest_drafting(decision) for decision in decisions[:MOST_PICTURES]]
    mixed = []
    for decision in decisions:
        mixed += [point for point in decision.points if point.classes]
    latencies = []
    for number, decision in enumerate(decisions, start=1):
        for metric in METRICS:
            name = f"{metric}-{number}"
            latencies.append(figures.latencies(decision, metric, requirements, name))
    timelines = _each(figures.timeline, controlled, "controller")
    estimates = _each(figures.controller_estimates, controlled, "controller-estimates")
    predicted = [
        figures.ideal_speedups(material.comparisons, "predicted-1"),
        figures.simulated(material.checked, "predicted-2"),
    ]
    return {
        "speedup": _each(figures.by_load, decisions, "speedup"),
        "draft-length": _each(figures.by_length, decisions, "draft-length"),
        "latency": [picture for picture in latencies if picture],
        "acceptance": _each(figures.histogram, lowest, "acceptance"),
        "positions": _each(figures.by_position, lowest, "positions"),
        "steps": _each(figures.step_times, decisions, "step"),
        "predicted": [picture for picture in predicted if picture],
        "controllers": timelines + estimates,
        "classes": _each(figures.by_class, _ends(mixed), "classes"),
    }


def _each(
    draw: Callable[[Item, str], Picture | None], items: Sequence[Item], name: str
) -> list[Picture]:
    """Return a picture of each item that has one, named with the item's number."""
    pictures = []
    for number, item in enumerate(items, start=1):
        picture = draw(item, f"{name}-{number}")
        if picture is not None:
            pictures.append(picture)
    return pictures


def _lowest_drafting(decision: Decision) -> Comparison:
    """Return the comparison at the lowest load at which anything was drafted."""
    drafting = (point for point in decision.points if point.speculative.acceptance is not None)
    return next(drafting, decision.points[0])


def _ends(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the lowest and the highest load of every workload and setting, as many as fit."""
    groups: dict[tuple[object, ...], list[Comparison]] = {}
    for each in sorted(comparisons, key=lambda each: each.load):
        groups.setdefault((each.workload, each.setting, each.load.axis), []).append(each)
    shown = []
    for group in groups.values():
        shown += ends(group)
    return shown[:MOST_PICTURES]


def _everything(comparisons: Sequence[Comparison]) -> TextTable:
    rows = []
    for comparison in comparisons:
        cells = [comparison.workload.label, comparison.load.label, comparison.setting.label]
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
        rows.append([*cells, comparison.folder.name])
    return TextTable(HEADER, rows)
