"""Score documents for queries by the vectors of a model: dense, sparse, or one per token.

A scorer encodes all queries, and documents some at a time, so that memory does not grow with the documents.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from fastbert.checkpoints.pipeline_files import role_prompt
from fastbert.embeddings.embed import Counts, EmbedOptions, embed, embed_chunks
from fastbert.embeddings.folder import load_embedder
from fastbert.embeddings.pooling import normalized
from fastbert.embeddings.roles import Similarity, drop_default_prompt, similarity_of
from fastbert.errors import UserError
from fastbert.models.encoder import EncoderModel
from fastbert.retrieval.encoding import Device, Dtype
from fastbert.retrieval.maxsim import maxsim
from fastbert.retrieval.ragged import SparseVectors, TokenVectors
from fastbert.retrieval.sparse import SparseEncoder
from fastbert.retrieval.token_vectors import TokenEncoder
from fastbert.search.exact import largest, top_k
from fastbert.tasks.inference import choose_inference
from fastbert.tokenizers.tokenizer import Tokenizer

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
        similarity: Similarity | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        **options: Any,
    ) -> None:
        """Load a folder; `options` are those of `EmbedOptions`.

        `similarity` is by default the folder's `similarity_fn_name`, else cosine. Prompts are named; by default they
        are the folder's "query", and "document", "passage" or "corpus", if it has them. Raises UserError for unknown
        prompts and unsupported similarities.
        """
        place, weights, words = choose_inference(device, dtype)
        self.model: EncoderModel
        self.tokenizer: Tokenizer
        self.model, self.tokenizer, settings = load_embedder(source, dtype=weights)
        self.similarity: Similarity = similarity or similarity_of(settings)
        drop_default_prompt(self.model, settings)
        if dtype == "int8":
            self.model.quantize("int8")
        self.model = self.model.to(place)
        self.options: dict[str, EmbedOptions] = {}
        for role, name in (("query", query_prompt), ("document", document_prompt)):
            check_prompt(role, name, settings.prompts)
            prompt = role_prompt(role, settings.prompts) if name is None else name
            self.options[role] = EmbedOptions(prompt=prompt, **options)
        self.how: str = f"{words} on {place}, {'cosines' if self.similarity == 'cosine' else 'dot products'} of vectors"
        self.counts: dict[str, Counts] = {side: Counts() for side in self.options}

    def queries(self, texts: Sequence[str], progress: Progress = lambda done: None) -> Tensor:
        """Return the vectors of queries, fp32 (queries, width)."""
        options = asdict(self.options["query"])
        return embed(self.model, texts, self.tokenizer, counts=self.counts["query"], progress=progress, **options)

    def documents(self, texts: Sequence[str], progress: Progress = lambda done: None) -> Iterator[Tensor]:
        """Yield the vectors of documents, fp32 (documents, width)."""
        options, counts = self.options["document"], self.counts["document"]
        return embed_chunks(self.model, texts, self.tokenizer, options, counts, progress)

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

    encoder_type: ClassVar[Any]
    comparison: ClassVar[str]
    chunk = DOCUMENTS_PER_CHUNK

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
        """Load a folder; `options` are those of the encoder but the role and the prefix, which the prompts name.
        Raises UserError for unknown prompts."""
        self.encoder: Any = self.encoder_type(source, device=device, dtype=dtype)
        self.how: str = f"{self.encoder.how}, {self.comparison}"
        self.options: dict[str, dict[str, Any]] = {}
        prompts = {name: text for name, text in self.encoder.folder.prompts.items() if text}
        for role, name in (("query", query_prompt), ("document", document_prompt)):
            check_prompt(role, name, prompts)
            self.options[role] = {"role": role, "prefix": None if name is None else prompts[name], **options}
        self.counts: dict[str, Counts] = {role: Counts() for role in self.options}

    def _encoded(self, side: str, texts: Sequence[str], progress: Progress) -> Iterator[V]:
        for first in range(0, len(texts), self.chunk):
            chunk = texts[first : first + self.chunk]
            yield from self.encoder.encode_chunks(chunk, counts=self.counts[side], **self.options[side])
            progress(first + len(chunk))

    def queries(self, texts: Sequence[str], progress: Progress = lambda done: None) -> V:
        """Return the vectors of queries."""
        return self._joined(list(self._encoded("query", texts, progress)))

    def documents(self, texts: Sequence[str], progress: Progress = lambda done: None) -> Iterator[V]:
        """Yield the vectors of documents, some at a time."""
        return self._encoded("document", texts, progress)

    def _joined(self, chunks: list[V]) -> V:
        raise NotImplementedError


class TokenScorer(_RaggedScorer[TokenVectors]):
    """Compare one vector per token by MaxSim, with options of `TokenOptions`; see `Scorer`."""

    encoder_type = TokenEncoder
    comparison = "MaxSim of the vectors of tokens"
    chunk = TOKEN_CHUNK

    def __init__(self, source: str | Path, *, query_length: int | None = None, **options: Any) -> None:
        """Load a folder; `query_length` expands queries only. Raises UserError for unknown prompts."""
        super().__init__(source, **options)
        self.options["query"]["query_length"] = query_length

    def _joined(self, chunks: list[TokenVectors]) -> TokenVectors:
        return TokenVectors.joined(chunks, self.encoder.width)

    def best(self, queries: TokenVectors, documents: TokenVectors, k: int) -> tuple[Tensor, Tensor]:
        """Return the k best scores per query, fp32 (queries, min(k, documents)), and indices int64."""
        return largest(maxsim(queries, documents), k)

    def scores(self, queries: TokenVectors, rows: Sequence[int], documents: TokenVectors) -> Tensor:
        """Return the scores of the queries in some rows, fp32 (rows, documents)."""
        return maxsim([queries[row] for row in rows], documents)


class SparseScorer(_RaggedScorer[SparseVectors]):
    """Compare sparse vectors by dot product, with options of `SparseOptions`; see `Scorer`. A document that shares no
    token with the query is not retrieved."""

    encoder_type = SparseEncoder
    comparison = "dot products of sparse vectors"

    def _joined(self, chunks: list[SparseVectors]) -> SparseVectors:
        return SparseVectors.joined(chunks, self.encoder.model.config.vocab_size)

    def best(self, queries: SparseVectors, documents: SparseVectors, k: int) -> tuple[Tensor, Tensor]:
        """Return the k best scores per query, fp32 (queries, min(k, documents)), and indices int64."""
        products = self.scores(queries, range(len(queries)), documents)
        return largest(products.masked_fill_(products <= 0, float("-inf")), k)

    def scores(self, queries: SparseVectors, rows: Sequence[int], documents: SparseVectors) -> Tensor:
        """Return the scores of the queries in some rows, fp32 (rows, documents)."""
        products = torch.empty(len(rows), len(documents))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            weights = documents.to_torch()
            for first in range(0, len(rows), SPARSE_QUERIES):
                dense = _dense(queries, rows[first : first + SPARSE_QUERIES])
                products[first : first + len(dense)] = (weights @ dense.T).T
        return products


SCORERS: dict[str, Any] = {"dense": DenseScorer, "tokens": TokenScorer, "sparse": SparseScorer}


def check_prompt(role: str, name: str | None, prompts: Collection[str]) -> None:
    """Raise UserError for the name of a prompt that a model lacks; None passes."""
    if name is not None and name not in prompts:
        names = ", ".join(map(repr, prompts)) or "no prompts"
        raise UserError(f"{role}_prompt={name!r} is unknown: the model has {names}")


def _dense(vectors: SparseVectors, rows: Sequence[int]) -> Tensor:
    """Return the vectors in some rows over the whole vocabulary, fp32 (rows, vocab_size)."""
    dense = torch.zeros(len(rows), vectors.vocab_size)
    for index, row in enumerate(rows):
        entries = slice(int(vectors.offsets[row]), int(vectors.offsets[row + 1]))
        dense[index, vectors.token_ids[entries].long()] = vectors.weights[entries]
    return dense
