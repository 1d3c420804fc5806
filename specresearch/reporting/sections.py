"""The figures and tables of a report, in sections that fold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from matplotlib import style

from specresearch.reporting import figures
from specresearch.reporting.comparison import Comparison
from specresearch.reporting.decision import Decision
from specresearch.reporting.drawing import STYLE, Picture, TextTable
from specresearch.reporting.figures.latencies import latency_table
from specresearch.reporting.material import Material
from specresearch.reporting.requirements import Requirements
from specresearch.reporting.tables import every_comparison, simulations, step_times

PROSE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("prose.yaml").read_text("utf-8"))
MOST_PICTURES = 8  # of a kind; tables have all

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


def draw_overview(decisions: Sequence[Decision]) -> list[Picture]:
    """Return the charts of speedup by load."""
    with style.context(STYLE):
        return figures.overview(decisions, "speedup")


def compose_sections(
    material: Material, decisions: Sequence[Decision], requirements: Requirements
) -> list[Section]:
    """Return the folded sections in the order of the page, without those that are empty."""
    shown = decisions[:MOST_PICTURES]
    lowest = [_lowest_drafting(decision) for decision in shown]
    with style.context(STYLE):
        pictures = {
            "latency": figures.latencies(shown, requirements),
            "draft-length": figures.by_length(shown, "draft-length"),
            "acceptance": [
                *_each(figures.histogram, lowest, "acceptance"),
                *_each(figures.by_position, lowest, "positions"),
            ],
        }
    latencies, zero_gap = latency_table(decisions)
    simulated, errors = simulations(material.checked)
    tables = {
        "latency": latencies,
        "steps": step_times(decisions),
        "simulated": simulated,
        "all": every_comparison(material.comparisons),
    }
    additions = {"latency": zero_gap, "simulated": errors}
    sections = []
    for name, words in PROSE["sections"].items():
        drawn, table = pictures.get(name, []), tables.get(name)
        if drawn or table:
            introduction = " ".join(filter(None, (words["introduction"], additions.get(name))))
            sections.append(Section(name, words["title"], introduction, drawn, table))
    return sections


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
