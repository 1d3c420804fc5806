"""The report's content in order, and its two renderings: one HTML page that stands alone, and Markdown beside its figures."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from specresearch.reporting.decision import RULES, Limits, decide
from specresearch.reporting.folders import Material, Note
from specresearch.reporting.sections import Section, compose_sections
from specresearch.reporting.verdicts import RULE_OF_THUMB, Verdict, headline, word

HTML, MARKDOWN, FIGURES = "report.html", "report.md", "figures"
MOST_ROWS = 24  # shown without being asked


@dataclass(frozen=True)
class Remark:
    """The same note on several folders. is_used: their figures are in the report."""

    text: str
    folders: tuple[str, ...]
    is_used: bool


@dataclass(frozen=True)
class Page:
    """Everything that is shown."""

    headline: str
    verdicts: tuple[Verdict, ...]
    sections: tuple[Section, ...]
    notes: tuple[Remark, ...]
    provenance: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    definitions: dict[str, str]


def compose(material: Material, limits: Limits) -> Page:
    """Decide, word and draw."""
    decisions = decide(material.comparisons, limits)
    verdicts = tuple(word(decision, limits) for decision in decisions if decision.is_main)
    sections = compose_sections(material, decisions, limits)
    return Page(
        headline(verdicts),
        verdicts,
        sections,
        _together([*material.notes, *_unused_limits(material, limits)]),
        tuple((str(folder), _provenance(told)) for folder, told in material.provenance.items()),
        _definitions(material.definitions),
    )


def write(page: Page, folder: Path) -> Path:
    """report.html, report.md and figures/ in `folder`, in place of an earlier report's. Returns the path of the page."""
    place = folder / FIGURES
    place.mkdir(parents=True, exist_ok=True)
    if (folder / HTML).exists():
        for old in place.glob("*.png"):
            old.unlink()
    for section in page.sections:
        for picture in section.pictures:
            picture.save(place)
    environment = Environment(
        loader=PackageLoader("specresearch.reporting"),
        autoescape=select_autoescape(["html.jinja"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = _markdown_cell
    shared: dict[str, Any] = {
        "page": page,
        "rules": RULES,
        "rule_of_thumb": RULE_OF_THUMB,
        "figures": FIGURES,
        "most_rows": MOST_ROWS,
    }
    for name in (HTML, MARKDOWN):
        text = environment.get_template(f"{name}.jinja").render(shared, safe=Markup)
        temporary = folder / f"{name}.part"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, folder / name)
    return folder / HTML


def _unused_limits(material: Material, limits: Limits) -> list[Note]:
    """Of load runs that were started with different ones, where the user names none."""
    if len(material.limits) < 2 or limits.given():
        return []
    text = f"load runs were started with {len(material.limits)} different limits: none is used; --ttft and --tpot set yours"
    return [Note(min(material.provenance), text)]


def _together(notes: Sequence[Note]) -> tuple[Remark, ...]:
    """Those on folders that are not used first."""
    folders: dict[tuple[bool, str], list[str]] = {}
    for note in notes:
        folders.setdefault((note.is_used, note.text), []).append(str(note.folder))
    return tuple(
        Remark(text, tuple(own), is_used) for (is_used, text), own in sorted(folders.items())
    )


def _provenance(told: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Flat, in words."""
    rows = []
    for key, value in told.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{name} {item}" for name, item in value.items() if item is not None)
            rows.append((key, inner))
        elif value is not None:
            rows.append((key, str(value)))
    return tuple(rows)


def _definitions(by_kind: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Each term once; one that kinds of folders define differently, once for each of them."""
    found: dict[str, str] = {}
    for term in sorted({term for told in by_kind.values() for term in told}):
        texts = {kind: told[term] for kind, told in by_kind.items() if term in told}
        is_one = len(set(texts.values())) == 1
        found |= (
            {term: next(iter(texts.values()))}
            if is_one
            else {f"{term} ({k})": text for k, text in texts.items()}
        )
    return found


def _markdown_cell(text: str) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")
