"""A run folder reports damage, rows of a second process, and changed code."""

import json
from pathlib import Path
from typing import Any

import pytest
from bench.test_results import CONFIG, PROVENANCE, measure, started

from specresearch.bench.folder import ResultsFolder
from specresearch.files.jsonl import append_rows, read_jsonl
from specresearch.results import fingerprint
from specresearch.results.fingerprint import WHOLE_PACKAGE, describe_software, differing_software
from specresearch.results.folder import check_software
from specresearch.rows import BASELINE, METHOD, PassKey
from specresearch.trackers.base import TRACKER_FILES


def measured(path: Path) -> Path:
    folder = started(path)
    for side in (BASELINE, METHOD):
        measure(folder, PassKey(0, 0, side))
    return path


def resumed(path: Path) -> ResultsFolder:
    return ResultsFolder(path, CONFIG, resume=True)


@pytest.mark.parametrize("name", ["requests.jsonl", "groups.jsonl", "steps.jsonl"])
def test_a_duplicate_row_is_named(tmp_path: Path, name: str) -> None:
    file = measured(tmp_path) / name
    file.write_text(file.read_text() + file.read_text().split("\n")[0] + "\n")
    with pytest.raises(
        ValueError,
        match=rf"{name}, line 3 is a second row of repeat 0, group 0, side baseline.*, "
        "after line 1: .*; measure again",
    ):
        resumed(tmp_path)


def test_a_missing_row_is_named_and_its_remedy_works(tmp_path: Path) -> None:
    measured(tmp_path)
    requests, groups = (tmp_path / name for name in ("requests.jsonl", "groups.jsonl"))
    requests.write_text(requests.read_text().split("\n")[0] + "\n")
    with pytest.raises(
        ValueError,
        match=r"requests.jsonl has 0 rows of repeat 0, group 0, side method, where 1 req",
    ):
        resumed(tmp_path)
    groups.write_text(groups.read_text().split("\n")[0] + "\n")
    again = resumed(tmp_path)
    assert again.done == {PassKey(0, 0, BASELINE)}
    measure(again, PassKey(0, 0, METHOD))
    assert len(resumed(tmp_path).requests) == 2


def test_a_torn_settings_file_does_not_block_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.yaml.part").write_text("batch_s")
    assert not ResultsFolder(tmp_path, CONFIG).is_resumed
    for name in TRACKER_FILES:
        (tmp_path / name).write_text("abc\n")
    measure(started(tmp_path), PassKey(0, 0, BASELINE))
    (tmp_path / "config.yaml.part").write_text("batch_s")
    assert resumed(tmp_path).is_resumed


def test_unreadable_settings_are_a_one_line_error(tmp_path: Path) -> None:
    measured(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(
        ValueError, match=r"config.yaml is damaged: it holds no settings; choose another"
    ):
        resumed(tmp_path)


@pytest.mark.parametrize("results", ["", "{", "[]"])
def test_damaged_results_do_not_hide_rows(tmp_path: Path, results: str) -> None:
    measured(tmp_path)
    (tmp_path / "results.json").write_text(results)
    again = resumed(tmp_path)
    assert again.begin(PROVENANCE)["num_sessions"] == 2
    assert len(again.requests) == 2
    (tmp_path / "results.json").write_text(results)
    other = {**PROVENANCE, "target": PROVENANCE["target"] | {"dtype": "float32"}}
    with pytest.raises(ValueError, match="target dtype 'float64', which is now 'float32'"):
        resumed(tmp_path).begin(other)


def test_rows_are_appended_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.jsonl"
    append_rows(file, [{"a": 1}])

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            append_rows(file, [{"a": 2}, {"a": 3}])
    append_rows(file, [{"a": 4}])
    assert read_jsonl(file, ["a"]) == [{"a": 1}, {"a": 4}]


@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        ("packages", "torch", "1.0", r"torch was 1\.0 and is now "),
        ("code", "engine/engine.py", "0", "engine/engine.py has changed"),
        ("code", "engine/gone.py", "0", "engine/gone.py is gone"),
        ("code", "bench/runner.py", None, "bench/runner.py is new"),
    ],
)
def test_other_software_is_rejected_by_name(
    tmp_path: Path, part: str, key: str, value: str | None, message: str
) -> None:
    file = measured(tmp_path) / "provenance.json"
    metadata: dict[str, Any] = json.loads(file.read_text())
    metadata[part] |= {key: value}
    if value is None:
        del metadata[part][key]
    file.write_text(json.dumps(metadata))
    with pytest.raises(
        ValueError,
        match=rf"was started with other software: {message}.*choose another hydra.run.dir",
    ):
        resumed(tmp_path).begin(PROVENANCE)


def test_code_that_does_not_affect_rows_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(tmp_path)
    changed = {**fingerprint._package_hashes(), "report.py": "0", "training/trainer.py": "0"}
    monkeypatch.setattr(fingerprint, "_package_hashes", lambda: changed)
    assert resumed(tmp_path).begin(PROVENANCE)["num_sessions"] == 2


def test_a_folder_without_a_code_fingerprint_is_rejected(tmp_path: Path) -> None:
    (measured(tmp_path) / "provenance.json").unlink()
    with pytest.raises(ValueError, match=r"does not say with which code it was started"):
        resumed(tmp_path).begin(PROVENANCE)
    with pytest.raises(ValueError, match=r"go on with this by force=true"):
        check_software(tmp_path, describe_software(WHOLE_PACKAGE), "go on with this by force=true")


def test_a_users_class_is_fingerprinted_by_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = type("Mine", (), {"__module__": __name__})()
    before = describe_software(("engine",), foreign)
    assert list(before["modules"]) == [__name__]
    assert all(name.startswith("engine/") for name in before["code"])
    monkeypatch.setattr(fingerprint, "_hash", lambda file: "0")
    assert differing_software(before, describe_software(("engine",), foreign)) == [
        f"{__name__} has changed"
    ]
