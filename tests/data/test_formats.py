import pytest

from specresearch.data.formats import find_format, from_field


def test_every_published_format_gives_turns_and_a_reference() -> None:
    cases = {
        "cnndm": ({"article": "A.", "highlights": "H.", "id": "x"}, ("A.",), "H."),
        "gsm8k": ({"question": "Q?", "answer": "#### 1"}, ("Q?",), "#### 1"),
        "humaneval": (
            {"task_id": "t/0", "prompt": "def f():\n", "canonical_solution": "    pass\n"},
            ("def f():\n",),
            "    pass\n",
        ),
        "mtbench": (
            {"question_id": 81, "category": "math", "turns": ["a", "b"], "reference": ["r", "s"]},
            ("a", "b"),
            "r",
        ),
        "specbench": ({"question_id": 1, "category": "qa", "turns": ["a"]}, ("a",), None),
        "prompts": ({"text": "hello", "label": 3}, ("hello",), None),
    }
    for name, (fields, turns, reference) in cases.items():
        row = find_format(name)(fields)
        assert row.turns == turns, name
        assert row.reference == reference, name
    row = find_format("mtbench")(cases["mtbench"][0])
    assert (row.id, row.category) == ("81", "math")


def test_mtbench_reads_the_columns_of_the_hub() -> None:
    row = find_format("mtbench")(
        {"prompt_id": 7, "category": "stem", "prompt": ["a", "b"], "reference": []}
    )
    assert (row.id, row.turns, row.reference) == ("7", ("a", "b"), None)


def test_sharegpt_knows_every_published_spelling_of_a_speaker() -> None:
    conversation = [
        {"from": "system", "value": "Be brief."},
        {"from": "gpt", "value": "an orphaned reply"},
        {"from": "human", "value": "one"},
        {"from": "gpt", "value": "reply"},
        {"from": "user", "value": "two"},
        {"from": "chatgpt", "value": "another"},
    ]
    row = find_format("sharegpt")({"id": "c", "conversations": conversation})
    assert row.turns == ("one", "two")
    assert row.reference == "reply"
    openai = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    assert find_format("sharegpt")({"messages": openai}).turns == ("hi",)


def test_sharegpt_without_a_user_message_has_no_turns() -> None:
    assert find_format("sharegpt")({"conversations": [{"from": "gpt", "value": "x"}]}).turns == ()


def test_prompts_takes_text_turns_or_messages_from_any_field() -> None:
    parse = from_field("body")
    assert parse({"body": "a", "prompt": "not this"}).turns == ("a",)
    assert parse({"body": ["a", "b"]}).turns == ("a", "b")
    row = parse({"body": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
    assert (row.turns, row.reference) == (("a",), "b")


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        (
            "cnndm",
            {"body": "x", "title": "y"},
            "field 'article' is missing; fields found: 'body', 'title'",
        ),
        ("cnndm", {"article": "x"}, "field 'highlights' is missing"),
        ("gsm8k", {}, "field 'question' is missing; fields found: none"),
        ("gsm8k", {"question": 3, "answer": "3"}, "field 'question' is int, not text"),
        ("mtbench", {"turns": "x"}, "field 'turns' is text, neither"),
        ("mtbench", {"turns": ["x", 1]}, "field 'turns', item 2 is int"),
        (
            "sharegpt",
            {"conversations": [{"from": "human"}]},
            "message 1: field 'value' or 'content' is missing",
        ),
        ("sharegpt", {"conversations": ["hi"]}, "message 1: text in place of"),
        ("sharegpt", {"conversations": {"from": "human"}}, "is an object, not a list of messages"),
        ("prompts", {"body": "x"}, "fields found: 'body'"),
    ],
)
def test_the_error_for_a_wrong_schema_names_the_field_and_those_present(
    name: str, fields: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        find_format(name)(fields)


def test_the_error_for_an_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"dataset\.format=cnn is unknown; there are cnndm, gsm8k"):
        find_format("cnn")
