"""The report's content in order, as one HTML page that stands alone and as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from specresearch.files import replace_text
from specresearch.reporting.cards import Card, compose_cards, headline
from specresearch.reporting.decision import decide
from specresearch.reporting.drawing import Picture
from specresearch.reporting.material import Material, Note
from specresearch.reporting.requirements import Requirements
from specresearch.reporting.sections import PROSE, Section, compose_sections, draw_overview

HTML, MARKDOWN, FIGURES = "report.html", "report.md", "figures"


@dataclass(frozen=True)
class Page:
    """Everything that is shown.

    Attributes:
        overview: Charts of the speedup by load.
        notes: Each text once; those on folders that are not used come first.
        provenance: Terms by folder.
    """

    headline: str
    overview: Sequence[Picture]
    cards: Sequence[Card]
    sections: Sequence[Section]
    notes: Sequence[Note]
    provenance: Mapping[str, Mapping[str, str]]
    definitions: Mapping[str, str]

    @property
    def pictures(self) -> list[Picture]:
        """Return all charts in their order."""
        pictures = list(self.overview)
        for section in self.sections:
            pictures += section.pictures
        return pictures

    @property
    def toys(self) -> list[str]:
        """Return the workloads that were decoded by a toy target."""
        return [card.workload.label for card in self.cards if card.workload.is_toy]

    @property
    def speed_only(self) -> list[str]:
        """Return the workloads whose figures compare speeds and recommend nothing."""
        return [card.workload.label for card in self.cards if card.workload.caveats]


def compose(material: Material, requirements: Requirements) -> Page:
    """Return the page of everything that the folders hold."""
    decisions = decide(material.comparisons, requirements)
    cards = compose_cards(decisions, requirements)
    notes = list(material.notes)
    if len(material.limits) > 1 and not requirements.limits:
        text = (
            f"load runs were started with {len(material.limits)} different limits: none is used; "
            "--ttft and --tpot set yours"
        )
        notes.append(Note(text, (min(material.provenance),)))
    provenance = {str(folder): _flattened(terms) for folder, terms in material.provenance.items()}
    return Page(
        headline=headline(cards),
        overview=draw_overview(decisions),
        cards=cards,
        sections=compose_sections(material, decisions, requirements),
        notes=_merged(notes),
        provenance=provenance,
        definitions=_definitions(material.definitions),
    )


def write(page: Page, folder: Path) -> Path:
    """Write report.html, report.md and figures/, and return the path of the HTML page.

    An earlier report in the folder is replaced.
    """
    pictures = folder / FIGURES
    pictures.mkdir(parents=True, exist_ok=True)
    # Pictures of an earlier report, and nobody else's.
    if (folder / HTML).exists():
        for old in pictures.glob("*.png"):
            old.unlink()
    for picture in page.pictures:
        (pictures / f"{picture.name}.png").write_bytes(picture.png)
    environment = Environment(
        loader=PackageLoader("specresearch.reporting"),
        autoescape=select_autoescape(["html.jinja"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = lambda text: text.replace("|", "\\|").replace("\n", " ")
    for name in (HTML, MARKDOWN):
        template = environment.get_template(f"{name}.jinja")
        shared = {"page": page, "prose": PROSE, "figures": FIGURES}
        replace_text(folder / name, template.render(shared, safe=Markup))
    return folder / HTML


def _merged(notes: Sequence[Note]) -> list[Note]:
    folders: dict[tuple[bool, str], tuple[Path, ...]] = {}
    for note in notes:
        key = note.is_used, note.text
        folders[key] = folders.get(key, ()) + note.folders
    return [Note(text, folders[is_used, text], is_used) for is_used, text in sorted(folders)]


def _flattened(entries: Mapping[str, Any]) -> dict[str, str]:
    """Return what is known of a folder's origin; sections in one line each."""
    terms = {}
    for key, value in entries.items():
        if isinstance(value, dict):
            parts = [f"{name} {item}" for name, item in value.items() if item is not None]
            terms[key] = ", ".join(parts)
        elif value is not None:
            terms[key] = str(value)
    return terms


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
