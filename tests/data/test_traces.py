import json
from pathlib import Path

import pytest

from specresearch.data.traces import TraceRow, read_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
DAY = "2023-11-16 18:1"


def azure(folder: Path, *rows: str) -> str:
    file = folder / "trace.csv"
    file.write_text("\r\n".join((HEADER, *rows)) + "\r\n", newline="")
    return str(file)


def mooncake(folder: Path, *rows: object) -> str:
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_the_azure_format_is_read(tmp_path: Path) -> None:
    trace = read_trace(azure(tmp_path, f"{DAY}5:46.6805900,374,44", f"{DAY}5:50.9951690,396,109"))
    assert trace.format == "azure"
    assert trace.rows[0] == TraceRow(0.0, 374, 44)
    assert trace.rows[1].time == pytest.approx(4.314579)
    assert (trace.num_skipped, trace.num_out_of_order, trace.note) == (0, 0, "")
    assert trace.qps == pytest.approx(1 / 4.314579)


def test_a_time_zone_in_the_file_is_understood(tmp_path: Path) -> None:
    trace = read_trace(azure(tmp_path, f"{DAY}5:46+00:00,3,4", f"{DAY}5:48+00:00,3,4"))
    assert trace.seconds == 2


def test_the_mooncake_format_is_read(tmp_path: Path) -> None:
    rows = [
        {"timestamp": at, "input_length": 67, "output_length": 5, "hash_ids": [1, 2]}
        for at in (3000, 4500)
    ]
    trace = read_trace(mooncake(tmp_path, *rows))
    assert trace.format == "mooncake"
    assert trace.rows == (TraceRow(0.0, 67, 5), TraceRow(1.5, 67, 5))


def test_rows_out_of_order_are_sorted_and_counted(tmp_path: Path) -> None:
    ordered = read_trace(azure(tmp_path, f"{DAY}5:01,1,1", f"{DAY}5:02,2,2", f"{DAY}5:03,3,3"))
    trace = read_trace(azure(tmp_path, f"{DAY}5:02,2,2", f"{DAY}5:01,1,1", f"{DAY}5:03,3,3"))
    assert trace.rows == ordered.rows
    assert trace.fingerprint == ordered.fingerprint
    assert trace.num_out_of_order == 1
    assert "1 rows came after a later one" in trace.note


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (f"{DAY}5:04,-3,4", "ContextTokens=-3 is not a whole number of tokens from 1 to 1,000,000"),
        (f"{DAY}5:04,3,0", "GeneratedTokens=0 is not"),
        (f"{DAY}5:04,3,99999999999", "GeneratedTokens=99999999999 is not"),
        (f"{DAY}5:04,3.5,4", "ContextTokens=3.5 is not"),
        (f"{DAY}5:04,many,4", "ContextTokens='many' is not a number"),
        (f"{DAY}5:04,3", "GeneratedTokens=None is not a number"),
        ("yesterday,3,4", "TIMESTAMP='yesterday' is not a time"),
        ("1970-01-01 00:00:00,3,4", "days from the median row"),
    ],
)
def test_a_bad_row_is_skipped_counted_and_reported(tmp_path: Path, row: str, message: str) -> None:
    trace = read_trace(azure(tmp_path, f"{DAY}5:01,1,1", f"{DAY}5:02,2,2", row, f"{DAY}5:05,3,3"))
    assert [row.num_prompt_tokens for row in trace.rows] == [1, 2, 3]
    assert trace.num_skipped == 1
    assert "skipped 1 of 4 rows, the first is line 4: " in trace.note
    assert message in trace.note


def test_a_negative_time_in_milliseconds_is_skipped(tmp_path: Path) -> None:
    rows = [{"timestamp": at, "input_length": 6, "output_length": 5} for at in (-1, 0, 1000, 2000)]
    trace = read_trace(mooncake(tmp_path, *rows))
    assert len(trace.rows) == 3
    assert "timestamp=-1 is not a time" in trace.note


def test_a_trace_with_mostly_bad_rows_is_rejected_with_the_first_one(tmp_path: Path) -> None:
    path = azure(tmp_path, f"{DAY}5:01,1,1", f"{DAY}5:02,-2,2", f"{DAY}5:03,-3,3")
    with pytest.raises(
        ValueError, match=r"2 of 3 rows cannot be used, the first is line 3: ContextTokens=-2"
    ):
        read_trace(path)


def test_the_error_for_another_file_lists_the_known_formats(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match="is not a known trace: its fields are prompt; known are azure: TIMESTAMP",
    ):
        read_trace(mooncake(tmp_path, {"prompt": "x"}))
    with pytest.raises(ValueError, match="it is empty"):
        read_trace(azure(tmp_path))
    with pytest.raises(ValueError, match=r"nope/x.csv does not exist, .* correct arrivals.path"):
        read_trace(str(tmp_path / "nope" / "x.csv"))
