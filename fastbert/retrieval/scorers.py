"""Score documents for queries by the vectors of a model: dense, sparse, or one per token.

A scorer encodes all queries, and documents some at a time, so that memory does not grow with the documents.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from fastbert.checkpoints.pipeline_files import PROMPTS
from fastbert.checkpoints.source import find_source
from fastbert.embeddings.embed import Counts, EmbedOptions, embed_chunks
from fastbert.embeddings.folder import load_embedder
from fastbert.embeddings.pooling import normalized
from fastbert.errors import UserError
from fastbert.io.untrusted_input import read_json_object, shown
from fastbert.retrieval.encoding import Device, Dtype
from fastbert.retrieval.maxsim import maxsim
from fastbert.retrieval.ragged import SparseVectors, TokenVectors
from fastbert.retrieval.sparse import SparseEncoder
from fastbert.retrieval.token_vectors import TokenEncoder
from fastbert.search.exact import largest, top_k
from fastbert.tasks.inference import choose_inference

KINDS = ("dense", "tokens", "sparse")
SIMILARITIES = ("cosine", "dot")
# Names of prompts that a folder may have for each side, in the order of preference.
QUERY_PROMPTS, DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")
TOKEN_CHUNK = 256
"""Documents whose tokens' vectors are in memory at a time."""
SPARSE_QUERIES = 256
"""Queries that are dense over the vocabulary at a time."""
DOCUMENTS_PER_CHUNK = 1024

V = TypeVar("V")
Progress = Callable[[int], None]


class Scorer(Protocol[V]):
    """A model that encodes queries and documents, and scores pairs of these."""

    how: str
    """Device and dtype, and how vectors are compared, in words."""
    counts: Mapping[str, Counts]
    """Numbers of texts, tokens and truncated texts, of the "query" and the "document" side."""

    def queries(self, texts: Sequence[str], progress: Progress) -> V:
        """Return the vectors of queries; `progress` gets the number done."""
        ...

    def documents(self, texts: Sequence[str], progress: Progress) -> Iterator[V]:
        """Yield the vectors of documents, some at a time; `progress` gets the number done."""
        ...

    def best(self, queries: V, documents: V, k: int) -> tuple[Tensor, Tensor]:
        """Return the k best scores per query, fp32 (queries, min(k, documents)), and int64 indices of the documents;
        equal scores are ordered by index. A score of -inf is that of a document that is not retrieved."""
        ...

    def scores(self, queries: V, rows: Sequence[int], documents: V) -> Tensor:
        """Return the scores of the queries in some rows, fp32 (rows, documents)."""
        ...


