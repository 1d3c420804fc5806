"""Turn the tokens of an output into text as they come.

The pieces add up to the text of the whole output. A character of which only some bytes have come is
held back, and so is whatever may be the beginning of a stop string.
"""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"  # stands for bytes that are no character, or not yet
MOST_BYTES = 3  # of a character that is not complete


class Detokenizer:
    """Decodes one output, token by token.

    Decoders treat the first token of a text apart (some strip its space), so tokens are decoded
    with a few that came before them, and never with the whole output, which would take quadratic
    time.

    Args:
        decode: Returns the text of token ids.
        stop: Strings that end the output, which is cut before them.
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = stop
        self._window: list[int] = []
        self._num_whole = 0  # tokens of the window whose text was complete, the last time it was
        self._num_read = 0  # characters of the window's text that were taken
        self._held = ""  # complete characters that may begin a stop string
        self.num_sent = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that is certain now that these tokens have come; it may be empty."""
        self._window.extend(token_ids)
        text = self._decode(self._window)
        num_complete = len(text) - _num_incomplete(text)
        self._held += text[self._num_read : num_complete]
        self._num_read = max(self._num_read, num_complete)
        if num_complete == len(text):
            self._move_window()
        num_sent = len(self._held) - _num_held_back(self._held, self._stop)
        piece, self._held = self._held[:num_sent], self._held[num_sent:]
        self.num_sent += len(piece)
        return piece

    def finish(self, text: str) -> str:
        """Return what is left of the text of the whole output, which may end before a stop string.

        A decoder may change its mind about invalid bytes. What was sent before then stays, and the
        rest follows it.
        """
        return text[self.num_sent :]

    def _move_window(self) -> None:
        """Begin the window where its text was complete before, if there is text behind that."""
        rest = self._window[self._num_whole :]
        num_characters = len(self._decode(rest)) if self._num_whole else 0
        if num_characters:
            self._window = rest
            self._num_read = num_characters
        self._num_whole = len(self._window)


def _num_incomplete(text: str) -> int:
    """Return how many characters at the end may still change."""
    num = 0
    while num < min(MOST_BYTES, len(text)) and text[len(text) - 1 - num] == REPLACEMENT:
        num += 1
    return num


def _num_held_back(text: str, stop: Sequence[str]) -> int:
    """Return the length of the longest end of a text that begins a stop string."""
    longest = max(map(len, stop), default=0) - 1
    for num in range(min(longest, len(text)), 0, -1):
        end = text[-num:]
        if any(string.startswith(end) for string in stop):
            return num
    return 0
