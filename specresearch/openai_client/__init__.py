"""A client of OpenAI-compatible servers that measures: streams, counts, times and failures."""

from specresearch.openai_client.answer import StreamedAnswer
from specresearch.openai_client.body import CompletionRequest
from specresearch.openai_client.counters import Counters
from specresearch.openai_client.failure import RequestRefusedError
from specresearch.openai_client.server import RemoteServer
from specresearch.openai_client.stream import Address, Session

__all__ = [
    "Address",
    "CompletionRequest",
    "Counters",
    "RemoteServer",
    "RequestRefusedError",
    "Session",
    "StreamedAnswer",
]
