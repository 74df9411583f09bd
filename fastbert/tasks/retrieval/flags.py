"""Flags of the tasks of retrieval. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from fastbert.errors import UserError
from fastbert.flags import flag, rare

LossName = Literal[
    "info-nce",
    "triplet",
    "margin-mse",
    "kl",
    "cosent",
    "angle",
    "cosine",
    "contrastive",
    "online-contrastive",
    "bce",
    "list-ce",
    "lambda",
    "mse",
]


@dataclass(frozen=True, kw_only=True)
class GroupFlags:
    """Groups of texts in files, and their loss."""

    GROUP: ClassVar = "With --task embedding, rerank, splade, colbert"

    loss: LossName | None = rare(None)
    """Loss. Of a query with positives and negatives: info-nce, triplet; for rerank bce, list-ce, lambda. Of pairs with
    scores: cosent, angle, cosine, contrastive, online-contrastive; for rerank bce. Of a --teacher's scores: margin-mse,
    kl; for rerank margin-mse, mse (default: info-nce, cosent for scores; bce, list-ce for lists)."""
    anchor_column: str | None = rare(None)
    """Column or key of the query or anchor."""
    positive_column: str | None = rare(None)
    """Column or key of the text that belongs to it."""
    negative_column: tuple[str, ...] = rare(())
    """Columns or keys of texts that do not belong to it, or of a list of them."""
    score_range: tuple[float, float] | None = rare(None)
    """Lowest and highest score of a file (default: 0 to 1, -1 to 1 or 0 to 5, by its scores)."""
    query_prompt: str | None = rare(None)
    """Text in front of each query, "query: " for example (default: that of the model's folder)."""
    document_prompt: str | None = rare(None)
    """Text in front of each other text (default: that of the model's folder; rerank has none)."""


@dataclass(frozen=True, kw_only=True)
class VectorFlags:
    """How vectors are compared."""

    GROUP: ClassVar = "With --task embedding, splade, colbert"

    loss_temperature: float | None = rare(None)
    """Temperature of info-nce and kl, by which similarities are divided (default: 0.05; splade, colbert: 1)."""
    symmetric: bool = rare(False)
    """Also find each positive's anchor among all anchors (info-nce)."""
    margin: float | None = rare(None)
    """Margin of triplet and contrastive losses (default: 0.2 for cosines, 5 for distances; 0.5 for contrastive)."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingFlags:
    """One vector per text."""

    GROUP: ClassVar = "With --task embedding"

    pooling: Literal["mean", "max", "cls"] | None = rare(None)
    """Pooling of the tokens' vectors (default: the folder's, else mean)."""
    normalize: bool = rare(False)
    """Divide vectors by their length, in training and whenever the model is used."""
    similarity: Literal["cosine", "dot"] | None = rare(None)
    """Similarity of two vectors (default: the folder's, else cosine)."""
    matryoshka: tuple[int, ...] = rare(())
    """Widths to which vectors may be cut later, the full one included, such as 384 256 128 64: the loss is the mean of
    theirs."""


@dataclass(frozen=True, kw_only=True)
class SparseFlags:
    """Sparse vectors."""

    GROUP: ClassVar = "With --task splade"

    query_flops: float = rare(5e-5)
    """Weight of the FLOPS regulariser of queries, reached quadratically in the first third of the training."""
    document_flops: float = rare(3e-5)
    """Weight of the FLOPS regulariser of documents, likewise."""


@dataclass(frozen=True, kw_only=True)
class TokenVectorFlags:
    """One vector per token."""

    GROUP: ClassVar = "With --task colbert"

    token_width: int | None = rare(None)
    """Width of a token's vector (default: the folder's, else 128)."""
    query_length: int | None = rare(None)
    """Expand queries by [MASK] to this many tokens, which is also their limit; 0: no expansion (default: the folder's,
    else 32)."""


def check_group_flags(settings: GroupFlags) -> None:
    """Raise `UserError` for values out of range."""
    limits = settings.score_range
    if limits is not None and not (len(limits) == 2 and -math.inf < limits[0] < limits[1] < math.inf):
        shown = " ".join(f"{value:g}" for value in limits)
        raise UserError(f"--score-range {shown} must be the lowest and the highest score, two finite numbers")


def check_vector_flags(settings: VectorFlags) -> None:
    """Raise `UserError` for values out of range."""
    for name in ("loss_temperature", "margin"):
        value = getattr(settings, name)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{flag(name)} {value:g} must be above 0 and finite")


def check_embedding_flags(settings: EmbeddingFlags) -> None:
    """Raise `UserError` for widths out of range."""
    for width in settings.matryoshka:
        if width < 1:
            raise UserError(f"--matryoshka {width}: a vector has at least one number")
    if len(set(settings.matryoshka)) != len(settings.matryoshka):
        raise UserError(f"--matryoshka {' '.join(map(str, settings.matryoshka))}: a width is given twice; leave it out")
