"""Flags of span question answering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fastbert.flags import rare


@dataclass(frozen=True, kw_only=True)
class SpanFlags:
    """The windows of contexts, and the choice of answers."""

    GROUP: ClassVar = "With --task span"

    stride: int = rare(128)
    """Tokens that neighbouring windows share."""
    max_answer_length: int = rare(30)
    """Tokens of the longest answer."""
    n_best: int = rare(20)
    """Answers written per question."""
    unanswerable: bool = rare(False)
    """Some questions have no answer (SQuAD 2.0)."""
    null_threshold: float = rare(0.0)
    """No answer is predicted if its score exceeds the best answer's by more than this."""


@dataclass(frozen=True, kw_only=True)
class SpanPredictFlags:
    """Those `SpanFlags` that can change after training; None keeps the value of training."""

    GROUP: ClassVar = "With --task span"

    n_best: int | None = rare(None)
    """Answers written per question (default: as in training)."""
    null_threshold: float | None = rare(None)
    """No answer is predicted if its score exceeds the best answer's by more than this (default: as in
    training)."""
