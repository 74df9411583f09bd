"""The order in which the two texts of a pair are read. Imports no torch, as command lines are generated from flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fastbert.flags import MODEL, rare


@dataclass(frozen=True, kw_only=True)
class PairOrderFlags:
    """The order of the texts of a pair, which a trained model keeps."""

    GROUP: ClassVar = MODEL

    pair_order: Literal["given", "both"] | None = rare(None)
    """Read a pair of texts as given, or in both orders, whose representations are added in front of the classifier
    (default: both for regression with a model that reads left to right, as in GPT)."""
