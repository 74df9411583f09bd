"""Settings of models of token vectors and of sparse vectors, as sentence-transformers, PyLate and ColBERT store them.

Nothing that a folder names is imported or executed; modules and options that would change the vectors, and that are not
supported here, are refused by name.
"""

from __future__ import annotations

import os
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fastbert.checkpoints.pipeline_files import ENCODER_CONFIGS, MODULES, PROMPTS, read_modules
from fastbert.checkpoints.weights import open_weights
from fastbert.config import read_config_file
from fastbert.embeddings.folder import check_names, read_dense
from fastbert.embeddings.settings import Dense
from fastbert.errors import CheckpointError, UserError
from fastbert.io.untrusted_input import read_json_object, shown

Role = Literal["query", "document"]
ROLES = ("query", "document")
TOKENS = "token_embeddings"
POOLINGS = ("max", "sum")
# The architecture, the file of settings and the markers of Stanford's ColBERT.
STANFORD, METADATA, MARKERS = "HF_ColBERT", "artifact.metadata", {"query": "[unused0]", "document": "[unused1]"}
QUERY_LENGTH = 32
"""Tokens of ColBERT's expanded queries."""


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The files that all of these models have: the encoder's folder, its limits, and the prompts by role."""

    encoder: Path
    max_length: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TokenSettings:
    """Settings of token vectors."""

    folder: Folder
    dense: tuple[Dense, ...] = ()
    """Projections of each token's vector."""
    normalize: bool = False
    """True if vectors are divided by their length."""
    markers: Mapping[str, str] = field(default_factory=dict)
    """The beginnings of prompts that may be a token of the vocabulary, by role."""
    lengths: Mapping[str, int] = field(default_factory=dict)
    """Most tokens of a text by role."""
    expansion: Mapping[str, Any] | None = None
    """`length`, `attend`, `token` and `strategy` of expanded queries."""
    skiplist: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Tokens that get no vector, by role."""


@dataclass(frozen=True, kw_only=True)
class SparseSettings:
    """Settings of sparse vectors."""

    folder: Folder
    pooling: str = "max"
    """Over the tokens of a text: "max", or "sum"."""
    logarithms: int = 1
    """Number of times log(1 + x) is taken of the rectified logits; 2 in OpenSearch's models."""


def read_token_settings(folder: Path) -> TokenSettings:
    """Return the settings of a folder of token vectors; a plain Hugging Face folder has vectors of the last layer.

    Raises UserError for unsupported modules and options, and CheckpointError for damaged files.
    """
    if not os.path.lexists(folder / MODULES):
        listed = read_config_file(folder)[1].get("architectures") or []
        return _stanford(folder) if STANFORD in listed else TokenSettings(folder=Folder(encoder=folder))
    modules = read_modules(folder)
    common, values, encoder = _common(folder, modules)
    dense: list[Dense] = []
    normalize, skiplist = False, dict[str, tuple[str, ...]]()
    for kind, where in modules[1:]:
        if kind == "Dense" and not normalize:
            dense.append(read_dense(where, TOKENS))
        elif kind == "Normalize":
            check_names(where / "config.json", "Normalize", TOKENS)
            normalize = True
        elif kind == "MultiVectorMask":
            skiplist = _skiplist(where / "config.json")
        else:
            raise _refused(folder, kind, "Transformer, Dense, MultiVectorMask and Normalize for vectors of tokens")
    if values.get("model_type") == "ColBERT":  # PyLate to 3, which masks and normalises in code
        words = values.get("skiplist_words")
        documents = tuple(string.punctuation) if words is None else _words(words, folder / PROMPTS)
        skiplist, normalize = {"document": documents}, True
    expansion = encoder.get("query_expansion", values.get("query_expansion"))
    if expansion is None and values.get("model_type") == "ColBERT" and values.get("do_query_expansion") is not False:
        attend = values.get("attend_to_expansion_tokens", values.get("attend_to_mask_tokens"))
        length = values.get("query_length") or QUERY_LENGTH
        expansion = {"strategy": "fixed", "attend": bool(attend), "length": length}
    lengths = {role: encoder.get(f"{role}_length", values.get(f"{role}_length")) for role in ROLES}
    return TokenSettings(
        folder=common,
        dense=tuple(dense),
        normalize=normalize,
        markers={role: str(values[f"{role}_prefix"]) for role in ROLES if values.get(f"{role}_prefix")},
        lengths={role: _length(length, f"{role}_length", folder) for role, length in lengths.items() if length},
        expansion=None if expansion is None else _expansion(expansion, folder),
        skiplist=skiplist,
    )


