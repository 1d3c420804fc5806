"""Log-probabilities of tokens in the two shapes of OpenAI's API."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from specresearch.request import TokenLogprob
from specresearch.serving.answers import (
    ChatLogprob,
    ChatLogprobs,
    CompletionLogprobs,
    TopLogprob,
)
from specresearch.serving.detokenizer import REPLACEMENT

LOWEST = -9999.0  # stands for a probability of 0, since JSON has no infinity


class TokenNames:
    """Names tokens as text and as bytes.

    Args:
        tokenizer: Of the target.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._names: dict[int, str] = {}

    def text(self, token: int) -> str:
        """Return a token's text by itself."""
        if token not in self._names:
            self._names[token] = str(self._tokenizer.decode([token]))
        return self._names[token]

    def bytes(self, token: int) -> list[int] | None:
        """Return the bytes of a token, which may be part of a character; None if unknown."""
        text = self.text(token)
        if REPLACEMENT not in text:
            return list(text.encode())
        name = self._tokenizer.convert_ids_to_tokens(token)
        if name.startswith("<0x") and name.endswith(">"):
            return [int(name[3:-1], 16)]
        table = _byte_table()
        return [table[character] for character in name] if set(name) <= table.keys() else None


def chat_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprob], names: TokenNames
) -> ChatLogprobs:
    """Return the log-probabilities of tokens as chat completions have them."""
    content = []
    for token, logprob in zip(token_ids, logprobs, strict=True):
        top = [_top(other, value, names) for other, value in logprob.top]
        own = _top(token, logprob.logprob, names)
        content.append(
            ChatLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=top)
        )
    return ChatLogprobs(content=content, refusal=None)


def completion_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprob], names: TokenNames, begin: int
) -> CompletionLogprobs:
    """Return the log-probabilities of tokens as text completions have them.

    Args:
        begin: Characters of the output before them.
    """
    texts = [names.text(token) for token in token_ids]
    offsets = []
    for text in texts:
        offsets.append(begin)
        begin += len(text)
    return CompletionLogprobs(
        tokens=texts,
        token_logprobs=[max(logprob.logprob, LOWEST) for logprob in logprobs],
        top_logprobs=[
            {names.text(token): max(value, LOWEST) for token, value in logprob.top}
            for logprob in logprobs
        ],
        text_offset=offsets,
    )


def _top(token: int, logprob: float, names: TokenNames) -> TopLogprob:
    return TopLogprob(
        token=names.text(token), logprob=max(logprob, LOWEST), bytes=names.bytes(token)
    )


@cache
def _byte_table() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for."""
    return {character: byte for byte, character in bytes_to_unicode().items()}
