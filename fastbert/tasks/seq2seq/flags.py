"""Flags of sequence to sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fastbert.flags import rare


@dataclass(frozen=True, kw_only=True)
class SequenceFlags:
    """The decoder, and its options of decoding."""

    GROUP: ClassVar = "With --task seq2seq"

    decoder: Literal["decoder", "bert2bert", "prefix"] | None = rare(None)
    """A new decoder, one initialised from the encoder, or a single stack with a prefix mask
    (default: bert2bert, or the model's own decoder if it has one)."""
    decoder_layers: int | None = rare(None)
    """Layers of the decoder (default: as many as the encoder has)."""
    num_beams: int = rare(1)
    """Beam width; 1 is greedy."""
    max_target_length: int = rare(64)
    """Maximum number of generated tokens."""
    label_smoothing: float | None = rare(None)
    """Probability that is spread over all tokens in the training loss (default: 0; 0.1 for the original
    Transformer)."""


@dataclass(frozen=True, kw_only=True)
class SequencePredictFlags:
    """Those `SequenceFlags` that can change after training; None keeps the value of training."""

    GROUP: ClassVar = "With --task seq2seq"

    num_beams: int | None = rare(None)
    """Beam width (default: as in training)."""
