"""The requests that are sent to servers: the same prompts as an engine's, as text or as tokens."""

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from specresearch.data import Prompt, PromptDataset, Row, Template
from specresearch.loadtest.prompt_pool import Pool
from specresearch.loadtest.workload import LoadWorkload, RequestClass
from specresearch.models.loading import resolve
from specresearch.openai_client import CompletionRequest
from specresearch.openai_client.body import CHAT

UNLIMITED = 10_000_000  # tokens, for a server that does not say how many it takes

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServedModel:
    """A model on a server, as far as prompts depend on it.

    Attributes:
        api: What its requests are sent as.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase | None
    max_len: int
    api: str


class TextPool:
    """Prompts whose lengths in tokens are unknown."""

    def __init__(self, dataset: PromptDataset) -> None:
        self.max_tokens = UNLIMITED
        self._cycle = cycle(dataset.rows)

    def next(self) -> tuple[Row, Prompt]:
        row = next(self._cycle)
        return row, Prompt([], row.turns[0])

    def of_length(self, num_tokens: int, rng: random.Random) -> tuple[Row, Prompt]:
        raise ValueError(
            "a trace has lengths of prompts in tokens, which no prompt has without the model's "
            "tokenizer; name it by client.tokenizer=<folder or hub id>"
        )


class ServerWorkload(LoadWorkload):
    """The requests of a load test of servers.

    With the model's tokenizer, the prompts are those of an engine, cut to the same limits. Without
    it they are sent whole. Chats are templated by the server; completions are sent as tokens, or as
    text without a tokenizer.
    """

    target: ServedModel

    def _pool(self, part: RequestClass) -> Pool:
        if self.target.tokenizer is not None:
            return super()._pool(part)
        limit = part.dataset.max_prompt_tokens
        if limit is not None:
            logger.info(
                "prompts are sent whole: dataset.max_prompt_tokens=%d needs the model's tokenizer; "
                "name it by client.tokenizer=<folder or hub id>",
                limit,
            )
        return TextPool(part.dataset)

    def completion(
        self, number: int, repeat: int, num_draft_tokens: int | None = None
    ) -> CompletionRequest:
        """Return the request to send.

        Args:
            num_draft_tokens: Drafts in every step; None takes those of the request's class.
        """
        planned = self.requests[number]
        if num_draft_tokens is None:
            num_draft_tokens = planned.num_draft_tokens
        template = self._template(planned.category)
        prompt: str | Sequence[int]
        if self.target.api == CHAT:
            prompt = template.chat.replace("{text}", planned.text)
        elif planned.prompt_ids:
            prompt = planned.prompt_ids.tolist()
        else:
            prompt = template.plain_text(planned.text)
        return CompletionRequest(prompt, self.sampling(number, repeat), num_draft_tokens)

    def _template(self, category: str) -> Template:
        parts = {part.name: part for part in self.classes}
        return parts.get(category, self.classes[0]).dataset.template


def load_tokenizer(name: str | None) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer of a folder, a hub id or a `zoo:` name.

    Raises:
        ValueError: If there is none.
    """
    if name is None:
        return None
    try:
        return AutoTokenizer.from_pretrained(resolve(name))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"client.tokenizer={name} cannot be loaded ({reason}); name a folder or hub id with "
            "the tokenizer of the server's model, or leave it out to send prompts whole"
        ) from error
