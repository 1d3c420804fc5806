"""The settings of a server, and its limits."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

API_KEY = "SPECRESEARCH_API_KEY"  # environment variable


@dataclass(frozen=True)
class ServeSettings:
    """Where a server listens, and what it accepts.

    Attributes:
        host: Address to listen on.
        port: 0 lets the system choose one.
        model_name: Under which the target is served; None takes the target's own.
        api_key: What clients must send as a bearer token; None takes the environment variable
            `API_KEY`, without which everybody is served.
        max_waiting: Requests that may wait for a slot; one more is answered 429.
        max_prompt_tokens: The longest prompt; None leaves the limit to the context.
        max_output_tokens: The most that a request may ask for; None leaves it to the context.
        max_body_bytes: The largest body of a request.
        max_header_bytes: All header lines of a request together.
        stream_interval: Tokens that are collected for an event of a stream; the first are sent at
            once.
        drain_seconds: How long a stopped server waits for running requests to end.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model_name: str | None = None
    api_key: str | None = field(default=None, repr=False)
    max_waiting: int = 1024
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    max_body_bytes: int = 4_000_000
    max_header_bytes: int = 32_768
    stream_interval: int = 1
    drain_seconds: float = 60.0

    @staticmethod
    def from_config(cfg: Mapping[str, Any]) -> "ServeSettings":
        """Return the settings that a configuration holds."""
        values = {field.name: cfg[field.name] for field in fields(ServeSettings)}
        values["api_key"] = values["api_key"] or os.environ.get(API_KEY) or None
        return ServeSettings(**values)
