import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from specresearch.data.files import find_file, read_records

ROWS = [
    {"prompt": "first"},
    {"prompt": "second,\nwith a second line"},
    {"prompt": 'third "quoted"'},
]


def _write(folder: Path, name: str) -> Path:
    file = folder / name
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    if name == "a.jsonl":
        file.write_text(lines + "\n\n")
    elif name == "a.jsonl.gz":
        file.write_bytes(gzip.compress(lines.encode()))
    elif name == "lines.json":
        file.write_text("\n" + lines)
    elif name == "list.json":
        file.write_text("\ufeff" + json.dumps(ROWS, indent=1))
    elif name == "a.csv":
        file.write_text(
            'prompt\r\nfirst\r\n"second,\nwith a second line"\r\n"third ""quoted"""\r\n', newline=""
        )
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)
    return file


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.jsonl.gz", "lines.json", "list.json", "a.csv", "a.parquet"]
)
def test_every_format_of_file_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    assert [
        record.fields for record in read_records(find_file(str(_write(tmp_path, name))))
    ] == ROWS


def test_text_files_hold_one_prompt_per_line_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\r\n\n  two\n", newline="")
    assert [(record.location, record.fields["text"]) for record in read_records(file)] == [
        ("line 1", "one"),
        ("line 3", "  two"),
    ]


def test_lines_end_only_at_newlines(tmp_path: Path) -> None:
    text = "one\u2028two\x85three"
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"prompt": text}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert [record.fields["prompt"] for record in read_records(file)] == [text]


def test_a_json_list_of_texts_is_a_list_of_prompts(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('["one", "two"]')
    assert [record.fields["text"] for record in read_records(file)] == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"prompt": "x"}\n{"prompt": \n', r"a.jsonl: bad JSON at line 2, column \d+"),
        ("a.json", b'[{"prompt": "x"},\n {"prompt" "y"}]', "a.json: bad JSON at line 2, column 12"),
        ("a.json", b'{"prompt":\n "x"}', "expected one object a line, or one list of objects"),
        ("a.jsonl", b'{"prompt": "x"}\n[1, 2]\n', "a.json.*: line 2: list in place of an object"),
        ("a.jsonl", b'{"prompt": "\xff"}\n', "not UTF-8 text"),
        ("a.jsonl.gz", b'{"prompt": "x"}\n', "Not a gzipped file"),
        ("a.parquet", b"PAR1 no", "a.parquet: "),
    ],
)
def test_a_damaged_file_is_named_with_the_location(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_records(file))


def test_a_missing_file_suggests_a_similar_name(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text("")
    with pytest.raises(
        ValueError, match=r"prompt.jsonl does not exist; did you mean prompts.jsonl\?"
    ):
        find_file(str(tmp_path / "prompt.jsonl"))
    with pytest.raises(ValueError, match=r"holds prompts\.jsonl"):
        find_file(str(tmp_path / "zzz"))
    with pytest.raises(ValueError, match="neither does the folder"):
        find_file(str(tmp_path / "nowhere" / "a.jsonl"))
    with pytest.raises(
        ValueError, match=r"is a folder; name one of the files in it: prompts\.jsonl"
    ):
        find_file(str(tmp_path))


@pytest.mark.parametrize("name", ["a.xlsx", "a", "a.parquet.gz"])
def test_an_unknown_extension_lists_the_known_ones(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(
        ValueError, match=r"unknown extension '.*'; there are .parquet, .json, .jsonl, .csv, .txt"
    ):
        find_file(str(tmp_path / name))
