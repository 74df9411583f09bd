"""Flags of sequence to sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class SequenceFlags:
    """The decoder, and its options of decoding."""

    decoder: Literal["decoder", "bert2bert", "prefix"] | None = None
    """Sequence to sequence: a new decoder, one initialised from the encoder, or a single stack with a prefix mask
    (default: bert2bert, or the model's own decoder if it has one)."""
    decoder_layers: int | None = None
    """Sequence to sequence: layers of the decoder (default: as many as the encoder has)."""
    num_beams: int = 1
    """Sequence to sequence: beam width; 1 is greedy."""
    max_target_length: int = 64
    """Sequence to sequence: maximum number of generated tokens."""


@dataclass(frozen=True, kw_only=True)
class SequencePredictFlags:
    """Those `SequenceFlags` that can change after training; None keeps the value of training."""

    num_beams: int | None = None
    """Sequence to sequence: beam width (default: as in training)."""
