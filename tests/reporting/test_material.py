"""Whatever the folders hold, what can be reported is, and the rest is named."""

import json
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest

from specresearch.reporting import Requirements, compose, gather
from tests.reporting.folders import (
    notes,
    write_load,
    write_run,
)


def test_sweeps_are_searched_through_in_natural_order_and_once(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        write_run(tmp_path / "sweep" / f"{number}-ngram", length=number)
    material = gather(
        [tmp_path, tmp_path / "sweep", tmp_path / "sweep" / "2-ngram" / "results.json"]
    )
    assert [comparison.setting.length for comparison in material.comparisons] == [1, 2, 10]
    assert material.notes == []


def test_copies_that_a_tracker_keeps_are_not_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "a")
    for place in (run / "mlruns" / "1" / "f00" / "artifacts", tmp_path / "runs" / "wandb" / "b"):
        copytree(run, place, ignore=ignore_patterns("mlruns"))
    material = gather([tmp_path])
    assert [comparison.folder.name for comparison in material.comparisons] == ["a"]
    assert material.notes == []
    assert len(gather([run / "mlruns"]).comparisons) == 1  # asked for by name


def test_what_cannot_be_used_is_named_and_the_rest_reported(tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    write_run(tmp_path / "baseline", None, method=None)
    write_run(tmp_path / "unpaired", None)
    write_load(tmp_path / "no-plain", plain=False)
    write_run(tmp_path / "torn").joinpath("results.json").write_text('{"complete": tr')
    old = write_run(tmp_path / "old") / "results.json"
    old.write_text(old.read_text().replace('"schema": 2', '"schema": 1'))
    for name, content in {
        "list": [1],
        "foreign": {"accuracy": 0.9},
        "other": {"kind": "certificate"},
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(content))
    (tmp_path / "empty").mkdir()
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.yaml").write_text("batch_size: 1")
    (half / "requests.jsonl").write_text("{}\n")
    material = gather([tmp_path, tmp_path / "empty"])
    assert [comparison.folder.name for comparison in material.comparisons] == ["good"]
    texts = notes(material, is_used=False)
    expected = {
        "baseline": "plain decoding only",
        "unpaired": "no paired baseline",
        "no-plain": "without a paired baseline",
        "old": "was written by another version (schema 1, this is 2); measure again",
        "torn": "Expecting value",
        "list": "not the results of a run",
        "foreign": "neither run, load nor simulate",
        "other": "results of another kind (certificate)",
        "empty": "is empty",
        "half": "has rows but no results.json",
    }
    assert texts.keys() == expected.keys()
    for name, words in expected.items():
        assert words in texts[name]


def test_unfinished_and_bare_folders_are_used_with_a_note(tmp_path: Path) -> None:
    write_run(tmp_path / "half", complete=False)
    write_load(tmp_path / "stopped", stopped="the queue grew to 257 requests")
    material = gather([tmp_path])
    assert len(material.comparisons) == 2
    texts = [note.text for note in material.notes]
    assert any(text.startswith("unfinished") for text in texts)
    assert any("the queue grew to 257 requests" in text for text in texts)


@pytest.mark.parametrize("content", [None, {}, {"kind": "load"}, {"summary": {}, "provenance": {}}])
def test_nothing_usable_is_an_error_that_says_why(tmp_path: Path, content: Any) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(
        ValueError,
        match=r"nothing here compares a method with plain decoding \(.+\); measure one: python",
    ):
        gather([tmp_path])
    with pytest.raises(ValueError, match=f"there is no {tmp_path}/gone"):
        gather([tmp_path / "gone"])


def test_prompts_that_differ_between_folders_are_noted(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    folder = write_run(tmp_path / "b", length=2)
    results = (folder / "results.json").read_text().replace("cnndm-1", "cnndm-2")
    (folder / "results.json").write_text(results)
    (text,) = (
        note.text for note in gather([tmp_path]).notes if "different sets of prompts" in note.text
    )
    assert "2 different sets of prompts" in text


def test_definitions_that_differ_between_kinds_are_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    folder = write_load(tmp_path / "load")
    results = json.loads((folder / "results.json").read_text())
    results["definitions"] |= {"speedup": "throughput over throughput"}
    (folder / "results.json").write_text(json.dumps(results))
    assert compose(gather([tmp_path]), Requirements()).definitions == {
        "goodput": "requests per second within the limits",
        "speedup (load runs)": "throughput over throughput",
        "speedup (runs)": "baseline wall time / method wall time",
    }


def test_passes_without_a_middle_are_left_out(tmp_path: Path) -> None:
    write_load(tmp_path / "a", fixed={2: 1.4}, short=["method"])
    material = gather([tmp_path])
    assert [c.setting.label for c in material.comparisons] == ["ngram, 2 drafts"]
    assert any(
        note.text.startswith("ngram, goodput controller: left out") for note in material.notes
    )
    write_load(tmp_path / "a", short=["method"], stopped="out of time")
    with pytest.raises(
        ValueError, match=r"every pass was too short .+; stopped early: out of time"
    ):
        gather([tmp_path])


def test_sides_that_took_no_turns_are_noted(tmp_path: Path) -> None:
    for turn_seconds in (None, 0.5):
        write_load(tmp_path / "a", turn_seconds=turn_seconds)
        material = gather([tmp_path])
        assert any("did not take turns" in note.text for note in material.notes) == (
            turn_seconds is None
        )
        assert ("in turns with plain decoding" in str(compose(material, Requirements()).cards)) == (
            turn_seconds is not None
        )
