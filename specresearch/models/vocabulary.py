"""A model's vocabulary as byte strings, and its tokenizer as a map from bytes to ids."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from specresearch.models.causal_lm import CausalLM

_BYTE_TOKENS = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
_TEXT_ONLY = {"Fuse", "Strip"}  # decoders that change no token in the middle of a text


class NoBytesError(ValueError):
    """A tokenizer does not tell which bytes its tokens stand for."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model, by id.

    Ids of the embedding that no token has stand for nothing.

    Attributes:
        pieces: The bytes of every id; None for special tokens and ids without a token.
        specials: The text of special tokens.
        ends: The ids that end an output, the tokenizer's own end token first.
        spare: The ids that are not to be used for their bytes while another id has the same, such
            as byte fallback.
        start: The id that begins every text; None if texts begin without one.
        silent: Special ids without a meaning for another model, such as padding.
        unknown: The id for bytes that no token has; None if there is none.
        encode_text: The tokenizer's way to split a text, without special tokens. It may return
            anything; None splits at the longest tokens.
    """

    pieces: Sequence[bytes | None]
    specials: dict[int, str] = field(default_factory=dict)
    ends: tuple[int, ...] = ()
    spare: frozenset[int] = frozenset()
    start: int | None = None
    silent: frozenset[int] = frozenset()
    unknown: int | None = None
    encode_text: Callable[[str], Sequence[int]] | None = None

    @staticmethod
    def of(lm: CausalLM) -> "Vocabulary":
        """Return the vocabulary of a loaded model.

        Raises:
            NoBytesError: If it has no tokenizer, or one that does not tell the bytes of tokens.
        """
        tokenizer = lm.tokenizer
        if tokenizer is None:
            raise NoBytesError(
                f"{lm.name} has no tokenizer, so its tokens have no bytes; load it with one"
            )
        to_bytes = _byte_decoder(tokenizer, lm.name)
        pieces: list[bytes | None] = [None] * lm.vocab_size
        spare = set()
        for token, id in tokenizer.get_vocab().items():
            if id < lm.vocab_size:
                pieces[id] = to_bytes(token)
                if token in _BYTE_TOKENS:
                    spare.add(id)
        specials = {}
        for id, token in tokenizer.added_tokens_decoder.items():
            spare.add(id)
            if token.special and id < lm.vocab_size:
                specials[id], pieces[id] = token.content, None
        special: dict[str, int | None] = {}
        for role in ("bos", "eos", "pad", "unk"):
            id: Any = getattr(tokenizer, f"{role}_token_id")
            special[role] = id if id is not None and id < lm.vocab_size else None
        ends = [special["eos"], *sorted(id for id in lm.eos_token_ids if id < lm.vocab_size)]
        ends = [id for id in dict.fromkeys(ends) if id is not None]
        begins: Any = tokenizer("", verbose=False)["input_ids"]
        starts = special["bos"] is not None and begins[:1] == [special["bos"]]
        silent = [special[role] for role in ("bos", "pad", "unk")]
        return Vocabulary(
            pieces=pieces,
            specials=specials,
            ends=tuple(ends),
            spare=frozenset(spare),
            start=special["bos"] if starts else None,
            silent=frozenset(id for id in silent if id is not None and id not in ends),
            unknown=special["unk"],
            encode_text=_text_encoder(tokenizer),
        )

    @cached_property
    def num_tokens(self) -> int:
        """The ids that stand for something."""
        return sum(piece is not None for piece in self.pieces) + len(self.specials)

    @cached_property
    def ids_of(self) -> dict[bytes, tuple[int, ...]]:
        """The ids of every byte string that is a token, the one to prefer first."""
        ids: dict[bytes, list[int]] = {}
        for id, piece in enumerate(self.pieces):
            if piece:
                ids.setdefault(piece, []).append(id)
        return {
            piece: tuple(sorted(same, key=lambda id: (id in self.spare, id)))
            for piece, same in ids.items()
        }

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.ids_of), default=0)

    def bytes_of(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of ids; special tokens have none."""
        return b"".join([self.pieces[id] or b"" for id in ids])

    def encode(self, data: bytes) -> list[int]:
        """Return ids that stand for these bytes, or for those before one that no token has.

        Text is split as the tokenizer does it, without a start token and without the space that
        some tokenizers put before a text; other bytes into the longest tokens.
        """
        ids: list[int] = []
        while data:
            text, odd, data = _split_text(data)
            for part, new in ((text.encode(), self._encode_text(text)), (odd, self._match(odd))):
                ids += new
                if len(self.bytes_of(new)) < len(part):
                    return ids
        return ids

    def _encode_text(self, text: str) -> list[int]:
        data = text.encode()
        if not data or self.encode_text is None:
            return self._match(data)
        ids = list(self.encode_text(text))
        known = [self.pieces[id] for id in ids if id < len(self.pieces)]
        pieces = [piece for piece in known if piece is not None]
        if len(pieces) == len(ids):
            joined = b"".join(pieces)
            if joined == data:
                return ids
            if joined == b" " + data:
                return self._match(pieces[0][1:]) + ids[1:]
        return self._match(data)

    def _match(self, data: bytes) -> list[int]:
        """Return the longest token again and again, up to a byte that no token begins with."""
        ids: list[int] = []
        begin = 0
        while begin < len(data):
            for end in range(min(begin + self._longest, len(data)), begin, -1):
                same = self.ids_of.get(data[begin:end])
                if same is not None:
                    ids.append(same[0])
                    begin = end
                    break
            else:
                return ids
        return ids

    def spell(self, data: bytes) -> list[int]:
        """Return ids for all these bytes, the unknown token for those that no token has."""
        ids = self.encode(data)
        rest = data[len(self.bytes_of(ids)) :]
        while rest:
            if self.unknown is not None:
                ids.append(self.unknown)
            more = self._match(rest[1:])
            ids += more
            rest = rest[1 + len(self.bytes_of(more)) :]
        return ids


