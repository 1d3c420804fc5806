"""Pieces of text add up to the whole, with whole characters and nothing of a stop string."""

from collections.abc import Callable

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specresearch.serving.detokenizer import REPLACEMENT, Detokenizer

TEXTS = [
    "Grüße, Fuchs! 狐狸跳过了懒狗。 🦊🦊 naïve café",
    "  two spaces, a\ttab,\n\nlines ",
    "👩‍👩‍👧‍👦 family",
    "plain words only",
]
Decode = Callable[[list[int]], str]


def byte_level() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: number for number, character in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def byte_fallback() -> PreTrainedTokenizerFast:
    """Return a tokenizer of letters that strips a first space, and spells the rest in bytes."""
    letters = ["\u2581", *map(chr, range(ord("!"), ord("~")))]
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {letter: 256 + number for number, letter in enumerate(letters)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


TOKENIZERS = {"byte level": byte_level(), "byte fallback": byte_fallback()}


def decoder(tokenizer: PreTrainedTokenizerFast) -> Decode:
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True))


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_add_up_to_whole_characters(name: str, text: str, size: int) -> None:
    tokenizer = TOKENIZERS[name]
    ids, decode = tokenizer(text)["input_ids"], decoder(tokenizer)
    detokenizer = Detokenizer(decode)
    pieces = [detokenizer.push(ids[start : start + size]) for start in range(0, len(ids), size)]
    pieces.append(detokenizer.finish(decode(ids)))
    assert "".join(pieces) == decode(ids)
    assert REPLACEMENT not in "".join(pieces)
    assert len(list(filter(None, pieces))) > len(text) // (2 * size)  # nothing waits for the end


def test_bytes_that_are_no_character_do_not_hold_up_the_rest() -> None:
    tokenizer = TOKENIZERS["byte level"]
    decode = decoder(tokenizer)
    valid = tokenizer("ab")["input_ids"]
    (lead,) = tokenizer("ü")["input_ids"][:1]
    ids = [lead] * 20 + valid
    detokenizer = Detokenizer(decode)
    pieces = [detokenizer.push([token]) for token in ids]
    assert "".join(pieces[:20]) == REPLACEMENT * 17  # a character may have three more bytes
    assert "".join(pieces) == decode(ids)


def test_an_end_within_a_character_is_sent_at_the_end() -> None:
    tokenizer = TOKENIZERS["byte level"]
    decode = decoder(tokenizer)
    ids = tokenizer("a狐")["input_ids"][:-1]
    detokenizer = Detokenizer(decode)
    assert detokenizer.push(ids) == "a"
    assert detokenizer.finish(decode(ids)) == REPLACEMENT


@pytest.mark.parametrize("size", [1, 3])
def test_stop_strings_across_pieces_are_never_sent(size: int) -> None:
    tokenizer = TOKENIZERS["byte level"]
    decode = decoder(tokenizer)
    text, stop = "one <|two <|en three", ["<|end|>", "three"]
    detokenizer = Detokenizer(decode, stop)
    ids = tokenizer(text)["input_ids"]
    pieces = []
    for start in range(0, len(ids) - len("three"), size):
        pieces.append(detokenizer.push(ids[start : start + size]))
        held = decode(ids[: start + size]).removeprefix("".join(pieces))
        assert not held or any(string.startswith(held) for string in stop)
        for number in range(1, len("<|end|>")):
            begins = decode(ids[: start + size]).endswith("<|end|>"[:number])
            assert not begins or len(held) >= number
    pieces.append(detokenizer.finish("one <|two <|en "))
    assert "".join(pieces) == "one <|two <|en "
