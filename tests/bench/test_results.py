import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from specresearch.bench.folder import Results, ResultsFolder
from specresearch.bench.rows import GroupRow
from specresearch.files.jsonl import read_jsonl
from specresearch.metrics import Counts, StepRecord
from specresearch.metrics.shift import ShiftSums, StepShift, TokenShift
from specresearch.metrics.times import StepTimes
from specresearch.rows import BASELINE, METHOD, PassKey, RequestRow

CONFIG = {"batch_size": 1, "proposer": {"n_max": 4}, "progress": True}
PROVENANCE: dict[str, Any] = {
    "dataset": {"fingerprint": "abc"},
    "target": {"num_parameters": 1, "dtype": "float64"},
    "machine": {"device": "a cpu"},
}
STEP = StepRecord(
    ("p/0",), (2,), (2,), (1,), (2,), (5,), None, 3, StepTimes(0.1, 0.2, 0.3, 0.4, 1.5)
)


def request(key: PassKey, row: str = "p") -> RequestRow:
    return RequestRow(
        key=key,
        id=f"{row}/0",
        row=row,
        num_prompt_tokens=5,
        finish_reason="length",
        counts=Counts(1, 1, 2, 1, 2, [1, 1], [1, 0], [0.8, 0.3]),
        ttft=0.1,
        tpot=0.2,
        e2el=0.3,
        prefill_time=0.05,
        itl=(0.2,),
        token_ids=(4, 7),
        text="gr\u00fc\u2028n\r",
    )


def measure(folder: ResultsFolder, key: PassKey) -> None:
    folder.add_request(request(key))
    folder.add_group(GroupRow.of(key, 2.0, [STEP], 1), [STEP])


def started(path: Path) -> ResultsFolder:
    folder = ResultsFolder(path, CONFIG)
    folder.begin(PROVENANCE)
    return folder


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    folder = started(tmp_path)
    measure(folder, PassKey(0, 0, BASELINE))
    again = ResultsFolder(tmp_path, CONFIG, resume=True)
    assert again.requests == folder.requests
    assert again.groups == folder.groups
    assert again.done == {PassKey(0, 0, BASELINE)}


def test_unfinished_sides_and_torn_lines_are_dropped_and_the_rest_is_kept(tmp_path: Path) -> None:
    folder = started(tmp_path)
    measure(folder, PassKey(0, 0, BASELINE))
    kept = (tmp_path / "requests.jsonl").read_bytes()
    folder.add_request(request(PassKey(0, 0, METHOD)))
    with (tmp_path / "requests.jsonl").open("ab") as stream:
        stream.write('{"repeat": 0, "text": "gr\u00fc'.encode()[:-1])
    again = ResultsFolder(tmp_path, CONFIG, resume=True)
    assert (tmp_path / "requests.jsonl").read_bytes() == kept
    measure(again, PassKey(0, 0, METHOD))
    assert len(read_jsonl(tmp_path / "requests.jsonl")) == 2


def test_damage_before_the_last_line_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text('{"a": 1}\n{"a\n{"a": 3}\n')
    with pytest.raises(ValueError, match=r"requests.jsonl, line 2 is damaged"):
        read_jsonl(file)


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    measure(started(tmp_path), PassKey(0, 0, BASELINE))
    with pytest.raises(ValueError, match=r"already holds a run; add resume=true"):
        ResultsFolder(tmp_path, CONFIG)


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    for resume in (False, True):
        with pytest.raises(ValueError, match=r"other files \(thesis.tex\)"):
            ResultsFolder(tmp_path, CONFIG, resume=resume)


def test_a_run_that_stopped_before_its_first_prompt_does_not_block_its_folder(
    tmp_path: Path,
) -> None:
    started(tmp_path)
    (tmp_path / ".hydra").mkdir()
    (tmp_path / "run.log").write_text("")
    assert not ResultsFolder(tmp_path, CONFIG | {"batch_size": 2}).is_resumed


