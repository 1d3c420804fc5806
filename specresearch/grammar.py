"""Grammars that outputs keep to: JSON schemas, regular expressions, Lark grammars.

Tokens that a grammar forbids after a prefix get probability 0, and the rest is renormalised. That
is a function of the prefix, as temperature or top-p are, so a lossless rule stays lossless.
llguidance (https://github.com/guidance-ai/llguidance) parses grammars and computes the masks.
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
BITS = 8  # of a byte of a mask
# A line and its indentation. Without a bound, small models generate whitespace forever.
_WHITESPACE = r"\r?\n?[ \t]{0,20}"
_QUIET = 0  # the level of llguidance's own log
# By default llguidance forces one tokenization where the text is determined. The target's
# distribution within the grammar has no such restriction.
_EVERY_TOKENIZATION = '%llguidance {"no_forcing": true}\n'


class GrammarCompiler:
    """Compiles grammars for one model and its tokenizer.

    Args:
        vocab_size: Columns of the model's logits.
        eos_token_ids: The tokens that end an output once its grammar is complete.

    Raises:
        ImportError: If llguidance is not installed.
        ValueError: If llguidance cannot read the tokenizer, or if no token ends an output.
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
                f"grammars need a fast tokenizer, and {type(tokenizer).__name__} is not one; save "
                "a tokenizer.json with the model"
            )
        self._library = llguidance
        self._vocab_size, self._eos_token_ids = vocab_size, frozenset(eos_token_ids)
        try:
            self._tokenizer = llguidance.hf.from_tokenizer(
                tokenizer,  # pyright: ignore[reportArgumentType]
                n_vocab=max(vocab_size, len(tokenizer)),
                eos_token=sorted(eos_token_ids),
            )
        except ValueError as error:
            reason = str(error).partition(":")[0]
            raise ValueError(
                f"llguidance cannot read the model's tokenizer ({reason}); it knows those whose "
                "decoder is byte-level, or has byte fallback"
            ) from error

    def json_schema(self, schema: Mapping[str, Any]) -> "Grammar":
        """Return the grammar of JSON texts that a JSON schema allows.

        Keys come in the order of the schema. Its `x-guidance`, llguidance's options, replace the
        bound on whitespace.

        Raises:
            ValueError: If it is not a JSON schema, or has keywords that llguidance does not know.
        """
        options = {"x-guidance": {"whitespace_pattern": _WHITESPACE}}
        return self._compile("JSON schema", f"start: %json {json.dumps(options | dict(schema))}")

    def json_object(self) -> "Grammar":
        """Return the grammar of all JSON objects."""
        return self.json_schema({"type": "object"})

    def regex(self, pattern: str) -> "Grammar":
        """Return the grammar of texts that match a regular expression as a whole.

        Raises:
            ValueError: If the pattern is not valid for Rust's regex crate.
        """
        num_last = len(pattern) - len(pattern.rstrip("\\"))
        if num_last % 2:
            raise ValueError(f"the regular expression {pattern!r} ends within an escape")
        source = self._library.regex_to_lark(pattern)
        return self._compile("regular expression", f"start: /{source}/")

    def lark(self, text: str) -> "Grammar":
        """Return a context-free grammar that is written as for the Lark library.

        Raises:
            ValueError: If the text is not a valid grammar.
        """
        return self._compile("grammar", text)

    def _compile(self, kind: str, lark: str) -> "Grammar":
        source = self._library.LLMatcher.grammar_from_lark(_EVERY_TOKENIZATION + lark)
        matcher = self._library.LLMatcher(self._tokenizer, source, log_level=_QUIET)
        if not matcher.is_error():
            matcher.compute_bitmask()  # which finds grammars that no text fits
        if matcher.is_error():
            reason = matcher.get_error().strip().splitlines()[0]
            raise ValueError(f"the {kind} cannot be followed: {reason}")
        return Grammar(matcher, self._vocab_size, self._eos_token_ids)


class Grammar:
    """A compiled grammar, which any number of requests may share; it cannot be pickled.

    Attributes:
        vocab_size: Of the model that it was compiled for.
        eos_token_ids: Its end tokens.
    """

    def __init__(
        self, matcher: "LLMatcher", vocab_size: int, eos_token_ids: frozenset[int]
    ) -> None:
        self._matcher = matcher
        self.vocab_size, self.eos_token_ids = vocab_size, eos_token_ids

    def start(self) -> "GrammarState":
        """Return the state of an empty output."""
        return GrammarState(self._matcher.deep_copy(), self.vocab_size)


class GrammarState:
    """The parser state of one output."""

    def __init__(self, matcher: "LLMatcher", vocab_size: int) -> None:
        self._matcher = matcher
        self._num_bytes = -(-vocab_size // BITS)
        self._num_consumed = 0

    def advance(self, output_ids: Sequence[int]) -> None:
        """Follow an output that has grown since the last call."""
        self._matcher.consume_tokens(list(output_ids[self._num_consumed :]))
        self._num_consumed = len(output_ids)

    @property
    def has_failed(self) -> bool:
        """Whether the output left the grammar, or llguidance reached a limit."""
        return self._matcher.is_error()

    def masks(
        self,
        tokens: Int[np.ndarray, " N"],
        parents: Int[np.ndarray, " N"],
        is_drafted: Bool[np.ndarray, " N"],
    ) -> UInt8[np.ndarray, "N _"]:
        """Return which tokens may follow each node of a draft tree: a bit each, the lowest first.

        Node 0 is the root, the last token of the output. Refused nodes are never accepted, so their
        masks are never used: all tokens are allowed there, and where llguidance reaches a limit.

        Args:
            parents: The parent of each node; it comes before the node.
            is_drafted: False for padding.
        """
        children: list[list[int]] = [[] for _ in tokens]
        for node in range(1, len(tokens)):
            if is_drafted[node]:
                children[parents[node]].append(node)
        masks = np.full((len(tokens), self._num_bytes), ALL_ALLOWED, np.uint8)
        masks[0] = self._allowed_by(self._matcher)
        walker, path = self._matcher.deep_copy(), ()  # the nodes that it has consumed
        waiting = [(node,) for node in reversed(children[0])]
        while waiting and not self.has_failed:
            route = waiting.pop()
            num_shared = sum(a == b for a, b in zip(path, route, strict=False))
            walker.rollback(len(path) - num_shared)
            rest = [int(tokens[node]) for node in route[num_shared:]]
            num_consumed = walker.try_consume_tokens(rest)
            path = route[: num_shared + num_consumed]
            if path != route:
                continue
            allowed = self._allowed_by(walker)
            if walker.is_error():
                walker, path = self._matcher.deep_copy(), ()
                continue
            masks[route[-1]] = allowed
            waiting += [(*route, node) for node in reversed(children[route[-1]])]
        return masks

    def _allowed_by(self, matcher: "LLMatcher") -> UInt8[np.ndarray, " _"]:
        return np.frombuffer(matcher.compute_bitmask(), np.uint8)[: self._num_bytes]
