"""Prompts of requests as token ids."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from specresearch.data.templates import render_chat
from specresearch.serving.bodies import Message
from specresearch.serving.errors import ApiError


class PromptEncoder:
    """Tokenizes outside of the event loop, which a long prompt would hold up.

    One thread does it all: a tokenizer cannot be set up for two texts at once.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(1, "tokenizer")

    async def chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt of a conversation, which asks for the next reply.

        Raises:
            ApiError: If the chat template refuses it.
        """
        conversation = []
        for message in messages:
            role = "system" if message.role == "developer" else message.role
            conversation.append({"role": role, "content": message.text})
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self._thread, render_chat, self._tokenizer, conversation
            )
        except TemplateError as error:
            raise ApiError(
                400, f"messages: the model's chat template refuses them: {error}", param="messages"
            ) from error

    async def text(self, prompt: str) -> list[int]:
        """Return the tokens of a text."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._encode, prompt)

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    def _encode(self, prompt: str) -> list[int]:
        return self._tokenizer(prompt, verbose=False)["input_ids"]
