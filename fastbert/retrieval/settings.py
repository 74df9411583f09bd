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

from fastbert.checkpoints.pipeline_files import (
    BASE_TYPES,
    ENCODER_CONFIGS,
    MODULES,
    PROMPTS,
    Module,
    check_free,
    read_modules,
    write_pipeline,
)
from fastbert.checkpoints.weights import open_weights
from fastbert.config import read_config_file
from fastbert.embeddings.folder import check_names, read_dense
from fastbert.embeddings.settings import Dense, check_widths
from fastbert.errors import CheckpointError, UserError, require_whole
from fastbert.io.untrusted_input import read_json_object, shown

Role = Literal["query", "document"]
ROLES = ("query", "document")
TOKENS = "token_embeddings"
POOLINGS = ("max", "sum")
SPARSE_TYPES = "sentence_transformers.sparse_encoder.models"
MASK_TYPE = "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
# The architecture, the file of settings and the markers of Stanford's ColBERT.
STANFORD, METADATA, MARKERS = "HF_ColBERT", "artifact.metadata", {"query": "[unused0]", "document": "[unused1]"}
QUERY_LENGTH = 32
"""Tokens of ColBERT's expanded queries."""
STRATEGIES, EXPANSION_KEYS = ("fixed", "min"), {"strategy", "attend", "token", "length"}


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The settings that all of these models have."""

    encoder: Path = Path()
    """The folder that the encoder is read from; `save` has it in the model's own folder."""
    max_length: int | None = None
    """Tokens per text, special ones included; None: as many as tokenizer and model allow."""
    lower_case: bool = False
    """True if texts are lower-cased before they are tokenized."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Prefixes of texts by name; those of "query" and "document" are used for these roles."""

    def check(self) -> None:
        """Raise UserError for settings that cannot be stored."""
        require_whole("max_length", self.max_length, 3, optional=True)
        named = self.prompts.items() if isinstance(self.prompts, Mapping) else [(None, None)]
        if not all(isinstance(name, str) and isinstance(text, str) for name, text in named):
            raise UserError(f"prompts={self.prompts!r} must be texts by name")

    @property
    def encoder_config(self) -> dict[str, Any]:
        """Return the content of `sentence_bert_config.json`."""
        return {"max_seq_length": self.max_length, "do_lower_case": self.lower_case}

    def values(self, kind: str) -> dict[str, Any]:
        """Return the content of `config_sentence_transformers.json` of a kind of model."""
        return {"model_type": kind, "prompts": dict(self.prompts), "default_prompt_name": None}


