"""The configuration of ELMo, and its sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from fastbert.config import BertConfig, check_size, config_class, read_config_file
from fastbert.errors import UserError
from fastbert.io.untrusted_input import shown

MOST_CHARACTERS = 50
"""Characters per word, with its begin and end (Peters et al. 2018); longer words are truncated."""
MOST_WORDS = 1 << 20  # of a sentence; an LSTM has no positions, the bound is that of pre-training samples

_FILTERS = (32, 32, 64, 128, 256, 512, 1024)
# Filters of widths 1, 2, 3, ..., highways, width of each direction, LSTM units. "base" is the published model.
_PRESETS: dict[str, tuple[tuple[int, ...], int, int, int]] = {
    "tiny": ((16, 16, 32, 64), 1, 64, 256),
    "mini": (_FILTERS[:5], 1, 128, 512),
    "small": (_FILTERS[:6], 2, 128, 1024),
    "medium": (_FILTERS[:7], 2, 256, 2048),
    "base": (_FILTERS, 2, 512, 4096),
    "large": (_FILTERS, 2, 1024, 8192),
}


@config_class
class ElmoConfig(BertConfig):
    """ELMo (Peters et al. 2018, section 3.4), by default the published model.

    `hidden_size` is the width of a word's vector in each layer, half of it from each direction; `intermediate_size` the
    number of LSTM units per direction; `vocab_size` the number of word types whose characters a run knows by their id;
    `output_size` the number of the most frequent of them that the softmax predicts, the others being [UNK] there.
    Raises `UserError` for invalid values.
    """

    model_type: ClassVar[str] = "elmo"
    constants: ClassVar[frozenset[str]] = frozenset(
        (
            *("num_attention_heads", "max_position_embeddings", "type_vocab_size", "hidden_act", "is_decoder"),
            *("attention_probs_dropout_prob", "layer_norm_eps", "initializer_range"),
        )
    )

    hidden_size: int = 1024
    num_hidden_layers: int = 2
    num_attention_heads: int = 1
    intermediate_size: int = 4096
    max_position_embeddings: int = MOST_WORDS
    type_vocab_size: int = 0
    output_size: int = 30522
    character_embedding_size: int = 16
    filters: tuple[int, ...] = _FILTERS
    """Filters of the character convolution by their width, 1, 2, 3, ..., in characters."""
    num_highways: int = 2
    unk_token_id: int = 1
    """The output that stands for all words but the most frequent ones."""

    def __post_init__(self) -> None:
        if isinstance(self.filters, list):  # as JSON has it
            object.__setattr__(self, "filters", tuple(self.filters))
        super().__post_init__()
        for name in ("output_size", "character_embedding_size"):
            check_size(name, getattr(self, name))
        check_size("num_highways", self.num_highways, least=0)
        check_size("unk_token_id", self.unk_token_id, least=0)
        if not isinstance(self.filters, tuple) or not 1 <= len(self.filters) <= MOST_CHARACTERS:
            raise UserError(f"filters={shown(self.filters)} must be 1 to {MOST_CHARACTERS} numbers, one per width")
        for count in self.filters:
            check_size("filters", count)
        if self.hidden_size % 2:
            raise UserError(f"hidden_size={self.hidden_size} must be even: each direction gives a half")
        if not self.unk_token_id < self.output_size <= self.vocab_size:
            raise UserError(
                f"output_size={self.output_size} must be above unk_token_id={self.unk_token_id} and at most vocab_size="
                f"{self.vocab_size}"
            )

    @property
    def projection_size(self) -> int:
        """Return the width of a direction: of the LSTMs' inputs and outputs."""
        return self.hidden_size // 2

    @property
    def bilstm_input_size(self) -> int:
        """Return the width of what a task's BiLSTM reads: the vector of a word's characters, and the mix of layers."""
        return self.projection_size + self.hidden_size

    @property
    def head_input_size(self) -> int:
        """Return the width of what a head of a task reads: a mix of layers, after the states of a BiLSTM."""
        return self.hidden_size + (self.bilstm_size or 0)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """Return one of the sizes (`tiny` to `large`; `base` is the published one), with fields replaced by
        `overrides`. Without `output_size` all of at most 30,522 words are predicted.

        Raises `UserError` for an unknown size.
        """
        if name not in _PRESETS:
            raise UserError(f"unknown model size {name!r}: choose one of {', '.join(_PRESETS)}, or give a config.json")
        filters, highways, projection, units = _PRESETS[name]
        words = overrides.get("vocab_size", cls.vocab_size)
        shape = cls(
            vocab_size=words,
            output_size=min(words, cls.output_size),
            hidden_size=2 * projection,
            intermediate_size=units,
            filters=filters,
            num_highways=highways,
        )
        return replace(shape, **overrides)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Read `config.json` of a model folder, or a JSON file. Raises `UserError` as `BertConfig.from_pretrained`."""
        file, values = read_config_file(path)
        return cls.from_dict(values, source=str(file))

    def num_parameters(self, heads: bool = False) -> int:
        """Return the number of parameters of the encoder, or with `heads` of the language model."""
        width, units, filters = self.projection_size, self.intermediate_size, sum(self.filters)
        characters = self.character_embedding_size
        total = 261 * characters + sum(k * n * characters + n for k, n in enumerate(self.filters, 1))
        total += self.num_highways * (filters + 1) * 2 * filters + (filters + 1) * width
        total += self.num_hidden_layers * 2 * (8 * units * width + 4 * units + units * width)
        return total + (self.output_size * (width + 1) if heads else 0)
