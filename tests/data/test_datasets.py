from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from specresearch.data import PromptDataset, Template
from specresearch.data import datasets as data_sets

Write = Callable[..., str]


def _dataset(
    path: str, format: str = "prompts", template: str | Template = "raw", **settings: Any
) -> PromptDataset:
    return PromptDataset("mine", format, template, path=path, **settings)


def test_limit_takes_the_first_rows_and_reads_no_further(jsonl: Write) -> None:
    rows = [{"prompt": str(number)} for number in range(5)] + [{"broken": 1}]
    dataset = _dataset(jsonl(rows), limit=5)
    assert [row.turns for row in dataset] == [(str(number),) for number in range(5)]
    assert [row.id for row in dataset] == ["0", "1", "2", "3", "4"]


def test_shuffling_depends_only_on_the_seed(jsonl: Write) -> None:
    path = jsonl({"prompt": str(number)} for number in range(50))
    first, again, other = (_dataset(path, shuffle=True, limit=10, seed=seed) for seed in (1, 1, 2))
    assert first.rows == again.rows
    assert first.source.fingerprint == again.source.fingerprint
    assert set(first.rows) != set(other.rows)
    assert first.source.fingerprint != other.source.fingerprint
    assert {row.id for row in first} != {str(number) for number in range(10)}


def test_streaming_reads_no_further_than_the_buffer(
    jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_sets, "SHUFFLE_BUFFER", 30)
    path = jsonl([*({"prompt": str(number)} for number in range(40)), "no object", {"bad": 1}])
    settings = {"shuffle": True, "streaming": True, "limit": 10}
    first, again, other = (_dataset(path, seed=seed, **settings) for seed in (1, 1, 2))
    assert first.rows == again.rows
    assert set(first.rows) != set(other.rows)
    assert [row.id for row in first] != [str(number) for number in range(10)]
    assert all(row.turns == (row.id,) for row in first)  # numbers in the file, not in the choice
    with pytest.raises(ValueError, match="line 42"):
        _dataset(path, **{**settings, "limit": 20})


def test_streaming_a_short_set_shuffles_all_of_it(jsonl: Write) -> None:
    path = jsonl({"prompt": str(number)} for number in range(20))
    rows = _dataset(path, shuffle=True, streaming=True, limit=50).rows
    assert sorted(int(row.id) for row in rows) == list(range(20))
    assert [int(row.id) for row in rows] != list(range(20))


def test_streaming_needs_a_limit(jsonl: Write) -> None:
    with pytest.raises(ValueError, match=r"needs to know how many .*; set dataset.limit"):
        _dataset(jsonl([{"prompt": "a"}]), streaming=True)


def test_the_fingerprint_covers_the_rows_but_not_the_file(jsonl: Write) -> None:
    short = _dataset(jsonl([{"prompt": "a"}], "short.jsonl"))
    long = _dataset(jsonl([{"prompt": "a"}, {"prompt": "b"}], "long.jsonl"), limit=1)
    assert short.source.fingerprint == long.source.fingerprint
    assert len(short.source.fingerprint) == 16
    assert _dataset(long.source.location).source.fingerprint != short.source.fingerprint


def test_empty_prompts_are_skipped_and_counted(jsonl: Write) -> None:
    dataset = _dataset(jsonl([{"prompt": "a"}, {"prompt": " \n"}, {"prompt": ["", "b", ""]}]))
    assert [row.turns for row in dataset] == [("a",), ("b",)]
    assert "skipped 1 rows without a prompt" in dataset.source.note


def test_ids_are_made_unique(jsonl: Write) -> None:
    dataset = _dataset(
        jsonl([{"id": "x", "prompt": "a"}, {"id": "x", "prompt": "b"}, {"prompt": "c"}])
    )
    assert [row.id for row in dataset] == ["x", "x#2", "2"]


