"""Structured logs: a JSON object a line."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from specresearch.serving.gate import request_id


class JsonFormatter(logging.Formatter):
    """Formats a record with its time, level, logger, message, and the request it belongs to.

    A record's `fields` become keys of their own.
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": time,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        id = request_id.get()
        if id is not None:
            line["request_id"] = id
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_as_json() -> None:
    """Write the log of the package and of uvicorn to stderr, and nothing of prompts."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("specresearch").setLevel(logging.INFO)
