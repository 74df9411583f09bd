"""Sparse vectors over the vocabulary from a masked-LM head (SPLADE: Formal et al. 2021).

The weight of a token of the vocabulary is log(1 + relu(logit)), its maximum over the tokens of the text. Logits are
computed for some tokens at a time and reduced at once: (tokens, vocabulary) is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastbert.embeddings.embed import inferring
from fastbert.errors import UserError, require_whole
from fastbert.models import registry
from fastbert.models.finite import check_finite
from fastbert.models.fusibility import project
from fastbert.ops.native import matmul_table
from fastbert.packing import PackedBatch
from fastbert.retrieval.encoding import Device, Dtype, RetrievalModel, RetrievalOptions, folder_of
from fastbert.retrieval.ragged import SparseVectors
from fastbert.retrieval.rows import TokenRows
from fastbert.retrieval.settings import POOLINGS, SparseSettings, read_sparse_settings
from fastbert.tasks.rows import bounds, by_length

MOST_LOGITS = 1 << 24
"""Logits that are in memory at a time."""


@dataclass(frozen=True, kw_only=True)
class SparseOptions(RetrievalOptions):
    """Options of sparse vectors. None stands for the folder's setting."""

    pooling: str | None = None
    """Over the tokens of a text: "max" or "sum"."""
    top_k: int | None = None
    """Keep so many entries per text, those with the largest weights, of equal ones those with the smaller ids; None:
    all that are not 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooling not in (None, *POOLINGS):
            raise UserError(f"pooling={self.pooling!r} must be 'max' or 'sum' for sparse vectors")
        require_whole("top_k", self.top_k, 1, optional=True)


class SparseEncoder(RetrievalModel[SparseVectors]):
    """A model that gives a sparse vector over its vocabulary per text, as SPLADE.

    Reads folders of sentence-transformers' `SparseEncoder` with a `SpladePooling`, and plain folders with a masked-LM
    head. Attributes: `model`, `tokenizer`, `settings`, and `how`, device and dtype in words.

    Raises UserError for unsupported modules, by name, and for a folder without a masked-LM head, and CheckpointError
    for damaged files.

    Example:
        >>> import fastbert
        >>> encoder = fastbert.SparseEncoder("runs/mine/model", device="cpu")
        >>> vectors = encoder.encode(["a short one.", "one"])
        >>> len(vectors), vectors.vocab_size, vectors.offsets.shape
        (2, 9, torch.Size([3]))
    """

    options_type: type[SparseOptions] = SparseOptions

    def __init__(self, source: str | Path, *, device: Device = "auto", dtype: Dtype = "auto") -> None:
        """Load a folder, or its name in the Hub's local cache."""
        folder = folder_of(source)
        self.settings: SparseSettings = read_sparse_settings(folder)
        super().__init__(self.settings.folder, _load, device, dtype)

    def encode(self, texts: Iterable[str], **options: Any) -> SparseVectors:
        """Return the sparse vectors of texts, on the CPU, in the order of the texts.

        `options` are those of `SparseOptions`. On CPUs a text has the same bits in every batch. Truncated texts are
        counted in a warning. Raises UserError for wrong options, for an item that is not a text, by its index, and for
        weights that are NaN or infinite.
        """
        return SparseVectors.joined(self._encode(texts, options), self.model.config.vocab_size)

    def _compute(self, rows: TokenRows, options: SparseOptions, batch_tokens: int, first: int) -> SparseVectors:
        pooling = self.settings.pooling if options.pooling is None else options.pooling
        lengths = rows.rows.lengths
        entries: list[Any] = [None] * len(lengths)
        with inferring(self.model), matmul_table.same_in_every_batch():
            for indices in by_length(lengths, batch_tokens):
                vectors = self.vectors(rows.packed(indices).to(self.model.device), pooling)
                for text, weights in zip(indices.tolist(), vectors, strict=True):
                    check_finite(self.model, weights[None], lambda _: f"texts[{first + text}]")  # noqa: B023
                    entries[text] = _entries(weights, options.top_k)
        return SparseVectors(
            weights=torch.from_numpy(np.concatenate([weights for _, weights in entries])),
            offsets=torch.from_numpy(bounds(np.array([len(ids) for ids, _ in entries]))),
            token_ids=torch.from_numpy(np.concatenate([ids for ids, _ in entries])),
            vocab_size=self.model.config.vocab_size,
        )

    def vectors(self, batch: PackedBatch, pooling: str | None = None) -> Iterator[Tensor]:
        """Yield the vector of each row of a batch, fp32 (vocab_size,) on the CPU, without gradients; `pooling` None:
        the folder's."""
        states = self.model.base_model.encode(batch)[0]
        return self._weights(states, batch.cu_seqlens.diff().cpu().numpy(), pooling or self.settings.pooling)

    def _weights(self, states: Tensor, lengths: np.ndarray, pooling: str) -> Iterator[Tensor]:
        """Yield the weights of each text, fp32 (vocab_size,), from hidden states (tokens, hidden_size)."""
        head = self.model.cls.predictions
        x = head.transform(states)
        most = max(1, MOST_LOGITS // self.model.config.vocab_size)
        first, ends = 0, np.cumsum(lengths)
        while first < len(lengths):
            begin = int(ends[first] - lengths[first])
            # As many whole texts as fit, or one longer text in pieces.
            last = max(first + 1, int(np.searchsorted(ends, begin + most, side="right")))
            if int(ends[first]) - begin > most:
                pooled = None
                for piece in x[begin : ends[first]].split(most):
                    part = self._pooled(project(head.decoder, piece), pooling)
                    pooled = part if pooled is None else pooled + part if pooling == "sum" else pooled.maximum(part)
                assert pooled is not None
                yield self._damped(pooled, pooling)
            else:
                logits = project(head.decoder, x[begin : ends[last - 1]])
                for block in logits.split(lengths[first:last].tolist()):
                    yield self._damped(self._pooled(block, pooling), pooling)
            first = last

    def _pooled(self, logits: Tensor, pooling: str) -> Tensor:
        """Pool logits (tokens, vocab_size) to (vocab_size,): the sum of weights, or the maximum of the logits, of which
        the weights are a monotonic function."""
        return logits.amax(0) if pooling == "max" else self._of_logits(logits).sum(0)

    def _damped(self, pooled: Tensor, pooling: str) -> Tensor:
        return (self._of_logits(pooled) if pooling == "max" else pooled).cpu()

    def _of_logits(self, logits: Tensor) -> Tensor:
        weights = logits.float().relu()
        for _ in range(self.settings.logarithms):
            weights = weights.log1p()
        return weights


def _load(folder: Path, **options: Any) -> Any:
    model = registry.load_with_head(folder, "ForMaskedLM", **options)
    if any(name.startswith("cls.predictions") for name in model.new_weights):
        raise UserError(
            f"{folder}: holds no masked-LM head, so sparse vectors would be random; use the folder of a pre-trained or"
            " SPLADE model that has one"
        )
    return model


def _entries(weights: Tensor, top_k: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids, int32 ascending, and the weights, fp32, of the entries of a vector (vocab_size,)."""
    values = weights.numpy()
    ids = np.flatnonzero(values)
    if top_k is not None and len(ids) > top_k:
        ids = np.sort(ids[np.argsort(-values[ids], kind="stable")[:top_k]])
    return ids.astype(np.int32), values[ids]
