"""The routes of Hugging Face's inference API: one address per model, whose kind decides over the answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from fastbert.errors import UserError
from fastbert.serving.context import wrong_kind
from fastbert.serving.http import tei
from fastbert.serving.http.endpoint import Call, Reply
from fastbert.serving.served_model import ServedModel


class PipelineRequest(BaseModel):
    """Inputs as the model's kind takes them; options may be in `parameters` or beside it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", protected_namespaces=())

    inputs: Any
    parameters: dict[str, Any] | None = None


async def pipeline(call: Call, request: PipelineRequest) -> Reply:
    """Answer as the route of the model's kind does."""
    served = tei.any_model(call, None)
    call.model = served.name
    options = {**(request.model_extra or {}), **(request.parameters or {})}
    options.pop("model", None)
    given = {name: value for name, value in options.items() if value is not None}
    inputs = request.inputs
    if isinstance(inputs, dict) and "source_sentence" in inputs:
        return await tei.similarity(call, tei.SimilarityRequest.model_validate({"inputs": inputs}))
    answer = _ANSWERS.get(_route(served))
    if answer is None:
        raise wrong_kind(served)
    return await answer(call, inputs, given)


def _route(served: ServedModel) -> str:
    routes = ("fill_mask", "token_classification", "embed", "rerank", "predict", "embed_sparse", "embed_all")
    return next(route for route in routes if route in served.operations)


async def _embed(call: Call, inputs: Any, options: dict[str, Any]) -> Reply:
    return await tei.embed(call, tei.EmbedRequest.model_validate({**options, "inputs": inputs}))


async def _embed_sparse(call: Call, inputs: Any, options: dict[str, Any]) -> Reply:
    return await tei.embed_sparse(call, tei.EmbedTokensRequest.model_validate({**options, "inputs": inputs}))


async def _embed_all(call: Call, inputs: Any, options: dict[str, Any]) -> Reply:
    return await tei.embed_all(call, tei.EmbedTokensRequest.model_validate({**options, "inputs": inputs}))


async def _rerank(call: Call, inputs: Any, options: dict[str, Any]) -> Reply:
    if isinstance(inputs, dict) and "query" in inputs:
        return await tei.rerank(call, tei.RerankRequest.model_validate({**options, **inputs}))
    return await _predict(call, inputs, options)


async def _predict(call: Call, inputs: Any, options: dict[str, Any]) -> Reply:
    function, top = options.pop("function_to_apply", None), options.pop("top_k", None)
    if function not in (None, "none", *_FUNCTIONS):
        raise UserError(f"function_to_apply must be none, {', '.join(_FUNCTIONS)}, or left out")
    if top is not None and (not isinstance(top, int) or top < 1):
        raise UserError("top_k must be a whole number, at least 1")
    raw = {} if function is None else {"raw_scores": True}
    reply = await tei.predict(call, tei.PredictRequest.model_validate({**options, **raw, "inputs": inputs}))
    answers = json.loads(reply.body)
    if answers and isinstance(answers[0], dict) and "label" in answers[0] and "score" in answers[0]:
        answers = [answers]  # the answer to a single text is a list with one item
    for answer in answers:
        if function in _FUNCTIONS and isinstance(answer, list):
            scores = _FUNCTIONS[function]([entry["score"] for entry in answer])
            answer[:] = [{**entry, "score": score} for entry, score in zip(answer, scores, strict=True)]
    answers = [answer[:top] if isinstance(answer, list) else answer for answer in answers]
    return Reply(json.dumps(answers, ensure_ascii=False).encode())


def _sigmoid(logits: Sequence[float]) -> list[float]:
    return [0.5 * (1 + math.tanh(0.5 * logit)) for logit in logits]


def _softmax(logits: Sequence[float]) -> list[float]:
    powers = [math.exp(logit - max(logits)) for logit in logits]
    return [power / sum(powers) for power in powers]


_FUNCTIONS: dict[str, Callable[[Sequence[float]], list[float]]] = {"sigmoid": _sigmoid, "softmax": _softmax}


async def _fill_mask(call: Call, inputs: Any, options: dict[str, Any]) -> Reply:
    if "targets" in options:
        raise UserError("targets is not offered: ask for the candidates with the highest scores by top_k")
    request = tei.FillMaskRequest.model_validate({"inputs": inputs, "top_k": options.get("top_k", 5)})
    reply = await tei.fill_mask(call, request)
    blanks = json.loads(reply.body)
    flat = [_flat(each) for each in blanks] if isinstance(request.inputs, list) else _flat(blanks)
    return Reply(json.dumps(flat, ensure_ascii=False).encode())


def _flat(blanks: list[Any]) -> Any:
    """Return the candidates of a single mask as one list."""
    return blanks[0] if len(blanks) == 1 else blanks


async def _tags(call: Call, inputs: Any, options: dict[str, Any]) -> Reply:
    strategy = options.get("aggregation_strategy", "simple")
    if strategy == "none":
        raise UserError('aggregation_strategy "none" is not offered: leave it out for entities of whole words')
    reply = await tei.token_classification(call, tei.TagRequest.model_validate({"inputs": inputs}))
    ignored = options.get("ignore_labels", [])
    if not isinstance(ignored, list):
        raise UserError("ignore_labels must be a list of labels")
    return Reply(json.dumps(_without(json.loads(reply.body), ignored), ensure_ascii=False).encode())


def _without(entities: list[Any], ignored: Sequence[Any]) -> list[Any]:
    """Return entities, or lists of them, without those of some labels."""
    if entities and isinstance(entities[0], list):
        return [_without(each, ignored) for each in entities]
    return [entity for entity in entities if entity["entity_group"] not in ignored]


_ANSWERS: dict[str, Any] = {
    "embed": _embed,
    "embed_sparse": _embed_sparse,
    "embed_all": _embed_all,
    "rerank": _rerank,
    "predict": _predict,
    "fill_mask": _fill_mask,
    "token_classification": _tags,
}
