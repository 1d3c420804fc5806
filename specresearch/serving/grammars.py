"""Grammars of requests, compiled outside of the event loop."""

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from specresearch.grammar import Grammar, GrammarCompiler
from specresearch.models import CausalLM
from specresearch.serving.errors import ApiError

_NUM_KEPT = 64  # grammars of repeated schemas
FIELD = "response_format"


class GrammarSource:
    """Compiles JSON schemas for the tokenizer of a target.

    The tokenizer is prepared at once: for a large vocabulary that takes seconds, during which
    all streams would pause.
    """

    def __init__(self, target: CausalLM) -> None:
        self._compiler: GrammarCompiler | None = None
        self._unavailable = ""
        assert target.tokenizer is not None
        try:
            self._compiler = GrammarCompiler(
                target.tokenizer, target.vocab_size, target.eos_token_ids
            )
        except (ImportError, ValueError) as error:
            self._unavailable = str(error)
        self._thread = ThreadPoolExecutor(1, "grammar")
        self._compiled = lru_cache(_NUM_KEPT)(self._compile)

    async def of_schema(self, schema: Mapping[str, Any] | None) -> Grammar | None:
        """Return the grammar of a JSON schema, or None if there is no schema.

        Raises:
            ApiError: If the schema cannot be followed, or grammars are not installed.
        """
        if schema is None:
            return None
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._compiled, json.dumps(schema))
        except ValueError as error:
            raise ApiError(400, f"{FIELD}: {error}", param=FIELD) from error

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _compile(self, schema: str) -> Grammar:
        if self._compiler is None:
            raise ValueError(self._unavailable)
        return self._compiler.json_schema(json.loads(schema))
