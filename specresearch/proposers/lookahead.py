"""Lookahead decoding: n-grams from Jacobi iteration, generated and verified in one pass.

Fu et al. (arXiv 2402.02057).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from specresearch.batch import Batch
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.proposal import DraftKind, Proposal, Verdict
from specresearch.proposers.base import Proposer, check_num_draft_tokens
from specresearch.proposers.draft_shape import AUTO, DraftShape, NumDrafts
from specresearch.proposers.host_tree import HostTree, stack_trees
from specresearch.request import RequestState
from specresearch.sampling import argmax

TOY_SIZE = 3  # of the window, the n-grams and the pool on a toy target


class Lookahead(Proposer):
    """The target guesses ahead of itself in a window of probe nodes; needs no other model.

    Each pass adds a guess for every position of the window and completes as many n-grams, which a
    pool keeps by first token. They are point masses, merged where they begin alike. The window
    comes after the drafts and does not count among them. All state belongs to one request.

    Args:
        window_size: W, the positions guessed at once.
        ngram_size: N; the window holds the last N - 1 guesses for every position.
        num_ngrams: G, the most n-grams that are kept for one token and verified in one step.
        num_draft_tokens: The most drafts; None verifies all n-grams. A smaller number uses the
            same share of the window's positions. `auto` measures how many pay.
    """

    kind = DraftKind(trees=True)

    def __init__(
        self,
        window_size: int = 7,
        ngram_size: int = 5,
        num_ngrams: int = 7,
        num_draft_tokens: NumDrafts | None = None,
    ) -> None:
        _check_at_least("window_size", window_size, 1)
        _check_at_least("ngram_size", ngram_size, 2)
        _check_at_least("num_ngrams", num_ngrams, 1)
        self.window_size, self.ngram_size, self.num_ngrams = window_size, ngram_size, num_ngrams
        self._most = num_ngrams * (ngram_size - 1)
        self.num_draft_tokens = self._most
        if num_draft_tokens == AUTO:
            self.shapes = (DraftShape(self._most),)
        elif num_draft_tokens is not None:
            self.num_draft_tokens = min(check_num_draft_tokens(num_draft_tokens), self._most)
        self._size_window()
        self._requests: dict[int, _Request] = {}

    @classmethod
    def toy(cls, target: CausalLM, seed: int, **settings: Any) -> "Lookahead":
        """Return a proposer with a window and a pool small enough to be certified."""
        small = {
            name: min(value, TOY_SIZE) if name != "num_draft_tokens" else value
            for name, value in settings.items()
        }
        return cls(**small)

    def draft_as(self, shape: DraftShape) -> None:
        super().draft_as(shape)
        self._size_window()

    def _size_window(self) -> None:
        """Use as large a share of the window's positions as of the n-grams."""
        self._num_positions = ceil(self.window_size * self.num_draft_tokens / self._most)
        self.num_probe_nodes = self._num_positions * (self.ngram_size - 1)

    def start(self, rows: Sequence[RequestState], output: object) -> None:
        for row in rows:
            window = _first_window(row.tokens, self.window_size, self.ngram_size - 1)
            self._requests[row.slot] = _Request(window, NGramPool(self.num_ngrams))

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        if max(budget) == 0:
            return Proposal.empty(batch.roots)
        trees = []
        for row, allowed, room in zip(batch.rows, budget, batch.room, strict=True):
            root = row.tokens[-1]
            pool = self._requests[row.slot].pool
            trees.append(_merge(root, pool.continuations(root), allowed, room))
        lengths = [len(tree) for tree in trees]
        for row, tree in zip(batch.rows, trees, strict=True):
            tree.pad(max(lengths))
            window = self._requests[row.slot].window
            _add_window(tree, [guesses[: self._num_positions] for guesses in window])
        proposal = stack_trees(trees, batch.device, lengths=lengths)
        probe = torch.arange(proposal.topology.num_nodes, device=batch.device)[None] >= max(lengths)
        return replace(proposal, probe=probe)

    def readback(
        self, batch: Batch, proposal: Proposal, output: ModelOutput
    ) -> Sequence[Int[Tensor, "B W"]]:
        """Return the newest guess for every position of the window."""
        return () if proposal.probe is None else (argmax(output.logits[:, -self._num_positions :]),)

    def observe(
        self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict
    ) -> None:
        if proposal.probe is None:
            return
        guesses = verdict.readback[0].tolist()
        for row, newest in zip(batch.rows, guesses, strict=True):
            request = self._requests[row.slot]
            for position in range(len(newest)):
                guesses = [guesses[position] for guesses in request.window]
                request.pool.add([*guesses, newest[position]])
            unused = request.window[-1][len(newest) :]
            request.window = [*request.window[1:], [*newest, *unused]]

    def finish(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._requests.pop(slot, None)


def _check_at_least(name: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise ValueError(f"proposer.{name}={value} must be at least {minimum}")


class NGramPool:
    """Keeps the last n-grams that began with each token, at most `capacity` of them.

    The least recently seen one leaves first.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._continuations: dict[int, dict[tuple[int, ...], None]] = {}  # oldest first

    def add(self, ngram: Sequence[int]) -> None:
        """Add an n-gram as the latest of its first token."""
        first, *rest = ngram
        continuations = self._continuations.setdefault(first, {})
        continuations.pop(tuple(rest), None)
        continuations[tuple(rest)] = None
        if len(continuations) > self.capacity:
            del continuations[next(iter(continuations))]

    def continuations(self, token: int) -> Iterator[tuple[int, ...]]:
        """Return what followed the token, the latest first."""
        return reversed(self._continuations.get(token, {}))


@dataclass
class _Request:
    """The state of one request.

    Attributes:
        window: `window[l][j]` is guess number l, oldest first, for position j + l after the root,
            counted from 0.
    """

    window: list[list[int]]
    pool: NGramPool


def _first_window(prompt: Sequence[int], width: int, num_guesses: int) -> list[list[int]]:
    """Return the window before the first pass: pieces of the prompt, evenly spaced, as columns."""
    length = len(prompt)
    begins = [i * length // width for i in range(width)]
    return [[prompt[(begin + i) % length] for begin in begins] for i in range(num_guesses)]


def _merge(root: int, runs: Iterable[tuple[int, ...]], budget: int, room: int) -> HostTree:
    """Merge runs of tokens into a tree below the root, as far as the budget and the room go."""
    tree = HostTree(root)
    children: dict[tuple[int, int], int] = {}
    for run in runs:
        node = 0
        for token in run[:room]:
            if (node, token) not in children:
                if len(tree) > budget:
                    return tree
                children[node, token] = tree.add(node, token)
            node = children[node, token]
    return tree


def _add_window(tree: HostTree, window: Sequence[Sequence[int]]) -> None:
    """Add the guesses: the oldest form a chain below the root, newer ones hang below older ones.

    A newer guess follows the guess before it of its column.
    """
    parents = []
    parent = 0
    for token in window[0]:
        parent = tree.add(parent, token)
        parents.append(parent)
    for guesses in window[1:]:
        parents = [tree.add(parent, token) for parent, token in zip(parents, guesses, strict=True)]
