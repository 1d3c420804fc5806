"""Logits of some tokens, among all of the target's."""

import torch

from specresearch.models.draft_vocabulary import DraftVocabulary


def test_a_reduced_vocabulary_has_numbers_of_its_own() -> None:
    vocabulary = DraftVocabulary(5, torch.tensor([3, 0]))
    logits = torch.tensor([[1.0, 2.0]])
    assert vocabulary.size == 2
    assert vocabulary.named(torch.tensor([[1, 0, 0]])).tolist() == [[0, 3, 3]]
    missing = float("-inf")
    assert vocabulary.whole(logits).tolist() == [[2.0, missing, missing, 1.0, missing]]


def test_all_tokens_are_named_as_they_are() -> None:
    vocabulary, logits = DraftVocabulary(3), torch.randn(2, 3)
    assert vocabulary.size == 3
    assert vocabulary.whole(logits) is logits
    assert vocabulary.named(torch.tensor([2, 1])).tolist() == [2, 1]
