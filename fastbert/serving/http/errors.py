"""Errors as answers: a status, a kind, and one line, in the form of each wire format."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.serving.context import UnknownModel, WrongModel
from fastbert.serving.jobs import Overloaded, TimedOut, TooLong, Unavailable

MOST_MESSAGE = 400
"""Characters of a message, which may hold a part of a text."""


class BadRequest(UserError):
    """A request that no model can answer."""


class NoInput(UserError):
    """A request without texts."""


@dataclass(frozen=True)
class HttpError(Exception):
    """An answer that is known without a model."""

    status: int
    kind: str
    message: str
    headers: tuple[tuple[bytes, bytes], ...] = field(default=())

    @property
    def line(self) -> str:
        """The message as one line of bounded length."""
        text = " ".join(self.message.split())
        return text if len(text) <= MOST_MESSAGE else f"{text[: MOST_MESSAGE - 3]}..."


def described(error: BaseException) -> HttpError:
    """Return the answer to an error; one that is nobody's fault is logged with its traceback."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, ValidationError):
        return HttpError(422, "Validation", _of_validation(error))
    for kind, status, name in _KINDS:
        if isinstance(error, kind):
            return HttpError(status, name, str(error), _headers(error))
    logger.error("a request failed", exc_info=error)
    return HttpError(500, "Backend", f"{type(error).__name__} in the server, whose log has the details")


_KINDS: tuple[tuple[type[Exception], int, str], ...] = (
    (Overloaded, 429, "Overloaded"),
    (TimedOut, 503, "Overloaded"),
    (Unavailable, 503, "Unhealthy"),
    (UnknownModel, 404, "Validation"),
    (WrongModel, 424, "Backend"),
    (TooLong, 413, "Validation"),
    (NoInput, 400, "Empty"),
    (UserError, 422, "Validation"),
)


def _headers(error: Exception) -> tuple[tuple[bytes, bytes], ...]:
    if isinstance(error, Overloaded):
        return ((b"retry-after", str(max(1, min(600, math.ceil(error.retry_after)))).encode()),)
    return ((b"retry-after", b"1"),) if isinstance(error, TimedOut | Unavailable) else ()


def _of_validation(error: ValidationError) -> str:
    """Return the place and the message of the first mistake in a body; the value may be a text, and is not repeated."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}"
    location = first["loc"]
    name = str(location[0]) if location else "the body"
    if name in _FORMS:
        return f"{name} must be {_FORMS[name]}"
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location[1:])
    return f"{name}{place}: {first['msg'][:1].lower()}{first['msg'][1:]}"


_FORMS = {
    "inputs": "what the route takes: a text, a list of texts, or token ids (see /openapi.json)",
    "input": "a text, a list of texts, a list of token ids, or a list of such lists",
    "texts": "a list of texts",
    "documents": "a list of texts, or of objects with a text",
}


def plain_body(error: HttpError) -> bytes:
    """Return the body of text-embeddings-inference's routes and ours."""
    return _json({"error": error.line, "error_type": error.kind})


def openai_body(error: HttpError) -> bytes:
    """Return the body of OpenAI's routes."""
    kind = "invalid_request_error" if error.status < 429 else "server_error"
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(error.status, kind)
    code = {404: "model_not_found", 401: "invalid_api_key"}.get(error.status)
    return _json({"error": {"message": error.line, "type": kind, "param": None, "code": code}})


def cohere_body(error: HttpError) -> bytes:
    """Return the body of Cohere's routes."""
    return _json({"message": error.line})


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode()
