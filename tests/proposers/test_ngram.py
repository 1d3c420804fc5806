import pytest
import torch

from specresearch.batch import Batch
from specresearch.proposers import NGram
from specresearch.proposers.ngram import NGramIndex
from specresearch.request import Request, RequestState
from specresearch.sampling import SamplingParams


def rescan(tokens: list[int], n_max: int, n_min: int, num: int) -> list[int]:
    """Return what followed the latest occurrence of the longest suffix, by a full scan."""
    for size in range(n_max, n_min - 1, -1):
        if size > len(tokens):
            continue
        for begin in range(len(tokens) - size - 1, -1, -1):
            if tokens[begin : begin + size] == tokens[-size:]:
                grown = list(tokens)
                for i in range(num):
                    grown.append(grown[begin + size + i])
                return grown[len(tokens) :]
    return []


class CountingList(list):
    """Count the tokens that slices read."""

    looked_at = 0

    def __getitem__(self, key):
        if isinstance(key, slice):
            self.looked_at += len(range(*key.indices(len(self))))
        return super().__getitem__(key)


@pytest.mark.parametrize(("n_max", "n_min"), [(1, 1), (2, 1), (3, 3), (4, 2), (6, 1)])
@pytest.mark.parametrize("alphabet", [2, 4, 12])
def test_index_equals_a_rescan(n_max: int, n_min: int, alphabet: int) -> None:
    generator = torch.Generator().manual_seed(alphabet)
    index, tokens = NGramIndex(n_min, n_max), []
    while len(tokens) < 120:
        tokens += torch.randint(
            0, alphabet, (int(torch.randint(1, 6, (), generator=generator)),), generator=generator
        ).tolist()
        if float(torch.rand((), generator=generator)) < 0.5:
            continue  # nobody asks every time
        for num in (1, 3, 10):
            assert index.continuation(tokens, num) == rescan(tokens, n_max, n_min, num)


def test_the_most_recent_occurrence_wins() -> None:
    index, tokens = NGramIndex(2, 2), [1, 2, 7, 1, 2, 8, 1, 2]
    assert index.continuation(tokens, 2) == [8, 1]


def test_the_longest_match_wins() -> None:
    index, tokens = NGramIndex(1, 3), [5, 6, 7, 1, 7, 2, 5, 6, 7]
    assert index.continuation(tokens, 1) == [1]


def test_an_overlapping_match_repeats_its_period() -> None:
    index, tokens = NGramIndex(1, 2), [9, 3, 4, 3, 4]
    assert index.continuation(tokens, 5) == [3, 4, 3, 4, 3]


def test_extending_the_index_reads_only_new_tokens() -> None:
    index, tokens = NGramIndex(2, 4), CountingList(range(10_000))
    index.continuation(tokens, 5)
    tokens.looked_at = 0
    tokens.extend([1, 2, 3])
    index.continuation(tokens, 5)
    assert tokens.looked_at < 3 * (2 + 3 + 4) + 4 + 3 + 2 + 5 + 1


def state(tokens: list[int], slot: int) -> RequestState:
    return RequestState(Request(tokens, SamplingParams()), slot, 0, frozenset(), 100)


class TestProposer:
    def propose(self, *prompts: list[int], budget: list[int], **settings: int):
        rows = [state(prompt, slot) for slot, prompt in enumerate(prompts)]
        proposer = NGram(**settings)
        proposer.start(rows, None)
        return proposer.propose(Batch(rows, torch.device("cpu"), 20), budget)

    def test_rows_have_their_own_lengths(self) -> None:
        proposal = self.propose([1, 2, 3, 1, 2], [4], [5, 5, 5], budget=[3, 3, 3], n_max=2, n_min=1)
        assert proposal.lengths.tolist() == [4, 1, 4]
        assert proposal.token_ids.tolist() == [[2, 3, 1, 2], [4, 0, 0, 0], [5, 5, 5, 5]]
        assert proposal.draft_probs is None

    def test_the_budget_is_kept_row_by_row(self) -> None:
        proposal = self.propose([1, 1, 1], [1, 1, 1], [1, 1, 1], budget=[0, 1, 4], n_max=1, n_min=1)
        assert proposal.lengths.tolist() == [1, 2, 5]

    def test_rows_without_a_budget_cost_nothing(self) -> None:
        rows, prompts = (
            [state([1, 2, 1], slot) for slot in range(2)],
            [CountingList([1, 2, 1]) for _ in range(2)],
        )
        for row, prompt in zip(rows, prompts, strict=True):
            row.tokens = prompt
        proposer, batch = NGram(4, 1, 1), Batch(rows, torch.device("cpu"), 20)
        proposer.start(rows, None)
        assert proposer.propose(batch, [0, 0]).lengths.tolist() == [1, 1]
        assert proposer.propose(batch, [0, 4]).lengths.tolist() == [1, 5]
        assert prompts[0].looked_at == 0 < prompts[1].looked_at

    def test_a_batch_without_matches_is_decoded_plainly(self) -> None:
        assert self.propose([1, 2], [3], budget=[5, 5]).token_ids.tolist() == [[2], [3]]

    def test_a_reused_slot_starts_with_an_empty_index(self) -> None:
        proposer, first, second = NGram(4, 1, 1), state([1, 2, 1], 0), state([1], 0)
        for row, drafts in ((first, 4), (second, 0)):
            proposer.start([row], None)
            proposal = proposer.propose(Batch([row], torch.device("cpu"), 20), [4])
            assert int(proposal.lengths) - 1 == drafts
            proposer.finish([0])


@pytest.mark.parametrize("num", [0, -2])
def test_a_bad_number_of_drafts_is_rejected(num: int) -> None:
    with pytest.raises(ValueError, match=rf"num_draft_tokens={num} must be at least 1"):
        NGram(num)


@pytest.mark.parametrize(("n_max", "n_min"), [(1, 2), (3, 0)])
def test_bad_ngram_sizes_are_rejected(n_max: int, n_min: int) -> None:
    with pytest.raises(ValueError, match="need 1 <= n_min <= n_max"):
        NGram(3, n_max, n_min)
