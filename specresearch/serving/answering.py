"""Build answers of pieces: one object at the end, or a chunk for every piece."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any

from specresearch.engine import RequestOutput
from specresearch.serving.answers import (
    DONE,
    AnswerPart,
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    CompletionAnswer,
    CompletionChoice,
    CompletionLogprobs,
    Delta,
    sse,
)
from specresearch.serving.generation import FINISH_REASONS, Piece
from specresearch.serving.logprobs import chat_logprobs, completion_logprobs
from specresearch.serving.service import Job, Service


class Answering(ABC):
    """Builds the answer to one job."""

    def __init__(self, job: Job, service: Service) -> None:
        self.job, self.service = job, service
        self.common: dict[str, Any] = {
            "id": job.id,
            "created": job.created,
            "model": job.model,
            "system_fingerprint": service.fingerprint,
        }
        self.has_logprobs = job.requests[0].sampling.logprobs is not None

    @abstractmethod
    def choice(self, index: int, output: RequestOutput) -> AnswerPart:
        """Return a whole choice."""

    @abstractmethod
    def object(self, choices: Sequence[Any], **more: Any) -> AnswerPart:
        """Return the whole answer."""

    @abstractmethod
    def chunk_choice(self, piece: Piece) -> AnswerPart:
        """Return a piece of a choice."""

    @abstractmethod
    def chunk(self, choices: Sequence[Any], **more: Any) -> AnswerPart:
        """Return a chunk of the answer."""

    def opening(self) -> list[AnswerPart]:
        """Return the chunks before the first piece."""
        return []

    async def whole(self) -> AnswerPart:
        """Wait for all choices and return the answer."""
        outputs: dict[int, RequestOutput] = {}
        async for piece in self.service.pieces(self.job):
            if piece.output is not None:
                outputs[piece.index] = piece.output
        choices = [self.choice(index, outputs[index]) for index in sorted(outputs)]
        return self.object(choices, **self._figures(outputs), usage=self._usage(outputs))

    async def events(self, *, sends_usage: bool) -> AsyncIterator[bytes]:
        """Yield the events of a stream. The last chunk has the figures of speculation."""
        for chunk in self.opening():
            yield sse(chunk.to_json())
        outputs: dict[int, RequestOutput] = {}
        async for piece in self.service.pieces(self.job):
            more: dict[str, Any] = {}
            if piece.output is not None:
                outputs[piece.index] = piece.output
                if len(outputs) == len(self.job.requests) and not sends_usage:
                    more = self._figures(outputs)
            elif not (piece.text or piece.logprobs or piece.speculation):
                continue  # its text is held back
            if sends_usage:
                more["usage"] = None
            yield sse(self.chunk([self.chunk_choice(piece)], **more).to_json())
        if sends_usage:
            usage = self._usage(outputs)
            yield sse(self.chunk([], usage=usage, **self._figures(outputs)).to_json())
        yield DONE

    def _usage(self, outputs: dict[int, RequestOutput]) -> Any:
        return self.service.usage(self.job, [outputs[index] for index in sorted(outputs)])

    def _figures(self, outputs: dict[int, RequestOutput]) -> dict[str, Any]:
        metrics = self.service.figures(list(outputs.values()))
        return {} if metrics is None else {"metrics": metrics}


class ChatAnswering(Answering):
    """Answers of /v1/chat/completions."""

    def choice(self, index: int, output: RequestOutput) -> ChatChoice:
        message = AssistantMessage(role="assistant", content=output.text, refusal=None)
        logprobs = self._logprobs(output.token_ids, output.logprobs)
        return ChatChoice(
            index=index,
            message=message,
            logprobs=logprobs,
            finish_reason=FINISH_REASONS[output.finish_reason],
        )

    def object(self, choices: Sequence[Any], **more: Any) -> ChatCompletion:
        kind = "chat.completion"
        return ChatCompletion(**self.common, object=kind, choices=list(choices), **more)

    def opening(self) -> list[AnswerPart]:
        chunks: list[AnswerPart] = []
        for index in range(len(self.job.requests)):
            delta = Delta(role="assistant", content="")
            choice = ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None)
            chunks.append(self.chunk([choice]))
        return chunks

    def chunk_choice(self, piece: Piece) -> ChatChunkChoice:
        delta = Delta(content=piece.text) if piece.text or not piece.output else Delta()
        more = {} if piece.speculation is None else {"speculation": piece.speculation}
        return ChatChunkChoice(
            index=piece.index,
            delta=delta,
            logprobs=self._logprobs(piece.token_ids, piece.logprobs),
            finish_reason=piece.finish_reason,
            **more,
        )

    def chunk(self, choices: Sequence[Any], **more: Any) -> ChatChunk:
        kind = "chat.completion.chunk"
        return ChatChunk(**self.common, object=kind, choices=list(choices), **more)

    def _logprobs(self, token_ids: Sequence[int], logprobs: Any) -> ChatLogprobs | None:
        if not self.has_logprobs:
            return None
        return chat_logprobs(token_ids, logprobs, self.service.names)


class CompletionAnswering(Answering):
    """Answers of /v1/completions."""

    def __init__(self, job: Job, service: Service) -> None:
        super().__init__(job, service)
        self._offsets = [0] * len(job.requests)  # characters of the tokens sent so far

    def choice(self, index: int, output: RequestOutput) -> CompletionChoice:
        return CompletionChoice(
            index=index,
            text=output.text,
            logprobs=self._logprobs(index, output.token_ids, output.logprobs),
            finish_reason=FINISH_REASONS[output.finish_reason],
        )

    def object(self, choices: Sequence[Any], **more: Any) -> CompletionAnswer:
        kind = "text_completion"
        return CompletionAnswer(**self.common, object=kind, choices=list(choices), **more)

    def chunk_choice(self, piece: Piece) -> CompletionChoice:
        more = {} if piece.speculation is None else {"speculation": piece.speculation}
        return CompletionChoice(
            index=piece.index,
            text=piece.text,
            logprobs=self._logprobs(piece.index, piece.token_ids, piece.logprobs),
            finish_reason=piece.finish_reason,
            **more,
        )

    def chunk(self, choices: Sequence[Any], **more: Any) -> CompletionAnswer:
        return self.object(choices, **more)

    def _logprobs(
        self, index: int, token_ids: Sequence[int], logprobs: Any
    ) -> CompletionLogprobs | None:
        if not self.has_logprobs:
            return None
        names, begin = self.service.names, self._offsets[index]
        found = completion_logprobs(token_ids, logprobs, names, begin)
        self._offsets[index] += sum(map(len, found.tokens))
        return found
