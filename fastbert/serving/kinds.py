"""The kinds of models that are served: which one a folder holds, and how it is loaded with its operations."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from fastbert.checkpoints.pipeline_files import MODULES, read_modules
from fastbert.checkpoints.source import config_folder, find_masked_lm, find_source
from fastbert.config import read_config_file
from fastbert.embeddings.folder import load_embedder
from fastbert.errors import UserError
from fastbert.models import registry
from fastbert.reranking.cross_encoder import CrossEncoder
from fastbert.retrieval.sparse import SparseEncoder
from fastbert.retrieval.token_vectors import TokenEncoder
from fastbert.serving.operations.embeddings import Embed, EmbedAll
from fastbert.serving.operations.masks import FillMask
from fastbert.serving.operations.sequences import Classify, Rerank
from fastbert.serving.operations.sparse import EmbedSparse
from fastbert.serving.operations.tags import Tag
from fastbert.serving.operations.tasks import Predict
from fastbert.serving.operations.token_vectors import EmbedTokens
from fastbert.serving.served_model import ServedModel
from fastbert.tasks.finetuned_model import find_task, load_trained
from fastbert.tasks.inference import choose_inference
from fastbert.tasks.stored import FILE
from fastbert.tokenizers.loading import load_tokenizer

NAME = re.compile(r"[A-Za-z0-9][\w.:/-]*", re.ASCII)
# Tasks that are served by a kind of their own; the others are of the kind "task".
_TASK_KINDS = {
    "classification": "classifier",
    "multilabel": "classifier",
    "regression": "classifier",
    "tagging": "tagger",
    "embedding": "embedding",
    "rerank": "reranker",
    "splade": "sparse",
    "colbert": "token-vectors",
}
_HEAD_TASKS = {"ForTokenClassification": "tagging", "ForQuestionAnswering": "span", "ForMultipleChoice": "choice"}


def parse_model(argument: str) -> tuple[str, str]:
    """Return the name and the source of an argument FOLDER or NAME=FOLDER. Raises `UserError` for a bad name."""
    name, separator, source = argument.partition("=")
    if not separator:
        path = Path(argument)
        source, name = argument, argument.strip("/") if not path.exists() else path.resolve().name
        if path.exists() and name in ("model", "best"):  # RUN/model
            name = path.resolve().parent.name
    if not source or not NAME.fullmatch(name):
        raise UserError(
            f"{argument}: {name!r} is not a name for clients: use letters, digits and . _ - : /, as in NAME=FOLDER"
        )
    return name, source


def kind_of(source: str | Path) -> tuple[str, str | None]:
    """Return the kind of a model's folder, and the task of kinds that `fastbert.predict` computes.

    Raises `UserError` for a folder that cannot be served, and `CheckpointError` for damaged files.
    """
    path = find_source(source)
    folder = config_folder(path)
    if (folder / FILE).is_file():
        task = find_task(folder).name
        if task == "seq2seq":
            raise UserError(f"{source}: writes text (seq2seq), which is not served; use `fastbert translate`")
        kind = _TASK_KINDS.get(task, "task")
        return kind, task if kind in ("task", "tagger", "classifier") else None
    modules = [kind for kind, _ in read_modules(folder)] if os.path.lexists(folder / MODULES) else []
    if "Pooling" in modules:
        return "embedding", None
    if "SpladePooling" in modules:
        return "sparse", None
    values = read_config_file(folder)[1]
    listed = [name for name in values.get("architectures") or [] if isinstance(name, str)]
    if "HF_ColBERT" in listed or (len(modules) > 1 and set(modules[1:]) <= {"Dense", "MultiVectorMask", "Normalize"}):
        return "token-vectors", None
    if any(name.endswith("ForSequenceClassification") for name in listed):
        return ("reranker" if registry.read_config(folder).num_labels == 1 else "classifier"), None
    for head, task in _HEAD_TASKS.items():
        if any(name.endswith(head) for name in listed):
            return _TASK_KINDS.get(task, "task"), task
    if any(name.endswith(("ForMaskedLM", "ForPreTraining")) for name in listed):
        return "masked-lm", None
    registry.refuse_decoder(registry.read_config(folder), str(source))
    return "embedding", None


def load_served(name: str, source: str, *, device: str, dtype: str, max_length: int | None = None) -> ServedModel:
    """Load a model of any kind with its operations; its weights are copied to memory, so that later changes of the
    folder do not reach it.

    `max_length` lowers the tokens that it reads. Raises `UserError` and `CheckpointError` as the kind's own loader.
    """
    kind, task = kind_of(source)
    served = _LOADERS[kind](name, source, device, dtype, task)
    if max_length is not None:
        served.max_length = min(served.max_length, max_length)
    _own(served.model)
    served.model.requires_grad_(False)
    served.freeze_layers()
    served = _with_operations(served)
    for operation in served.operations.values():
        operation.weights = served.layer_weights
    return served


def _own(model: nn.Module) -> None:
    """Copy weights that are mapped from files, so that a file that changes does not change them."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()


