"""The routes of Cohere's API, version 2: embeddings and reranking."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fastbert import _C
from fastbert.errors import UserError
from fastbert.serving.http.endpoint import Call, Reply
from fastbert.serving.http.errors import NoInput
from fastbert.serving.http.tei import Strings, check_dimensions, ranked
from fastbert.serving.served_model import ServedModel

# The prompts that stand for an input type, in the order in which a model's own names are looked for.
_PROMPTS = {
    "search_query": ("search_query", "query"),
    "search_document": ("search_document", "document", "passage"),
    "classification": ("classification",),
    "clustering": ("clustering",),
}
_Form = Literal["float", "base64", "binary", "ubinary", "int8", "uint8"]


class CohereEmbedRequest(BaseModel):
    """Texts to embed."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", protected_namespaces=())

    model: str | None = None
    texts: Strings | None = None
    input_type: Literal["search_document", "search_query", "classification", "clustering", "image"] | None = None
    embedding_types: Annotated[list[_Form], Field(fail_fast=True)] | None = None
    output_dimension: Annotated[int, Field(strict=True, ge=1)] | None = None
    truncate: Literal["NONE", "START", "END"] | None = "END"
    images: list[Any] | None = None
    inputs: list[Any] | None = None


class CohereRerankRequest(BaseModel):
    """A query and the documents to rank: texts, or objects with a `text`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", protected_namespaces=())

    model: str | None = None
    query: str
    documents: Annotated[list[str | dict[str, Any]], Field(fail_fast=True)]
    top_n: Annotated[int, Field(strict=True, ge=1)] | None = None
    return_documents: bool = False


async def embed(call: Call, request: CohereEmbedRequest) -> Reply:
    """Return one vector of length 1 per text in each of the requested forms."""
    served = call.context.model_for("embed", request.model or call.model)
    if request.images:
        raise UserError("images are not embedded here: the models read text")
    texts = request.texts if request.texts is not None else _of_inputs(request.inputs or [])
    if not texts:
        raise NoInput("texts is empty: give at least one text")
    call.context.check_count(len(texts), "texts")
    forms = request.embedding_types or ["float"]
    unsupported = [form for form in forms if form in ("int8", "uint8")]
    if unsupported:
        raise UserError(f"embedding_types {unsupported[0]!r} is not offered: ask for float, base64, binary or ubinary")
    job = await call.run(
        served.operations["embed"], texts, prompt=_prompt(served, request.input_type), normalize=True, form="array",
        dimensions=check_dimensions(served, request.output_dimension), truncate=request.truncate != "NONE",
        left=request.truncate == "START", field="texts",
    )  # fmt: skip
    embeddings = b",".join(b'"%b":%b' % (form.encode(), _in_form(job.result, form)) for form in dict.fromkeys(forms))
    body = b'{"id":"%b","response_type":"embeddings_by_type","embeddings":{%b},"texts":%b,"meta":%b}'
    return Reply(
        body % (str(uuid.uuid4()).encode(), embeddings, json.dumps(texts).encode(), _meta({"input_tokens": job.tokens}))
    )


def _of_inputs(inputs: list[Any]) -> list[str]:
    """Return the texts of `inputs`, whose items have a list of contents."""
    texts = []
    for index, item in enumerate(inputs):
        contents = item.get("content") if isinstance(item, dict) else None
        parts = contents if isinstance(contents, list) else []
        text = [str(part.get("text")) for part in parts if isinstance(part, dict) and part.get("type") == "text"]
        if len(text) != len(parts) or not parts:
            raise UserError(f"inputs[{index}] must have a content of texts: images are not embedded here")
        texts.append(" ".join(text))
    return texts


def _prompt(served: ServedModel, input_type: str | None) -> str:
    """Return the model's prompt for an input type, its default one where it has none for it."""
    name = next((name for name in _PROMPTS.get(input_type or "", ()) if name in served.prompts), None)
    return served.prompt(name)


def _in_form(vectors: np.ndarray, form: str) -> bytes:
    if form == "float":
        return _C.json_rows(vectors)
    if form == "base64":
        return b"[" + b",".join(b'"%b"' % base64.b64encode(row.astype("<f4").tobytes()) for row in vectors) + b"]"
    bits = np.packbits(vectors > 0, axis=1)
    signed = bits if form == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    return json.dumps(signed.tolist(), separators=(",", ":")).encode()


async def rerank(call: Call, request: CohereRerankRequest) -> Reply:
    """Return the documents by their relevance to a query, best first."""
    texts = [_text(document, index) for index, document in enumerate(request.documents)]
    order, scores, _ = await ranked(call, request.model, request.query, texts, "documents", truncate=True)
    results = []
    for index in order[: request.top_n]:
        entry: dict[str, Any] = {"index": index, "relevance_score": float(f"{scores[index]:.9g}")}
        if request.return_documents:
            entry["document"] = {"text": texts[index]}
        results.append(entry)
    body = b'{"id":"%b","results":%b,"meta":%b}'
    answer = json.dumps(results, ensure_ascii=False).encode()
    return Reply(body % (str(uuid.uuid4()).encode(), answer, _meta({"search_units": 1})))


def _text(document: str | dict[str, Any], index: int) -> str:
    if isinstance(document, str):
        return document
    text = document.get("text")
    if not isinstance(text, str):
        raise UserError(f"documents[{index}] has no text: give a text, or an object with the key text")
    return text


def _meta(units: dict[str, int]) -> bytes:
    return json.dumps({"api_version": {"version": "2"}, "billed_units": units}).encode()
