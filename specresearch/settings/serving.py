"""Settings of the server."""

from collections.abc import Iterator
from typing import Annotated, Any

from specresearch.settings.base import MAX_BATCH, Settings, key, seed_key
from specresearch.settings.decoding import (
    ACCEPTANCE,
    CONTROLLER,
    SAMPLING,
    SCHEDULER,
    longest_chain,
)
from specresearch.settings.drafting import PROPOSER
from specresearch.settings.pairs import PairSchema


class ServerSchema(Settings):
    host: str = key("address to listen on; 0.0.0.0 is every one of this machine", "0.0.0.0")
    port: int = key("port to listen on; 0 takes a free one", 8000, ge=0, le=65535)
    model_name: str | None = key("name of the model; null: the target's", "tiny", min_length=1)
    api_key: str | None = key(
        "what clients must send; null takes SPECRESEARCH_API_KEY of the environment, if it is set",
        "secret",
        min_length=1,
    )
    max_waiting: int = key("requests that may wait; one more is answered 429", 256, ge=0)
    max_prompt_tokens: int | None = key("longest prompt; null: the context's", 2048, ge=1)
    max_output_tokens: int | None = key(
        "longest output that may be asked for; null: the context's", 1024, ge=1
    )
    max_body_bytes: int = key("largest body of a request", 1_000_000, ge=1000, le=10**9)
    max_header_bytes: int = key("all header lines of a request", 16_384, ge=1000, le=10**7)
    stream_interval: int = key(
        "tokens that are collected for an event of a stream; the first are sent at once", 8, ge=1
    )
    drain_seconds: float = key("wait so long for running requests when stopped", 30.0, ge=0)


class ServeSchema(PairSchema):
    proposer: Annotated[Any, PROPOSER] = key("how drafts are made", "ngram", default=None)
    acceptance: Annotated[Any, ACCEPTANCE] = key("which drafts stay", "rejection")
    controller: Annotated[Any, CONTROLLER] = key("how much is drafted", "fixed")
    scheduler: Annotated[Any, SCHEDULER] = key("what a step holds", "first_come")
    sampling: Annotated[Any, SAMPLING] = key("sampling where a request says nothing", None)
    max_running: int = key("requests decoded together", 32, ge=1, le=MAX_BATCH)
    seed: int = seed_key("of requests without one of their own")
    server: ServerSchema = key("where to listen, and limits", None)

    def conflicts(self) -> Iterator[str]:
        yield from longest_chain(self.proposer, self.controller)
