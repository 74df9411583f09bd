"""A route: authorisation, limits, the body as a checked object, its handler, the answer, metrics and the log.

FastAPI documents the routes and finds them; what is between the socket and the handler is here, since a request of a
short text takes less time than FastAPI's own way from a request to a function.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.types import Receive, Scope, Send

from fastbert import _C
from fastbert.serving.context import ClientGone, ServingContext
from fastbert.serving.http.errors import HttpError, described, plain_body
from fastbert.serving.jobs import Job, Unavailable

JSON = (b"content-type", b"application/json")
_CLOSE = (b"connection", b"close")
MOST_BODIES = 64
"""Bodies of the greatest size that are held at a time; smaller ones are more."""
LEAST_CHECKED = 1 << 16
"""Bytes of a body whose parsing may take long."""
CONTAINERS_PER_TEXT = 8
"""Lists and objects around a text, at most."""


@dataclass(slots=True)
class Call:
    """A request on its way: what handlers need beside its body."""

    context: ServingContext
    receive: Receive
    model: str | None
    """The name in the path /models/NAME/..."""
    jobs: list[Job] = field(default_factory=list)
    body_bytes: int = 0
    """Bytes of the body, as far as it has arrived."""

    async def run(self, operation: Any, inputs: Any, **options: Any) -> Job:
        """Return the job of these inputs when it is done; see `ServingContext.run`."""
        job = await self.context.run(operation, inputs, self.receive, **options)
        self.jobs.append(job)
        return job


@dataclass(frozen=True)
class Reply:
    """A body and its headers."""

    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = (JSON,)
    status: int = 200


Handler = Callable[[Call, Any], Awaitable[Reply]]


class Endpoint(APIRoute):
    """A route of FastAPI whose requests are handled here. `schema` is the type of the body, None for GET."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        spec: EndpointSpec = endpoint.spec  # type: ignore[attr-defined]
        self.spec = spec

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, one of a wrong method too."""
        spec = self.spec
        is_head = scope["method"] == "HEAD" and "GET" in (self.methods or ())  # answered without a body
        if self.methods and scope["method"] not in self.methods and not is_head:
            allowed = ", ".join(sorted(self.methods))
            error = HttpError(405, "Validation", f"{scope['path']} is for {allowed}", ((b"allow", allowed.encode()),))
            await _send(send, _reply_of(error, spec), close=False)
            return
        await spec.answer(scope, receive, send)


@dataclass(frozen=True)
class EndpointSpec:
    """What an `Endpoint` does."""

    context: ServingContext
    route: str
    handler: Handler
    body: TypeAdapter[Any] | None
    error_body: Callable[[HttpError], bytes] = plain_body
    is_open: bool = False
    """True if no bearer token is needed."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        begin = time.perf_counter()
        context = self.context
        call = Call(context, receive, scope.get("path_params", {}).get("model_name"))
        close = False
        try:
            if context.tokens is not None and not self.is_open:
                _authorize(context, scope)
            if self.body is None:
                value = None
            else:
                close = True  # until the body has been read
                raw = await _read_body(context, scope, receive, call)
                close = False
                _check_structure(context, raw)
                value = self.body.validator.validate_json(raw)
            reply = await self.handler(call, value)
        except ClientGone:
            context.metrics.on_dropped()
            self._log(scope, 499, begin, call, "the client left")
            return
        except asyncio.CancelledError:  # by the end of the server
            problem = described(Unavailable("the server stopped before the request was computed; send it again later"))
            reply, close = _reply_of(problem, self), True
            self._log(scope, problem.status, begin, call, problem.message)
        except Exception as error:  # noqa: BLE001 - every error is an answer
            problem = described(error)
            reply = _reply_of(problem, self)
            repeats = problem.status in (404, 422)  # what the client wrote, which may be a text
            self._log(scope, problem.status, begin, call, problem.kind if repeats else problem.line)
        else:
            self._log(scope, reply.status, begin, call, None)
        finally:
            context.body_bytes -= call.body_bytes
        await _send(send, reply, close=close or context.state == "stopping")
        context.metrics.on_request(
            self.route, reply.status, time.perf_counter() - begin, call.jobs[0] if call.jobs else None
        )

    def _log(self, scope: Scope, status: int, begin: float, call: Call, problem: str | None) -> None:
        """Write a line of JSON without the request's texts."""
        level = self.context.config.log
        if level == "none" or (level == "errors" and status < 400):
            return
        now = time.perf_counter()
        line: dict[str, Any] = {
            "time": round(time.time(), 3),
            "route": self.route,
            "status": status,
            "ms": round((now - begin) * 1e3, 2),
        }
        if scope.get("client"):
            line["client"] = scope["client"][0]
        if call.jobs:
            job = call.jobs[0]
            line |= {
                "model": job.operation.served.name,
                "texts": len(job.inputs),
                "tokens": job.tokens,
                "queue_ms": round((job.started_at - job.queued_at) * 1e3, 2) if job.started_at else 0.0,
            }
        if problem is not None:
            line["problem"] = problem
        sys.stderr.write(json.dumps(line) + "\n")


