"""Turn what the engine delivers into the pieces of an answer."""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from specresearch.engine import RequestOutput
from specresearch.metrics import Counts
from specresearch.request import Request, TokenLogprob
from specresearch.serving.answers import (
    ChunkSpeculation,
    FinishReason,
    Metrics,
    PromptTokensDetails,
    SpeculativeDecoding,
    TokenSource,
    Tree,
    Usage,
)
from specresearch.serving.bridge import RequestStream
from specresearch.serving.detokenizer import Detokenizer
from specresearch.serving.errors import internal_error
from specresearch.serving.updates import StepProgress, WatchedTree

logger = logging.getLogger(__name__)

Decode = Callable[[list[int]], str]
FINISH_REASONS: dict[str, FinishReason] = {  # OpenAI's for each of the engine's
    "eos": "stop",
    "stop": "stop",
    "length": "length",
}


@dataclass(frozen=True)
class Piece:
    """What has come of one choice since the last piece.

    Attributes:
        index: The number of the choice.
        output: The whole choice, with its last piece.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    speculation: ChunkSpeculation | None
    output: RequestOutput | None

    @property
    def finish_reason(self) -> FinishReason | None:
        return None if self.output is None else FINISH_REASONS[self.output.finish_reason]


class ChoiceStream:
    """Collects the pieces of one choice.

    Args:
        watched: Pieces say who wrote their tokens.
    """

    def __init__(self, index: int, request: Request, decode: Decode, *, watched: bool) -> None:
        self._index, self._decode, self._watched = index, decode, watched
        self._text = Detokenizer(decode, request.sampling.stop)

    def piece(self, progress: Sequence[StepProgress]) -> Piece:
        """Return what has come in one or more steps as one piece."""
        output = progress[-1].output
        if output is not None and output.error is not None:
            logger.error("%s", output.error)
            raise internal_error()
        token_ids = tuple(token for part in progress for token in part.token_ids)
        speculation = None
        if self._watched:
            texts = self._texts(token_ids, output)
            text = "".join(texts)
            speculation = _speculation(progress, texts, self._decode)
        elif output is None:
            text = self._text.push(token_ids)
        else:
            text = self._text.finish(output.text)
        logprobs = tuple(logprob for part in progress for logprob in part.logprobs)
        return Piece(self._index, text, token_ids, logprobs, speculation, output)

    def _texts(self, token_ids: Sequence[int], output: RequestOutput | None) -> list[str]:
        """Return the text that each token adds; none reaches behind the end of the output."""
        num_sent = self._text.num_sent
        texts = [self._text.push([token]) for token in token_ids]
        if output is None or not texts:
            return texts
        rest = output.text[num_sent:]
        cut = []
        for text in texts[:-1]:
            cut.append(rest[: len(text)])
            rest = rest[len(text) :]
        return [*cut, rest]


async def pieces_of(
    stream: RequestStream, requests: Sequence[Request], decode: Decode, *, watched: bool
) -> AsyncIterator[Piece]:
    """Yield the pieces of all choices as they come, each choice's last one with its output.

    Raises:
        ApiError: If a request failed.
        EngineFailedError: If a step of the engine failed.
    """
    choices = []
    for index, request in enumerate(requests):
        choices.append(ChoiceStream(index, request, decode, watched=watched))
    num_left = len(choices)
    while num_left:
        received: dict[int, list[StepProgress]] = {}
        for index, progress in await stream.read():
            received.setdefault(index, []).append(progress)
        for index, progress in received.items():
            piece = choices[index].piece(progress)
            num_left -= piece.output is not None
            yield piece


def usage_of(outputs: Sequence[RequestOutput], num_prompts: int) -> Usage:
    """Return the tokens of an answer. Choices of one prompt count its tokens once.

    Args:
        outputs: The choices of the first prompt, then those of the next.
    """
    firsts = outputs[:: len(outputs) // num_prompts]
    num_prompt = sum(output.record.num_prompt_tokens for output in firsts)
    num_cached = 0
    for output in firsts:
        record = output.record
        num_cached += min(record.num_reused_tokens, record.num_prompt_tokens)
    num_new = sum(len(output.token_ids) for output in outputs)
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_new,
        total_tokens=num_prompt + num_new,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
    )


def metrics_of(outputs: Sequence[RequestOutput], most_drafts: int) -> Metrics:
    """Return the figures of speculative decoding of an answer, all choices together.

    Args:
        most_drafts: The most drafts of a step.
    """
    counts = Counts.total([output.record.counts for output in outputs])
    num_steps = counts.num_drafts
    reached = [num_steps, *counts.accepted]
    histogram = [here - below for here, below in zip(reached, [*counts.accepted, 0], strict=True)]
    drafted, accepted = counts.num_draft_tokens, counts.num_accepted_tokens
    return Metrics(
        speculative_decoding=SpeculativeDecoding(
            mean_acceptance_length=counts.mean_acceptance_length,
            draft_acceptance_rate=accepted / drafted if drafted else 0.0,
            acceptance_histogram=histogram,
            num_spec_steps=num_steps,
            num_accepted_draft_tokens=accepted,
            num_draft_tokens=drafted,
            num_spec_tokens=most_drafts,
            num_accepted_tokens_per_pos=list(counts.accepted),
        )
    )


def _speculation(
    progress: Sequence[StepProgress], texts: Sequence[str], decode: Decode
) -> ChunkSpeculation:
    sources = []
    rest = iter(texts)
    for part in progress:
        for number, token in enumerate(part.token_ids):
            position = number + 1 if number < part.num_accepted else None
            sources.append(TokenSource(token_id=token, text=next(rest), position=position))
    trees = [_tree(part.tree, decode) for part in progress if part.tree is not None]
    return ChunkSpeculation(tokens=sources, trees=trees)


def _tree(tree: WatchedTree, decode: Decode) -> Tree:
    return Tree(
        token_ids=list(tree.token_ids),
        texts=[decode([token]) for token in tree.token_ids],
        parents=list(tree.parents),
        accepted=list(tree.accepted),
    )
