"""Score pairs of a query and a text with a cross-encoder, and rank the texts.

Pairs are tokenized in chunks, truncated as transformers' "longest_first" does, packed without padding and computed
longest first. On CPUs a pair's score has the same bits in every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastbert.embeddings.embed import inferring
from fastbert.embeddings.rows import check_texts
from fastbert.errors import UserError, require_whole
from fastbert.io.text import has_surrogates
from fastbert.models.heads.sequence import ForSequenceClassification
from fastbert.ops.native import matmul_table
from fastbert.reranking.settings import ACTIVATIONS, SHORTEST, activation_of, several_labels
from fastbert.tasks.predicting import outputs_of
from fastbert.tasks.rows import Rows, TaskBatch
from fastbert.tasks.texts import Regression
from fastbert.tokenizers.fit import check_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer

CHUNK_PAIRS = 8192
"""Pairs that are tokenized, sorted and computed at a time."""


@dataclass(frozen=True)
class Ranked:
    """A text with its score, and its index among the texts."""

    index: int
    score: float
    text: str


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """Options of scores."""

    activation: str | None = None
    """"sigmoid" or "identity", applied to the logits; None: as the model's config says, else "sigmoid"."""
    max_length: int | None = None
    """Tokens per pair, special ones included; None: as many as tokenizer and model allow."""
    batch_tokens: int | None = None
    """Tokens per batch; None: 4,096, on a GPU 65,536. Scores do not depend on it."""

    def __post_init__(self) -> None:
        if self.activation not in (None, *ACTIVATIONS):
            raise UserError(f"activation={self.activation!r} must be 'sigmoid' or 'identity'")
        require_whole("max_length", self.max_length, SHORTEST, optional=True)
        require_whole("batch_tokens", self.batch_tokens, 1, optional=True)


class _Scores(Regression):
    """A task whose outputs are not rounded to the 16 bits of a model's weights."""

    def outputs(self, model: Any, batch: TaskBatch) -> list[np.ndarray]:
        """Return the logits of each row."""
        return list(model.exact_logits(batch.inputs).cpu().numpy())


def rank(
    model: ForSequenceClassification,
    query: str,
    texts: Sequence[str],
    tokenizer: Tokenizer,
    *,
    top: int | None = None,
    progress: Callable[[int], None] = lambda texts: None,
    **options: Any,
) -> list[Ranked]:
    """Return texts by their score for a query, best first; texts with equal scores keep their order.

    `top` keeps the best ones only. `options` are those of `RankOptions`; scores and errors are those of `score_pairs`.
    An empty text is scored like any other. Raises UserError for a query that is empty or white space.
    """
    check_query(query)
    require_whole("top", top, 1, optional=True)
    check_list(texts)
    scores = score_pairs(model, [query] * len(texts), texts, tokenizer, RankOptions(**options), progress).numpy()
    order = np.argsort(-scores, kind="stable")[:top]
    return [Ranked(index, float(scores[index]), texts[index]) for index in order.tolist()]


def check_query(query: object) -> None:
    """Raise UserError for a query that is not a string, is empty or white space, or has a lone surrogate."""
    if not isinstance(query, str):
        raise UserError(f"query must be a string, not {type(query).__name__}")
    if not query.strip():
        raise UserError(f"query={query!r} is empty: give the words to rank texts by")
    if has_surrogates(query):
        raise UserError(f"query={query!r} holds a lone surrogate (half of a character): remove it")


def check_list(texts: object) -> None:
    """Raise UserError for anything but a sequence of texts."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Sequence):
        raise UserError(f"texts must be a list of strings, not {type(texts).__name__}")


def score_pairs(
    model: ForSequenceClassification,
    queries: Sequence[str],
    texts: Sequence[str],
    tokenizer: Tokenizer,
    options: RankOptions | None = None,
    progress: Callable[[int], None] = lambda pairs: None,
) -> Tensor:
    """Return the score of each query with the text of the same index, fp32 (pairs,) on the CPU.

    The model computes on its device and in its dtype, quantised if it is, without dropout and gradients; the activation
    is applied in fp32. Either text of a pair may be empty. `progress` is called with the number of pairs done.

    Raises UserError for a model with several labels or without a trained classifier, for an item that is not a text, by
    its index, for a tokenizer whose size is not the model's, and for scores that are NaN or infinite.
    """
    options = options or RankOptions()
    check_scorer(model)
    check_tokenizer(tokenizer, model.config.vocab_size)
    activation = options.activation or activation_of(model.config.extra)
    limit = _limit(model, tokenizer, options.max_length)
    check_texts(queries)
    check_texts(texts)
    chunks = []
    with inferring(model), matmul_table.same_in_every_batch():
        for first in range(0, len(texts), CHUNK_PAIRS):
            chunk = slice(first, first + CHUNK_PAIRS)
            outputs = outputs_of(
                _Scores(),
                model,
                _rows(tokenizer, queries[chunk], texts[chunk], limit),
                batch_tokens=options.batch_tokens,
                progress=lambda rows, _: progress(first + rows),  # noqa: B023 - called at once
                source=lambda row: f"texts[{first + row}]",  # noqa: B023 - called at once
            )
            chunks.append(torch.from_numpy(np.concatenate(outputs)))
    logits = torch.cat(chunks) if chunks else torch.empty(0)
    return logits.sigmoid() if activation == "sigmoid" else logits


def check_scorer(model: Any, source: object = "the model") -> None:
    """Raise UserError for a model that is not a trained classifier with one label."""
    if not isinstance(model, ForSequenceClassification):
        raise UserError(
            f"{source}: is a {type(model).__name__}, and ranking needs a ...ForSequenceClassification with one label"
        )
    if model.config.num_labels != 1:
        raise UserError(several_labels(source, model.config.num_labels))
    if any(name.startswith("classifier.") for name in model.new_weights):
        raise UserError(
            f"{source}: its files hold no classifier, so its scores would be random; use the folder of a trained"
            " cross-encoder"
        )


def _limit(model: ForSequenceClassification, tokenizer: Tokenizer, max_length: int | None) -> int:
    positions = model.config.max_sequence_length
    if max_length is not None and max_length > positions:
        raise UserError(f"max_length={max_length} is more than the {positions} positions of the model; lower it")
    special = tokenizer.num_special_tokens_to_add(pair=True)
    if max_length is not None and max_length <= special:
        raise UserError(f"max_length={max_length} leaves no room for text: {special} tokens of a pair are special")
    return max_length or min(tokenizer.model_max_length, positions)


def _rows(tokenizer: Tokenizer, queries: Sequence[str], texts: Sequence[str], limit: int) -> Rows:
    """Tokenize pairs, with the longer text of a pair truncated first."""
    batch = tokenizer.pack(queries, texts, max_length=limit)
    return Rows(
        input_ids=batch.input_ids.numpy().astype(np.int32),
        token_type_ids=batch.token_type_ids.numpy().astype(np.int32),
        offsets=batch.cu_seqlens.numpy().astype(np.int64),
        examples=np.arange(len(texts)),
    )
