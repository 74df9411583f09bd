"""The part of model cards that embedders, cross-encoders, and models of sparse and of token vectors have: the Hub's
tags, code that uses the model, and its settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastbert.checkpoints.pipeline_files import ROLE_PROMPTS, role_prompt
from fastbert.embeddings import folder as embeddings
from fastbert.embeddings.settings import Dense, EmbedSettings
from fastbert.reranking import settings as reranking
from fastbert.reranking.settings import CrossEncoderSettings
from fastbert.retrieval.settings import SparseSettings, TokenSettings, read_sparse_settings, read_token_settings
from fastbert.training.model_card import Section, table

LIBRARY = "sentence-transformers"
QUERY = "How do bees make honey?"
DOCUMENTS = ("Bees turn nectar into honey by drying it in the comb.", "Honey badgers live in Africa and Asia.")
Settings = EmbedSettings | CrossEncoderSettings | SparseSettings | TokenSettings
Rows = list[list[object]]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of model."""

    pipeline: str
    """The Hub's name of its task."""
    tags: tuple[str, ...]
    """Those that sentence-transformers gives it."""
    read: Callable[[Path], Settings]
    """Returns the settings in its folder."""


KINDS = {
    "embedding": Kind(
        pipeline="sentence-similarity",
        tags=(LIBRARY, "sentence-similarity", "feature-extraction", "dense"),
        read=lambda folder: embeddings.read_settings(folder)[1],
    ),
    "rerank": Kind(pipeline="text-ranking", tags=(LIBRARY, "cross-encoder", "reranker"), read=reranking.read_settings),
    "splade": Kind(
        pipeline="feature-extraction",
        tags=(LIBRARY, "sparse-encoder", "sparse", "splade"),
        read=read_sparse_settings,
    ),
    "colbert": Kind(
        pipeline="feature-extraction",
        tags=(LIBRARY, "multi-vector", "colbert", "late-interaction"),
        read=read_token_settings,
    ),
}
"""The kinds by task."""


@dataclass(frozen=True, kw_only=True)
class RetrievalFacts:
    """What is known of a model beside its run."""

    settings: Settings
    loss: str = ""
    """The loss in words; "" if it is unknown."""
    widths: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Matryoshka's widths, and the scores of the first so many numbers of each vector, if they were computed."""


def retrieval_facts(
    task: str, folder: Path, *, loss: str = "", widths: Mapping[int, Mapping[str, float]] | None = None
) -> RetrievalFacts | None:
    """Return the facts of a saved model, None for other tasks. Raises UserError for settings that are not those of the
    task, and CheckpointError for damaged files."""
    if task not in KINDS:
        return None
    return RetrievalFacts(settings=KINDS[task].read(folder), loss=loss, widths=widths or {})


def retrieval_sections(facts: RetrievalFacts, model: Mapping[str, Any], name: str) -> list[Section]:
    """Return the sections of a card on the use of a model and its settings.

    `model` is the content of its config.json, and `name` that of its folder or on the Hub.
    """
    settings = facts.settings
    if isinstance(settings, EmbedSettings):
        rows, code = _embedder(settings, model, name)
    elif isinstance(settings, CrossEncoderSettings):
        rows, code = _cross_encoder(settings, model, name)
    elif isinstance(settings, SparseSettings):
        rows, code = _sparse(settings, model, name)
    else:
        rows, code = _tokens(settings, model, name)
    if facts.loss:
        rows.append(["trained with", facts.loss])
    if facts.widths:
        rows.append(["also trained for the first numbers alone", ", ".join(map(str, sorted(facts.widths)))])
    ours, theirs = (f"```python\n{block.strip()}\n```" for block in code)
    usage = f"With fastbert:\n\n{ours}\n\nWith {LIBRARY}:\n\n{theirs}"
    return [Section("Usage", usage), Section("Settings", table(["", ""], rows)), Section("Widths", _widths(facts))]


def _widths(facts: RetrievalFacts) -> str:
    """Return a table of scores per width."""
    names = sorted({name for scores in facts.widths.values() for name in scores})
    if not names:
        return ""
    widths = sorted(facts.widths.items(), reverse=True)
    return table(["width", *names], [[width, *(scores.get(name, "-") for name in names)] for width, scores in widths])


def _embedder(settings: EmbedSettings, model: Mapping[str, Any], name: str) -> tuple[Rows, tuple[str, str]]:
    similarity = settings.similarity or "cosine"
    rows: Rows = [
        ["pooling", settings.pooling],
        *_vectors(settings.dense, settings.normalize, model),
        ["similarity", similarity],
        *_texts(settings.max_length, settings.prompts),
    ]
    if settings.default_prompt is not None:
        rows.append(["prompt by default", settings.default_prompt])
    # Texts without a prompt of their role get the default one in both libraries.
    roles = [role_prompt(role, settings.prompts) for role in ROLE_PROMPTS]
    prompts = ["" if role is None else _literal(role) for role in roles]
    normalize = ", normalize=True" if similarity == "cosine" and not settings.normalize else ""
    options = [(f", prompt={prompt}" if prompt else "") + normalize for prompt in prompts]
    score = {
        "euclidean": "-torch.cdist(queries, documents)",
        "manhattan": "-torch.cdist(queries, documents, p=1)",
    }.get(similarity, "queries @ documents.T")
    ours = [
        *(["import torch", ""] if "torch" in score else []),
        "from fastbert import load_embedder",
        "",
        f"model, tokenizer, settings = load_embedder({_literal(name)})",
        f"queries = model.embed([{_literal(QUERY)}], tokenizer{options[0]})",
        f"documents = model.embed({_documents()}, tokenizer{options[1]})",
        f"print({score})",
    ]
    theirs = [f", prompt_name={prompt}" if prompt else "" for prompt in prompts]
    return rows, ("\n".join(ours), _theirs("SentenceTransformer", name, *theirs))


