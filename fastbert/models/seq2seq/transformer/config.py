"""The configuration of the original Transformer, and the sizes of its paper and smaller ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self, get_args

from fastbert.config import ACTIVATIONS, BertConfig, check_size, config_class
from fastbert.errors import UserError
from fastbert.io.untrusted_input import shown
from fastbert.models.seq2seq.config import check_token_id
from fastbert.ops.encoder_layer.spec import Similarity

# Layers of encoder and decoder each, width, heads, feed-forward width, dropout; "base" and "big" are those of table 3.
PRESETS: dict[str, tuple[int, int, int, int, float]] = {
    "tiny": (2, 128, 4, 512, 0.1),
    "small": (3, 256, 4, 1024, 0.1),
    "base": (6, 512, 8, 2048, 0.1),
    "big": (6, 1024, 16, 4096, 0.3),
}


@config_class
class TransformerConfig(BertConfig):
    """An encoder and a decoder as published (Vaswani et al. 2017, section 3); the defaults are its base model.

    `num_hidden_layers` counts the encoder's layers, `decoder_layers` the decoder's (None: as many). `similarity` of
    queries and keys is the scaled dot product, or a perceptron of their sum ("additive", Bahdanau et al. 2015) or of
    both ("concat"), composed of PyTorch operations. `max_position_embeddings` is the longest source and target in
    tokens; no weight depends on it. `begin_token_id` and `end_token_id`: [CLS] and [SEP] of the vocabulary, with which
    targets begin and end. Raises `UserError` for invalid values.
    """

    model_type: ClassVar[str] = "transformer"
    activations: ClassVar[tuple[str, ...]] = ("relu", *ACTIVATIONS)
    constants: ClassVar[frozenset[str]] = frozenset(
        {"type_vocab_size", "initializer_range", "classifier_dropout", "is_decoder", "problem_type"}
    )
    default_label_smoothing: ClassVar[float] = 0.1
    """Label smoothing of training (section 5.4)."""

    vocab_size: int = 37000
    hidden_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    hidden_act: str = "relu"
    attention_probs_dropout_prob: float = 0.0
    max_position_embeddings: int = 1024
    layer_norm_eps: float = 1e-6
    type_vocab_size: int = 1
    decoder_layers: int | None = None
    similarity: Similarity = "dot"
    begin_token_id: int | None = None
    end_token_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.similarity not in get_args(Similarity):
            raise UserError(f"similarity={shown(self.similarity)} is not one of {', '.join(get_args(Similarity))}")
        if self.decoder_layers is not None:
            check_size("decoder_layers", self.decoder_layers)
        if self.hidden_size % 2:
            raise UserError(f"hidden_size={self.hidden_size} must be even: positions are pairs of sine and cosine")
        for name in ("begin_token_id", "end_token_id"):
            check_token_id(name, getattr(self, name), self.vocab_size)

    @property
    def layers_of_decoder(self) -> int:
        """Return the number of the decoder's layers."""
        return self.decoder_layers or self.num_hidden_layers

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """Return the base or big model of the paper, or a smaller one, with fields replaced by `overrides`.

        Raises `UserError` for an unknown size.
        """
        if name not in PRESETS:
            raise UserError(f"unknown model size {name!r}: choose one of {', '.join(PRESETS)}, or give a config.json")
        layers, width, heads, inner, dropout = PRESETS[name]
        shape = cls(
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=heads,
            intermediate_size=inner,
            hidden_dropout_prob=dropout,
        )
        return replace(shape, **overrides)

    def to_dict(self, architecture: str | None = None) -> dict[str, Any]:
        """Return a dictionary that `from_dict` reads back as the same model; `architecture` names its class."""
        values = super().to_dict(architecture)
        for name in ("id2label", "label2id"):
            del values[name]
        return values

    def num_parameters(self, heads: bool = False) -> int:
        """Return the number of parameters; the matmul with the vocabulary has none of its own."""
        del heads
        width, inner = self.hidden_size, self.intermediate_size
        attention = 4 * (width * width + width) + 2 * width
        if self.similarity != "dot":
            attention += width * (1 if self.similarity == "additive" else 1 + 2 * self.head_dim)
        network = 2 * width * inner + inner + width + 2 * width
        decoder = self.layers_of_decoder * (2 * attention + network)
        return self.vocab_size * width + self.num_hidden_layers * (attention + network) + decoder
