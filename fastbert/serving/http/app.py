"""The application: every route of every wire format, documented at /openapi.json."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import Body, FastAPI
from pydantic import BaseModel, TypeAdapter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from fastbert.serving.context import ServingContext
from fastbert.serving.http import cohere, openai, pipelines, status, tei
from fastbert.serving.http.endpoint import Endpoint, EndpointSpec, Handler
from fastbert.serving.http.errors import HttpError, cohere_body, openai_body, plain_body


class Problem(BaseModel):
    """An error: one line, and its kind."""

    error: str
    error_type: str


class Vector(BaseModel):
    """An entry of a sparse vector."""

    index: int
    value: float


class Label(BaseModel):
    """A class and its score."""

    score: float
    label: str


class Rank(BaseModel):
    """A text's index and score."""

    index: int
    score: float
    text: str | None = None


class Candidate(BaseModel):
    """A token for a mask."""

    score: float
    token: int
    token_str: str
    sequence: str


class Entity(BaseModel):
    """An entity and its place in the text, in characters."""

    entity_group: str
    score: float
    word: str
    start: int
    end: int


class Token(BaseModel):
    """A token and its place in the text, in characters."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


_POST: tuple[tuple[str, type[BaseModel], Handler, Any], ...] = (
    ("/embed", tei.EmbedRequest, tei.embed, list[list[float]]),
    ("/embed_all", tei.EmbedTokensRequest, tei.embed_all, list[list[list[float]]]),
    ("/embed_sparse", tei.EmbedTokensRequest, tei.embed_sparse, list[list[Vector]]),
    ("/rerank", tei.RerankRequest, tei.rerank, list[Rank]),
    ("/predict", tei.PredictRequest, tei.predict, Any),
    ("/similarity", tei.SimilarityRequest, tei.similarity, list[float]),
    ("/fill_mask", tei.FillMaskRequest, tei.fill_mask, list[list[Candidate]] | list[list[list[Candidate]]]),
    ("/token_classification", tei.TagRequest, tei.token_classification, list[Entity] | list[list[Entity]]),
    ("/tokenize", tei.TokenizeRequest, tei.tokenize, list[list[Token]]),
    ("/decode", tei.DecodeRequest, tei.decode, list[str]),
    ("/attention", tei.AttentionRequest, tei.attention, dict[str, Any]),
    ("/", pipelines.PipelineRequest, pipelines.pipeline, Any),
)
_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem, "description": description}
    for code, description in {
        400: "No input, or the request is not HTTP", 401: "No valid bearer token", 404: "Unknown model",
        408: "The body arrived too slowly", 413: "More bytes, texts or tokens than the limits", 415: "Not JSON",
        422: "Wrong values", 424: "The model does not answer this route", 429: "The queue is full",
        503: "Starting, stopping, or waited too long",
    }.items()
}  # fmt: skip


class DirectRoutes:
    """An application in front of FastAPI's that hands requests of known paths to their handlers at once."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        self._specs = {
            (method, route.path): route.spec
            for route in app.router.routes
            if isinstance(route, Endpoint) and "{" not in route.path
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        spec = self._specs.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if spec is None:
            await self.app(scope, receive, send)
        else:
            await spec.answer(scope, receive, send)


def make_app(context: ServingContext) -> FastAPI:
    """Return the application of a server."""
    app = FastAPI(
        title="fastbert", version=version("fastbert-engine"), docs_url=None, redoc_url=None,
        redirect_slashes=False,  # to the address that the Host header names, where a proxy has another one
        description="Embeddings, reranking, classification and fill-mask of BERT-family encoders",
        exception_handlers={HTTPException: _on_http_exception},
    )  # fmt: skip
    for path, schema, handler, answer in _POST:
        _add(app, context, path, schema, handler, answer)
    openai_errors: Any = {code: {"description": entry["description"]} for code, entry in _ERRORS.items()}
    _add(
        app, context, "/v1/embeddings", openai.EmbeddingsRequest, openai.embeddings, dict[str, Any],
        error_body=openai_body, errors=openai_errors,
    )  # fmt: skip
    for path, schema, handler in (
        ("/v2/embed", cohere.CohereEmbedRequest, cohere.embed),
        ("/v2/rerank", cohere.CohereRerankRequest, cohere.rerank),
    ):
        _add(
            app, context, path, schema, handler, dict[str, Any], error_body=cohere_body, errors=openai_errors
        )  # fmt: skip
    for path, get_handler, is_open, kind in (
        ("/health", status.health, True, Response), ("/info", status.info, False, JSONResponse),
        ("/metrics", status.metrics, False, PlainTextResponse), ("/stats", status.stats, False, JSONResponse),
        ("/v1/models", openai.models, False, JSONResponse),
    ):  # fmt: skip
        _add(app, context, path, None, get_handler, Any, is_open=is_open, response_class=kind)
    if importlib.util.find_spec("fastbert.serving.http.page") is not None:
        app.router.routes.extend(import_module("fastbert.serving.http.page").page_routes())
    for path, schema, handler, answer in _POST:
        _add(app, context, f"/models/{{model_name:path}}{path.rstrip('/')}", schema, handler, answer, hidden=True)
    for task in ("feature-extraction", "sentence-similarity"):
        _add(
            app, context, f"/models/{{model_name:path}}/pipeline/{task}", pipelines.PipelineRequest,
            pipelines.pipeline, Any, hidden=True, first=True,
        )  # fmt: skip
    if context.config.cors:
        from starlette.middleware.cors import CORSMiddleware

        app.add_middleware(
            CORSMiddleware, allow_origins=list(context.config.cors), allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
        )  # fmt: skip
    return app


def _add(
    app: FastAPI,
    context: ServingContext,
    path: str,
    schema: type[BaseModel] | None,
    handler: Handler,
    answer: Any,
    *,
    error_body: Callable[[HttpError], bytes] = plain_body,
    errors: dict[int | str, dict[str, Any]] | None = None,
    is_open: bool = False,
    hidden: bool = False,
    first: bool = False,
    response_class: type[Response] = JSONResponse,
) -> None:
    """Add a route, whose documentation is the handler's and the schema's."""

    if schema is None:

        async def described() -> None: ...

    else:

        async def described(body: Any) -> None: ...  # type: ignore[misc]

        described.__annotations__["body"] = Annotated[schema, Body()]
    described.__doc__ = handler.__doc__
    described.__name__ = f"{handler.__module__.rpartition('.')[2]}_{handler.__name__}{'_of_model' if hidden else ''}"
    name = path.partition("{model_name:path}")[2] or path
    described.spec = EndpointSpec(  # type: ignore[attr-defined]
        context, name, handler, None if schema is None else TypeAdapter(schema), error_body, is_open
    )
    responses = {code: entry for code, entry in (errors or _ERRORS).items() if schema is not None or code in {401, 503}}
    route = Endpoint(
        path, described, methods={"GET"} if schema is None else {"POST"}, response_model=answer, responses=responses,
        include_in_schema=not hidden, response_class=response_class,
    )  # fmt: skip
    if first:
        app.router.routes.insert(0, route)
    else:
        app.router.routes.append(route)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Answer unknown paths and methods in the form of the other errors."""
    assert isinstance(error, HTTPException)
    message = f"{request.url.path} is not a path of this server; /openapi.json lists them"
    if error.status_code != 404:
        message = str(error.detail)
    body = plain_body(HttpError(error.status_code, "Validation", message))
    return Response(body, error.status_code, dict(error.headers or {}), "application/json")
