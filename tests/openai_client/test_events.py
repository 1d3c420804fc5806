"""Server-sent events, however the network cuts them into pieces."""

import json
import random

from specresearch.openai_client.events import EventDecoder

EVENTS = [
    "{}",
    json.dumps({"text": "a\u2028b\u0085c\x1c"}, ensure_ascii=False),
    "two\nlines",
    "[DONE]",
]


def decode(stream: bytes, cuts: list[int]) -> list[str]:
    decoder = EventDecoder()
    events = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        events += decoder.feed(stream[begin:end])
    return [*events, *decoder.close()]


def test_events_survive_every_way_of_cutting_and_every_line_end() -> None:
    rng = random.Random(0)
    for line_end in ("\n", "\r\n", "\r"):
        lines = [": a comment", "event: message"]
        for event in EVENTS:
            lines += [f"data: {part}" for part in event.split("\n")] + [""]
        stream = line_end.join([*lines, ""]).encode()
        assert decode(stream, []) == EVENTS
        assert decode(stream, list(range(1, len(stream)))) == EVENTS
        for _ in range(50):
            cuts = sorted(rng.sample(range(1, len(stream)), 5))
            assert decode(stream, cuts) == EVENTS


def test_a_stream_that_ends_without_an_empty_line_has_its_last_event() -> None:
    assert decode(b"data:1\n\ndata:2", []) == ["1", "2"]
    assert decode(b": nothing\n\n", []) == []