def test_a_limit_above_the_number_of_rows_is_noted(
    jsonl: Write, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = _dataset(jsonl([{"prompt": "a"}]), limit=3)
    assert "1 rows, fewer than the 3 asked for" in dataset.source.note
    assert "1 rows, fewer than the 3 asked for" in caplog.text


def test_max_turns_keeps_the_first_turns(jsonl: Write) -> None:
    assert _dataset(jsonl([{"prompt": ["a", "b", "c"]}]), max_turns=2).rows[0].turns == ("a", "b")


def test_the_error_for_a_wrong_schema_names_file_line_and_field(jsonl: Write) -> None:
    path = jsonl([{"article": "a", "highlights": "h"}, {"article": "b", "summary": "s"}])
    message = (
        "rows.jsonl, line 2: field 'highlights' is missing; fields found: 'article', 'summary'; "
        ".*dataset.field="
    )
    with pytest.raises(ValueError, match=message):
        _dataset(path, "cnndm", "summary")


@pytest.mark.parametrize(
    ("rows", "message"), [([], "it is empty"), ([{"prompt": " "}] * 2, "all 2 rows have empty")]
)
def test_no_prompts_at_all_is_an_error(jsonl: Write, rows: list, message: str) -> None:
    with pytest.raises(ValueError, match=f"no prompts, {message}"):
        _dataset(jsonl(rows))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit": 0}, "dataset.limit=0 is not a whole number from 1"),
        ({"limit": -1}, "dataset.limit=-1"),
        ({"max_prompt_tokens": 0}, "dataset.max_prompt_tokens=0"),
        ({"max_turns": 0}, "dataset.max_turns=0"),
        ({"template": "sumary"}, "dataset.template=sumary is unknown; there are chat, code"),
        ({"format": "csv"}, "dataset.format=csv is unknown"),
        ({"field": "body"}, "field 'body' is missing; fields found: 'prompt'"),
    ],
)
def test_errors_for_bad_settings_name_a_remedy(jsonl: Write, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _dataset(jsonl([{"prompt": "a"}]), **settings)


def test_a_short_prompt_is_not_truncated(
    jsonl: Write, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    dataset = _dataset(jsonl([{"prompt": "one two"}]), template="summary", max_prompt_tokens=100)
    prompt = dataset.prompt(byte_tokenizer, dataset.rows[0])
    assert byte_tokenizer.decode(prompt.token_ids) == "Article:\none two\n\nSummary:\n"
    assert (prompt.num_cut_tokens, dataset.num_cut) == (0, 0)


def test_a_long_prompt_loses_its_end_and_keeps_its_template(
    jsonl: Write, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    dataset = _dataset(
        jsonl([{"prompt": "one two three four five"}]), template="summary", max_prompt_tokens=35
    )
    prompt = dataset.prompt(byte_tokenizer, dataset.rows[0])
    assert byte_tokenizer.decode(prompt.token_ids) == "Article:\none two three\n\nSummary:\n"
    assert prompt.num_cut_tokens == len(" four five")
    dataset.prompt(byte_tokenizer, dataset.rows[0])
    assert dataset.num_cut == 1


def test_cutting_works_without_spaces_and_at_every_limit(
    jsonl: Write, chat_tokenizer: PreTrainedTokenizerFast
) -> None:
    dataset = _dataset(jsonl([{"prompt": "x" * 500 + " tail"}]), template="chat")
    for limit in range(60, 540, 37):
        prompt = dataset.prompt(chat_tokenizer, dataset.rows[0], max_tokens=limit)
        text = str(chat_tokenizer.decode(prompt.token_ids))
        assert limit - 32 <= len(prompt.token_ids) <= limit
        assert text.startswith("<user>x")
        assert text.endswith("x</><assistant>")


def test_a_long_chat_drops_its_oldest_exchanges_first(
    jsonl: Write, chat_tokenizer: PreTrainedTokenizerFast
) -> None:
    dataset = _dataset(
        jsonl([{"prompt": ["first question", "second", "third and last"]}]), template="chat"
    )
    row, replies = dataset.rows[0], ["a long first reply", "ok"]
    untruncated = dataset.prompt(chat_tokenizer, row, replies)
    shorter = dataset.prompt(
        chat_tokenizer, row, replies, max_tokens=len(untruncated.token_ids) - 1
    )
    assert (
        chat_tokenizer.decode(shorter.token_ids)
        == "<user>second</><assistant>ok</><user>third and last</><assistant>"
    )
    shortest = dataset.prompt(chat_tokenizer, row, replies, max_tokens=32)
    assert chat_tokenizer.decode(shortest.token_ids) == "<user>third and</><assistant>"
    assert shortest.num_cut_tokens == len(untruncated.token_ids) - len(shortest.token_ids)


def test_earlier_replies_of_the_model_are_in_the_prompt(
    jsonl: Write, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    dataset = _dataset(jsonl([{"prompt": ["one", "two"]}]), template="chat")
    prompt = dataset.prompt(byte_tokenizer, dataset.rows[0], ["reply"])
    assert (
        byte_tokenizer.decode(prompt.token_ids)
        == "User: one\nAssistant: reply\n\nUser: two\nAssistant:"
    )
    with pytest.raises(ValueError, match="there is no turn left to ask"):
        dataset.prompt(byte_tokenizer, dataset.rows[0], ["a", "b"])


def test_long_prompts_can_be_rejected(
    jsonl: Write, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    dataset = _dataset(
        jsonl([{"id": "r7", "prompt": "too long"}]), max_prompt_tokens=5, overlong="refuse"
    )
    with pytest.raises(
        ValueError, match="dataset mine, row r7: the prompt has 8 tokens, the limit is 5; raise"
    ):
        dataset.prompt(byte_tokenizer, dataset.rows[0])


def test_a_limit_below_the_template_is_an_error(
    jsonl: Write, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    dataset = _dataset(jsonl([{"prompt": "text"}]), template="summary", max_prompt_tokens=10)
    with pytest.raises(
        ValueError,
        match="a limit of 10 tokens leaves no room for a prompt: its template alone takes 20",
    ):
        dataset.prompt(byte_tokenizer, dataset.rows[0])


def test_a_custom_template_is_used(jsonl: Write, byte_tokenizer: PreTrainedTokenizerFast) -> None:
    dataset = _dataset(
        jsonl([{"prompt": "x"}]), template=Template(chat="{text}", plain="Q {text} A")
    )
    assert (
        byte_tokenizer.decode(dataset.prompt(byte_tokenizer, dataset.rows[0]).token_ids) == "Q x A"
    )
