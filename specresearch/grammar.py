"""Grammars that outputs keep to: JSON schemas, regular expressions, Lark grammars.

The target's distribution is cut to the tokens that the grammar allows after each prefix, and
renormalised. That is a function of the prefix, as temperature or top-p are, so a lossless rule
stays lossless. llguidance (https://github.com/guidance-ai/llguidance) follows the grammars.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int, UInt8

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from transformers import PreTrainedTokenizerBase

ALL_ALLOWED = 255
# A line and its indentation. Without a bound, small models go on with blanks for ever.
_WHITESPACE = r"\r?\n?[ \t]{0,20}"
_QUIET = 0  # the level of llguidance's own log
# By default llguidance allows one spelling in tokens where the text is certain, which the target's
# distribution within the grammar does not.
_EVERY_SPELLING = '%llguidance {"no_forcing": true}\n'


class GrammarCompiler:
    """Compiles grammars for one model and its tokenizer.

    Args:
        vocab_size: Columns of the model's logits.
        eos_token_ids: The tokens that end an output once its grammar is complete.

    Raises:
        ImportError: If llguidance is not installed.
        ValueError: If the tokenizer is not one of the tokenizers library, or if no token ends an
            output.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        vocab_size: int,
        eos_token_ids: Collection[int],
    ) -> None:
        try:
            import llguidance.hf
        except ImportError as error:
            raise ImportError(
                "grammars need llguidance; install it by pip install 'specresearch[grammar]'"
            ) from error
        if not eos_token_ids:
            raise ValueError(
                "the model has no end token, so no output could end with its grammar; give the "
                "model's generation configuration an eos_token_id"
            )
        if not tokenizer.is_fast:
            raise ValueError(
                f"grammars need a tokenizer of the tokenizers library, and {type(tokenizer)} is "
                "none; save a tokenizer.json with the model"
            )
        self._library = llguidance
        self._tokenizer = llguidance.hf.from_tokenizer(
            tokenizer,  # pyright: ignore[reportArgumentType]
            n_vocab=max(vocab_size, len(tokenizer)),
            eos_token=sorted(eos_token_ids),
        )

    def json_schema(self, schema: Mapping[str, Any]) -> "Grammar":
        """Return the grammar of JSON texts that a JSON schema allows.

        Keys come in the order of the schema.

        Raises:
            ValueError: If it is no JSON schema, or has keywords that llguidance does not know.
        """
        options = {"x-guidance": {"whitespace_pattern": _WHITESPACE}}
        return self._compile("JSON schema", f"start: %json {json.dumps(options | dict(schema))}")

    def json_object(self) -> "Grammar":
        """Return the grammar of all JSON objects."""
        return self.json_schema({"type": "object"})

    def regex(self, pattern: str) -> "Grammar":
        """Return the grammar of texts that match a regular expression as a whole.

        Raises:
            ValueError: If it is none in the syntax of Rust's regex crate.
        """
        source = self._library.regex_to_lark(pattern)
        return self._compile("regular expression", f"start: /{source}/")

    def lark(self, text: str) -> "Grammar":
        """Return a context-free grammar that is written as for the Lark library.

        Raises:
            ValueError: If it is none.
        """
        return self._compile("grammar", text)

    def _compile(self, kind: str, lark: str) -> "Grammar":
        source = self._library.LLMatcher.grammar_from_lark(_EVERY_SPELLING + lark)
        matcher = self._library.LLMatcher(self._tokenizer, source, log_level=_QUIET)
        if matcher.is_error():
            reason = matcher.get_error().strip().splitlines()[0]
            raise ValueError(f"the {kind} cannot be followed: {reason}")
        return Grammar(matcher)


class Grammar:
    """A compiled grammar, which any number of requests may share."""

    def __init__(self, matcher: "LLMatcher") -> None:
        self._matcher = matcher

    def start(self) -> "GrammarState":
        """Return the state of an empty output."""
        return GrammarState(self._matcher.deep_copy())


class GrammarState:
    """Where one output stands in its grammar."""

    def __init__(self, matcher: "LLMatcher") -> None:
        self._matcher = matcher
        self._num_read = 0

    def read(self, output_ids: Sequence[int]) -> None:
        """Follow an output that has grown since the last call."""
        self._matcher.consume_tokens(list(output_ids[self._num_read :]))
        self._num_read = len(output_ids)

    @property
    def has_failed(self) -> bool:
        """Whether the output left the grammar, or llguidance reached its limits."""
        return self._matcher.is_error()

    def masks(
        self,
        tokens: Int[np.ndarray, " N"],
        parents: Int[np.ndarray, " N"],
        is_drafted: Bool[np.ndarray, " N"],
    ) -> UInt8[np.ndarray, "N _"]:
        """Return which tokens may follow each node of a draft tree, as bits, the lowest first.

        Node 0 is the root, the last token of the output. Nodes that the grammar refuses are never
        accepted, so what follows them does not matter: all tokens are allowed there.

        Args:
            parents: The parent of each node; those of nodes below the root come before them.
            is_drafted: False for padding.
        """
        children: list[list[int]] = [[] for _ in tokens]
        for node in range(1, len(tokens)):
            if is_drafted[node]:
                children[parents[node]].append(node)
        root = self._bits()
        masks = np.full((len(tokens), len(root)), ALL_ALLOWED, np.uint8)
        masks[0] = root
        path: list[int] = []  # nodes below the root that the matcher has read
        waiting = children[0][::-1]
        while waiting:
            node = waiting.pop()
            above = path.index(parents[node]) + 1 if parents[node] else 0
            self._matcher.rollback(len(path) - above)
            del path[above:]
            if self._matcher.try_consume_tokens([int(tokens[node])]):
                path.append(node)
                masks[node] = self._bits()
                waiting += reversed(children[node])
        self._matcher.rollback(len(path))
        return masks

    def _bits(self) -> UInt8[np.ndarray, " _"]:
        return np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