def _embedding(name: str, source: str, device: str, dtype: str, task: str | None) -> ServedModel:
    place, weights, words = choose_inference(device, dtype)
    model, tokenizer, settings = load_embedder(source, dtype=weights)
    limit = min(settings.max_length or tokenizer.model_max_length, model.config.max_sequence_length)
    return ServedModel(
        name=name, source=source, kind="embedding", model=_placed(model, place, dtype), tokenizer=tokenizer,
        max_length=limit, how=f"{words} on {place}", dtype=_dtype(dtype, model), prompts=dict(settings.prompts),
        default_prompt=settings.default_prompt, pooling=settings.pooling,
    )  # fmt: skip


def _masked_lm(name: str, source: str, device: str, dtype: str, task: str | None) -> ServedModel:
    folder = find_masked_lm(source)
    place, weights, words = choose_inference(device, dtype)
    model = registry.load_with_head(folder, "ForMaskedLM", dtype=weights)
    if any(name.startswith("cls.predictions") for name in model.new_weights):
        return _embedding(name, source, device, dtype, None)
    tokenizer = load_tokenizer(folder)
    limit = min(tokenizer.model_max_length, model.config.max_sequence_length)
    return ServedModel(
        name=name, source=source, kind="masked-lm", model=_placed(model, place, dtype), tokenizer=tokenizer,
        max_length=limit, how=f"{words} on {place}", dtype=_dtype(dtype, model), pooling="mean",
    )  # fmt: skip


def _reranker(name: str, source: str, device: Any, dtype: Any, task: str | None) -> ServedModel:
    encoder = CrossEncoder(source, device=device, dtype=dtype)
    model, tokenizer = encoder.model, encoder.tokenizer
    limit = min(encoder.max_length or tokenizer.model_max_length, model.config.max_sequence_length)
    return ServedModel(
        name=name, source=source, kind="reranker", model=model, tokenizer=tokenizer, max_length=limit,
        how=encoder.how, dtype=_dtype(dtype, model), labels=tuple(model.config.id2label.values()),
        problem_type=model.config.problem_type, query_prompt=encoder.prompt,
    )  # fmt: skip