def _cross_encoder(settings: CrossEncoderSettings, model: Mapping[str, Any], name: str) -> tuple[Rows, tuple[str, str]]:
    activation = reranking.activation_of(model, stored=settings.activation_class())
    rows: Rows = [
        ["score", "from 0 to 1: the sigmoid of the logit" if activation == "sigmoid" else "the logit"],
        *_texts(settings.max_length, {reranking.PROMPT: settings.prompt} if settings.prompt else {}, "pair"),
    ]
    ours = f"""
from fastbert import CrossEncoder

model = CrossEncoder({_literal(name)})
for ranked in model.rank({_literal(QUERY)}, {_documents()}):
    print(ranked.score, ranked.text)
"""
    theirs = f"""
from sentence_transformers import CrossEncoder

model = CrossEncoder({_literal(name)})
for ranked in model.rank({_literal(QUERY)}, {_documents()}, return_documents=True):
    print(ranked["score"], ranked["text"])
"""
    return rows, (ours, theirs)


def _sparse(settings: SparseSettings, model: Mapping[str, Any], name: str) -> tuple[Rows, tuple[str, str]]:
    weight = "log(1 + relu(logit))" if settings.logarithms == 1 else "log(1 + log(1 + relu(logit)))"
    rows: Rows = [
        ["weight of an entry of the vocabulary", weight],
        ["pooling over tokens", settings.pooling],
        ["entries of the vocabulary", model.get("vocab_size", "-")],
        ["similarity", "dot"],
        *_texts(settings.folder.max_length, settings.folder.prompts),
    ]
    ours = f"""
from fastbert import SparseEncoder

model = SparseEncoder({_literal(name)})
queries = model.encode([{_literal(QUERY)}], role="query").to_torch().to_dense()
documents = model.encode({_documents()}, role="document").to_torch().to_dense()
print(queries @ documents.T)
"""
    return rows, (ours, _theirs("SparseEncoder", name))


def _tokens(settings: TokenSettings, model: Mapping[str, Any], name: str) -> tuple[Rows, tuple[str, str]]:
    rows: Rows = [
        *_vectors(settings.dense, settings.normalize, model, "token"),
        ["similarity", "MaxSim"],
        *_texts(settings.folder.max_length, settings.folder.prompts),
        *([f"tokens per {role}, at most", length] for role, length in sorted(settings.lengths.items())),
    ]
    if settings.expansion is not None:
        attended = "that its tokens attend to" if settings.expansion.get("attend") else "that only attend to its tokens"
        rows.append(["queries are expanded to", f"{settings.expansion['length']} tokens by masks {attended}"])
    for role, words in sorted(settings.skiplist.items()):
        if words:
            rows.append([f"tokens of a {role} without a vector", " ".join(words)])
    ours = f"""
from fastbert import TokenEncoder, maxsim

model = TokenEncoder({_literal(name)})
queries = model.encode([{_literal(QUERY)}], role="query")
documents = model.encode({_documents()}, role="document")
print(maxsim(queries, documents))
"""
    return rows, (ours, _theirs("MultiVectorEncoder", name))


def _theirs(kind: str, name: str, query: str | None = None, document: str | None = None) -> str:
    """Return code for sentence-transformers that encodes a query and documents, by `encode` with these options or else
    by the methods for each, and compares them."""
    encode_query, encode_document = ("encode_query", "encode_document") if query is None else ("encode", "encode")
    return f"""
from sentence_transformers import {kind}

model = {kind}({_literal(name)})
queries = model.{encode_query}([{_literal(QUERY)}]{query or ""})
documents = model.{encode_document}({_documents()}{document or ""})
print(model.similarity(queries, documents))
"""


def _vectors(dense: Sequence[Dense], normalize: bool, model: Mapping[str, Any], unit: str = "text") -> Rows:
    width = len(dense[-1].weight) if dense else model.get("hidden_size", model.get("dim", "-"))
    rows: Rows = [[f"numbers per {unit}", width]]
    if dense:
        layers = [f"{layer.weight.shape[1]} to {len(layer.weight)}, {layer.activation}" for layer in dense]
        rows.append(["linear layers", "; ".join(layers)])
    return [*rows, ["divided by their length", "yes" if normalize else "no"]]


def _texts(max_length: int | None, prompts: Mapping[str, str], unit: str = "text") -> Rows:
    rows: Rows = [] if max_length is None else [[f"tokens per {unit}, at most", max_length]]
    return rows + [[f"prompt {_literal(name)}", _literal(text)] for name, text in sorted(prompts.items()) if text]


def _documents() -> str:
    return f"[{', '.join(map(_literal, DOCUMENTS))}]"


def _literal(text: str) -> str:
    """Return text as Python and the reader of a table see it, on one line."""
    return json.dumps(text, ensure_ascii=False)
