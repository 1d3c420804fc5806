"""Errors in the shape that clients of OpenAI's API expect, which say nothing about the inside."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.responses import JSONResponse

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "internal_server_error",
    503: "service_unavailable_error",
}
RETRY_SECONDS = 1  # until a client may try again, at a full queue or a server that drains


class ApiError(Exception):
    """An answer other than 200.

    Args:
        param: The field of the request that is wrong.
        code: A word for programs.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def body(self) -> dict[str, Any]:
        """Return the JSON object of the answer."""
        kind = TYPES.get(self.status, "api_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        """Return the answer."""
        headers = {}
        if self.status in (429, 503):
            headers["Retry-After"] = str(RETRY_SECONDS)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body, self.status, headers)


def internal_error() -> ApiError:
    """Return the answer to a request that failed on the server's side."""
    return ApiError(500, "the request failed in the server; its log says why")


def invalid_fields(details: Sequence[Mapping[str, Any]]) -> ApiError:
    """Return the answer to a body that does not fit its schema, without what it held.

    Args:
        details: Errors of pydantic.
    """
    first = details[0]
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is no valid JSON", code="invalid_json")
    names = [str(part) for part in first["loc"] if part != "body"]
    name = ".".join(names) or "the body"
    message = str(first["msg"])
    message = message.removeprefix("Value error, ").removeprefix("Input ")
    rest = f"; and {len(details) - 1} more" if len(details) > 1 else ""
    return ApiError(400, f"{name}: {message}{rest}", param=names[0] if names else None)
