from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from specresearch.proposers.suffix_trie import SuffixTrie


def random_texts(alphabet: int, sizes: Sequence[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, alphabet, (size,), generator=generator).tolist() for size in sizes]


def followers_by_scan(texts: Sequence[Sequence[int]], run: Sequence[int]) -> Counter[int]:
    """Return what follows each occurrence of a run, by a full scan."""
    size = len(run)
    return Counter(
        text[i + size]
        for text in texts
        for i in range(len(text) - size)
        if list(text[i : i + size]) == list(run)
    )


def followers(trie: SuffixTrie, run: Sequence[int]) -> dict[int, float] | None:
    node = trie._find(run)
    return None if node is None else {f.token: f.probability for f in trie.followers(node)}


@pytest.mark.parametrize("alphabet", [1, 2, 3, 8])
def test_counts_equal_a_scan(alphabet: int) -> None:
    """This holds after every text, for every run up to the counted depth."""
    max_depth, texts = 5, random_texts(alphabet, (1, 17, 2, 30, 3))
    trie = SuffixTrie(max_depth)
    for number, text in enumerate(texts, start=1):
        for begin in range(0, len(text), 4):
            trie.extend(text[begin : begin + 4])
        trie.end()
        texts_so_far = texts[:number]
        for run in {
            tuple(t[i : i + n])
            for t in texts_so_far
            for n in range(1, max_depth)
            for i in range(len(t) - n + 1)
        }:
            counted = followers_by_scan(texts_so_far, run)
            total = sum(counted.values())
            assert followers(trie, run) == {
                token: count / total for token, count in counted.items()
            }


def test_a_run_that_occurred_once_continues_below_the_counted_depth() -> None:
    trie, text = SuffixTrie(2), list(range(20))
    trie.extend(text)
    assert followers(trie, text[3:15]) == {15: 1.0}


@pytest.mark.parametrize("alphabet", [2, 4, 12])
def test_the_longest_match_equals_a_rescan(alphabet: int) -> None:
    (text,) = random_texts(alphabet, (150,), seed=alphabet)
    trie = SuffixTrie(8)
    for end in range(1, len(text) + 1):
        trie.extend(text[end - 1 : end])
        prefix = text[:end]
        expected_length = max(
            (
                n
                for n in range(min(6, end) + 1)
                if n == 0 or followers_by_scan([prefix], prefix[-n:])
            ),
            default=0,
        )
        node, length = trie.longest_match(prefix[-6:])
        assert length == expected_length
        if length:
            probabilities = {f.token: f.probability for f in trie.followers(node)}
            assert probabilities == followers(trie, prefix[-length:])


def test_runs_do_not_span_texts() -> None:
    trie = SuffixTrie(4)
    for text in ([1, 2], [3, 4], [1, 2], [3, 4]):
        trie.extend(text)
        trie.end()
    assert followers(trie, [2]) == {}
    assert followers(trie, [2, 3]) is None
    assert trie.longest_match([1, 2]) == (0, 0)


def test_the_latest_continuations_come_first() -> None:
    trie = SuffixTrie(4)
    trie.extend([7, 1, 7, 2, 7, 3, 7])
    node, length = trie.longest_match([7])
    assert [f.token for f in trie.followers(node)] == [3, 2, 1]
    assert length == 1


def test_only_repeated_runs_cost_nodes() -> None:
    trie = SuffixTrie(32)
    trie.extend(range(1000))
    assert trie.num_nodes == 1001
    trie.extend([5] * 1000)
    assert trie.num_nodes < 3000
