"""Health, description, metrics and throughput of a server."""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from typing import Any

from fastbert.serving.http.endpoint import Call, Reply
from fastbert.serving.http.errors import HttpError
from fastbert.serving.served_model import ServedModel


async def health(call: Call, _: None) -> Reply:
    """Answer 200 when all models are warm, 503 before and during the drain."""
    state = call.context.state
    if state == "ready":
        return Reply(b"", ())
    message = "the models are being loaded" if state == "starting" else "the server is stopping"
    raise HttpError(503, "Unhealthy", message, ((b"retry-after", b"1"),))


async def info(call: Call, _: None) -> Reply:
    """Describe the first model as text-embeddings-inference does, and all models."""
    context = call.context
    config, limits = context.config, context.scheduler.limits if context.scheduler else None
    first = next(iter(context.models.values()), None)
    answer: dict[str, Any] = {
        "model_id": first.name if first else None,
        "served_model_name": first.name if first else None,
        "model_sha": None,
        "model_dtype": first.dtype if first else None,
        "model_type": _model_type(first) if first else None,
        "max_concurrent_requests": config.max_requests,
        "max_input_length": first.max_length if first else None,
        "max_batch_tokens": limits.batch_tokens if limits else None,
        "max_batch_requests": None,
        "max_client_batch_size": config.max_texts,
        "auto_truncate": config.long == "truncate",
        "tokenization_workers": 2,
        "version": version("fastbert-engine"),
        "sha": None,
        "docker_label": None,
        "state": context.state,
        "models": [_model(served) for served in context.models.values()],
    }
    return Reply(json.dumps(answer, ensure_ascii=False).encode())


def _model_type(served: ServedModel) -> dict[str, Any]:
    if served.kind in ("reranker", "classifier"):
        labels = served.labels or ()
        names = {str(index): label for index, label in enumerate(labels)}
        numbers = {label: index for index, label in enumerate(labels)}
        return {served.kind: {"id2label": names, "label2id": numbers}}
    return {"embedding": {"pooling": served.pooling or {"sparse": "splade"}.get(served.kind, "none")}}


def _model(served: ServedModel) -> dict[str, Any]:
    tokenizer, operations = served.tokenizer, served.operations
    mask = tokenizer.mask_token_id if "fill_mask" in operations else None
    config = served.model.config
    return {
        "name": served.name,
        "kind": served.kind,
        "task": served.task_name,
        "architecture": config.model_type,
        "dtype": served.dtype,
        "max_input_length": served.max_length,
        "routes": served.routes,
        "layers": getattr(config, "num_hidden_layers", None),
        "heads": getattr(config, "num_attention_heads", None),
        "mask_token": None if mask is None else tokenizer.convert_ids_to_tokens([mask])[0],
        "labels": None if served.labels is None else list(served.labels),
        "prompts": list(served.prompts),
    }


async def metrics(call: Call, _: None) -> Reply:
    """Return the metrics in Prometheus's text format."""
    kind = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
    return Reply(call.context.metrics.text(), (kind,))


async def stats(call: Call, _: None) -> Reply:
    """Return the throughput of the last minute, for the page."""
    context = call.context
    history = context.metrics.history()
    requests, tokens = history[-1] if history else (0, 0)
    answer = {
        "uptime_seconds": round(time.monotonic() - context.metrics.started, 1),
        "requests": context.metrics.requests,
        "tokens": context.metrics.tokens,
        "requests_per_second": float(requests),
        "tokens_per_second": float(tokens),
        "queued_tokens": context.scheduler.queued_tokens if context.scheduler else 0,
        "running_requests": context.scheduler.jobs if context.scheduler else 0,
        "history": [[float(r), float(t)] for r, t in history],
    }
    return Reply(json.dumps(answer).encode())
