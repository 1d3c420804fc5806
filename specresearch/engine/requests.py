"""Requests from whatever a caller hands in."""

from collections.abc import Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from specresearch.request import Request
from specresearch.sampling import SamplingParams


def as_request(
    prompt: Request | str | Sequence[int],
    number: int,
    sampling: SamplingParams | None,
    tokenizer: PreTrainedTokenizerBase | None,
) -> Request:
    """Return a request with an id.

    Args:
        prompt: Text, token ids, or a request, which keeps its sampling and its id if it has one.
        number: Its position among its siblings, used as the id of prompts without one.
    """
    if isinstance(prompt, Request):
        return prompt if prompt.id else replace(prompt, id=str(number))
    sampling = sampling or SamplingParams()
    if not isinstance(prompt, str):
        return Request(prompt, sampling, str(number))
    if tokenizer is None:
        raise ValueError("this target has no tokenizer; give prompts as token ids")
    return Request(tokenizer(prompt)["input_ids"], sampling, str(number))