@dataclass(frozen=True, kw_only=True)
class TokenSettings:
    """Settings of token vectors."""

    folder: Folder = field(default_factory=Folder)
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

    def check_width(self, width: int, source: str) -> None:
        """Raise UserError for a Dense that does not fit a model of this width or the previous Dense, and for settings
        that cannot be stored."""
        check_widths(self.dense, width, source)
        self._check()

    def check_folder(self, folder: Path) -> None:
        """Raise UserError, before anything is written, if a link or a file is in the way of `save`."""
        check_free(folder, self._modules())

    def save(self, folder: Path, width: int) -> None:
        """Write the settings next to an encoder of `width` hidden units, for the `MultiVectorEncoder` of
        sentence-transformers from release 6.

        `modules.json` is written last, and every file atomically. Raises `UserError` for settings that do not fit the
        model or cannot be stored, and `CheckpointError` if writing fails.
        """
        self.check_width(width, str(folder))
        expansion = None
        if self.expansion is not None:
            defaults = {"strategy": "fixed", "attend": False, "token": None}
            expansion = {**defaults, **self.expansion}
        values = self.folder.values("MultiVectorEncoder")
        for role in sorted(self.markers):
            # Beside a marker an absent expansion would count as that of PyLate.
            values |= {f"{role}_prefix": self.markers[role], "query_expansion": expansion}
        lengths = {f"{role}_length": self.lengths[role] for role in ROLES if role in self.lengths}
        encoder = {**self.folder.encoder_config, **lengths, "query_expansion": expansion}
        write_pipeline(folder, self._modules(), encoder=encoder, settings=values)

    def _modules(self) -> list[Module]:
        roles = [role for role in ROLES if self.skiplist.get(role)]
        words = list(self.skiplist[roles[0]]) if roles else []
        mask = {"skiplist_words": words, "skiplist_tasks": roles or ["document"], "keep_only_token_ids": None}
        names = {"module_input_name": TOKENS, "module_output_name": TOKENS}
        normalize = Module(type=f"{BASE_TYPES}.normalize.Normalize", config=names)
        dense = [layer.module(TOKENS) for layer in self.dense]
        return [*dense, Module(type=MASK_TYPE, config=mask), *[normalize] * self.normalize]

    def _check(self) -> None:
        """Raise UserError for settings that cannot be stored."""
        self.folder.check()
        for name in ("markers", "lengths", "skiplist"):
            if other := [role for role in getattr(self, name) if role not in ROLES]:
                raise UserError(f"{name} are those of a query or a document, not of {other[0]!r}")
        for role, length in self.lengths.items():
            require_whole(f"lengths[{role!r}]", length, 3)
        for role, marker in self.markers.items():
            if not marker or not self.folder.prompts.get(role, "").startswith(marker):
                raise UserError(f"markers[{role!r}]={marker!r} must be the beginning of the prompt of that name")
        if len({words for words in self.skiplist.values() if words}) > 1:
            raise UserError("skiplist: queries and documents that skip different tokens cannot be stored; use one list")
        if self.expansion is None:
            return
        if other := sorted(set(self.expansion) - EXPANSION_KEYS):
            raise UserError(
                f"expansion has the unknown key {other[0]!r}; known are {', '.join(sorted(EXPANSION_KEYS))}"
            )
        expanded: Any = self.expansion.get("length")
        token = self.expansion.get("token")
        require_whole("expansion['length']", expanded, 3)
        if self.expansion.get("strategy", "fixed") not in STRATEGIES:
            raise UserError(f"expansion['strategy']={self.expansion['strategy']!r} must be 'fixed' or 'min'")
        if not isinstance(self.expansion.get("attend", False), bool) or not isinstance(token, str | None):
            raise UserError(
                f"expansion={dict(self.expansion)!r}: attend must be True or False, and token a token or None"
            )
        if self.lengths.get("query", expanded) < expanded:
            raise UserError(
                f"lengths['query']={self.lengths['query']} is less than the length of expanded queries, {expanded}"
            )


@dataclass(frozen=True, kw_only=True)
class SparseSettings:
    """Settings of sparse vectors."""

    folder: Folder = field(default_factory=Folder)
    pooling: str = "max"
    """Over the tokens of a text: "max", or "sum"."""
    logarithms: int = 1
    """Number of times log(1 + x) is taken of the rectified logits; 2 in OpenSearch's models."""

    def check_width(self, width: int, source: str) -> None:
        """Accept vocabularies of every size. Raises UserError for settings that cannot be stored."""
        self.folder.check()
        if self.pooling not in POOLINGS or self.logarithms not in (1, 2):
            raise UserError(
                f"pooling={self.pooling!r} must be 'max' or 'sum', and logarithms={self.logarithms!r} 1 or 2"
            )

    def check_folder(self, folder: Path) -> None:
        """Raise UserError, before anything is written, if a link or a file is in the way of `save`."""
        check_free(folder, self._modules())

    def save(self, folder: Path, width: int) -> None:
        """Write the settings next to a model with a masked-LM head over `width` tokens, for the `SparseEncoder` of
        sentence-transformers.

        `modules.json` is written last, and every file atomically. Raises `UserError` for settings that cannot be
        stored, and `CheckpointError` if writing fails.
        """
        self.check_width(width, str(folder))
        write_pipeline(
            folder,
            self._modules(width),
            encoder=self.folder.encoder_config,
            settings=self.folder.values("SparseEncoder"),
            encoder_type=f"{SPARSE_TYPES}.MLMTransformer",
        )

    def _modules(self, width: int = 0) -> list[Module]:
        config = {
            "pooling_strategy": self.pooling,
            "activation_function": "relu" if self.logarithms == 1 else "log1p_relu",
            "word_embedding_dimension": width,
        }
        return [Module(type=f"{SPARSE_TYPES}.SpladePooling", config=config)]


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
    if not isinstance(value, dict) or value.get("strategy") not in STRATEGIES:
        raise UserError(f"{folder}: query_expansion={shown(value)} is not supported; its strategy must be fixed or min")
    _length(value.get("length"), "the length of query_expansion", folder)
    return value


def _length(value: Any, name: str, folder: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 3:
        raise CheckpointError(f"{folder}: {name}={shown(value)} must be a whole number, at least 3")
    return value


def _refused(folder: Path, kind: str, supported: str) -> UserError:
    return UserError(f"{folder / MODULES}: the module {shown(kind)} cannot be used here; supported are {supported}")
