"""Published replies as examples: rendered as decoding renders prompts, with a loss on what the assistant says alone."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import groupby, takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase

from specresearch.data import PromptDataset, Row, Template
from specresearch.training.examples import Example

_MARKER = re.compile(r"\{%[-+]?\s*generation\b")

Offsets = Sequence[tuple[int, int]]
Span = tuple[int, int]


def examples_of(
    dataset: PromptDataset, tokenizer: PreTrainedTokenizerBase, row: Row, max_len: int
) -> list[Example]:
    """Every reply of `row` in exactly one example of at most `max_len` tokens: the reply itself and the tokens that end it.

    As many exchanges as fit, with their template, make one example. Each further reply makes one of its own, behind its prompt
    as decoding would ask and cut it; so does every reply where the chat template shows an exchange otherwise once another
    follows, or where a token reaches from the prompt into the reply. A row counts up to its first turn without a reply.

    Raises ValueError for a tokenizer without offsets, and for a chat template whose replies cannot be told from the rest.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} does not say where its tokens stand in a text; load the fast tokenizer"
        )
    replies = published_replies(row)
    if not replies:
        return []
    examples: list[Example] = []
    num_told = 0
    if tokenizer.chat_template is not None:
        token_ids, spans = _whole_chat(tokenizer, dataset.template, row.turns, replies)
        fitting = [span for span in spans if span[1] <= max_len]
        num_told = len(fitting)
        if fitting:
            examples.append(_masked(token_ids[: fitting[-1][1]], fitting))
    for number in range(num_told, len(replies)):
        reply_ids = _reply_ids(tokenizer, dataset.template, row.turns, replies[: number + 1])
        room = max_len - min(len(reply_ids), max_len // 2)
        prompt = dataset.prompt(tokenizer, row, replies[:number], max_tokens=room)
        examples.append(
            Example.reply(prompt.token_ids, reply_ids[: max_len - len(prompt.token_ids)])
        )
    return [example for example in examples if any(example.loss_mask)]


def published_replies(row: Row) -> tuple[str, ...]:
    """The replies up to the first turn that has none; where there are none at all, the reference."""
    told = row.replies or ((row.reference,) if row.reference else ())
    return tuple(takewhile(str.strip, told))


def _masked(token_ids: list[int], spans: Sequence[Span]) -> Example:
    mask = [False] * len(token_ids)
    for begin, end in spans:
        mask[begin:end] = [True] * (end - begin)
    return Example(token_ids, mask)


def _messages(
    template: Template, turns: Sequence[str], replies: Sequence[str]
) -> list[dict[str, str]]:
    """The turns, each with its reply where it has one."""
    messages: list[dict[str, str]] = []
    for number, turn in enumerate(turns):
        messages.append({"role": "user", "content": template.chat.replace("{text}", turn)})
        messages += [
            {"role": "assistant", "content": reply} for reply in replies[number : number + 1]
        ]
    return messages


def _before_and_after(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    turns: Sequence[str],
    replies: Sequence[str],
) -> tuple[str, str]:
    """The chat up to where its last reply begins, and up to where that ends."""
    messages = _messages(template, turns[: len(replies)], replies)
    before = tokenizer.apply_chat_template(
        messages[:-1], tokenize=False, add_generation_prompt=True
    )
    after = tokenizer.apply_chat_template(messages, tokenize=False)
    return str(before), str(after).rstrip()


def _whole_chat(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    turns: Sequence[str],
    replies: Sequence[str],
) -> tuple[list[int], list[Span]]:
    """The tokens of the chat and the span of each reply; no spans where not every reply has one."""
    messages = _messages(template, turns[: len(replies)], replies)
    if _MARKER.search(tokenizer.get_chat_template()):
        marked: Any = tokenizer.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        places = groupby(range(len(marked["input_ids"])), key=marked["assistant_masks"].__getitem__)
        runs = [list(run) for is_reply, run in places if is_reply]
        spans = [(run[0], run[-1] + 1) for run in runs]
        return marked["input_ids"], spans if len(spans) == len(replies) and spans[0][0] > 0 else []
    text = str(tokenizer.apply_chat_template(messages, tokenize=False))
    token_ids, offsets = _encode(tokenizer, text)
    spans = []
    for number in range(1, len(replies) + 1):
        before, after = _before_and_after(tokenizer, template, turns, replies[:number])
        first = _seam(offsets, len(before))
        if not (after.startswith(before) and text.startswith(after)) or not first:
            return token_ids, []
        spans.append((first, bisect_left(offsets, len(after), key=lambda place: place[0])))
    return token_ids, spans


def _reply_ids(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    turns: Sequence[str],
    replies: Sequence[str],
) -> list[int]:
    """Tokens of the last reply, as they stand behind its prompt, up to the end token."""
    if tokenizer.chat_template is not None:
        before, after = _before_and_after(tokenizer, template, turns, replies)
        if not after.startswith(before):
            raise ValueError(
                "the chat template writes something else before a reply than it asks with, so that the reply cannot be told from "
                "the rest; put {% generation %} and {% endgeneration %} around it in the template, or use corpus=target"
            )
        ending = []
    elif template.plain is not None and len(replies) == 1:
        before = template.plain.rpartition("{text}")[2]
        after = before + replies[-1]
        ending = [tokenizer.eos_token_id]
    else:
        before = "Assistant:"
        after = f"{before} {replies[-1]}"
        ending = [tokenizer.eos_token_id]
    token_ids, offsets = _encode(tokenizer, after)
    first = _seam(offsets, len(before))
    reply_ids = _encode(tokenizer, after[len(before) :])[0] if first is None else token_ids[first:]
    return reply_ids + [id for id in ending if isinstance(id, int)]


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], Offsets]:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return encoded["input_ids"], encoded["offset_mapping"]


def _seam(offsets: Offsets, place: int) -> int | None:
    """The first token behind `place`; None where a token stands on both sides of it.

    Some tokenizers leave the space in front of a word out of the word's offsets, and then a gap tells of such a token.
    """
    first = bisect_right(offsets, place, key=lambda span: span[1])
    reached = offsets[first - 1][1] if first else 0
    is_clean = reached == place and all(begin >= place for begin, _ in offsets[first : first + 1])
    return first if is_clean else None