class DenseScorer:
    """Compare one vector per text, by cosine or by dot product; see `Scorer`."""

    def __init__(
        self,
        source: str | Path,
        *,
        device: Device = "auto",
        dtype: Dtype = "fp32",
        similarity: Literal["cosine", "dot"] | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        **options: Any,
    ) -> None:
        """Load a folder; `options` are those of `EmbedOptions`.

        `similarity` is by default the folder's `similarity_fn_name`, else cosine. Prompts are named; by default they
        are the folder's "query", and "document", "passage" or "corpus", else its default prompt. Raises UserError for
        unknown prompts and unsupported similarities.
        """
        place, weights, words = choose_inference(device, dtype)
        self.similarity = similarity or stored_similarity(source)
        self.model, self.tokenizer, settings = load_embedder(source, dtype=weights)
        if dtype == "int8":
            self.model.quantize("int8")
        self.model = self.model.to(place)
        names = list(settings.prompts)
        self.options = {
            "query": EmbedOptions(prompt=_prompt("query_prompt", query_prompt, QUERY_PROMPTS, names), **options),
            "document": EmbedOptions(
                prompt=_prompt("document_prompt", document_prompt, DOCUMENT_PROMPTS, names), **options
            ),
        }
        self.how = f"{words} on {place}, {'cosines' if self.similarity == 'cosine' else 'dot products'} of vectors"
        self.counts = {side: Counts() for side in self.options}

    def _encoded(self, side: str, texts: Sequence[str], progress: Progress) -> Iterator[Tensor]:
        counts = self.counts[side]
        yield from embed_chunks(self.model, texts, self.tokenizer, self.options[side], counts, progress)

    def queries(self, texts: Sequence[str], progress: Progress = lambda done: None) -> Tensor:
        """Return the vectors of queries, fp32 (queries, width)."""
        return torch.cat(list(self._encoded("query", texts, progress)))

    def documents(self, texts: Sequence[str], progress: Progress = lambda done: None) -> Iterator[Tensor]:
        """Yield the vectors of documents, fp32 (documents, width)."""
        return self._encoded("document", texts, progress)

    def best(self, queries: Tensor, documents: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the k best scores per query, fp32, and indices int64, of vectors as `queries` and `documents` return
        them, or of the first numbers of each: fp32 (queries, width) and (documents, width)."""
        return top_k(self._compared(queries), self._compared(documents), k)

    def scores(self, queries: Tensor, rows: Sequence[int], documents: Tensor) -> Tensor:
        """Return the scores of the queries, fp32 (queries, width), in some rows with documents, fp32 (documents,
        width): fp32 (rows, documents)."""
        return self._compared(queries[list(rows)]) @ self._compared(documents).T

    def _compared(self, vectors: Tensor) -> Tensor:
        return normalized(vectors) if self.similarity == "cosine" else vectors


class _RaggedScorer(Generic[V]):
    """The base of scorers whose encoders have roles."""

    encoder: Any
    chunk = DOCUMENTS_PER_CHUNK

    def __init__(self, prompts: Mapping[str, str | None], options: Mapping[str, Any]) -> None:
        """Take the names of prompts by side, and options of the encoder."""
        self.counts = {side: Counts() for side in prompts}
        self.options: dict[str, dict[str, Any]] = {}
        known = self.encoder.folder.prompts
        for side, name in prompts.items():
            prefix = None
            if name is not None:
                prefix = known[_prompt(f"{side}_prompt", name, (), [key for key, text in known.items() if text])]
            self.options[side] = {"role": side, "prefix": prefix, **options}

    def _encoded(self, side: str, texts: Sequence[str], progress: Progress) -> Iterator[V]:
        for first in range(0, len(texts), self.chunk):
            chunk = texts[first : first + self.chunk]
            yield from self.encoder.encode_chunks(chunk, counts=self.counts[side], **self.options[side])
            progress(first + len(chunk))

    def queries(self, texts: Sequence[str], progress: Progress = lambda done: None) -> V:
        """Return the vectors of queries."""
        parts = list(self._encoded("query", texts, progress))
        kind: Any = type(parts[0])
        size = self.encoder.model.config.vocab_size if kind is SparseVectors else self.encoder.width
        vectors: V = kind.joined(parts, size)
        return vectors

    def documents(self, texts: Sequence[str], progress: Progress = lambda done: None) -> Iterator[V]:
        """Yield the vectors of documents, some at a time."""
        return self._encoded("document", texts, progress)


class TokenScorer(_RaggedScorer[TokenVectors]):
    """Compare one vector per token by MaxSim; see `Scorer`."""

    chunk = TOKEN_CHUNK

    def __init__(
        self,
        source: str | Path,
        *,
        device: Device = "auto",
        dtype: Dtype = "fp32",
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        query_length: int | None = None,
        **options: Any,
    ) -> None:
        """Load a folder; `options` are those of `TokenOptions` but the role and the prefix, which the prompts name.
        Raises UserError for unknown prompts."""
        self.encoder = TokenEncoder(source, device=device, dtype=dtype)
        super().__init__({"query": query_prompt, "document": document_prompt}, options)
        self.options["query"]["query_length"] = query_length
        self.how = f"{self.encoder.how}, MaxSim of the vectors of tokens"

    def best(self, queries: TokenVectors, documents: TokenVectors, k: int) -> tuple[Tensor, Tensor]:
        """Return the k best scores per query, fp32 (queries, min(k, documents)), and indices int64."""
        return largest(maxsim(queries, documents), k)

    def scores(self, queries: TokenVectors, rows: Sequence[int], documents: TokenVectors) -> Tensor:
        """Return the scores of the queries in some rows, fp32 (rows, documents)."""
        return maxsim([queries[row] for row in rows], documents)


class SparseScorer(_RaggedScorer[SparseVectors]):
    """Compare sparse vectors by dot product; see `Scorer`. A document that shares no token with the query is not
    retrieved."""

    def __init__(
        self,
        source: str | Path,
        *,
        device: Device = "auto",
        dtype: Dtype = "fp32",
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        **options: Any,
    ) -> None:
        """Load a folder; `options` are those of `SparseOptions` but the role and the prefix, which the prompts name.
        Raises UserError for unknown prompts."""
        self.encoder = SparseEncoder(source, device=device, dtype=dtype)
        super().__init__({"query": query_prompt, "document": document_prompt}, options)
        self.how = f"{self.encoder.how}, dot products of sparse vectors"

    def best(self, queries: SparseVectors, documents: SparseVectors, k: int) -> tuple[Tensor, Tensor]:
        """Return the k best scores per query, fp32 (queries, min(k, documents)), and indices int64."""
        parts = []
        for first in range(0, len(queries), SPARSE_QUERIES):
            products = self.scores(queries, range(first, min(first + SPARSE_QUERIES, len(queries))), documents)
            parts.append(largest(products.masked_fill(products <= 0, float("-inf")), k))
        return torch.cat([scores for scores, _ in parts]), torch.cat([indices for _, indices in parts])

    def scores(self, queries: SparseVectors, rows: Sequence[int], documents: SparseVectors) -> Tensor:
        """Return the scores of the queries in some rows, fp32 (rows, documents)."""
        dense = torch.zeros(len(rows), queries.vocab_size)
        for index, row in enumerate(rows):
            entries = slice(int(queries.offsets[row]), int(queries.offsets[row + 1]))
            dense[index, queries.token_ids[entries].long()] = queries.weights[entries]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            products: Tensor = documents.to_torch() @ dense.T
        return products.T.contiguous()


SCORERS: dict[str, Any] = {"dense": DenseScorer, "tokens": TokenScorer, "sparse": SparseScorer}


def stored_similarity(source: str | Path) -> Literal["cosine", "dot"]:
    """Return the similarity that a folder names, or cosine. Raises UserError for a different one."""
    path = find_source(source) / PROMPTS
    name = read_json_object(path).get("similarity_fn_name") if os.path.lexists(path) else None
    if name in (None, "cosine"):
        return "cosine"
    if name == "dot":
        return "dot"
    raise UserError(f"{path}: similarity_fn_name {shown(name)} is not supported; choose {' or '.join(SIMILARITIES)}")


def _prompt(argument: str, name: str | None, usual: Sequence[str], known: Sequence[str]) -> str | None:
    """Return the name of a prompt: the chosen one, else the first of the usual ones that exists. Raises UserError."""
    if name is None:
        return next((prompt for prompt in usual if prompt in known), None)
    if name not in known:
        raise UserError(f"{argument}={name!r} is unknown: the model has {', '.join(map(repr, known)) or 'no prompts'}")
    return name
