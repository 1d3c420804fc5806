"""What a server does with a request: check it, submit it, and hand back what comes of it."""

import sys
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specresearch import __version__
from specresearch.acceptance import Threshold
from specresearch.engine import RequestOutput
from specresearch.request import Request
from specresearch.sampling import SamplingParams
from specresearch.serving.answers import Metrics, Usage
from specresearch.serving.bodies import ChatBody, CompletionBody
from specresearch.serving.bridge import EngineBridge, RequestStream
from specresearch.serving.errors import ApiError
from specresearch.serving.generation import Piece, metrics_of, pieces_of, usage_of
from specresearch.serving.grammars import GrammarSource
from specresearch.serving.logprobs import TokenNames
from specresearch.serving.metrics import ServerMetrics
from specresearch.serving.prompts import PromptEncoder
from specresearch.serving.settings import ServeSettings

SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stop",
    "stop_token_ids",
    "ignore_eos",
)
LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")


@dataclass(frozen=True)
class Job:
    """A request of a client on its way through the engine.

    Attributes:
        id: Of the answer.
        requests: A request for every choice, prompt by prompt.
        watched: Report who wrote each token, and the drafts.
    """

    id: str
    created: int
    model: str
    num_prompts: int
    requests: Sequence[Request]
    stream: RequestStream
    watched: bool


