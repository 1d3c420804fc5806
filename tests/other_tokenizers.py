"""Vocabularies and tokenizers that differ in all the ways that tokenizers do."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import tokenizers
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "the cat sat on the mat.\n",
    "Où est la tête ? Là-bas, naïve élève.",
    "日本語 🙂🙂 <0x0A> Ġ",
]
PIECES = [b"a", b"b", b"ab", b" a", b" ", b"\n", b"<", b"\xc3", b"\xa9", b"\xc3\xa9", b"\xff"]


@cache
def byte_level(size: int = 300) -> PreTrainedTokenizerFast:
    """Return a tokenizer like GPT-2's, with a start token and one to end with."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    specials = ["<|begin|>", "<|end|>", "<|user|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=specials,
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|begin|>", eos_token="<|end|>"
    )


@cache
def byte_fallback() -> PreTrainedTokenizerFast:
    """Return a tokenizer like Llama 2's, which puts a space before every text."""
    words = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    words += ["▁", "t", "h", "e", "a", "é", "th", "▁th", "▁the", "<|user|>"]
    merges = [("t", "h"), ("▁", "th"), ("▁th", "e")]
    vocab = {word: id for id, word in enumerate(words)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["<|user|>"],
    )


def _no_ids(text: str) -> Sequence[int]:
    return []


def _garbage(text: str) -> Sequence[int]:
    return [0, len(text), 1, 9999]


@st.composite
def vocabularies(draw: DrawFn, size: int) -> dict[str, Any]:
    """Draw a `Vocabulary` with repeated, missing and partial pieces, and a tokenizer that errs."""
    piece: SearchStrategy[bytes | None] = st.sampled_from([*PIECES, None])
    pieces = draw(st.lists(piece, min_size=size, max_size=size))
    without = [id for id, piece in enumerate(pieces) if piece is None]
    roles = draw(st.permutations([*without, *[-1] * 4]))
    texts = st.sampled_from(["<|user|>", "<|end|>", "ab"])
    some_id = st.none() | st.sampled_from(range(size))
    return {
        "pieces": pieces,
        "specials": {id: draw(texts) for id in without if draw(st.booleans())},
        "ends": tuple(id for id in roles[:2] if id >= 0),
        "spare": frozenset(draw(st.lists(st.sampled_from(range(size)), max_size=3))),
        "start": draw(some_id),
        "silent": frozenset(id for id in roles[2:4] if id >= 0),
        "unknown": draw(some_id),
        "encode_text": draw(st.sampled_from([None, _no_ids, _garbage])),
    }
