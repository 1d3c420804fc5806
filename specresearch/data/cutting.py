"""Shortens prompts that are too long, without touching their template."""

import re
from bisect import bisect_right
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from specresearch.data.templates import Template, render


def cut_to_fit(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    turns: Sequence[str],
    replies: Sequence[str],
    max_tokens: int,
) -> tuple[list[int], str]:
    """Return at most `max_tokens` token ids of a prompt that `render` makes too long.

    The second part is what is left of the current turn.

    The oldest exchanges go first. If the current turn alone is too long, its end is cut at a word
    boundary.

    Raises:
        ValueError: If the template alone leaves no room for text.
    """
    conversation = turns[: len(replies) + 1]
    for oldest in range(1, len(replies) + 1):
        token_ids = render(tokenizer, template, conversation[oldest:], replies[oldest:])
        if len(token_ids) <= max_tokens:
            return token_ids, conversation[-1]
    text = conversation[-1]

    def num_tokens(end: int) -> int:
        return len(render(tokenizer, template, [text[:end]]))

    word_ends = [word.end() for word in re.finditer(r"\S{1,32}", text)]
    num_words = bisect_right(word_ends, max_tokens, key=num_tokens)
    if num_words == 0:
        raise ValueError(
            f"a limit of {max_tokens} tokens leaves no room for a prompt: its template alone takes "
            f"{num_tokens(0)}; raise dataset.max_prompt_tokens or the target's max_len, or lower "
            "max_new_tokens"
        )
    text = text[: word_ends[num_words - 1]]
    return render(tokenizer, template, [text]), text
