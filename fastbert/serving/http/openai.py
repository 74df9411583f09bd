"""The routes of OpenAI's API for embeddings."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from fastbert.serving.http.endpoint import Call, Reply
from fastbert.serving.http.tei import Input, check_dimensions, listed


class EmbeddingsRequest(BaseModel):
    """Texts, or token ids of the model's own tokenizer."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", protected_namespaces=())

    input: Input
    model: str | None = None
    dimensions: Annotated[int, Field(strict=True, ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = "float"
    user: str | None = None


async def embeddings(call: Call, request: EmbeddingsRequest) -> Reply:
    """Return one vector of length 1 per text."""
    served = call.context.model_for("embed", request.model or call.model)
    inputs = listed(request.input, "input")
    call.context.check_count(len(inputs), "input")
    form = "base64" if request.encoding_format == "base64" else "rows"
    job = await call.run(
        served.operations["embed"], inputs, prompt=served.prompt(None), normalize=True, form=form, field="input",
        truncate=None, dimensions=check_dimensions(served, request.dimensions),
    )  # fmt: skip
    quote = b'"' if form == "base64" else b""
    data = b",".join(
        b'{"object":"embedding","index":%d,"embedding":%b%b%b}' % (index, quote, vector, quote)
        for index, vector in enumerate(job.result)
    )
    name = json.dumps(served.name).encode()
    body = b'{"object":"list","data":[%b],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}'
    return Reply(body % (data, name, job.tokens, job.tokens))


async def models(call: Call, _: None) -> Reply:
    """List the served models."""
    context = call.context
    created = int(context.started_at)
    data: list[dict[str, Any]] = [
        {"id": name, "object": "model", "created": created, "owned_by": "fastbert"} for name, _ in context.names
    ]
    return Reply(json.dumps({"object": "list", "data": data}).encode())
