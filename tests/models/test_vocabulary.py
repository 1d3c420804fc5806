from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from other_tokenizers import byte_fallback, byte_level, vocabularies
from tiny_models import letters_tokenizer
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from specresearch import CausalLM
from specresearch.models.translation import Translation
from specresearch.models.vocabulary import NoBytesError, Vocabulary

quickly = settings(max_examples=40, deadline=None, derandomize=True, database=None)


class Described(CausalLM):
    """The part of a model that tells its vocabulary."""

    def __init__(self, tokenizer: Any, rows: int) -> None:
        self.tokenizer, self.rows, self.name = tokenizer, rows, "lm"

    @property
    def vocab_size(self) -> int:
        return self.rows

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return frozenset({self.tokenizer.eos_token_id} - {None})


def of(tokenizer: Any, rows: int | None = None) -> Vocabulary:
    return Vocabulary.of(Described(tokenizer, len(tokenizer) if rows is None else rows))


COMPLETE = {"byte level": byte_level, "byte fallback": byte_fallback}


@pytest.mark.parametrize("name", COMPLETE)
@quickly
@given(text=st.text(alphabet="the aé\n日🙂<0x>|user", max_size=12), odd=st.binary(max_size=3))
def test_bytes_return_from_ids(name: str, text: str, odd: bytes) -> None:
    """Without a space before them, a start token or special tokens that a text seems to name."""
    vocabulary = of(COMPLETE[name]())
    for data in (text.encode(), odd + text.encode() + odd, b" " + text.encode()):
        ids = vocabulary.encode(data)
        assert vocabulary.bytes_of(ids) == data
        assert all(vocabulary.pieces[id] is not None for id in ids)


@pytest.mark.parametrize("name", COMPLETE)
def test_text_is_split_as_the_tokenizer_does(name: str) -> None:
    tokenizer = COMPLETE[name]()
    expected = tokenizer(" the the", add_special_tokens=False)["input_ids"]
    split = of(tokenizer).encode(b" the the")
    assert split == (expected if name == "byte level" else expected[1:])


@quickly
@given(target=vocabularies(6), draft=vocabularies(7), tokens=st.lists(st.integers(0, 5)))
def test_transliteration_keeps_all_bytes_that_the_draft_has(
    target: dict[str, Any], draft: dict[str, Any], tokens: list[int]
) -> None:
    """Common tokens have equal bytes, and what is read of several tokens is what each one says."""
    ours, theirs = Vocabulary(**target), Vocabulary(**draft)
    translation = Translation(ours, theirs, torch.device("cpu"))
    known = {piece[:1] for piece in theirs.ids_of if len(piece) == 1}
    for token, piece in enumerate(ours.pieces):
        spelled = translation.spelling(token)
        assert all(0 <= id < len(theirs.pieces) for id in spelled)
        if piece is not None and all(bytes([byte]) in known for byte in piece):
            assert theirs.bytes_of(spelled) == piece
        if piece is not None and translation.is_common(token):
            assert [theirs.pieces[id] for id in spelled] == [piece]
    for text in (tokens, [5, *tokens]):
        if text:
            assert translation.read(text)


def test_half_a_character_is_no_other_half() -> None:
    """Both decode to the replacement character, and would be equal as text."""
    target, draft = of(byte_level()), of(byte_fallback())
    translation = Translation(target, draft, torch.device("cpu"))
    for byte in (0xC3, 0xE6, 0xF0):
        (token,) = target.ids_of[bytes([byte])]
        assert draft.bytes_of(translation.spelling(token)) == bytes([byte])


def test_roles_are_paired_whatever_special_tokens_are_called() -> None:
    target, draft = of(byte_level()), of(byte_fallback())
    translation = Translation(target, draft, torch.device("cpu"))
    token: Any = byte_level().convert_tokens_to_ids
    id: Any = byte_fallback().convert_tokens_to_ids
    assert translation.spelling(token("<|end|>")) == [id("</s>")]
    assert translation.end_for(id("</s>")) == token("<|end|>")
    assert translation.spelling(token("<|user|>")) == [id("<|user|>")]
    assert not translation.is_common(token("<|begin|>"))
    said = [token("<|begin|>"), *target.encode(b"the"), token("<|user|>"), *target.encode(b" the")]
    ids = translation.read(said)
    assert ids.count(id("<|user|>")) == 1
    assert draft.bytes_of(ids) == b"the the"


def test_rows_beyond_the_tokenizer_are_nothing() -> None:
    """The draft's are never drawn; the target's get no probability."""
    target, draft = of(byte_fallback(), 400), of(byte_level(), 400)
    translation = Translation(target, draft, torch.device("cpu"))
    logits = torch.zeros((1, 1, 400))
    logits[..., len(byte_level()) :] = 50.0
    row = translation.to_target(logits).softmax(-1)[0, 0]
    assert row.sum() == pytest.approx(1)
    assert row[len(byte_fallback()) :].sum() == 0
    assert not translation.is_common_id(torch.tensor([[399]]))
    assert translation.spelling(399) == []


def test_ids_with_the_same_bytes_share_one_token() -> None:
    target, draft = Vocabulary([b"a", b"b", b"a"]), Vocabulary([b"a", b"b", b"a"])
    translation = Translation(target, draft, torch.device("cpu"))
    row = translation.to_target(torch.tensor([[[0.2, 0.5, 0.3]]]).log()).softmax(-1)[0, 0]
    torch.testing.assert_close(row, torch.tensor([0.5, 0.5, 0.0]))


def without_bytes(decoder: Any) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}))
    backend.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_a_tokenizer_without_bytes_is_refused() -> None:
    with pytest.raises(NoBytesError, match="joins tokens by WordPiece"):
        of(without_bytes(decoders.WordPiece()))
    with pytest.raises(NoBytesError, match="has no tokenizer"):
        of(None, 3)
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}))
    with pytest.raises(NoBytesError, match="has no decoder"):
        of(PreTrainedTokenizerFast(tokenizer_object=backend))


def test_letters_are_bytes() -> None:
    assert of(letters_tokenizer()).encode(b"abcb") == letters_tokenizer().encode("abcb")
