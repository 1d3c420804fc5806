"""Prompts that are too long: what is cut from a conversation so that its prompt fits, the template left whole."""

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
) -> list[int]:
    """Token ids, at most `max_tokens`, of the prompt that `render` makes too long.

    The oldest exchanges go first; if the turn that is asked is too long by itself, its end goes, at a word boundary.
    """
    asked = turns[: len(replies) + 1]
    for oldest in range(1, len(replies) + 1):
        token_ids = render(tokenizer, template, asked[oldest:], replies[oldest:])
        if len(token_ids) <= max_tokens:
            return token_ids
    text = asked[-1]
    ends = [word.end() for word in re.finditer(r"\S{1,32}", text)]
    num_kept = bisect_right(
        ends, max_tokens, key=lambda end: len(render(tokenizer, template, [text[:end]]))
    )
    if num_kept == 0:
        num_template = len(render(tokenizer, template, [""]))
        raise ValueError(
            f"a limit of {max_tokens} tokens leaves no room for a prompt: its template alone takes {num_template}; "
            "raise dataset.max_prompt_tokens or the target's max_len, or lower max_new_tokens"
        )
    return render(tokenizer, template, [text[: ends[num_kept - 1]]])
