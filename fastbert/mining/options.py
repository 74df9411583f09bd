"""Options of mining. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fastbert.errors import UserError, require_whole

Sampling = Literal["top", "random"]
SUFFIX = ".jsonl"
"""The ending of a file of mined negatives."""
WIDER = 10
"""Candidates per negative where some of them may be filtered out or chance decides."""


@dataclass(frozen=True, kw_only=True)
class MiningOptions:
    """Options of `mine_negatives`. Scores are cosines; the first two margins and the bounds apply to them."""

    negatives: int = 5
    """Negatives per pair of an anchor and a positive."""
    range_min: int = 0
    """Skip so many of the nearest candidates, which may be positives that nobody labelled."""
    range_max: int | None = None
    """Consider candidates up to this rank; None: `range_min` plus `negatives`, or plus ten times `negatives` with a
    filter, a reranker or random sampling."""
    margin: float | None = None
    """A negative's score is at most the positive's less this."""
    relative_margin: float | None = None
    """A negative's score is at most the positive's less this fraction of its magnitude (TopK-PercPos of NV-Retriever,
    arXiv 2407.15831; 0.05 is their 95 %)."""
    max_score: float | None = None
    """The largest score of a negative."""
    min_score: float | None = None
    """The smallest score of a negative."""
    sampling: Sampling = "top"
    """"top" takes the nearest candidates that remain, "random" any of them."""
    seed: int = 0
    """The seed of random sampling: the draw of a pair depends on the seed and the pair's number only."""
    reranker_margin: float = 0.0
    """With a reranker, a negative's score by it is at most the positive's less this."""
    query_prompt: str | None = None
    """Name of the embedder's prompt for anchors; None: "query" if the folder has it, else no prompt."""
    document_prompt: str | None = None
    """Name of its prompt for texts; None: "document", "passage" or "corpus" if the folder has one, else no prompt."""

    def __post_init__(self) -> None:
        require_whole("negatives", self.negatives, 1)
        require_whole("range_min", self.range_min, 0)
        require_whole("range_max", self.range_max, 1, optional=True)
        require_whole("seed", self.seed, 0)
        if self.range_max is not None and self.range_max < self.range_min + self.negatives:
            raise UserError(
                f"range_max={self.range_max} must be at least range_min={self.range_min} plus"
                f" negatives={self.negatives}"
            )
        for name in ("margin", "relative_margin", "max_score", "min_score", "reranker_margin"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise UserError(f"{name}={value!r} must be a finite number")
        if self.sampling not in ("top", "random"):
            raise UserError(f"sampling={self.sampling!r} must be 'top' or 'random'")
        if self.max_score is not None and self.min_score is not None and self.min_score > self.max_score:
            raise UserError(f"min_score={self.min_score} must be at most max_score={self.max_score}")

    def last_rank(self, *, reranked: bool) -> int:
        """Return the rank up to which candidates are considered."""
        if self.range_max is not None:
            return self.range_max
        bounds = (self.margin, self.relative_margin, self.max_score, self.min_score)
        chosen = reranked or self.sampling == "random" or any(bound is not None for bound in bounds)
        return self.range_min + self.negatives * (WIDER if chosen else 1)
