"""Turn the tokens of an output into text as they come.

The pieces add up to the text of the whole output. A character of which only some bytes have come is
held back, and so is whatever may be the beginning of a stop string.
"""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"  # stands for bytes that are no character, or not yet
MOST_BYTES = 3  # of a character that is not whole


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
        self._num_whole = 0  # tokens of the window that ended with a whole character
        self._num_read = 0  # characters of the window's text that were taken
        self._held = ""  # whole characters that may begin a stop string
        self.num_sent = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that is certain now that these tokens have come; it may be empty."""
        self._window.extend(token_ids)
        num_whole, text = self._whole()
        self._held += text[self._num_read :]
        self._num_read = len(text)
        self._move_window(num_whole)
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

    def _whole(self) -> tuple[int, str]:
        """Return how many tokens of the window end with a whole character, and their text.

        A character lacks at most its last byte, so only the last few tokens may be part of one.
        Where more of them decode to nothing valid, they never will.
        """
        num_tokens = len(self._window)
        text = ""
        for num_held in range(min(MOST_BYTES, num_tokens - self._num_whole) + 1):
            num_tokens = len(self._window) - num_held
            text = self._decode(self._window[:num_tokens])
            if not text.endswith(REPLACEMENT):
                break
        return num_tokens, text

    def _move_window(self, num_whole: int) -> None:
        """Begin the window where its text was whole before, if there is text behind that."""
        new = self._window[self._num_whole : num_whole]
        num_characters = len(self._decode(new)) if new and self._num_whole else 0
        if num_characters:
            del self._window[: self._num_whole]
            self._num_read = num_characters
            num_whole -= self._num_whole
        self._num_whole = num_whole


def _num_held_back(text: str, stop: Sequence[str]) -> int:
    """Return the length of the longest end of a text that begins a stop string."""
    longest = max(map(len, stop), default=0) - 1
    for num in range(min(longest, len(text)), 0, -1):
        end = text[-num:]
        if any(string.startswith(end) for string in stop):
            return num
    return 0
