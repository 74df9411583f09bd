"""Flags of span question answering."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SpanFlags:
    """The windows of contexts, and the choice of answers."""

    stride: int = 128
    """Span: tokens that neighbouring windows share."""
    max_answer_length: int = 30
    """Span: tokens of the longest answer."""
    n_best: int = 20
    """Span: answers written per question."""
    unanswerable: bool = False
    """Span: some questions have no answer (SQuAD 2.0)."""
    null_threshold: float = 0.0
    """Span: no answer is predicted if its score exceeds the best answer's by more than this."""


@dataclass(frozen=True, kw_only=True)
class SpanPredictFlags:
    """Those `SpanFlags` that can change after training; None keeps the value of training."""

    n_best: int | None = None
    """Span: answers written per question (default: as in training)."""
    null_threshold: float | None = None
    """Span: no answer is predicted if its score exceeds the best answer's by more than this (default: as in
    training)."""