class Service:
    """Serves one target by one engine.

    Args:
        defaults: Sampling where a request says nothing.

    Attributes:
        draining: New requests are refused, because the server is about to stop.
    """

    def __init__(
        self, bridge: EngineBridge, settings: ServeSettings, defaults: SamplingParams
    ) -> None:
        engine = bridge.engine
        if engine.target.tokenizer is None:
            raise ValueError(f"{engine.target.name} has no tokenizer, and clients send text")
        self.bridge, self.settings, self.defaults = bridge, settings, defaults
        self.engine, self.tokenizer = engine, engine.target.tokenizer
        self.model_name = settings.model_name or engine.target.name
        self.created = int(time.time())
        self.fingerprint = f"specresearch-{__version__}"
        self.names = TokenNames(self.tokenizer)
        self.encoder = PromptEncoder(self.tokenizer)
        self.grammars = GrammarSource(engine.target)
        self.metrics = ServerMetrics(self.model_name, engine.proposer.num_draft_tokens)
        bridge.on_update = self.metrics.observe
        self.most_running = engine.scheduler.max_batch_size + settings.max_waiting
        self.draining = False

    def close(self) -> None:
        """End the threads that prepare requests."""
        self.encoder.close()
        self.grammars.close()

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of output tokens, as the engine does."""
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=True))

    async def chat(self, body: ChatBody) -> Job:
        """Submit a chat.

        Raises:
            ApiError: If the request cannot be served.
        """
        self.check_model(body.model)
        self._admit(body.num_choices)
        prompt = await self.encoder.chat(body.messages)
        return await self._submit(f"chatcmpl-{uuid.uuid4().hex}", [prompt], body)

    async def completion(self, body: CompletionBody) -> Job:
        """Submit prompts.

        Raises:
            ApiError: If the request cannot be served.
        """
        self.check_model(body.model)
        self._admit(body.num_choices * len(body.prompts))
        prompts = []
        for prompt in body.prompts:
            prompts.append(await self.encoder.text(prompt) if isinstance(prompt, str) else prompt)
        return await self._submit(f"cmpl-{uuid.uuid4().hex}", prompts, body)

    def pieces(self, job: Job) -> AsyncIterator[Piece]:
        """Yield the pieces of a job's answer as they come."""
        return pieces_of(job.stream, job.requests, self.decode, watched=job.watched)

    def usage(self, job: Job, outputs: Sequence[RequestOutput]) -> Usage:
        return usage_of(outputs, job.num_prompts)

    def figures(self, outputs: Sequence[RequestOutput]) -> Metrics | None:
        """Return the figures of an answer's drafts; None if nothing drafts."""
        most_drafts = self.engine.proposer.num_draft_tokens
        return metrics_of(outputs, most_drafts) if most_drafts else None

    def check_model(self, name: str | None) -> None:
        """Raise ApiError unless this is the served model."""
        if name is not None and name != self.model_name:
            raise ApiError(
                404,
                f"model: this server has {self.model_name} and no other",
                param="model",
                code="model_not_found",
            )

    def check_alive(self) -> None:
        """Raise ApiError if no request can be served."""
        if self.bridge.failure is not None:
            raise ApiError(503, "the engine has stopped", code="engine_stopped")
        if self.draining:
            raise ApiError(503, "the server is about to stop", code="draining")

    def _admit(self, num_requests: int) -> None:
        """Refuse requests beyond the end of the queue."""
        self.check_alive()
        if self.bridge.num_live + num_requests > self.most_running:
            self.metrics.reject()
            raise ApiError(429, "the queue is full; try again later", code="queue_full")

    async def _submit(
        self, id: str, prompts: Sequence[Sequence[int]], body: ChatBody | CompletionBody
    ) -> Job:
        sampling = self._sampling(body)
        for prompt in prompts:
            self._check_prompt(prompt)
        grammar = await self.grammars.of_schema(body.json_schema)
        if grammar is not None:
            self._admit(body.num_choices * len(prompts))  # others may have come meanwhile
        num_drafts = self._num_drafts(body)
        requests: list[Request] = []
        for prompt in prompts:
            for choice in range(body.num_choices):
                own = sampling
                if sampling.seed is not None and choice:
                    seed = (sampling.seed + choice) % 2**64
                    own = replace(sampling, seed=seed)
                name = f"{id}-{len(requests)}"
                requests.append(Request(prompt, own, name, num_drafts, grammar=grammar))
        try:
            stream = await self.bridge.submit(
                requests, watch=body.sends_speculation, interval=self._interval(body)
            )
        except ValueError as error:
            raise ApiError(400, str(error).replace("sampling.", "")) from error
        return Job(
            id=id,
            created=int(time.time()),
            model=self.model_name,
            num_prompts=len(prompts),
            requests=requests,
            stream=stream,
            watched=body.sends_speculation,
        )

    def _check_prompt(self, prompt: Sequence[int]) -> None:
        limit, name = self.engine.target.max_len - 1, "the context"
        if self.settings.max_prompt_tokens is not None:
            limit, name = min(limit, self.settings.max_prompt_tokens), "this server's limit"
        if not prompt:
            raise ApiError(400, "the prompt is empty; give it at least one token", param="prompt")
        if len(prompt) > limit:
            raise ApiError(
                400,
                f"the prompt has {len(prompt)} tokens and {name} leaves room for {limit}",
                code="context_length_exceeded",
            )

    def _sampling(self, body: ChatBody | CompletionBody) -> SamplingParams:
        """Return the sampling of a request: its own fields, or else the server's."""
        given: dict[str, Any] = {name: getattr(body, name) for name in SAMPLING_FIELDS}
        given["max_new_tokens"] = self._limit(body)
        given["seed"] = body.seed
        given["draft_threshold"] = body.draft_threshold
        if body.logit_bias:
            given["logit_bias"] = {int(token): bias for token, bias in body.logit_bias.items()}
        if body.top_k is not None:
            given["top_k"] = max(body.top_k, 0)
        given = {name: value for name, value in given.items() if value is not None}
        try:
            sampling = replace(self.defaults, **given, logprobs=body.num_logprobs)
        except ValueError as error:
            raise ApiError(400, str(error).replace("sampling.", "")) from error
        self._check_preset(body)
        return sampling

    def _limit(self, body: ChatBody | CompletionBody) -> int:
        most = self.settings.max_output_tokens
        for name in LIMIT_FIELDS:
            wanted = getattr(body, name, None)
            if most is not None and wanted is not None and wanted > most:
                raise ApiError(
                    400,
                    f"{name}={wanted} is more than the {most} that this server allows",
                    param=name,
                )
        default = self.defaults.max_new_tokens
        return body.limit or (default if most is None else min(default, most))

    def _check_preset(self, body: ChatBody | CompletionBody) -> None:
        """Refuse a preset of another acceptance rule."""
        rule = self.engine.acceptance
        if body.acceptance is not None and not isinstance(rule, Threshold):
            raise ApiError(
                400,
                f"acceptance={body.acceptance} is a preset of acceptance=threshold, which this "
                "server does not use",
                param="acceptance",
            )

    def _interval(self, body: ChatBody | CompletionBody) -> int:
        if not body.stream:
            return sys.maxsize  # nobody reads it before its end
        return 1 if body.sends_speculation else self.settings.stream_interval

    def _num_drafts(self, body: ChatBody | CompletionBody) -> int | None:
        most = self.engine.proposer.num_draft_tokens
        if body.num_draft_tokens is not None:
            return min(body.num_draft_tokens, most)
        return most if body.controller is False else None
