"""Lookahead decoding: n-grams from Jacobi iteration, made and verified in one pass (Fu et al., arXiv 2402.02057)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from specresearch.batch import Batch, RequestState
from specresearch.models.causal_lm import ModelOutput
from specresearch.proposal import DraftKind, Proposal, Verdict
from specresearch.proposers.base import Proposer
from specresearch.proposers.host_tree import HostTree, stack_trees
from specresearch.sampling import argmax


class Lookahead(Proposer):
    """The target guesses ahead of itself in a window of probe nodes and collects what it says there; needs no other model.

    window_size: W, places guessed at once. ngram_size: N, so that the window holds the last N - 1 guesses for every place. Each
    pass adds a guess and completes W n-grams, which a pool keeps by first token. num_ngrams: G, the most it keeps for one
    token, and the most that a step verifies; they are point masses, merged where they begin alike.
    The window stands behind the drafts and is not counted among them. Everything belongs to one request.
    """

    kind = DraftKind(trees=True)

    def __init__(self, window_size: int = 7, ngram_size: int = 5, num_ngrams: int = 7) -> None:
        least = {
            "window_size": (window_size, 1),
            "ngram_size": (ngram_size, 2),
            "num_ngrams": (num_ngrams, 1),
        }
        for name, (value, minimum) in least.items():
            if value < minimum:
                raise ValueError(f"proposer.{name}={value} must be at least {minimum}")
        self.window_size, self.ngram_size, self.num_ngrams = window_size, ngram_size, num_ngrams
        self.num_draft_tokens = num_ngrams * (ngram_size - 1)
        self.num_probe_nodes = window_size * (ngram_size - 1)
        self._requests: dict[int, _Request] = {}

    def start(self, rows: Sequence[RequestState], output: object) -> None:
        for row in rows:
            window = _pieces(row.tokens, self.window_size, self.ngram_size - 1)
            self._requests[row.slot] = _Request(window, NGramPool(self.num_ngrams))

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        if max(budget) == 0:
            return Proposal.empty(batch.roots)
        requests = [self._requests[row.slot] for row in batch.rows]
        trees = [
            _merge(row.tokens[-1], request.pool.after(row.tokens[-1]), allowed)
            for row, request, allowed in zip(batch.rows, requests, budget, strict=True)
        ]
        lengths = [len(tree) for tree in trees]
        for tree, request in zip(trees, requests, strict=True):
            tree.pad(max(lengths))
            _add_window(tree, request.window)
        proposal = stack_trees(trees, batch.device, lengths=lengths)
        probe = torch.arange(proposal.topology.num_nodes, device=batch.device)[None] >= max(lengths)
        return replace(proposal, probe=probe)

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        if proposal.probe is None:
            return
        guesses = argmax(output.logits[:, -self.window_size :]).tolist()  # sync
        for row, newest in zip(batch.rows, guesses, strict=True):
            request = self._requests[row.slot]
            window = [*request.window, newest]
            for ngram in zip(*window, strict=True):
                request.pool.add(ngram)
            request.window = window[1:]

    def finish(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._requests.pop(slot, None)


class NGramPool:
    """For every token, the last n-grams that began with it: at most `capacity`, the longest unseen leaving first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._rests: dict[int, dict[tuple[int, ...], None]] = {}  # oldest first

    def add(self, ngram: Sequence[int]) -> None:
        first, *rest = ngram
        rests = self._rests.setdefault(first, {})
        rests.pop(tuple(rest), None)
        rests[tuple(rest)] = None
        if len(rests) > self.capacity:
            del rests[next(iter(rests))]

    def after(self, token: int) -> Iterator[tuple[int, ...]]:
        """What followed the token, the latest first."""
        return reversed(self._rests.get(token, {}))


@dataclass
class _Request:
    """window[l][j]: guess number l, oldest first, for place j + l after the root (counted from 0)."""

    window: list[list[int]]
    pool: NGramPool


def _pieces(prompt: Sequence[int], num: int, length: int) -> list[list[int]]:
    """The window before the first pass: in its columns, pieces of the prompt from evenly spaced places."""
    begins = [i * len(prompt) // num for i in range(num)]
    return [[prompt[(begin + i) % len(prompt)] for begin in begins] for i in range(length)]


def _merge(root: int, runs: Iterator[tuple[int, ...]], budget: int) -> HostTree:
    """The runs as a tree below the root, as far as the budget goes."""
    tree = HostTree(root)
    known: dict[tuple[int, int], int] = {}
    for run in runs:
        node = 0
        for token in run:
            if (node, token) not in known:
                if len(tree) > budget:
                    return tree
                known[node, token] = tree.add(node, token)
            node = known[node, token]
    return tree


def _add_window(tree: HostTree, window: Sequence[Sequence[int]]) -> None:
    """The oldest guesses follow one another from the root; every newer guess follows the one before it for its place."""
    above: list[int] = []
    for guesses in window:
        level: list[int] = []
        for place, token in enumerate(guesses):
            parent = above[place] if above else level[-1] if level else 0
            level.append(tree.add(parent, token))
        above = level
