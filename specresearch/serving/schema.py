"""The schema of a server: that of its bodies and answers, within what this server accepts."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from specresearch.acceptance import Threshold
from specresearch.sampling_params import LARGEST_SEED
from specresearch.serving.answers import AnswerPart, ChatChunk, CompletionAnswer, ErrorAnswer
from specresearch.serving.gate import OPEN_PATHS
from specresearch.serving.service import LIMIT_FIELDS, Service

BODIES = ("ChatBody", "CompletionBody")
EVENTS = {  # what an event of a stream holds
    "/v1/chat/completions": ChatChunk,
    "/v1/completions": CompletionAnswer,
}
REF = "#/components/schemas/{model}"
KEY = "key"  # name of the security scheme
GATE_ERRORS = {
    "413": "The body is too large",
    "431": "The header lines are too long",
    "500": "The request failed in the server",
}
NO_KEY = {"401": "The API key is missing or wrong"}


def publish_schema(app: FastAPI, service: Service) -> None:
    """Let the application's `/openapi.json` say what this server accepts and answers."""

    def schema() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _schema(app, service)
        return app.openapi_schema

    app.openapi = schema


def _schema(app: FastAPI, service: Service) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
    parts = schema["components"]
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's; here they are 400
        parts["schemas"].pop(name, None)
    for model in (ChatChunk, ErrorAnswer):
        own = model.model_json_schema(mode="serialization", ref_template=REF)
        parts["schemas"] |= own.pop("$defs", {}) | {model.__name__: own}
    has_key = service.settings.api_key is not None
    if has_key:
        parts["securitySchemes"] = {KEY: {"type": "http", "scheme": "bearer"}}
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            needs_key = has_key and path not in OPEN_PATHS
            _add_errors(operation, GATE_ERRORS | NO_KEY if needs_key else GATE_ERRORS)
            if needs_key:
                operation["security"] = [{KEY: []}]
    for path, model in EVENTS.items():
        content = schema["paths"][path]["post"]["responses"]["200"]["content"]
        content["text/event-stream"] = {"itemSchema": _event(model)}
    for name in BODIES:
        _limit(parts["schemas"][name]["properties"], service)
    return schema


def _event(model: type[AnswerPart]) -> dict[str, Any]:
    """Return the schema of an event, in the way of OpenAPI 3.2."""
    parts = [{"$ref": REF.format(model=name)} for name in (model.__name__, ErrorAnswer.__name__)]
    json = {"contentMediaType": "application/json", "contentSchema": {"anyOf": parts}}
    data = {"type": "string", "anyOf": [{"const": "[DONE]"}, json]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _add_errors(operation: dict[str, Any], errors: dict[str, str]) -> None:
    """Add what the gate may answer before the path is asked."""
    answer = {"$ref": REF.format(model=ErrorAnswer.__name__)}
    content = {"application/json": {"schema": answer}}
    for status, description in errors.items():
        operation["responses"][status] = {"description": description, "content": content}


def _limit(fields: dict[str, Any], service: Service) -> None:
    """Narrow the fields of a body to what this server takes."""
    _narrow(fields["seed"], "integer", {"maximum": LARGEST_SEED})  # which FastAPI rounds
    most = service.settings.max_output_tokens
    if most is not None:
        for name in set(LIMIT_FIELDS) & fields.keys():
            _narrow(fields[name], "integer", {"maximum": most})
    if not isinstance(service.engine.acceptance, Threshold):
        fields["acceptance"]["anyOf"] = [{"type": "null"}]
    last_token = service.engine.target.vocab_size - 1
    for name in {"prompt", "stop_token_ids"} & fields.keys():
        _narrow(fields[name], "integer", {"maximum": last_token})
    tokens = {"propertyNames": {"pattern": numbers_to(last_token)}}
    _narrow(fields["logit_bias"], "object", tokens)


def numbers_to(largest: int) -> str:
    """Return the pattern of the numbers from 0 to `largest` in decimal digits."""
    digits = str(largest)
    choices = [digits]
    for i, digit in enumerate(digits):
        if digit > "0":
            choices.append(f"{digits[:i]}[0-{int(digit) - 1}][0-9]{{{len(digits) - i - 1}}}")
    if len(digits) > 1:
        choices.append(f"[0-9]{{1,{len(digits) - 1}}}")
    return f"^({'|'.join(choices)})$"


def _narrow(schema: dict[str, Any], kind: str, limits: dict[str, Any]) -> None:
    """Limit all values of a kind, also those inside of arrays."""
    if schema.get("type") == kind:
        schema |= limits
    for part in (*schema.get("anyOf", ()), *filter(None, [schema.get("items")])):
        _narrow(part, kind, limits)
