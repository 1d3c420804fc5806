"""What a load test prints: the verdict, the sides and what explains them."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specresearch.bench.estimate import Estimate
from specresearch.bench.side_comparison import LATENCY, THROUGHPUT, SideComparison
from specresearch.loadtest.report import describe_load, headline, print_load
from specresearch.loadtest.results import LoadResults
from specresearch.loadtest.settings import PassSettings
from specresearch.loadtest.tables import SIDES_PER_TABLE
from tests.loadtest.load_rows import request, side

SETTING: dict[str, Any] = {
    "method": "ngram",
    "controller": "goodput",
    "arrivals": "closed_loop",
    "concurrency": 2,
    "max_running": 2,
    "num_repeats": 1,
    "temperature": 0.0,
    "output_statement": "output unchanged",
    "outputs_equal": True,
    "outputs_equal_but_for_ties": True,
}
PROVENANCE: dict[str, Any] = {
    "target": {"model": "tiny", "num_parameters": 10**6, "dtype": "float32", "device": "cpu"},
    "machine": {"device": "a machine", "num_torch_threads": 1},
    "workload": {"num_requests": 30, "mean_prompt_tokens": 10, "mean_max_new_tokens": 11},
    "dataset": {"name": "letters", "location": "letters.jsonl", "fingerprint": "f00"},
    "method": {"lossless": True, "trees": False},
}


def results_of(*names: str, category: str = "") -> LoadResults:
    sides = {}
    for name in names:
        gap = 0.1 if name == "baseline" else 0.05
        rows = [
            request(n, 0.2 * n, gap=gap, side=name, category=category, drafts=(6, 20))
            for n in range(30)
        ]
        sides[name] = side(name, rows, concurrency=2)
    return LoadResults.of(
        sides, PassSettings(), SETTING, complete=True, provenance=dict(PROVENANCE)
    )


def printed(results: LoadResults) -> list[str]:
    stream = io.StringIO()
    print_load(results, Path("out"), Console(file=stream, width=80))
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    return lines


def with_gain(results: LoadResults, gain: Estimate, basis: str) -> LoadResults:
    return replace(results, comparisons={"method": SideComparison(gain=gain, basis=basis)})


def row_of(lines: list[str], label: str) -> list[str]:
    (line,) = (line for line in lines if line.startswith(label))
    return line.removeprefix(label).split()


@pytest.mark.parametrize(
    ("gain", "basis", "words"),
    [
        (Estimate(1.3, 1.2, 1.4), THROUGHPUT, "1.30x the throughput of plain decoding (95%"),
        (Estimate(0.8, 0.7, 0.9), LATENCY, "0.80x the speed per request of plain decoding, SLOWER"),
        (Estimate(1.1, 0.9, 1.2), LATENCY, "no measurable difference from plain decoding (1.10x"),
        (Estimate(0.45), THROUGHPUT, "too few requests for an interval: measure more"),
    ],
)
def test_the_headline_is_a_speedup_whatever_is_compared(
    gain: Estimate, basis: str, words: str
) -> None:
    results = with_gain(results_of("baseline", "method"), gain, basis)
    line = headline(results, "on letters")
    assert line.startswith("ngram with the goodput controller on letters, closed loop of 2: ")
    assert words in line


def test_a_side_that_drafted_nothing_is_not_called_slower() -> None:
    results = with_gain(results_of("baseline", "method"), Estimate(0.99, 0.98, 0.99), THROUGHPUT)
    results.sides["method"]["mean_draft_length"] = 0.0
    assert "nothing was drafted, so both sides decoded plainly" in headline(results, "on letters")


def test_every_side_has_a_column_with_its_verdict() -> None:
    lines = printed(results_of("baseline", "method", "fixed-2"))
    assert any(line.split() == ["baseline", "method", "fixed-2"] for line in lines)
    assert row_of(lines, "speedup over plain decoding") == ["-", "0.99", "0.99"]
    assert row_of(lines, "  verdict") == ["-", *(["cannot", "tell"] * 2)]
    assert row_of(lines, "draft acceptance rate")[1:] == ["0.30", "0.30"]
    assert any(line.startswith("Speedup: above 1 is faster") for line in lines)


def test_more_sides_than_fit_go_into_another_table() -> None:
    names = ["baseline", "method", *(f"fixed-{n}" for n in range(1, SIDES_PER_TABLE))]
    lines = printed(results_of(*names))
    assert [line.split()[0] for line in lines if line.startswith("speedup over")] == ["speedup"] * 2
    assert any(line.split() == [names[-1]] for line in lines)


def test_trees_show_acceptance_by_depth() -> None:
    results = results_of("baseline", "method")
    trees = {**PROVENANCE, "method": {"lossless": True, "trees": True}}
    lines = printed(replace(results, provenance=trees))
    assert row_of(lines, "accepted tokens per tree")[1] == "1.20"  # 6 in 5 drafts
    assert not any("acceptance rate" in line for line in lines)
    assert any(line.startswith("method: accepted at depth 1, 2, ...") for line in lines)


def test_the_columns_of_classes_are_explained() -> None:
    lines = " ".join(printed(results_of("baseline", "method", category="chat")))
    assert "chat: method" in lines
    assert "TPOT: time per output token, and E2EL: request latency, in ms" in lines


def test_classes_of_tree_drafts_show_tokens_per_tree() -> None:
    results = results_of("baseline", "method", category="chat")
    trees = {**PROVENANCE, "method": {"lossless": True, "trees": True}}
    (line,) = (line for line in printed(replace(results, provenance=trees)) if "chat: m" in line)
    assert line.split()[-2] == "1.20"
    (line,) = (line for line in printed(results) if "chat: m" in line)
    assert line.split()[-3:-1] == ["0.30", "0.30"]


def test_loads_have_names() -> None:
    assert describe_load({"arrivals": "closed_loop", "concurrency": 8}) == "closed loop of 8"
    gamma = {"arrivals": "gamma", "qps": 4.0, "cv": 2.0}
    assert describe_load(gamma) == "gamma (cv 2), 4 requests/s"


def test_no_goodput_is_shown_where_no_request_finished() -> None:
    results = results_of("baseline", "method")
    none = {"request_throughput": 0.0, "goodput": 0.0}
    half = replace(results, sides=results.sides | {"method": results.sides["method"] | none})
    lines = printed(half)
    assert row_of(lines, "requests per second in limits")[1] == "-"
    warning = "method: no request finished between warm-up and tail; send more requests"
    assert warning in " ".join(lines)
    assert warning not in " ".join(printed(results))
