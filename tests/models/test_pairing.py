import warnings

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from specresearch import CausalLM
from specresearch.models.pairing import PairMismatchError, check_pair, check_tokenizers

WORDS = ["<s>", "</s>", "the", "Paris", "London", "is", "big"]


def tokenizer(words: list[str], eos: str = "</s>") -> PreTrainedTokenizerFast:
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<s>")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model), bos_token="<s>", eos_token=eos
    )


class Described(CausalLM):
    """The part of a model that pairing compares."""

    def __init__(
        self, words: list[str] | None, rows: int, size: int, max_len: int, eos: str
    ) -> None:
        self.tokenizer = None if words is None else tokenizer(words, eos)
        self.rows, self.size, self.max_len = rows, size, max_len

    @property
    def vocab_size(self) -> int:
        return self.rows

    @property
    def num_parameters(self) -> int:
        return self.size

    @property
    def weights(self) -> str:
        return "float32"


def lm(
    words: list[str] | None = WORDS,
    *,
    rows: int = 7,
    size: int = 1000,
    max_len: int = 64,
    eos: str = "</s>",
) -> CausalLM:
    return Described(words, rows, size, max_len, eos)


def test_same_tokenizer_passes_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_pair(lm(size=10_000), lm(size=1000))


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(8, 7), (7, 16), (128, 64)])
def test_padding_rows_of_the_embedding_pass(target_rows: int, draft_rows: int) -> None:
    check_pair(lm(rows=target_rows, size=10_000), lm(rows=draft_rows))


def test_a_permuted_vocabulary_names_its_first_difference() -> None:
    permuted = [*WORDS[:3], "London", "Paris", *WORDS[5:]]
    with pytest.raises(
        PairMismatchError,
        match=r"differ in 2 tokens: the draft maps 'London' to 3, the target to 4",
    ):
        check_pair(lm(size=10_000), lm(permuted))


def test_a_missing_and_an_extra_token_are_named() -> None:
    with pytest.raises(PairMismatchError, match="'big' to nothing, the target to 6"):
        check_tokenizers(tokenizer(WORDS), tokenizer(WORDS[:-1]))
    with pytest.raises(PairMismatchError, match="'extra' to 7, the target to nothing"):
        check_tokenizers(tokenizer(WORDS), tokenizer([*WORDS, "extra"]))


def test_other_special_tokens_warn() -> None:
    with pytest.warns(UserWarning, match="eos_token_id is 1 for the target and 6 for the draft"):
        check_pair(lm(size=10_000), lm(eos="big"))


def test_a_draft_too_small_for_the_tokenizer_is_rejected() -> None:
    with pytest.raises(PairMismatchError, match="has 6 rows and the shared tokenizer 7 tokens"):
        check_pair(lm(size=10_000), lm(rows=6))


def test_without_tokenizers_the_sizes_must_agree() -> None:
    check_pair(lm(None, size=10_000), lm(None))
    with pytest.raises(PairMismatchError, match="vocabularies of 7 and 8 and no tokenizers"):
        check_pair(lm(None, size=10_000), lm(None, rows=8))


def test_a_draft_with_a_shorter_context_is_rejected() -> None:
    with pytest.raises(PairMismatchError, match=r"set target\.max_len=32"):
        check_pair(lm(size=10_000), lm(max_len=32))


def test_a_swapped_pair_warns() -> None:
    with pytest.warns(UserWarning, match="are they swapped"):
        check_pair(lm(size=1000), lm(size=10_000))


@pytest.mark.parametrize("size", [1500, 10_000_000])
def test_an_unusual_ratio_warns(size: int) -> None:
    with pytest.warns(UserWarning, match="times the draft"):
        check_pair(lm(size=size), lm(size=1000))
