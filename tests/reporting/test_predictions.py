"""Predictions beside what was measured with the same setting."""

from collections.abc import Sequence
from pathlib import Path

from specresearch.reporting import Requirements, compose, gather
from specresearch.rows import SCHEMA
from tests.reporting.folders import LATENCIES, notes, provenance, sampling, write, write_load


def write_simulation(
    folder: Path,
    *,
    concurrency: int = 4,
    fixed: Sequence[int] = (),
    timing: str = "Fitted",
    error: float = 1.1,
) -> Path:
    """Write a simulation of what `write_load` wrote, with every figure wrong by a factor."""
    figures = {
        f"{metric}_p{p}": error * 0.01 * p / 99 for metric in LATENCIES for p in (50, 90, 99)
    }
    sides = {
        name: figures | {"throughput": 150 * error}
        for name in ("baseline", "method", *(f"fixed-{k}" for k in fixed))
    }
    measured = provenance("cnndm")
    recorded = {"target": measured["target"], "machine": "CPU", "method": "ngram"}
    recorded |= {
        "config": {
            "sampling": sampling(0.0),
            "dataset": {"name": "cnndm"},
            "proposer": {"num_draft_tokens": 10},
        }
    }
    results = {
        "schema": SCHEMA,
        "kind": "simulation",
        "complete": True,
        "summary": {"arrivals": "closed_loop", "concurrency": concurrency, "max_running": 8},
        "sides": sides,
        "side_intervals": {name: {} for name in sides},
        "acceptance": {},
        "step_times": {},
        "definitions": {},
        "provenance": {
            "recorded": recorded,
            "controller": "goodput",
            "num_draft_tokens": 10,
            "timing": "twice the cores",
        },
    }
    return write(folder, results, {"timing": {"_target_": f"specresearch.simulation.{timing}"}})


def test_simulations_are_laid_over_what_was_measured_of_the_same_setting(tmp_path: Path) -> None:
    write_load(tmp_path / "load", fixed={2: 1.4})
    write_simulation(tmp_path / "same", fixed=(2, 5))
    write_simulation(tmp_path / "elsewhere", concurrency=7)
    write_simulation(tmp_path / "machine", timing="Roofline")
    material = gather([tmp_path])
    found = {(one.predicted.folder.name, one.measured.setting.label) for one in material.checked}
    assert found == {("same", "ngram, goodput controller"), ("same", "ngram, 2 drafts")}
    texts = notes(material, is_used=False)
    assert texts.keys() == {"elsewhere", "machine"}
    assert "none of its settings was measured at its load" in texts["elsewhere"]
    assert texts["machine"].startswith("a simulation of another machine (twice the cores)")
    (section,) = (
        section
        for section in compose(material, Requirements()).sections
        if section.name == "simulated"
    )
    assert "TPOT P99 10%" in section.introduction
    assert section.table is not None
    assert section.table.rows[0][5] == "11.0 ms; 10.0 ms (9.9 to 10.1)"


def test_an_open_load_with_another_number_of_running_requests_is_another_setting(
    tmp_path: Path,
) -> None:
    write_load(tmp_path / "load", concurrency=16)
    write_simulation(tmp_path / "narrow", concurrency=16)  # eight may run, so that eight wait
    assert gather([tmp_path]).checked == []
