"""Flags of sets of labels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MultiLabelFlags:
    """The spelling of sets of labels in files, and the choice of labels."""

    label_separator: str | None = None
    """Multilabel: text between the labels of a cell (default: the first of | ; , that the training file's labels
    hold)."""
    threshold: float = 0.5
    """Multilabel: probability from which a label is predicted."""


@dataclass(frozen=True, kw_only=True)
class MultiLabelPredictFlags:
    """Those `MultiLabelFlags` that can change after training; None keeps the value of training."""

    threshold: float | None = None
    """Multilabel: probability from which a label is predicted (default: as in training)."""
