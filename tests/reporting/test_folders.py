"""Whatever the folders hold, what can be reported is, and the rest is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from specresearch.reporting import Requirements, compose, gather
from specresearch.reporting.comparison import ControllerHistory
from specresearch.reporting.decision import decide
from specresearch.reporting.material import Material
from specresearch.reporting.workload import Load
from tests.reporting.folders import write_load, write_run, write_simulation


def notes(material: Material, *, is_used: bool | None = None) -> dict[str, str]:
    return {
        note.folders[0].name: note.text
        for note in material.notes
        if is_used in (None, note.is_used)
    }


def test_sweeps_are_searched_through_in_natural_order_and_once(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        write_run(tmp_path / "sweep" / f"{number}-ngram", length=number)
    material = gather(
        [tmp_path, tmp_path / "sweep", tmp_path / "sweep" / "2-ngram" / "results.json"]
    )
    assert [comparison.setting.length for comparison in material.comparisons] == [1, 2, 10]
    assert material.notes == []


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
    told = notes(material, is_used=False)
    expected = {
        "baseline": "plain decoding only",
        "unpaired": "no paired baseline",
        "no-plain": "without a paired baseline",
        "old": "was written by another version (schema 1, this is 2); measure again",
        "torn": "Expecting value",
        "list": "not the results of a run",
        "foreign": "no run of this project",
        "other": "results of another kind (certificate)",
        "empty": "is empty",
        "half": "has rows but no results.json",
    }
    assert told.keys() == expected.keys()
    for name, words in expected.items():
        assert words in told[name]


def test_unfinished_and_bare_folders_are_used_with_a_note(tmp_path: Path) -> None:
    write_run(tmp_path / "half", complete=False)
    write_load(tmp_path / "stopped", stopped="the queue grew to 257 requests")
    material = gather([tmp_path])
    assert len(material.comparisons) == 2
    told = [note.text for note in material.notes]
    assert any(text.startswith("unfinished") for text in told)
    assert any("the queue grew to 257 requests" in text for text in told)


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


def test_machines_and_lengths_of_one_name_are_kept_apart_and_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", machine="GPU")
    labels = [comparison.workload.label for comparison in gather([tmp_path]).comparisons]
    assert labels == [
        "cnndm, temperature 0 (CPU, 1 thread)",
        "cnndm, temperature 0 (GPU, 1 thread)",
    ]


def test_variants_of_one_setting_are_told_apart(tmp_path: Path) -> None:
    for name, n_max in (("a", 3), ("b", 4)):
        folder = write_run(tmp_path / name)
        config = (
            (folder / "config.yaml")
            .read_text()
            .replace("num_draft_tokens: 5", f"num_draft_tokens: 5\n  n_max: {n_max}")
        )
        (folder / "config.yaml").write_text(config)
    labels = [comparison.setting.label for comparison in gather([tmp_path]).comparisons]
    assert labels == ["ngram, 5 drafts (n_max 3)", "ngram, 5 drafts (n_max 4)"]


def test_a_load_folder_gives_a_comparison_for_every_side(tmp_path: Path) -> None:
    write_load(tmp_path / "a", fixed={2: 1.4, 5: 0.9})
    material = gather([tmp_path])
    gains = {c.setting.label: c.gain.value for c in material.comparisons if c.gain}
    assert gains == {
        "ngram, goodput controller": 1.5,
        "ngram, 2 drafts": pytest.approx(1.4),
        "ngram, 5 drafts": pytest.approx(0.9),
    }
    (history,) = histories(material)
    assert list(history.references) == [
        "plain decoding",
        "ngram, 2 drafts, best in hindsight",
    ]
    assert history.speedup_over_best is not None


def test_prompts_that_differ_between_folders_are_noted(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    folder = write_run(tmp_path / "b", length=2)
    told = (folder / "results.json").read_text().replace("cnndm-1", "cnndm-2")
    (folder / "results.json").write_text(told)
    (text,) = (
        note.text for note in gather([tmp_path]).notes if "different sets of prompts" in note.text
    )
    assert "2 different sets of prompts" in text


def test_the_length_of_a_fixed_controller_is_what_the_proposer_was_bound_to(tmp_path: Path) -> None:
    write_load(tmp_path / "a", controller="fixed", bound=7)
    assert [c.setting.label for c in gather([tmp_path]).comparisons] == ["ngram, 7 drafts"]


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


def test_simulations_are_laid_over_what_was_measured_of_the_same_setting(tmp_path: Path) -> None:
    write_load(tmp_path / "load", fixed={2: 1.4})
    write_simulation(tmp_path / "same", fixed=(2, 5))
    write_simulation(tmp_path / "elsewhere", concurrency=7)
    write_simulation(tmp_path / "machine", timing="Roofline")
    material = gather([tmp_path])
    found = {(one.predicted.folder.name, one.measured.setting.label) for one in material.checked}
    assert found == {("same", "ngram, goodput controller"), ("same", "ngram, 2 drafts")}
    told = notes(material, is_used=False)
    assert told.keys() == {"elsewhere", "machine"}
    assert "none of its settings was measured at its load" in told["elsewhere"]
    assert told["machine"].startswith("a simulation of another machine (as it was told)")
    (section,) = (
        section
        for section in compose(material, Requirements()).sections
        if section.name == "predicted"
    )
    (picture,) = section.pictures
    assert "what simulations predicted" in section.introduction
    assert "TPOT P99 10%" in picture.alt
    assert picture.table.rows[0][5] == "11.0 ms; 10.0 ms (9.9 to 10.1)"


def test_an_open_load_with_another_number_of_running_requests_is_another_setting(
    tmp_path: Path,
) -> None:
    write_load(tmp_path / "load", concurrency=16)
    write_simulation(tmp_path / "narrow", concurrency=16)  # eight may run, so that eight wait
    assert gather([tmp_path]).checked == []


BOUNDED = {"bounded": ({"max_slowdown": 1.05}, (1.7, 1.6, 1.8))}


def histories(material: Material) -> list[ControllerHistory]:
    return [each.history for each in material.comparisons if each.history is not None]


def labels(folder: Path) -> list[str]:
    return [comparison.setting.label for comparison in gather([folder]).comparisons]


@pytest.mark.parametrize(
    ("controller", "how"), [("fixed", "2 drafts"), ("batch_size_cutoff", "cutoff controller")]
)
def test_a_variant_is_a_setting_of_its_own(tmp_path: Path, controller: str, how: str) -> None:
    variants = {"short": ({"num_draft_tokens": 2}, (1.2, 1.1, 1.3))}
    write_load(tmp_path / "a", controller=controller, variants=variants, limits={})
    run, short = gather([tmp_path]).comparisons
    assert run.setting.label == (
        "ngram, 10 drafts" if controller == "fixed" else "ngram, batch_size_cutoff controller"
    )
    assert short.setting.label.endswith(f"{how} (short)".replace("cutoff", "batch_size_cutoff"))
    assert short.gain is not None
    assert (short.gain.low, short.gain.high) == (1.1, 1.3)
    (decision,) = decide([run, short], Requirements())
    assert len(decision.others) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([{"settings": {"num_draft_tokens": n}} for n in (2, 4)], "controller.num_draft_tokens {}"),
        ([{"proposer": {"num_draft_tokens": n}} for n in (2, 4)], "num_draft_tokens {}"),
        ([{"proposer": {"draft": {"model": f"zoo:{n}"}}} for n in (2, 4)], "draft zoo:{}"),
    ],
)
def test_settings_that_differ_between_folders_are_told_apart(
    tmp_path: Path, changes: list[dict[str, Any]], words: str
) -> None:
    for number, own in enumerate(changes):
        write_load(tmp_path / str(number), **own)
    assert labels(tmp_path) == [f"ngram, goodput controller ({words.format(n)})" for n in (2, 4)]
    assert len(histories(gather([tmp_path]))) == 2


def test_drafts_of_a_tree_are_its_nodes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", length=None)
    results = json.loads((folder / "results.json").read_text())
    results["provenance"]["method"] |= {"num_draft_tokens": 60}
    (folder / "results.json").write_text(json.dumps(results))
    assert labels(folder) == ["ngram, 60 drafts"]


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


def test_every_variant_has_its_own_history(tmp_path: Path) -> None:
    estimates = {"repeat": 0.0, "step": 100.0, "acceptance": 0.7}
    write_load(
        tmp_path / "a",
        variants=BOUNDED,
        fixed={2: 1.1},
        controller_estimates=[estimates],
        concurrency=8,
    )
    material = gather([tmp_path])
    assert "ngram, goodput controller (bounded)" in labels(tmp_path)
    free, bounded = histories(material)
    assert bounded.estimates == [estimates]
    for history, speedup in ((free, 1.01), (bounded, 1.05)):
        assert history.speedup_over_best is not None
        assert history.speedup_over_best.value == speedup
    (section,) = (s for s in compose(material, Requirements()).sections if s.name == "controllers")
    assert all("bounded" in picture.caption for picture in section.pictures)
    assert "Of the recommended settings" in section.introduction
    write_load(tmp_path / "a", fixed={2: 3.0}, concurrency=8)
    (section,) = (
        s for s in compose(gather([tmp_path]), Requirements()).sections if s.name == "controllers"
    )
    assert "none of which is recommended" in section.introduction


def test_sides_that_took_no_turns_are_noted(tmp_path: Path) -> None:
    for turn_seconds in (None, 0.5):
        write_load(tmp_path / "a", turn_seconds=turn_seconds)
        material = gather([tmp_path])
        assert any("did not take turns" in note.text for note in material.notes) == (
            turn_seconds is None
        )
        assert (
            "plain decoding interleaved" in str(compose(material, Requirements()).recommendations)
        ) == (turn_seconds is not None)


def test_many_requests_in_flight_are_counted_in_full() -> None:
    assert Load("concurrency", 1024.0).label == "1024 requests at a time"
    assert Load("poisson", 2.5).label == "2.5 requests per second"
