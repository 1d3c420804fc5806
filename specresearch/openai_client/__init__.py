"""A client of OpenAI-compatible servers that measures: streams, counts, times and failures."""

from specresearch.openai_client.answer import Answer
from specresearch.openai_client.body import Completion
from specresearch.openai_client.counters import Counters
from specresearch.openai_client.failure import RequestRefusedError
from specresearch.openai_client.server import Server
from specresearch.openai_client.stream import Address, Session

__all__ = [
    "Address",
    "Answer",
    "Completion",
    "Counters",
    "RequestRefusedError",
    "Server",
    "Session",
]
