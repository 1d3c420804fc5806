"""The loss covers exactly the assistant's replies, including their end tokens."""

import json
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specresearch.data import PromptDataset, Row, render
from specresearch.models.loading import resolve
from specresearch.training.corpus.chat_examples import chat_examples, published_replies
from specresearch.training.corpus.examples import Example, Examples, collate
from specresearch.training.corpus.fixed_text import FixedText

CHAT = Row("c", ("hi there", "and then?", "bye"), replies=("Hello.", "then  nothing\n", "bye"))
OPEN = "{{ '<|' + message.role + '|>\n' }}"
HEAD = "{% for message in messages %}"
TAIL = "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
PLAIN = HEAD + OPEN + "{{ message.content + '<|end|>\n' }}" + TAIL
MARKED = (
    HEAD
    + OPEN
    + "{% if message.role == 'assistant' %}"
    + "{% generation %}{{ message.content + '<|end|>' }}{% endgeneration %}"
    + "{% else %}{{ message.content + '<|end|>' }}{% endif %}{{ '\n' }}"
    + TAIL
)
FORGETFUL = (
    HEAD
    + OPEN
    + "{% if loop.last and message.role == 'assistant' %}[thinks]{% endif %}"
    + "{{ message.content + '<|end|>\n' }}"
    + TAIL
)
GLUED = (
    HEAD
    + "{{ message.role + ': ' + message.content + '<|end|>' }}{% endfor %}"
    + "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
ABSENT = (
    HEAD
    + OPEN
    + "{{ message.content }}{% endfor %}{% if add_generation_prompt %}{{ '<|user|>' }}{% endif %}"
)


@pytest.fixture
def dataset(tmp_path: Path) -> PromptDataset:
    (tmp_path / "rows.txt").write_text("hi")
    return PromptDataset("mine", "prompts", "chat", path=str(tmp_path / "rows.txt"))


@cache
def zoo(template: str | None = "own") -> PreTrainedTokenizerFast:
    """Return the zoo's tokenizer with its own chat template, another one, or none."""
    tokenizer = (
        AutoTokenizer.from_pretrained(resolve("zoo:tiny")) if template == "own" else deepcopy(zoo())
    )
    tokenizer.chat_template = tokenizer.chat_template if template == "own" else template
    return tokenizer


def byte_level(*, trim_offsets: bool) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes and a few words; if trimmed, offsets exclude a leading space."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "H"), ("Ġ", "t"), ("Ġt", "h"), ("H", "e"), ("ĠH", "e"), ("Ċ", "Ċ")]
    vocab = {word: i for i, word in enumerate([*letters, *(a + b for a, b in merges)])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def metaspace() -> PreTrainedTokenizerFast:
    """Return a tokenizer in which spaces belong to the next word and begin every text."""
    letters = [*"▁abcdefghijklmnopqrstuvwxyzABHU<>|.?:[]\n", "▁H", "▁t"]
    backend = Tokenizer(
        models.BPE(
            vocab={x: i for i, x in enumerate(letters)},
            merges=[("▁", "H"), ("▁", "t")],
            fuse_unk=False,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    backend.add_special_tokens(
        [AddedToken(f"<|{name}|>", special=True) for name in ("user", "assistant", "end")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def predicted_runs(tokenizer: PreTrainedTokenizerFast, example: Example) -> list[str]:
    """Return each run of predicted tokens, decoded."""
    runs: list[list[int]] = []
    before = False
    for token, predicted in zip(example.token_ids, example.loss_mask, strict=True):
        if predicted:
            runs = [*runs, [token]] if not before else [*runs[:-1], [*runs[-1], token]]
        before = predicted
    return [str(tokenizer.decode(run)) for run in runs]


def test_a_chat_is_one_example_with_a_loss_on_its_replies(dataset: PromptDataset) -> None:
    tokenizer = zoo()
    (example,) = chat_examples(dataset, tokenizer, CHAT, 200)
    assert predicted_runs(tokenizer, example) == [
        "Hello.<|end|>",
        "then  nothing\n<|end|>",
        "bye<|end|>",
    ]
    assert str(tokenizer.decode(example.token_ids)).startswith(
        "<|endoftext|><|user|>hi there<|end|><|assistant|>Hello."
    )
    assert example.token_ids[: example.num_prompt_tokens] == render(
        tokenizer, dataset.template, CHAT.turns
    )


def test_a_user_message_equal_to_the_reply_is_not_predicted(dataset: PromptDataset) -> None:
    """A search for the reply's text would find the user's first."""
    (example,) = chat_examples(dataset, zoo(), Row("c", ("bye",), replies=("bye",)), 200)
    reply = zoo()("bye<|end|>", add_special_tokens=False)["input_ids"]
    assert example.loss_mask == [False] * (len(example.token_ids) - len(reply)) + [True] * len(
        reply
    )


def test_markers_in_a_template_give_the_same_mask_as_its_text(dataset: PromptDataset) -> None:
    marked, plain = (
        chat_examples(dataset, zoo(template), CHAT, 200) for template in (MARKED, PLAIN)
    )
    assert marked == plain
    assert predicted_runs(zoo(), plain[0])[0] == "Hello.<|end|>"


def test_markers_in_a_template_take_precedence(dataset: PromptDataset) -> None:
    tokenizer = zoo(
        MARKED.replace("+ '<|end|>' }}{% endgeneration %}", "}}{% endgeneration %}{{ '<|end|>' }}")
    )
    (example,) = chat_examples(dataset, tokenizer, CHAT, 200)
    assert predicted_runs(tokenizer, example) == ["Hello.", "then  nothing\n", "bye"]


def prompts_of(
    dataset: PromptDataset, tokenizer: PreTrainedTokenizerFast, row: Row
) -> list[list[int]]:
    return [
        render(tokenizer, dataset.template, row.turns, row.replies[:n])
        for n in range(len(row.replies))
    ]


@pytest.mark.parametrize(
    ("template", "replies"), [(FORGETFUL, "[thinks]Hello.<|end|>"), (GLUED, "Hello.<|end|>")]
)
def test_a_chat_that_cannot_be_rendered_at_once_is_one_example_per_reply(
    dataset: PromptDataset, template: str, replies: str
) -> None:
    """One template changes old replies; with the other, a token may span prompt and reply."""
    tokenizer = zoo(template)
    examples = chat_examples(dataset, tokenizer, CHAT, 200)
    assert [example.token_ids[: example.num_prompt_tokens] for example in examples] == prompts_of(
        dataset, tokenizer, CHAT
    )
    assert predicted_runs(tokenizer, examples[0]) == [replies]
    assert len(examples) == 3


@pytest.mark.parametrize(
    "make",
    [lambda: byte_level(trim_offsets=True), lambda: byte_level(trim_offsets=False), metaspace],
)
@pytest.mark.parametrize("template", [PLAIN, GLUED, PLAIN.replace("|>\n'", "|> '")])
def test_every_kind_of_tokenizer_begins_a_reply_where_its_prompt_ends(
    dataset: PromptDataset, make: Callable[[], PreTrainedTokenizerFast], template: str
) -> None:
    tokenizer = make()
    tokenizer.chat_template = template
    row = Row("c", ("hi", "bye"), replies=("Hello. then", "then?"))
    examples = chat_examples(dataset, tokenizer, row, 500)
    starts = [
        example.token_ids[:start]
        for example in examples
        for start in range(1, len(example.token_ids))
        if example.loss_mask[start] and not example.loss_mask[start - 1]
    ]
    assert starts == prompts_of(dataset, tokenizer, row)
    replies = [run.strip() for example in examples for run in predicted_runs(tokenizer, example)]
    assert replies == ["Hello. then<|end|>", "then?<|end|>"]


@pytest.mark.parametrize("template", ["own", MARKED])
@pytest.mark.parametrize("max_len", [16, 24, 36])
def test_every_reply_is_in_one_example_however_long_the_chat(
    dataset: PromptDataset, template: str, max_len: int
) -> None:
    tokenizer = zoo(template)
    row = Row(
        "c", tuple(f"what is {n}" for n in range(6)), replies=tuple(f"it is {n}." for n in range(6))
    )
    examples = chat_examples(dataset, tokenizer, row, max_len)
    assert all(len(example.token_ids) <= max_len for example in examples)
    assert [run for example in examples for run in predicted_runs(tokenizer, example)] == [
        f"it is {n}.<|end|>" for n in range(6)
    ]
    complete = chat_examples(dataset, tokenizer, row, 500)
    assert len(complete) == 1
    assert len(examples) > 1


def test_real_chats_lose_no_reply(shared_data: Path) -> None:
    dataset = PromptDataset(
        "sharegpt", "sharegpt", "chat", path=str(shared_data / "sharegpt_chats.json"), limit=40
    )
    for row in dataset:
        examples = chat_examples(dataset, zoo(), row, 100_000)
        replies = [run for example in examples for run in predicted_runs(zoo(), example)]
        assert replies == [f"{reply}<|end|>" for reply in published_replies(row)]


def test_a_long_prompt_is_truncated_as_in_decoding_and_leaves_half_for_the_reply(
    dataset: PromptDataset,
) -> None:
    tokenizer = zoo()
    row = Row("c", ("word " * 100,), replies=("answer " * 100,))
    (example,) = chat_examples(dataset, tokenizer, row, 64)
    assert len(example.token_ids) == 64
    assert sum(example.loss_mask) == 64 - example.num_prompt_tokens >= 32
    assert str(tokenizer.decode(example.token_ids[: example.num_prompt_tokens])).endswith(
        "word<|end|><|assistant|>"
    )


@pytest.mark.parametrize(
    ("row", "num_replies"),
    [
        (Row("c", ("a", "b"), replies=("one", "")), 1),
        (Row("c", ("a", "b"), replies=("", "two")), 0),
        (Row("c", ("a",), reference="an answer"), 1),
        (Row("c", ("a",)), 0),
    ],
)
def test_a_chat_ends_at_its_first_unanswered_turn(
    dataset: PromptDataset, row: Row, num_replies: int
) -> None:
    examples = chat_examples(dataset, zoo(), row, 200)
    assert sum(len(predicted_runs(zoo(), example)) for example in examples) == num_replies


def test_chats_are_read_with_their_replies(tmp_path: Path) -> None:
    replies = [
        ("gpt", "an orphaned reply"),
        ("human", "one"),
        ("gpt", "first"),
        ("gpt", "and more"),
        ("human", " "),
        ("gpt", "to nothing"),
        ("human", "two"),
        ("system", "Be brief."),
        ("gpt", None),
    ]
    chat = {"conversations": [{"from": who, "value": what} for who, what in replies]}
    (tmp_path / "chats.json").write_text(
        json.dumps([chat, {"conversations": [{"from": "human", "value": "hi"}]}])
    )
    chats = PromptDataset("chats", "sharegpt", "chat", path=str(tmp_path / "chats.json"))
    assert chats.rows[0] == Row(
        "0", ("one", "two"), reference="first", replies=("first\n\nand more", "")
    )
    assert chats.rows[1].replies == ()


def test_replies_do_not_change_the_fingerprint_of_prompts(tmp_path: Path) -> None:
    """Results that are older than replies in rows keep their fingerprints."""
    chats = [
        [("user", "hi"), ("assistant", "hello"), ("user", "bye"), ("assistant", last)]
        for last in ("bye", "ciao")
    ]
    prints = []
    for chat in chats:
        (tmp_path / "c.json").write_text(
            json.dumps([{"messages": [{"role": r, "content": c} for r, c in chat]}])
        )
        dataset = PromptDataset("chats", "sharegpt", "chat", path=str(tmp_path / "c.json"))
        prints.append(
            (dataset.source.fingerprint, FixedText(dataset, zoo(), dataset.rows, 100).fingerprint)
        )
    assert prints[0][0] == prints[1][0]
    assert prints[0][1] != prints[1][1]
    assert (
        PromptDataset("sharegpt", "sharegpt", "chat", source="sample").source.fingerprint
        == "c81f7bddf3d83577"
    )


def test_a_base_model_gets_the_plain_prompt_frame(tmp_path: Path) -> None:
    tokenizer = zoo(None)
    (tmp_path / "rows.txt").write_text("hi")
    maths = PromptDataset("mine", "prompts", "maths", path=str(tmp_path / "rows.txt"))
    (example,) = chat_examples(maths, tokenizer, Row("c", ("1 + 1?",), reference="That is 2"), 200)
    assert predicted_runs(tokenizer, example) == ["That is 2<|end|>"]
    assert example.token_ids[: example.num_prompt_tokens] == render(
        tokenizer, maths.template, ["1 + 1?"]
    )
    examples = chat_examples(maths, tokenizer, CHAT, 200)
    assert [predicted_runs(tokenizer, example)[0].strip() for example in examples][
        2
    ] == "bye<|end|>"
    assert str(tokenizer.decode(examples[1].token_ids)).endswith(
        "Assistant: Hello.\n\nUser: and then?\nAssistant: then  nothing\n<|end|>"
    )


def test_a_template_that_hides_where_replies_begin_is_rejected(dataset: PromptDataset) -> None:
    with pytest.raises(ValueError, match=r"put {% generation %} and {% endgeneration %} around it"):
        chat_examples(dataset, zoo(ABSENT), CHAT, 200)


def test_examples_survive_a_round_trip_through_flat_arrays() -> None:
    originals = [
        Example.reply([1, 2], [3]),
        Example([70000, 1], [False, True]),
        Example.reply([5], [6, 7, 8]),
    ]
    packed = Examples(originals)
    assert list(packed) == originals
    assert len(packed) == 3
    assert sum(len(example.token_ids) for example in packed) == 9
    assert sum(sum(example.loss_mask) for example in packed) == 5
    assert originals[2].num_prompt_tokens == 1
    with pytest.raises(IndexError):
        packed[3]


def test_the_fingerprint_covers_tokens_masks_and_lengths() -> None:
    base = [Example.reply([1, 2], [3]), Example.reply([4], [5])]
    others = [
        [Example.reply([1, 2], [4]), Example.reply([4], [5])],
        [Example.reply([1], [2, 3]), Example.reply([4], [5])],
        [Example([1, 2, 3, 4], [False, False, True, False]), Example([5], [False])],
    ]
    assert Examples(base).fingerprint == Examples(list(base)).fingerprint
    assert len({Examples(rows).fingerprint for rows in [base, *others]}) == 4


def test_collate_pads_on_the_right_without_loss() -> None:
    batch = collate([Example.reply([1], [2, 3]), Example.reply([4], [5])], pad_id=9)
    assert torch.equal(batch["token_ids"], torch.tensor([[1, 2, 3], [4, 5, 9]]))
    assert torch.equal(
        batch["loss_mask"], torch.tensor([[False, True, True], [False, True, False]])
    )
