"""Server-sent events from the bytes of a stream, as the HTML standard defines them."""

from collections.abc import Iterator

DONE = "[DONE]"  # the last event of an OpenAI stream


class EventDecoder:
    """Joins the pieces in which a stream arrives into events.

    Lines end in CR, LF or both. Other characters that Python takes for line ends, such as U+2028,
    may stand in an event's JSON.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[str]:
        """Yield the data of every event that a piece completes; comments have none."""
        text = self._rest + piece
        # A CR at the end may be the first half of a line end.
        is_open = text.endswith(b"\r")
        lines = text.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop() + (b"\r" if is_open else b"")
        for line in lines:
            if line:
                self._read(line)
            elif self._data:
                yield self._pop()

    def close(self) -> Iterator[str]:
        """Yield the last event of a stream that ended without an empty line."""
        yield from self.feed(b"\n\n")

    def _read(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))

    def _pop(self) -> str:
        data = b"\n".join(self._data).decode("utf-8", errors="replace")
        self._data.clear()
        return data
