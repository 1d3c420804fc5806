"""Published chats as training examples, rendered like prompts, with a loss on the replies only."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase

from specresearch.data import PromptDataset, Row, Template
from specresearch.training.corpus.examples import Example

GENERATION_MARKER = re.compile(r"\{%[-+]?\s*generation\b")

Offsets = Sequence[tuple[int, int]]
Span = tuple[int, int]


def chat_examples(
    dataset: PromptDataset, tokenizer: PreTrainedTokenizerBase, row: Row, max_len: int
) -> list[Example]:
    """Return examples of at most `max_len` tokens in which each reply of `row` occurs once.

    The first example holds as many exchanges as fit. Each remaining reply gets an example of its
    own, after the prompt that decoding would use, truncated alike. So does every reply if the chat
    template renders an exchange differently once another follows, or if a token spans the border of
    prompt and reply. A row ends at its first turn without a reply.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} has no offsets to locate replies by; "
            "load the fast tokenizer"
        )
    replies = published_replies(row)
    if not replies:
        return []
    chat = _Chat(tokenizer, dataset.template, row.turns)
    examples: list[Example] = []
    num_done = 0
    if tokenizer.chat_template is not None:
        token_ids, spans = chat.reply_spans(replies)
        fitting = [span for span in spans if span[1] <= max_len]
        num_done = len(fitting)
        if fitting:
            examples.append(_masked(token_ids[: fitting[-1][1]], fitting))
    for index in range(num_done, len(replies)):
        reply_ids = chat.last_reply_ids(replies[: index + 1])
        room = max_len - min(len(reply_ids), max_len // 2)
        prompt_ids = dataset.prompt(tokenizer, row, replies[:index], max_tokens=room).token_ids
        examples.append(Example.reply(prompt_ids, reply_ids[: max_len - len(prompt_ids)]))
    return [example for example in examples if any(example.loss_mask)]


def published_replies(row: Row) -> tuple[str, ...]:
    """Return the replies up to the first empty one; the reference if the row has no replies."""
    replies = row.replies
    if not replies and row.reference:
        replies = (row.reference,)
    return tuple(takewhile(str.strip, replies))


def _masked(token_ids: list[int], spans: Sequence[Span]) -> Example:
    mask = [False] * len(token_ids)
    for begin, end in spans:
        mask[begin:end] = [True] * (end - begin)
    return Example(token_ids, mask)


@dataclass(frozen=True)
class _Chat:
    """The user turns of one row, rendered with any number of replies."""

    tokenizer: PreTrainedTokenizerBase
    template: Template
    turns: Sequence[str]

    def reply_spans(self, replies: Sequence[str]) -> tuple[list[int], list[Span]]:
        """Return the tokens of the chat and each reply's span; no spans if one is ambiguous."""
        messages = self._messages(replies)
        if GENERATION_MARKER.search(self.tokenizer.get_chat_template()):
            return self._marked_spans(messages)
        text = str(self.tokenizer.apply_chat_template(messages, tokenize=False))
        token_ids, offsets = self._encode(text)
        spans: list[Span] = []
        for num_replies in range(1, len(replies) + 1):
            before, after = self._around_last_reply(replies[:num_replies])
            first = _first_token_after(offsets, len(before))
            if not (after.startswith(before) and text.startswith(after)) or not first:
                return token_ids, []
            spans.append((first, bisect_left(offsets, len(after), key=lambda span: span[0])))
        return token_ids, spans

    def last_reply_ids(self, replies: Sequence[str]) -> list[int]:
        """Return the tokens of the last reply in its context, up to the end token."""
        ending: list[int] = []
        if self.tokenizer.chat_template is not None:
            before, after = self._around_last_reply(replies)
            if not after.startswith(before):
                raise ValueError(
                    "the chat template opens a reply differently from its generation prompt, so "
                    "the reply cannot be told from the rest; put {% generation %} and "
                    "{% endgeneration %} around it in the template, or use corpus=target"
                )
        else:
            before, separator = "Assistant:", " "
            if self.template.plain is not None and len(replies) == 1:
                before, separator = self.template.plain.rpartition("{text}")[2], ""
            after = f"{before}{separator}{replies[-1]}"
            if isinstance(self.tokenizer.eos_token_id, int):
                ending = [self.tokenizer.eos_token_id]
        token_ids, offsets = self._encode(after)
        first = _first_token_after(offsets, len(before))
        if first is None:
            return self._encode(after[len(before) :])[0] + ending
        return token_ids[first:] + ending

    def _marked_spans(self, messages: list[dict[str, str]]) -> tuple[list[int], list[Span]]:
        marked: Any = self.tokenizer.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        token_ids, mask = marked["input_ids"], marked["assistant_masks"]
        spans: list[Span] = []
        for is_reply, group in groupby(range(len(token_ids)), key=mask.__getitem__):
            indices = list(group)
            if is_reply:
                spans.append((indices[0], indices[-1] + 1))
        num_replies = len(messages) // 2
        is_usable = len(spans) == num_replies and spans[0][0] > 0
        return token_ids, spans if is_usable else []

    def _messages(self, replies: Sequence[str]) -> list[dict[str, str]]:
        messages: list[dict[str, str]] = []
        for turn, reply in zip(self.turns, replies, strict=False):
            content = self.template.chat.replace("{text}", turn)
            messages.append({"role": "user", "content": content})
            messages.append({"role": "assistant", "content": reply})
        return messages

    def _around_last_reply(self, replies: Sequence[str]) -> tuple[str, str]:
        """Return the chat's text up to the start, and up to the end, of the last reply."""
        messages = self._messages(replies)
        render = self.tokenizer.apply_chat_template
        before = render(messages[:-1], tokenize=False, add_generation_prompt=True)
        return str(before), str(render(messages, tokenize=False)).rstrip()

    def _encode(self, text: str) -> tuple[list[int], Offsets]:
        encoded = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        return encoded["input_ids"], encoded["offset_mapping"]


def _first_token_after(offsets: Offsets, position: int) -> int | None:
    """Return the first token that starts at character `position` or later.

    Returns None if a token spans `position`. A gap in the offsets counts as such a token, since
    some tokenizers leave the space before a word out of the word's offsets.
    """
    first = bisect_right(offsets, position, key=lambda span: span[1])
    end_before = offsets[first - 1][1] if first else 0
    starts_after = all(begin >= position for begin, _ in offsets[first : first + 1])
    return first if end_before == position and starts_after else None