def test_resuming_with_other_settings_names_them(tmp_path: Path) -> None:
    measure(started(tmp_path), PassKey(0, 0, BASELINE))
    with pytest.raises(ValueError, match=r"proposer.n_max was 4 and is now 5") as caught:
        ResultsFolder(tmp_path, CONFIG | {"proposer": {"n_max": 5}, "progress": False}, resume=True)
    assert "progress" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "key"), [("dataset", "fingerprint"), ("target", "dtype"), ("machine", "device")]
)
def test_resuming_elsewhere_or_on_other_prompts_is_refused(
    tmp_path: Path, part: str, key: str
) -> None:
    measure(started(tmp_path), PassKey(0, 0, BASELINE))
    other = PROVENANCE | {part: PROVENANCE[part] | {key: "other"}}
    with pytest.raises(ValueError, match=f"{part} {key}"):
        ResultsFolder(tmp_path, CONFIG, resume=True).begin(other)


def test_resuming_keeps_the_first_provenance_and_counts_sessions(tmp_path: Path) -> None:
    measure(started(tmp_path), PassKey(0, 0, BASELINE))
    merged = ResultsFolder(tmp_path, CONFIG, resume=True).begin(PROVENANCE | {"started": "later"})
    assert merged["num_sessions"] == 2
    assert "started" not in merged


def test_steps_become_a_table_and_survive_a_resume(tmp_path: Path) -> None:
    folder = started(tmp_path)
    measure(folder, PassKey(0, 0, BASELINE))
    folder.write_steps(complete=False)
    again = ResultsFolder(tmp_path, CONFIG, resume=True)
    measure(again, PassKey(0, 0, METHOD))
    again.write_steps(complete=True)
    rows = pq.read_table(tmp_path / "steps.parquet").to_pylist()
    assert [row["side"] for row in rows] == [BASELINE, METHOD]
    assert [row["shift"] for row in rows] == [None, None]
    assert rows[0]["num_draft_tokens"] == [2]
    assert rows[0]["verify"] == 0.2
    assert not (tmp_path / "steps.jsonl").exists()
    again.write_steps(complete=True)
    assert len(pq.read_table(tmp_path / "steps.parquet")) == 2


def test_a_shift_comes_back_as_it_was_and_measuring_it_took_no_time(tmp_path: Path) -> None:
    folder, key = started(tmp_path), PassKey(0, 0, METHOD)
    measure(folder, PassKey(0, 0, BASELINE))
    shift = TokenShift((0.5, 0.0), (math.inf, 0.0), (0.25, 0.0))
    counts = Counts()
    counts.add_step(2, 2, 1, 2, shift=shift)
    assert counts.shift == ShiftSums([0.5, 0.0], [0.0, 0.0], [1, 0], [0.25, 0.0])
    folder.add_request(replace(request(key), counts=counts))
    step = replace(STEP, shift=StepShift((shift,)))
    folder.add_group(GroupRow.of(key, 2.0, [step], 1), [step])
    again = ResultsFolder(tmp_path, CONFIG, resume=True)
    assert again.requests == folder.requests
    assert again.requests[1].counts.output_kl is None
    assert [row.wall for row in again.groups] == [2.0, 2.0]
    again.write_steps(complete=True)
    kept = pq.read_table(tmp_path / "steps.parquet").to_pylist()
    assert kept[1]["shift"]["rows"] == [
        {"total_variation": [0.5, 0.0], "kl": [math.inf, 0.0], "refusal": [0.25, 0.0]}
    ]


def test_results_are_there_from_the_start_and_say_that_they_are_not_complete(
    tmp_path: Path,
) -> None:
    folder = started(tmp_path)
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["complete"] is False
    assert written["provenance"]["dataset"]["fingerprint"] == "abc"
    folder.write_results(Results(complete=True, summary={"speedup": 2.0}))
    assert json.loads((tmp_path / "results.json").read_text())["summary"] == {"speedup": 2.0}
