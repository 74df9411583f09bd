"""An index of texts: queries, rescoring and hits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from fastbert.checkpoints.manifest import is_enabled
from fastbert.embeddings.embed import EmbedOptions, embed_chunks
from fastbert.embeddings.folder import load_embedder
from fastbert.embeddings.pooling import normalized
from fastbert.embeddings.roles import drop_default_prompt
from fastbert.errors import UserError, require_whole
from fastbert.search.arrays import open_array
from fastbert.search.build import DTYPES, BuildOptions, build_index, index_vectors
from fastbert.search.exact import check_finite, check_vectors
from fastbert.search.faiss_files import FaissRows
from fastbert.search.fingerprint import model_fingerprint
from fastbert.search.format import FAISS, SCALES, IndexSettings, read_settings, vectors_name
from fastbert.search.rows import best_rows
from fastbert.search.texts import Texts
from fastbert.tasks.inference import choose_inference

if TYPE_CHECKING:
    from fastbert.models.encoder import EncoderModel
    from fastbert.reranking.cross_encoder import CrossEncoder
    from fastbert.tokenizers.tokenizer import Tokenizer

CANDIDATES_PER_HIT, LEAST_CANDIDATES = 4, 100
PROBES = 32
QUERY_BATCH = 256
"""Queries that are searched at a time."""
MOST_CANDIDATES = 1 << 22
"""Candidates of all queries that are in memory at a time, unless one query has more."""


@dataclass(frozen=True)
class Hit:
    """A text of an index, ranked for a query."""

    rank: int
    """From 1."""
    score: float
    """The dot product, or a reranker's score."""
    id: str
    text: str
    index: int
    """The text's number, from 0."""