def _text_encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], Sequence[int]]:
    def encode(text: str) -> Sequence[int]:
        ids: Any = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    return encode


def _split_text(data: bytes) -> tuple[str, bytes, bytes]:
    """Return the text that begins the data, the bytes after it that are no text, and the rest."""
    try:
        return data.decode(), b"", b""
    except UnicodeDecodeError as error:
        text = data[: error.start].decode()
        return text, data[error.start : error.end], data[error.end :]


def _byte_decoder(tokenizer: PreTrainedTokenizerBase, name: str) -> Callable[[str], bytes]:
    """Return the function from a token's name in the vocabulary to its bytes.

    Raises:
        NoBytesError: If the tokenizer's decoder does more than to join the bytes of tokens.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    if decoder is None:
        raise NoBytesError(
            f"the tokenizer of {name} ({type(tokenizer).__name__}) has no decoder that tells the "
            "bytes of its tokens; use a model with a byte-level or byte-fallback tokenizer"
        )
    settings = json.loads(decoder.__getstate__())
    steps = settings["decoders"] if settings["type"] == "Sequence" else [settings]
    kinds = {step["type"] for step in steps}
    replaced: dict[str, str] = {}
    for step in steps:
        if step["type"] == "Replace" and "String" in step["pattern"]:
            replaced[step["pattern"]["String"]] = step["content"]
        elif step["type"] == "Metaspace":
            replaced[step["replacement"]] = " "
        elif step["type"] not in _TEXT_ONLY | {"ByteLevel", "ByteFallback"}:
            raise NoBytesError(
                f"the tokenizer of {name} joins tokens by {step['type']}, which does not tell "
                "their bytes; use a model with a byte-level or byte-fallback tokenizer"
            )
    if "ByteLevel" in kinds:
        return _from_byte_level

    def decode(token: str) -> bytes:
        if "ByteFallback" in kinds and token in _BYTE_TOKENS:
            return _BYTE_TOKENS[token]
        for pattern, content in replaced.items():
            token = token.replace(pattern, content)
        return token.encode()

    return decode


def _byte_level_alphabet() -> dict[str, int]:
    """Return the byte of every character of GPT-2's alphabet."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + rank): byte for rank, byte in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


def _from_byte_level(token: str) -> bytes:
    """Return a token's bytes; one with a character outside the alphabet was added as text."""
    known = [_ALPHABET[char] for char in token if char in _ALPHABET]
    return bytes(known) if len(known) == len(token) else token.encode()
