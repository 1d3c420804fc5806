"""Make requests of prompts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from specresearch.request import Request
from specresearch.sampling import SamplingParams


def as_requests(
    prompts: Iterable[Request | str | Sequence[int]],
    sampling: SamplingParams | None,
    tokenizer: PreTrainedTokenizerBase | None,
) -> Iterator[Request]:
    """Yield a request with an id for each prompt.

    Args:
        prompts: Text, token ids, or requests, which keep their sampling and their id. Anything
            without an id is named by its position.
    """
    if isinstance(prompts, str):
        raise ValueError("generate takes a list of prompts; put the one prompt into a list")
    sampling = sampling or SamplingParams()
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, Request):
            yield prompt if prompt.id else replace(prompt, id=str(number))
            continue
        if isinstance(prompt, str):
            if tokenizer is None:
                raise ValueError("this target has no tokenizer; give prompts as token ids")
            prompt = tokenizer(prompt)["input_ids"]
        yield Request(prompt, sampling, str(number))