class Index:
    """An index folder, open for queries: vectors are memory-mapped, and a hit's text is read when it is returned.

    Attributes: `settings`, the content of index.json; `folder`.
    """

    def __init__(self, folder: Path, settings: IndexSettings, device: str, dtype: str, model: str | None) -> None:
        self.folder = folder
        self.settings = settings
        self._device, self._dtype, self._source = device, dtype, model
        self._embedder: tuple[EncoderModel, Tokenizer] | None = None
        self._texts = Texts(folder, settings.count)
        shape = (settings.count, settings.width)
        self._faiss = FaissRows(folder / FAISS, *shape) if settings.store == "faiss" else None
        self._rows = self._scales = self._copy = None
        if settings.store != "faiss":
            self._rows = open_array(folder / vectors_name(settings.store), DTYPES[settings.store], shape)
        if settings.store == "int8":
            self._scales = open_array(folder / SCALES, DTYPES["fp32"], shape[:1])
        if settings.rescore:
            self._copy = open_array(folder / vectors_name("fp16"), DTYPES["fp16"], shape)

    @classmethod
    def build(
        cls, out: str | Path, texts: Iterable[str] | Iterable[tuple[str, str]], model: str | Path, **options: Any
    ) -> Index:
        """Embed texts and write an index of them to a folder; return it, open.

        `texts` are strings, whose ids are their numbers from 0, or pairs of an id and a text. `options` are those of
        `BuildOptions`, and `device`, `dtype`, `overwrite` of `build_index`. Raises UserError as `build_index` does.
        """
        machine = {name: options.pop(name) for name in ("device", "dtype") if name in options}
        overwrite = options.pop("overwrite", False)
        build_index(out, _with_ids(texts), model, _build_options(options), overwrite=overwrite, **machine)
        return cls.open(out, model=model, **machine)

    @classmethod
    def from_vectors(
        cls,
        out: str | Path,
        vectors: Tensor | np.ndarray,
        texts: Iterable[str] | Iterable[tuple[str, str]],
        *,
        overwrite: bool = False,
        **options: Any,
    ) -> Index:
        """Write an index of vectors that come from elsewhere, fp32 or fp16 (n, width), and return it, open.

        It is queried with vectors. See `build` for texts and options. Raises UserError as `index_vectors` does.
        """
        index_vectors(out, vectors, _with_ids(texts), _build_options(options), overwrite=overwrite)
        return cls.open(out)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        model: str | Path | None = None,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto",
        verify: bool = True,
    ) -> Index:
        """Open an index. `model` is the place of its model if it was moved; `device` and `dtype` compute the vectors of
        queries. `verify` compares the checksums of all files, which reads them once; FASTBERT_VERIFY=0 skips it too.

        Raises UserError for a folder that is no index, CheckpointError for damaged files; the model is loaded, and
        compared with the index's, on the first query that is a text.
        """
        folder = Path(folder)
        settings = read_settings(folder, verify=verify and is_enabled())
        return cls(folder, settings, device, dtype, None if model is None else str(model))

    def __len__(self) -> int:
        return self.settings.count

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file of texts."""
        self._texts.close()

    @overload
    def query(
        self,
        queries: str,
        top: int = ...,
        *,
        prompt: str | None = ...,
        reranker: CrossEncoder | None = ...,
        candidates: int = ...,
        probes: int = ...,
    ) -> list[Hit]: ...
    @overload
    def query(
        self,
        queries: list[str] | tuple[str, ...] | Tensor | np.ndarray,
        top: int = ...,
        *,
        prompt: str | None = ...,
        reranker: CrossEncoder | None = ...,
        candidates: int = ...,
        probes: int = ...,
    ) -> list[list[Hit]]: ...
    def query(
        self,
        queries: str | list[str] | tuple[str, ...] | Tensor | np.ndarray,
        top: int = 10,
        *,
        prompt: str | None = None,
        reranker: CrossEncoder | None = None,
        candidates: int = 100,
        probes: int = PROBES,
    ) -> list[Hit] | list[list[Hit]]:
        """Return the hits of a text, best first, or those of each of several texts or vectors, fp32 (q, width).

        `prompt` names the model's prompt before each query. A `reranker` orders the best `candidates` anew, by the
        texts of queries. Raises UserError for empty queries, and as `search` and `embed` do.
        """
        require_whole("top", top, 1)
        require_whole("candidates", candidates, 1)
        texts: list[str] = []
        if isinstance(queries, Tensor | np.ndarray):
            if reranker is not None:
                raise UserError("a reranker reads the texts of queries: give texts, or leave it out")
            vectors = self._vectors(queries)
        else:
            texts = [queries] if isinstance(queries, str) else list(queries)
            vectors = self.embed(texts, prompt)
        scores, indices = self.search(vectors, top if reranker is None else max(top, candidates), probes=probes)
        results = []
        for row in range(len(vectors)):
            hits = self._hits(scores[row].tolist(), indices[row].tolist())
            results.append(hits if reranker is None else _reranked(reranker, texts[row], hits, top))
        return results[0] if isinstance(queries, str) else results

    def embed(self, texts: Sequence[str], prompt: str | None = None) -> Tensor:
        """Return the vectors of queries, fp32 (q, width) on the CPU.

        Raises UserError for an empty query, by its index, for an index without a model, and for a model other than that
        of the index.
        """
        for index, text in enumerate(texts):
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"queries[{index}] is {text!r}: give the words to search for")
        if not texts:
            return torch.empty(0, self.settings.width)
        model, tokenizer = self._loaded()
        options = EmbedOptions(prompt=self.settings.query_prompt if prompt is None else prompt)
        return torch.cat(list(embed_chunks(model, texts, tokenizer, options)))

    def search(self, queries: Tensor | np.ndarray, top: int, *, probes: int = PROBES) -> tuple[Tensor, Tensor]:
        """Return the scores, fp32 (q, min(top, n)), and the numbers of the texts, int64 of the same shape, best first.

        queries fp32 (q, width). Equal scores are ordered by number. fp16 and fp32 are exact; of int8 and FAISS the best
        max(4 top, 100) are scored again with the fp16 copy. An approximate FAISS index ends a row with -1, and scores
        of -inf, where it finds fewer. Raises UserError for other shapes and dtypes, and for vectors that are not
        finite.
        """
        require_whole("top", top, 1)
        require_whole("probes", probes, 1)
        queries = self._vectors(queries)
        check_finite("queries", queries)
        top = min(top, len(self))
        if self.settings.similarity == "cosine":
            queries = normalized(queries)
        rescored = self._copy is not None
        candidates = min(len(self), max(CANDIDATES_PER_HIT * top, LEAST_CANDIDATES)) if rescored else top
        scores, indices = torch.empty(len(queries), top), torch.empty(len(queries), top, dtype=torch.int64)
        rows = min(QUERY_BATCH, max(1, MOST_CANDIDATES // candidates))
        for batch, *results in zip(queries.split(rows), scores.split(rows), indices.split(rows), strict=True):
            best = self._candidates(batch, candidates, probes)
            if rescored:
                best = self._rescored(batch, best[1], top)
            for result, values in zip(results, best, strict=True):
                result.copy_(values)
        return scores, indices

    def _vectors(self, queries: Tensor | np.ndarray) -> Tensor:
        """Return vectors of queries, fp32 (q, width), on the CPU. Raises UserError for other dtypes and shapes."""
        check_vectors("queries", queries, (torch.float32, np.dtype(np.float32)), width=self.settings.width)
        # An array is copied: it may be read-only, or not contiguous.
        return torch.from_numpy(np.array(queries)) if isinstance(queries, np.ndarray) else queries.detach().cpu()

    def _candidates(self, queries: Tensor, count: int, probes: int) -> tuple[Tensor, Tensor]:
        """Return the best scores and indices by the vectors that are scanned, or by FAISS: (q, count) each."""
        if self._faiss is None:
            assert self._rows is not None
            return best_rows(queries, self._rows, count, scales=self._scales)
        scores, indices = map(torch.from_numpy, self._faiss.search(queries.numpy(), count, probes))
        scores[indices < 0] = float("-inf")
        return scores, indices

    def _rescored(self, queries: Tensor, candidates: Tensor, top: int) -> tuple[Tensor, Tensor]:
        """Return the best of the candidates (q, c) by their fp16 vectors, with the scores of an fp16 index."""
        assert self._copy is not None
        scores = torch.full((len(queries), top), float("-inf"))
        indices = torch.full((len(queries), top), -1)
        for row, of_query in enumerate(candidates):
            # In ascending order, so that equal scores are ordered by number.
            numbers = of_query[of_query >= 0].sort().values
            if len(numbers):
                best, columns = best_rows(queries[row : row + 1], self._copy[numbers.numpy()], top)
                scores[row, : best.shape[1]], indices[row, : best.shape[1]] = best[0], numbers[columns[0]]
        return scores, indices

    def _hits(self, scores: list[float], indices: list[int]) -> list[Hit]:
        pairs = [(score, index) for score, index in zip(scores, indices, strict=True) if index >= 0]
        return [Hit(rank, score, *self._texts[index], index) for rank, (score, index) in enumerate(pairs, 1)]

    def _loaded(self) -> tuple[EncoderModel, Tokenizer]:
        """Return the model of the index, loaded once, after it was compared with the record in index.json."""
        if self._embedder is None:
            record = self.settings.model
            if record is None:
                raise UserError(f"{self.folder}: was made of vectors, without a model: query it with vectors")
            source = self._source or record.source
            try:
                digest = model_fingerprint(source)
            except UserError as error:
                if self._source is not None:
                    raise
                raise UserError(
                    f"{self.folder}: its model is missing ({error}); name its folder with --model"
                ) from None
            if digest != record.sha256:
                raise UserError(
                    f"{self.folder}: was made by another model (SHA-256 {record.sha256[:12]}) than {source}"
                    f" ({digest[:12]}): query it with its own model, or make the index again"
                )
            device, weights, _ = choose_inference(self._device, self._dtype)
            model, tokenizer, settings = load_embedder(source, dtype=weights)
            if self._dtype == "int8":
                model.quantize("int8")
            drop_default_prompt(model, settings)
            self._embedder = (model.to(device), tokenizer)
        return self._embedder


def _reranked(reranker: CrossEncoder, query: str, hits: list[Hit], top: int) -> list[Hit]:
    """Return the best `top` hits of a query as a reranker orders them, with its scores."""
    ranking = reranker.rank(query, [hit.text for hit in hits], top=top)
    return [replace(hits[item.index], rank=rank, score=item.score) for rank, item in enumerate(ranking, 1)]


def _with_ids(texts: Iterable[str] | Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    texts_or_pairs: Iterable[str | tuple[str, str]] = texts
    for index, text in enumerate(texts_or_pairs):
        yield (str(index), text) if isinstance(text, str) else text


def _build_options(options: dict[str, Any]) -> BuildOptions:
    unknown = sorted(set(options) - set(BuildOptions.__dataclass_fields__))
    if unknown:
        known = ", ".join(BuildOptions.__dataclass_fields__)
        raise UserError(f"{unknown[0]}={options[unknown[0]]!r} is no option of an index; there are {known}")
    return BuildOptions(**options)
