"""What followed every run of tokens in a growing text, and how often: a trie of its suffixes."""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

SEPARATOR = -1
ROOT = 0


class Follower(NamedTuple):
    """A token that followed a run, how often out of all that did, and the place of the run with it at its end."""

    token: int
    probability: float
    place: int


class SuffixTrie:
    """Counts are those of the text for runs of up to `max_depth` tokens; below, what followed first stands for all.

    A run that occurred once is a leaf, which only points into the text. So a new token visits one node for each suffix of the
    text that occurred before: at most `max_depth`, and in most text a few. Nodes are rows of flat arrays, which leave the
    garbage collector nothing to trace.

    A place is where a run ends: a node, or ~position for one inside a leaf that goes on at this position of the text.
    """

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self._text: list[int] = []
        self._child: dict[int, int] = {}  # by node << 32 | token
        self._token, self._count = array("i", [SEPARATOR]), array("i", [1])
        self._position = array("i", [-1])  # where a leaf goes on
        self._newest, self._older = array("i", [-1]), array("i", [-1])  # child, sibling
        self._ends = [ROOT]  # of the suffixes that occurred before, by length

    @property
    def num_tokens(self) -> int:
        """Tokens taken in, separators included."""
        return len(self._text)

    @property
    def num_nodes(self) -> int:
        return len(self._count)

    def extend(self, tokens: Sequence[int]) -> None:
        """Go on with the text."""
        for token in tokens:
            self._text.append(token)
            ends = [ROOT]
            for node in self._ends:
                child = self._child.get(node << 32 | token)
                if child is None:
                    self._add_leaf(node, token, len(self._text))
                    continue
                if self._position[child] >= 0:
                    self._unfold(child)
                self._count[child] += 1
                ends.append(child)
            self._ends = ends[: self.max_depth]

    def _add_leaf(self, parent: int, token: int, position: int) -> None:
        leaf = len(self._count)
        self._child[parent << 32 | token] = leaf
        self._token.append(token)
        self._count.append(1)
        self._position.append(position)
        self._newest.append(-1)
        self._older.append(self._newest[parent])
        self._newest[parent] = leaf

    def _unfold(self, leaf: int) -> None:
        """The run occurs again: what followed it the first time becomes its child."""
        position = self._position[leaf]
        self._position[leaf] = -1
        if self._text[position] != SEPARATOR:
            self._add_leaf(leaf, self._text[position], position + 1)

    def end(self) -> None:
        """What comes next is another text: no run reaches across."""
        self._text.append(SEPARATOR)
        self._ends = [ROOT]

    def longest_match(self, tokens: Sequence[int]) -> tuple[int, int]:
        """The place of the longest suffix of `tokens` that something followed in the text, and its length, 0 for none."""
        match = (ROOT, 0)
        for length in range(
            1, len(tokens) + 1
        ):  # what holds for a suffix holds for every shorter one
            place = self._find(tokens[-length:])
            if place is None or not self._goes_on(place):
                break
            match = (place, length)
        return match

    def _find(self, tokens: Sequence[int]) -> int | None:
        place = ROOT
        for token in tokens:
            if place >= 0:
                node = self._child.get(place << 32 | token)
                if node is None:
                    return None
                place = self._enter(node)
            elif self._next(~place) == token:
                place -= 1
            else:
                return None
        return place

    def _enter(self, node: int) -> int:
        position = self._position[node]
        return ~position if position >= 0 else node

    def _goes_on(self, place: int) -> bool:
        return self._newest[place] >= 0 if place >= 0 else self._next(~place) != SEPARATOR

    def _next(self, position: int) -> int:
        return self._text[position] if position < len(self._text) else SEPARATOR

    def followers(self, place: int) -> Iterator[Follower]:
        """Those met last come first."""
        if place < 0:
            if self._goes_on(place):
                yield Follower(self._next(~place), 1.0, place - 1)
            return
        children = []
        child = self._newest[place]
        while child >= 0:
            children.append(child)
            child = self._older[child]
        total = sum(self._count[child] for child in children)
        for child in children:
            yield Follower(self._token[child], self._count[child] / total, self._enter(child))
