"""A trie of the suffixes of a growing text: what followed every run of tokens, and how often."""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

SEPARATOR = -1
ROOT = 0


class Follower(NamedTuple):
    """A token that followed a run.

    Attributes:
        probability: How often it followed, out of all tokens that did.
        cursor: The cursor at the end of the run with this token.
    """

    token: int
    probability: float
    cursor: int


class SuffixTrie:
    """Counts the runs of up to `max_depth` tokens of a text.

    Below that depth, the first token that followed stands for all. A run that occurred once is a
    leaf, which only points into the text. So a new token visits one node for each suffix of the
    text that occurred before: at most `max_depth`, and in most text a few. Nodes are rows of flat
    arrays, which leave the garbage collector nothing to trace.

    A cursor marks the end of a run: a node, or ~position for a run that ends inside a leaf, which
    continues at this position of the text.
    """

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self._text = array("i")
        self._child: dict[int, int] = {}  # by node << 32 | token
        self._token, self._count = array("i", [SEPARATOR]), array("i", [1])
        self._position = array("i", [-1])  # where a leaf continues in the text
        self._newest_child, self._older_sibling = array("i", [-1]), array("i", [-1])
        self._ends = [ROOT]  # of the suffixes that occurred before, by length

    @property
    def num_tokens(self) -> int:
        """Tokens added so far, separators included."""
        return len(self._text)

    @property
    def num_nodes(self) -> int:
        return len(self._count)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
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
        self._newest_child.append(-1)
        self._older_sibling.append(self._newest_child[parent])
        self._newest_child[parent] = leaf

    def _unfold(self, leaf: int) -> None:
        """Turn a leaf whose run occurs again into a node with its first continuation as child."""
        position = self._position[leaf]
        self._position[leaf] = -1
        if self._text[position] != SEPARATOR:
            self._add_leaf(leaf, self._text[position], position + 1)

    def end(self) -> None:
        """End the text; the next one is separate, and no run reaches across."""
        self._text.append(SEPARATOR)
        self._ends = [ROOT]

    def longest_match(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Find the longest suffix of `tokens` that something followed in the text.

        Returns:
            The cursor at its end, and its length; 0 if there is none.
        """
        match = (ROOT, 0)
        # If a suffix does not match, no longer one does.
        for length in range(1, len(tokens) + 1):
            cursor = self._find(tokens[-length:])
            if cursor is None or not self._continues(cursor):
                break
            match = (cursor, length)
        return match

    def _find(self, tokens: Sequence[int]) -> int | None:
        cursor = ROOT
        for token in tokens:
            if cursor >= 0:
                node = self._child.get(cursor << 32 | token)
                if node is None:
                    return None
                cursor = self._cursor_at(node)
            elif self._token_at(~cursor) == token:
                cursor -= 1
            else:
                return None
        return cursor

    def _cursor_at(self, node: int) -> int:
        position = self._position[node]
        return ~position if position >= 0 else node

    def _continues(self, cursor: int) -> bool:
        if cursor >= 0:
            return self._newest_child[cursor] >= 0
        return self._token_at(~cursor) != SEPARATOR

    def _token_at(self, position: int) -> int:
        return self._text[position] if position < len(self._text) else SEPARATOR

    def followers(self, cursor: int) -> Iterator[Follower]:
        """Yield the tokens that followed, the last one met first."""
        if cursor < 0:
            if self._continues(cursor):
                yield Follower(self._token_at(~cursor), 1.0, cursor - 1)
            return
        children = []
        child = self._newest_child[cursor]
        while child >= 0:
            children.append(child)
            child = self._older_sibling[child]
        total = sum(self._count[child] for child in children)
        for child in children:
            probability = self._count[child] / total
            yield Follower(self._token[child], probability, self._cursor_at(child))
