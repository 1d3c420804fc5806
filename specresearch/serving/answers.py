"""The answers of the server: OpenAI's objects, with vLLM's figures of speculative decoding."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

FinishReason = Literal["stop", "length"]


class AnswerPart(BaseModel):
    """Base of all parts of an answer. Only what was set is sent."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    def to_json(self) -> str:
        return self.model_dump_json(exclude_unset=True)


class PromptTokensDetails(AnswerPart):
    cached_tokens: int


class Usage(AnswerPart):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class SpeculativeDecoding(AnswerPart):
    """Counts of an answer's drafts, as vLLM names them.

    Attributes:
        mean_acceptance_length: 1 + accepted drafts / steps with drafts.
        draft_acceptance_rate: Accepted drafts / drafts.
        acceptance_histogram: Entry j is the number of steps that accepted j drafts.
        num_spec_steps: Steps with at least one draft.
        num_spec_tokens: The most drafts of a step.
        num_accepted_tokens_per_pos: Drafts accepted at each position.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    num_accepted_tokens_per_pos: list[int]


class Metrics(AnswerPart):
    speculative_decoding: SpeculativeDecoding


class TokenSource(AnswerPart):
    """Who wrote a token.

    Attributes:
        text: Its share of the chunk's text.
        position: Its place among the drafts of its step, from 1; null if it is the target's own.
    """

    token_id: int
    text: str
    position: int | None


class Tree(AnswerPart):
    """The drafts of a step.

    Attributes:
        token_ids: Of each node; node 0 is the last token before the step.
        texts: Of each node.
        parents: The parent of each node, -1 for node 0.
        accepted: Accepted nodes, from the first on.
    """

    token_ids: list[int]
    texts: list[str]
    parents: list[int]
    accepted: list[int]


class ChunkSpeculation(AnswerPart):
    """What happened in the steps of a chunk.

    Attributes:
        tokens: In the order of the text.
        trees: The drafts of each step, in order.
    """

    tokens: list[TokenSource]
    trees: list[Tree]


class TopLogprob(AnswerPart):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(AnswerPart):
    content: list[ChatLogprob]
    refusal: None


class CompletionLogprobs(AnswerPart):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class AssistantMessage(AnswerPart):
    role: Literal["assistant"]
    content: str
    refusal: None


class Delta(AnswerPart):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChoice(AnswerPart):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatChunkChoice(AnswerPart):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    speculation: ChunkSpeculation | None = None


class CompletionChoice(AnswerPart):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    speculation: ChunkSpeculation | None = None


class _Whole(AnswerPart):
    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatCompletion(_Whole):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    metrics: Metrics | None = None


class ChatChunk(_Whole):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    metrics: Metrics | None = None


class CompletionAnswer(_Whole):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage | None = None
    metrics: Metrics | None = None


class ModelCard(AnswerPart):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int


class ModelList(AnswerPart):
    object: Literal["list"]
    data: list[ModelCard]


class ErrorDetails(AnswerPart):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(AnswerPart):
    error: ErrorDetails


def sse(json: str) -> bytes:
    """Return a server-sent event."""
    return f"data: {json}\n\n".encode()


DONE = sse("[DONE]")


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what a path may answer but 200, for the schema; `schema` adds what every path may."""
    return {status: {"model": ErrorAnswer} for status in statuses}


def errors_or_events(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the same for a path that can stream."""
    description = 'The answer; with "stream": true, events with its chunks and then [DONE]'
    return {
        200: {"description": description, "content": {"text/event-stream": {}}},
        **errors(*statuses),
    }
