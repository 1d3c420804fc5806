"""The HTTP interface: OpenAI's chat and text completions, models, health, version and metrics."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from specresearch import __version__
from specresearch.serving.answering import Answering, ChatAnswering, CompletionAnswering
from specresearch.serving.answers import (
    DONE,
    ChatCompletion,
    CompletionAnswer,
    ModelCard,
    ModelList,
    errors,
    errors_or_events,
    sse,
)
from specresearch.serving.bodies import ChatBody, CompletionBody
from specresearch.serving.driver import EngineFailedError
from specresearch.serving.errors import ApiError, internal_error, invalid_fields
from specresearch.serving.gate import Gate
from specresearch.serving.page import add_page
from specresearch.serving.schema import publish_schema
from specresearch.serving.service import Job, Service
from specresearch.serving.streaming import EventStream, unless_disconnected

CLIENT_GONE = 499  # seen in logs only

logger = logging.getLogger(__name__)


def create_app(service: Service) -> FastAPI:
    """Return the application that serves HTTP for a service whose bridge runs."""
    app = FastAPI(title="specresearch", version=__version__, docs_url=None, redoc_url=None)
    app.state.service = service
    app.add_middleware(Gate, settings=service.settings)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _invalid_body)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(EngineFailedError, _engine_failed)
    _add_completions(app, service)
    _add_information(app, service)
    add_page(app)
    publish_schema(app, service)
    return app


def _add_completions(app: FastAPI, service: Service) -> None:
    answers = errors_or_events(400, 404, 429, 503)

    @app.post("/v1/chat/completions", response_model=ChatCompletion, responses=answers)
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        job = unless_disconnected(service.chat(body), request.receive)
        return await _answer(await job, body, request, service, ChatAnswering)

    @app.post("/v1/completions", response_model=CompletionAnswer, responses=answers)
    async def completions(body: CompletionBody, request: Request) -> Response:
        job = unless_disconnected(service.completion(body), request.receive)
        return await _answer(await job, body, request, service, CompletionAnswering)


def _add_information(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models", response_model=ModelList)
    async def models() -> Response:
        return _json(ModelList(object="list", data=[_card(service)]).to_json())

    @app.get("/v1/models/{name:path}", response_model=ModelCard, responses=errors(404))
    async def model(name: Annotated[str, Path(examples=[service.model_name])]) -> Response:
        service.check_model(name)
        return _json(_card(service).to_json())

    @app.get("/health", response_class=Response, responses=errors(503))
    async def health() -> Response:
        service.check_alive()
        return Response(status_code=200)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}


async def _answer(
    job: Job | None,
    body: ChatBody | CompletionBody,
    request: Request,
    service: Service,
    kind: Callable[[Job, Service], Answering],
) -> Response:
    """Return the answer to a job, whole or as a stream.

    Args:
        job: None if the client has gone.
    """
    if job is None:
        return Response(status_code=CLIENT_GONE)
    answering = kind(job, service)
    if body.stream:
        return EventStream(
            _guarded(answering.events(sends_usage=body.sends_usage)), job.stream.cancel
        )
    try:
        answer = await unless_disconnected(answering.whole(), request.receive)
    finally:
        job.stream.cancel()
    if answer is None:
        return Response(status_code=CLIENT_GONE)
    return _json(answer.to_json())


async def _guarded(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass events on; an error after the first ones becomes the last event."""
    try:
        async for event in events:
            yield event
    except ApiError as error:
        yield _error_event(error)
    except EngineFailedError:
        yield _error_event(internal_error())
    except Exception:
        logger.exception("a stream failed")
        yield _error_event(internal_error())


def _error_event(error: ApiError) -> bytes:
    return sse(json.dumps(error.body)) + DONE


def _card(service: Service) -> ModelCard:
    return ModelCard(
        id=service.model_name,
        object="model",
        created=service.created,
        owned_by="specresearch",
        root=service.engine.target.name,
        max_model_len=service.engine.target.max_len,
    )


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")


async def _api_error(request: Request, error: Any) -> JSONResponse:
    return error.response()


async def _invalid_body(request: Request, error: Any) -> JSONResponse:
    return invalid_fields(error.errors()).response()


async def _http_error(request: Request, error: Any) -> JSONResponse:
    response = ApiError(error.status_code, str(error.detail).lower()).response()
    response.headers.update(error.headers or {})
    return response


async def _engine_failed(request: Request, error: Any) -> JSONResponse:
    return internal_error().response()
