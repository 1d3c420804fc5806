"""The report's content in order, as one HTML page that stands alone and as Markdown."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from specresearch.reporting.decision import decide
from specresearch.reporting.folders import Material, Note
from specresearch.reporting.limits import Limits
from specresearch.reporting.rules import RULES
from specresearch.reporting.sections import Section, compose_sections
from specresearch.reporting.verdicts import RULE_OF_THUMB, Verdict, explain, headline

HTML, MARKDOWN, FIGURES = "report.html", "report.md", "figures"
MOST_ROWS = 24  # of a table that is not folded away

Terms = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Remark:
    """The same note on several folders.

    Attributes:
        is_used: Whether their figures are in the report.
    """

    text: str
    folders: tuple[str, ...]
    is_used: bool


@dataclass(frozen=True)
class Page:
    """Everything that is shown.

    Attributes:
        provenance: Terms by folder.
    """

    headline: str
    verdicts: tuple[Verdict, ...]
    sections: tuple[Section, ...]
    notes: tuple[Remark, ...]
    provenance: tuple[tuple[str, Terms], ...]
    definitions: dict[str, str]


def compose(material: Material, limits: Limits) -> Page:
    """Return the page of everything that the folders hold."""
    decisions = decide(material.comparisons, limits)
    verdicts = tuple(explain(decision, limits) for decision in decisions if decision.is_main)
    provenance = []
    for folder, entries in material.provenance.items():
        provenance.append((str(folder), _flattened(entries)))
    return Page(
        headline=headline(verdicts),
        verdicts=verdicts,
        sections=compose_sections(material, decisions, limits),
        notes=_remarks([*material.notes, *_unused_limits(material, limits)]),
        provenance=tuple(provenance),
        definitions=_definitions(material.definitions),
    )


def write(page: Page, folder: Path) -> Path:
    """Write report.html, report.md and figures/, and return the path of the HTML page.

    An earlier report in the folder is replaced.
    """
    pictures = folder / FIGURES
    pictures.mkdir(parents=True, exist_ok=True)
    if (folder / HTML).exists():
        for old in pictures.glob("*.png"):
            old.unlink()
    for section in page.sections:
        for picture in section.pictures:
            picture.save(pictures)
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
    """Return a note if load tests were started with different limits and the user names none."""
    if len(material.limits) < 2 or limits.given():
        return []
    text = (
        f"load runs were started with {len(material.limits)} different limits: none is used; "
        "--ttft and --tpot set yours"
    )
    return [Note(min(material.provenance), text)]


def _remarks(notes: Sequence[Note]) -> tuple[Remark, ...]:
    """Return each text once, those on folders that are not used first."""
    folders: dict[tuple[bool, str], list[str]] = {}
    for note in notes:
        folders.setdefault((note.is_used, note.text), []).append(str(note.folder))
    remarks = []
    for is_used, text in sorted(folders):
        remarks.append(Remark(text, tuple(folders[is_used, text]), is_used))
    return tuple(remarks)


def _flattened(entries: Mapping[str, Any]) -> Terms:
    terms = []
    for key, value in entries.items():
        if isinstance(value, dict):
            parts = [f"{name} {item}" for name, item in value.items() if item is not None]
            terms.append((key, ", ".join(parts)))
        elif value is not None:
            terms.append((key, str(value)))
    return tuple(terms)


def _definitions(by_kind: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return each term once, or once for every kind of folder that defines it differently."""
    definitions: dict[str, str] = {}
    for term in sorted({term for terms in by_kind.values() for term in terms}):
        texts = {kind: terms[term] for kind, terms in by_kind.items() if term in terms}
        if len(set(texts.values())) == 1:
            definitions[term] = next(iter(texts.values()))
        else:
            definitions |= {f"{term} ({kind})": text for kind, text in texts.items()}
    return definitions


def _markdown_cell(text: str) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")