def _authorize(context: ServingContext, scope: Scope) -> None:
    assert context.tokens is not None
    shown = next((value for name, value in scope["headers"] if name == b"authorization"), None)
    if not context.tokens.allows(shown):
        problem = "has no bearer token" if shown is None else "shows a bearer token that is not valid here"
        raise HttpError(
            401, "Validation", f"the request {problem}: send the header Authorization: Bearer TOKEN",
            ((b"www-authenticate", b"Bearer"),),
        )  # fmt: skip


async def _read_body(context: ServingContext, scope: Scope, receive: Receive, call: Call) -> bytes:
    """Return a request's body. Raises `HttpError` for one that is too large, or not said to be JSON, and while all
    bodies together are too large; the connection ends one that is too slow."""
    most = context.config.max_body_bytes
    kind = b""
    for name, value in scope["headers"]:
        if name == b"content-type":
            kind = value
        elif name == b"content-length" and value.isdigit() and int(value) > most:
            raise _too_large(most)
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise HttpError(415, "Validation", "compressed bodies are not read: send JSON without Content-Encoding")
    media = kind.partition(b";")[0].strip().lower()
    if media != b"application/json" and not media.endswith(b"+json"):
        raise HttpError(415, "Validation", "the body must be JSON: send the header Content-Type: application/json")
    message = await _received(receive, call)
    body = message["body"]
    if not message["more_body"]:
        if len(body) > most:
            raise _too_large(most)
        return body
    pieces, size = [body], len(body)
    while message["more_body"]:
        if size > most:
            raise _too_large(most)
        message = await _received(receive, call)
        pieces.append(message["body"])
        size += len(message["body"])
    if size > most:
        raise _too_large(most)
    return b"".join(pieces)


async def _received(receive: Receive, call: Call) -> Any:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    size, context = len(message["body"]), call.context
    call.body_bytes += size
    context.body_bytes += size
    most = MOST_BODIES * context.config.max_body_bytes
    if context.body_bytes > most:
        raise HttpError(
            503, "Overloaded", f"the requests at hand have more than {most} bytes; try again later",
            ((b"retry-after", b"1"),),
        )  # fmt: skip
    return message


def _check_structure(context: ServingContext, body: bytes) -> None:
    """Raise `HttpError` for JSON with more values than the limits of texts and tokens admit: to parse it would take
    seconds, in which nobody is answered."""
    if len(body) < LEAST_CHECKED:
        return
    containers, commas = _C.json_structure(body)
    config = context.config
    if containers > CONTAINERS_PER_TEXT * config.max_texts or commas > 2 * config.max_queue_tokens:
        raise HttpError(
            413, "Validation",
            f"the body has {containers} lists and objects and {commas} commas between values, more than"
            f" {config.max_texts} texts or {config.max_queue_tokens} tokens need: send several requests",
        )  # fmt: skip


def _too_large(most: int) -> HttpError:
    return HttpError(413, "Validation", f"the body is larger than {most} bytes: send several requests")


def _reply_of(error: HttpError, spec: EndpointSpec) -> Reply:
    return Reply(spec.error_body(error), (JSON, *error.headers), error.status)


async def _send(send: Send, reply: Reply, *, close: bool) -> None:
    headers = [*reply.headers, (b"content-length", str(len(reply.body)).encode())]
    if close:
        headers.append(_CLOSE)
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
