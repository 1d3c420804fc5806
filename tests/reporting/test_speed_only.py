"""Synthetic acceptance and random weights are told from measured drafters wherever they show."""

from pathlib import Path
from typing import Any

import pytest

from specresearch.reporting import Requirements, compose, gather, write
from specresearch.reporting.decision import Answer
from specresearch.reporting.results_table import DEFAULT, results_table
from tests.reporting.decisions import FASTER, Decide
from tests.reporting.folders import write_load, write_run

SYNTHETIC = {
    "_target_": "specresearch.proposers.Synthetic",
    "drafter": {"_target_": "specresearch.proposers.NGram", "n_max": 3},
    "acceptance": 0.8,
}
RANDOM = {"_target_": "specresearch.proposers.Eagle3", "weights": "random"}
CASES = [
    pytest.param(SYNTHETIC, "synthetic acceptance", id="synthetic"),
    pytest.param(RANDOM, "random weights", id="random"),
]


@pytest.mark.parametrize(("proposer", "caveat"), CASES)
def test_nothing_is_recommended_and_everything_is_marked(
    tmp_path: Path, decide_on: Decide, proposer: dict[str, Any], caveat: str
) -> None:
    write_run(tmp_path / "a", FASTER, batch_size=8, proposer=proposer)
    write_load(tmp_path / "b", FASTER, concurrency=8, proposer=proposer)
    assert {decision.answer for decision in decide_on()} == {Answer.SPEED}
    material = gather([tmp_path])
    page = compose(material, Requirements())
    assert page.headline == f"Speed only, no recommendation ({caveat})"
    assert "Turn it on" not in page.headline
    assert all(caveat in card.workload.label for card in page.cards)
    for table in (results_table(material.comparisons, "csv"), results_table(material.comparisons)):
        assert table.count(f"({caveat})") == 2
    assert DEFAULT[0] == "method"
    written = write(page, tmp_path / "out")
    for text in (written.read_text(), written.with_suffix(".md").read_text()):
        assert "Speed only: a synthetic acceptance is set and not measured" in text
        assert "python -m specresearch" not in text.partition("Provenance")[0].partition("id=")[0]


@pytest.mark.parametrize(
    ("num", "says"), [(3, "Workloads: data0, "), (4, "So it is for 4 of 4 workloads")]
)
def test_only_a_few_workloads_are_named_at_the_top(tmp_path: Path, num: int, says: str) -> None:
    for index in range(num):
        write_run(tmp_path / str(index), FASTER, data=f"data{index}", proposer=SYNTHETIC)
    page = write(compose(gather([tmp_path]), Requirements()), tmp_path / "out")
    for path in (page, page.with_suffix(".md")):
        assert says in path.read_text()


def test_a_measured_drafter_beside_it_is_still_recommended(
    tmp_path: Path, decide_on: Decide
) -> None:
    """Figures that cannot be compared are in workloads of their own."""
    write_run(tmp_path / "a", (3.0, 2.9, 3.1), batch_size=8, method="synthetic", proposer=SYNTHETIC)
    write_run(tmp_path / "b", FASTER, batch_size=8)
    answers = {decision.setting.method: decision.answer for decision in decide_on()}
    assert answers == {"synthetic": Answer.SPEED, "ngram": Answer.ON}
    headline = compose(gather([tmp_path]), Requirements()).headline
    assert headline == "Turn it on for 1 of 2 workloads; speed only, no recommendation for 1"


def test_drafters_that_cost_differently_are_told_apart(tmp_path: Path) -> None:
    other = SYNTHETIC | {"drafter": {"_target_": "specresearch.proposers.Suffix"}}
    for name, proposer in (("a", SYNTHETIC), ("b", other)):
        write_run(tmp_path / name, FASTER, method="synthetic", proposer=proposer)
    labels = [comparison.setting.label for comparison in gather([tmp_path]).comparisons]
    assert len(set(labels)) == 2
    assert any("drafter NGram" in label for label in labels)