def read_sparse_settings(folder: Path) -> SparseSettings:
    """Return the settings of a folder of sparse vectors; a plain folder with a masked-LM head has SPLADE's maximum.

    Raises UserError for unsupported modules and options, and CheckpointError for damaged files.
    """
    if not os.path.lexists(folder / MODULES):
        return SparseSettings(folder=Folder(encoder=folder))
    modules = read_modules(folder)
    kinds = [kind for kind, _ in modules]
    if kinds[1:] != ["SpladePooling"]:
        other = next((kind for kind in kinds[1:] if kind != "SpladePooling"), kinds[0])
        raise _refused(folder, other, "a Transformer with a masked-LM head and one SpladePooling")
    common, _, _ = _common(folder, modules)
    path = modules[1][1] / "config.json"
    config = read_json_object(path)
    pooling, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if pooling not in POOLINGS or activation not in ("relu", "log1p_relu"):
        raise UserError(
            f"{path}: pooling {shown(pooling)} of {shown(activation)} is not supported; supported are max and sum of"
            " relu and log1p_relu"
        )
    return SparseSettings(folder=common, pooling=str(pooling), logarithms=1 if activation == "relu" else 2)


def _common(folder: Path, modules: list[tuple[str, Path]]) -> tuple[Folder, dict[str, Any], Mapping[str, Any]]:
    """Return what the models have in common, the folder's settings, and those of its encoder."""
    kind, where = modules[0]
    if kind not in ("Transformer", "MLMTransformer"):
        raise _refused(folder, kind, "a Transformer as the first module")
    encoder: Mapping[str, Any] = next(
        (read_json_object(where / name) for name in ENCODER_CONFIGS if os.path.lexists(where / name)), {}
    )
    values = read_json_object(folder / PROMPTS) if os.path.lexists(folder / PROMPTS) else {}
    length = encoder.get("max_seq_length")
    common = Folder(
        encoder=where,
        max_length=None if length is None else _length(length, "max_seq_length", where),
        lower_case=bool(encoder.get("do_lower_case")),
        prompts=_prompts(values, folder / PROMPTS),
    )
    return common, values, encoder


def _prompts(values: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Return the prompts, PyLate's prefixes in front of those of the same role."""
    prompts = dict(values.get("prompts") or {})
    for role in ROLES:
        prefix = values.get(f"{role}_prefix") or ""
        prompt = prompts.get(role) or ""
        if isinstance(prefix, str) and isinstance(prompt, str):
            prompts[role] = prefix + prompt.removeprefix(prefix)
    if not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(f"{path}: prompts must be texts by name; restore the file")
    return prompts


def _stanford(folder: Path) -> TokenSettings:
    """Return the settings of a checkpoint of Stanford's ColBERT: a projection without bias beside the encoder's
    weights, markers behind [CLS], queries expanded by masks, documents without punctuation."""
    values = read_json_object(folder / METADATA) if os.path.lexists(folder / METADATA) else {}
    tensors = open_weights(folder).tensors
    if "linear.weight" not in tensors:
        raise CheckpointError(f"{folder}: holds no linear.weight, ColBERT's projection; restore the weights")
    tokens = {"query": values.get("query_token_id"), "document": values.get("doc_token_id")}
    document_length = values.get("doc_maxlen")
    prompts = {role: f"{tokens[role] or MARKERS[role]} " for role in ROLES}
    return TokenSettings(
        folder=Folder(encoder=folder, prompts=prompts),
        dense=(Dense(tensors["linear.weight"].read().float(), None, "Identity"),),
        normalize=True,
        markers=prompts,
        lengths={"document": _length(document_length, "doc_maxlen", folder)} if document_length else {},
        expansion={
            "strategy": "fixed",
            "length": _length(values.get("query_maxlen") or QUERY_LENGTH, "query_maxlen", folder),
            "attend": bool(values.get("attend_to_mask_tokens")),
        },
        skiplist={"document": tuple(string.punctuation) if values.get("mask_punctuation", True) else ()},
    )


def _skiplist(path: Path) -> dict[str, tuple[str, ...]]:
    config = read_json_object(path)
    if config.get("keep_only_token_ids"):
        raise UserError(f"{path}: keeps the vectors of some tokens alone, which is unsupported (keep_only_token_ids)")
    tasks = config.get("skiplist_tasks") or ["document"]
    words = _words(config.get("skiplist_words") or [], path)
    return {role: words for role in ROLES if role in ([tasks] if isinstance(tasks, str) else tasks)}


def _words(value: Any, path: Path) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise CheckpointError(f"{path}: skiplist_words={shown(value)} must be a list of words; restore the file")
    return tuple(value)


def _expansion(value: Any, folder: Path) -> Mapping[str, Any]:
    if not isinstance(value, dict) or value.get("strategy") not in ("fixed", "min"):
        raise UserError(f"{folder}: query_expansion={shown(value)} is not supported; its strategy must be fixed or min")
    _length(value.get("length"), "the length of query_expansion", folder)
    return value


def _length(value: Any, name: str, folder: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 3:
        raise CheckpointError(f"{folder}: {name}={shown(value)} must be a whole number, at least 3")
    return value


def _refused(folder: Path, kind: str, supported: str) -> UserError:
    return UserError(f"{folder / MODULES}: the module {shown(kind)} cannot be used here; supported are {supported}")
