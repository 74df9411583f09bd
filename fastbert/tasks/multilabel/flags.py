"""Flags of sets of labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fastbert.flags import rare


@dataclass(frozen=True, kw_only=True)
class MultiLabelFlags:
    """The spelling of sets of labels in files, and the choice of labels."""

    GROUP: ClassVar = "With --task multilabel"

    label_separator: str | None = rare(None)
    """Text between the labels of a cell (default: the first of | ; , that the training file's labels hold)."""
    threshold: float = rare(0.5)
    """Probability from which a label is predicted."""


@dataclass(frozen=True, kw_only=True)
class MultiLabelPredictFlags:
    """Those `MultiLabelFlags` that can change after training; None keeps the value of training."""

    GROUP: ClassVar = "With --task multilabel"

    threshold: float | None = rare(None)
    """Probability from which a label is predicted (default: as in training)."""