def _classifier(name: str, source: str, device: str, dtype: str, task: str | None) -> ServedModel:
    place, weights, words = choose_inference(device, dtype)
    if task is None:
        model = registry.load_with_head(source, "ForSequenceClassification", dtype=weights).eval()
        if model.new_weights:
            raise UserError(f"{source}: its files hold no classifier, so its answers would be random")
        tokenizer = load_tokenizer(config_folder(find_source(source)))
        model, limit = _placed(model, place, dtype), model.config.max_sequence_length
        limit = min(limit, tokenizer.model_max_length)
    else:
        trained = load_trained(source, device=device, dtype=dtype)
        model, tokenizer, words = trained.model.eval(), trained.tokenizer, trained.how.removeprefix(f"on {place} in ")
        limit = trained.task.settings.max_length
    labels = tuple(model.config.id2label.values())
    problem = "regression" if task == "regression" else model.config.problem_type
    return ServedModel(
        name=name, source=source, kind="classifier", model=model, tokenizer=tokenizer, max_length=limit,
        how=f"{words} on {place}", dtype=_dtype(dtype, model), labels=labels, problem_type=problem, task_name=task,
    )  # fmt: skip


def _task(name: str, source: str, device: str, dtype: str, task: str | None) -> ServedModel:
    folder = config_folder(find_source(source))
    own = (folder / FILE).is_file()
    trained = load_trained(source, task=None if own else task, device=device, dtype=dtype)
    model = trained.model.eval()
    served = ServedModel(
        name=name, source=source, kind="tagger" if trained.task.name == "tagging" else "task", model=model,
        tokenizer=trained.tokenizer, max_length=trained.task.settings.max_length, how=trained.how,
        dtype=_dtype(dtype, model), labels=trained.task.labels, task_name=trained.task.name,
    )  # fmt: skip

    served.operations["predict"] = Predict(served, trained.task)
    if trained.task.name == "tagging":
        served.operations["token_classification"] = Tag(served, trained.task)
    return served


def _sparse(name: str, source: str, device: Any, dtype: Any, task: str | None) -> ServedModel:

    encoder = SparseEncoder(source, device=device, dtype=dtype)
    model, tokenizer, folder = encoder.model, encoder.tokenizer, encoder.folder
    limit = min(folder.max_length or tokenizer.model_max_length, model.config.max_sequence_length)
    served = ServedModel(
        name=name, source=source, kind="sparse", model=model, tokenizer=tokenizer, max_length=limit, how=encoder.how,
        dtype=_dtype(dtype, model), prompts=dict(folder.prompts),
    )  # fmt: skip
    served.operations["embed_sparse"] = EmbedSparse(served, encoder)
    return served


def _token_vectors(name: str, source: str, device: Any, dtype: Any, task: str | None) -> ServedModel:

    encoder = TokenEncoder(source, device=device, dtype=dtype)
    served = ServedModel(
        name=name, source=source, kind="token-vectors", model=encoder.model, tokenizer=encoder.tokenizer,
        max_length=encoder.limit(), how=encoder.how, dtype=_dtype(dtype, encoder.model),
        prompts={"query": "", "document": ""},
    )  # fmt: skip
    served.operations["embed_all"] = EmbedTokens(served, encoder)
    return served


_LOADERS: dict[str, Callable[..., ServedModel]] = {
    "embedding": _embedding,
    "masked-lm": _masked_lm,
    "reranker": _reranker,
    "classifier": _classifier,
    "tagger": _task,
    "task": _task,
    "sparse": _sparse,
    "token-vectors": _token_vectors,
}


def _with_operations(served: ServedModel) -> ServedModel:
    """Add the operations that follow from a model's kind."""

    if served.kind in ("embedding", "masked-lm"):
        served.operations |= {"embed": Embed(served), "embed_all": EmbedAll(served)}
    if served.kind == "masked-lm":
        served.operations["fill_mask"] = FillMask(served)
    if served.kind == "reranker":
        served.operations |= {"rerank": Rerank(served), "predict": Classify(served)}
    if served.kind == "classifier":
        served.operations["predict"] = Classify(served)
    return served


def _placed(model: Any, place: str, dtype: str) -> Any:
    if dtype == "int8":
        model.quantize("int8")
    return model.to(place).eval()


def _dtype(dtype: str, model: Any) -> str:
    return "int8" if dtype == "int8" else str(next(model.parameters()).dtype).removeprefix("torch.")
