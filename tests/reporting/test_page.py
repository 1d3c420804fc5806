"""The page stands alone, says in words and tables what its figures show, and trusts no name."""

import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from specresearch.reporting import Requirements, compose, gather, write
from tests.reporting.folders import write_load, write_run
from tests.reporting.test_predictions import write_simulation

VOID = ("meta", "path", "use", "br", "img", "rect")


class Page(HTMLParser):
    """Every element with its attributes, and how they nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.found if found == tag]


@dataclass(frozen=True)
class Written:
    html: str
    markdown: str
    folder: Path

    @staticmethod
    def of(runs: Path, folder: Path) -> "Written":
        write(compose(gather([runs]), Requirements(tpot=0.015)), folder)
        return Written(
            (folder / "report.html").read_text(), (folder / "report.md").read_text(), folder
        )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    figures = {f"tpot_p{p}": 0.01 for p in (50, 99)}
    classes = {
        name: {"baseline": figures, "method": figures | {"tpot_p50": 0.008, "tpot_p99": worst}}
        for name, worst in (("structured", 0.009), ("creative", 0.013))
    }
    estimates = {
        "repeat": 0.0,
        "step": 100.0,
        "measured_seconds": 0.02,
        "estimated_seconds": 0.021,
        "acceptance": 0.7,
    }
    for concurrency, gain in ((1, 1.8), (8, 1.2), (32, 0.9)):
        between = (gain, gain - 0.05, gain + 0.05)
        write_load(
            folder / f"load{concurrency}",
            between,
            concurrency=concurrency,
            fixed={2: gain, 5: 0.8},
            controller_estimates=[estimates],
            classes=classes,
            class_signature=["creative"],
        )
    write_run(folder / "run")
    write_run(folder / "half", length=2, complete=False)
    write_run(folder / "baseline", None, method=None)
    return folder


@pytest.fixture(scope="module")
def written(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written.of(runs, tmp_path_factory.mktemp("report"))


def test_every_section_is_there_and_the_decision_comes_first(written: Written) -> None:
    html, markdown, out = written.html, written.markdown, written.folder
    page = Page(html)
    assert page.unbalanced == []
    assert page.open == []
    assert len(page.all("h1")) == 1
    order = [attributes["id"] for attributes in page.all("section")]
    assert order == ["speedup", "decision", "details"]
    folded = [attributes["id"] for attributes in page.all("details") if "id" in attributes]
    assert folded == [
        "latency",
        "draft-length",
        "acceptance",
        "all",
        "missing",
        "provenance",
        "rules",
        "definitions",
    ]
    for text in (html, markdown):
        assert "Turn it on up to 8 requests at a time, off from 32" in text
        assert "creative faster at the median and slower among its slowest requests" in text
        assert "plain decoding only" in text
        assert "unfinished" in text
        assert "it estimated 21.0 ms for a step that took 20.0 ms" in text
    assert markdown.startswith("# Turn it on up to 8 requests at a time")
    assert not list(out.glob("*.part"))


def test_an_inter_token_latency_of_0_is_explained_where_it_appears(
    written: Written, tmp_path: Path
) -> None:
    assert "delivers several tokens at once" not in written.markdown
    folder = write_load(tmp_path / "runs" / "a")
    results = json.loads((folder / "results.json").read_text())
    results["sides"]["method"]["itl_p50"] = 0.0
    (folder / "results.json").write_text(json.dumps(results))
    page = Written.of(tmp_path / "runs", tmp_path / "out")
    assert "delivers several tokens at once" in page.markdown
    assert "| 0.00 ms" in page.markdown


def test_latencies_are_drawn_only_of_several_loads(written: Written, tmp_path: Path) -> None:
    assert "figures/latency-" in written.markdown
    write_load(tmp_path / "runs" / "a")
    page = Written.of(tmp_path / "runs", tmp_path / "out")
    assert "figures/latency" not in page.markdown
    assert "TTFT P99" in page.markdown


def test_a_single_speedup_is_a_number_and_not_a_chart(tmp_path: Path) -> None:
    write_load(tmp_path / "a")
    page = compose(gather([tmp_path]), Requirements())
    assert page.overview == []
    assert "1.50 times as fast" in page.cards[0].recommendations[0].reason
    write_load(tmp_path / "b", method="suffix")
    assert len(compose(gather([tmp_path]), Requirements()).overview) == 1


def test_the_overview_has_a_line_for_each_method_and_one_axis(tmp_path: Path) -> None:
    for data, gain in (("cnndm", 1.2), ("gsm8k", 4.0)):
        for method in ("ngram", "suffix"):
            for concurrency in (1, 4):
                write_load(
                    tmp_path / f"{data}-{method}-{concurrency}",
                    (gain, gain - 0.1, gain + 0.1),
                    data=data,
                    method=method,
                    concurrency=concurrency,
                    fixed={2: 1.1},
                )
    overview = compose(gather([tmp_path]), Requirements()).overview
    assert [picture.title for picture in overview] == [
        "cnndm, temperature 0, by requests in flight",
        "gsm8k, temperature 0, by requests in flight",
    ]
    for picture in overview:
        assert picture.table is not None
        assert list(picture.table.header[1:]) == [
            "ngram, goodput controller",
            "suffix, goodput controller",
        ]
        assert "<text" in picture.svg
    first, second = (re.findall(r">([\d.]+)</text>", picture.svg) for picture in overview)
    assert first == second


def test_draft_lengths_are_drawn_in_their_order(tmp_path: Path) -> None:
    for length, gain in ((8, 1.3), (2, 1.1), (4, 1.2)):
        write_run(tmp_path / str(length), (gain, gain - 0.1, gain + 0.1), length=length)
    page = compose(gather([tmp_path]), Requirements())
    (section,) = (section for section in page.sections if section.name == "draft-length")
    (picture,) = section.pictures
    assert re.findall(r"(\d): 1\.", picture.alt) == ["2", "4", "8"]


def test_every_measurement_of_a_workload_keeps_its_card(tmp_path: Path) -> None:
    """A run, a load test and a simulation of one workload do not hide one another."""
    write_run(tmp_path / "run", method="suffix")
    write_load(tmp_path / "load")
    write_simulation(tmp_path / "simulation")
    write_run(tmp_path / "other", data="gsm8k")
    page = compose(gather([tmp_path]), Requirements())
    shown = {}
    for card in page.cards:
        settings = [each.decision.setting.method for each in card.recommendations]
        shown[card.workload.data] = settings
    assert shown == {"cnndm": ["ngram", "suffix"], "gsm8k": ["ngram"]}
    assert page.headline == "Turn it on for 1 of 2 workloads; measure more for 1"


def test_a_toy_target_is_named_beside_the_decision(tmp_path: Path) -> None:
    folder = write_load(tmp_path / "runs" / "a")
    page = Written.of(tmp_path / "runs", tmp_path / "out")
    toy = "The decision is about this toy, not about your model."
    assert toy in page.html.partition("</header>")[0]
    assert toy in page.markdown
    results = (folder / "results.json").read_text().replace("zoo:tiny", "models/my_own_copy")
    (folder / "results.json").write_text(results)
    assert toy in Written.of(tmp_path / "runs", tmp_path / "out").html
    large = results.replace('"num_parameters": 1000000,', '"num_parameters": 8000000000,')
    (folder / "results.json").write_text(large)
    assert toy not in Written.of(tmp_path / "runs", tmp_path / "out").html


def test_limits_of_runs_that_differ_are_named_where_the_user_gives_none(tmp_path: Path) -> None:
    for tpot in (0.1, 0.2):
        write_load(tmp_path / str(tpot), limits={"ttft": 1.0, "tpot": tpot})
    for limits in (Requirements(), Requirements(tpot=0.05)):
        notes = compose(gather([tmp_path]), limits).notes
        assert any("2 different limits" in note.text for note in notes) == (
            limits == Requirements()
        )


def test_headings_do_not_skip_a_level(written: Written) -> None:
    levels = [int(tag[1]) for tag, _ in Page(written.html).found if re.fullmatch("h[1-6]", tag)]
    assert levels[:4] == [1, 2, 2, 3]
    assert all(later <= level + 1 for level, later in pairwise(levels))


def test_every_note_has_its_line(written: Written) -> None:
    notes = written.markdown.split("## What is missing, and what was not used")[1].split("\n## ")[0]
    lines = [line for line in notes.splitlines() if line]
    assert len(lines) >= 2
    assert all(line.startswith("- ") and line.count("`") % 2 == 0 for line in lines)


def test_the_page_needs_nothing_from_outside(written: Written) -> None:
    page = Page(written.html)
    assert {tag for tag, _ in page.found} & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "base",
    } == set()
    for _, attributes in page.found:
        for name in ("src", "href", "xlink:href", "srcset"):
            assert (attributes.get(name) or "#").startswith("#")
    style = re.search("<style>(.*?)</style>", written.html, re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_every_figure_has_words_a_table_and_a_png(written: Written) -> None:
    html, markdown, out = written.html, written.markdown, written.folder
    figures = re.findall("<figure>(.*?)</figure>", html, re.DOTALL)
    names = re.findall(r"\(figures/([\w-]+\.png)\)", markdown)
    assert len(figures) == len(names) == len(list((out / "figures").iterdir()))
    for text in figures:
        page = Page(text)
        (svg,) = page.all("svg")
        assert svg["role"] == "img"
        assert len(svg["aria-label"] or "") > 40
        assert {"figcaption", "svg"} <= {tag for tag, _ in page.found}
        assert "currentColor" in text
        assert not re.search("#(1b1d22|fefefe|0a63b8)", text)  # colours of the light scheme
    for name in names:
        assert (out / "figures" / name).read_bytes().startswith(b"\x89PNG")
    assert all(alt for alt, _ in re.findall(r"!\[(.*?)\]\((.*?)\)", markdown))


def test_wide_tables_scroll_in_frames_of_their_own(written: Written) -> None:
    """The page itself never scrolls sideways."""
    frames = re.findall('<div class="scroll".*?</div>', written.html, re.DOTALL)
    assert sum(frame.count("<table>") for frame in frames) == written.html.count("<table>")
    assert re.search(r"\.scroll \{[^}]*overflow-x: auto", written.html)
    assert re.search(r"pre \{[^}]*white-space: pre-wrap", written.html)


def test_only_the_answer_is_open(written: Written) -> None:
    """Details fold; what is open is the overview, the cards and the next commands."""
    assert "<details open" not in written.html
    open_part = re.sub("<details.*</details>", "", written.html.partition('id="details"')[0])
    tables = re.sub("<details>.*?</details>", "", open_part, flags=re.DOTALL).count("<table>")
    assert tables == 2  # one for each kind of load of the only workload


def test_ids_are_unique_and_every_reference_has_its_target(written: Written) -> None:
    html = written.html
    ids = re.findall(r'\sid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', html)) <= set(ids)


def test_names_from_files_are_text_and_never_markup(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    write_run(tmp_path / "runs" / "a", data=evil, output_statement="<b>&", num_outputs_equal=199)
    html = Written.of(tmp_path / "runs", tmp_path / "out").html
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "&lt;b&gt;&amp;" in html


def test_the_smallest_material_is_enough(tmp_path: Path) -> None:
    """One comparison without interval, latencies or acceptance."""
    folder = write_run(tmp_path / "runs" / "a", (1.5, None, None))  # type: ignore[arg-type]
    results = json.loads((folder / "results.json").read_text())
    for side in results["sides"]:
        results["sides"][side] = {"throughput": 100.0, "num_requests": 200}
    results["acceptance"] = {}
    results["comparisons"]["method"]["ideal_speedup"] = None
    (folder / "results.json").write_text(json.dumps(results))
    html = Written.of(tmp_path / "runs", tmp_path / "out").html
    assert "Faster so far; measure more" in html
    assert "(too little was measured for an interval)" in html
    for absent in ("latency", "acceptance", "positions", "predicted", "controllers"):
        assert f'<details id="{absent}">' not in html


def test_the_same_folders_give_the_same_page(tmp_path: Path) -> None:
    write_run(tmp_path / "runs")
    first = Written.of(tmp_path / "runs", tmp_path / "out")
    (tmp_path / "out" / "figures" / "old.png").touch()
    again = Written.of(tmp_path / "runs", tmp_path / "out")
    assert (first.html, first.markdown) == (again.html, again.markdown)
    assert not (tmp_path / "out" / "figures" / "old.png").exists()


def test_the_longest_names_fit_the_chart_of_one_load(tmp_path: Path) -> None:
    """Layouts that cannot fit warn, and warnings are errors here."""
    for number in range(2):
        write_run(tmp_path / str(number), data=f"{'a_very_long_name_' * 8}{number}")
    (picture,) = compose(gather([tmp_path]), Requirements()).overview
    assert picture.title == "Measured at one load"
    assert picture.svg.count("a_very_long_name_") > 16
