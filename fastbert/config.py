"""The shape of a BERT model: a frozen dataclass with transformers' field names, and the published sizes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from fastbert.errors import UserError

PresetName = Literal["tiny", "mini", "small", "medium", "base", "large"]

# Layers, width and heads of the released models; the feed-forward width is always four times the hidden width.
PRESETS: dict[str, tuple[int, int, int]] = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
ACTIVATIONS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """A BERT encoder as published (Devlin et al. 2019, section 3 and appendix A.2); the defaults are BERT-base.

    The field names and their meaning are those of `transformers.BertConfig`. Raises `UserError` for values that cannot
    make a model.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    classifier_dropout: float | None = None
    num_labels: int = 2

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "type_vocab_size",
            "num_labels",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"{name}={value!r} must be a positive integer")
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size={self.hidden_size} must be a multiple of num_attention_heads={self.num_attention_heads}"
            )
        if not isinstance(self.hidden_act, str) or self.hidden_act not in ACTIVATIONS:
            raise UserError(f"hidden_act={self.hidden_act!r} is not one of {', '.join(ACTIVATIONS)}")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            value = getattr(self, name)
            if value is None and name == "classifier_dropout":
                continue
            if not isinstance(value, (int, float)) or not 0.0 <= value < 1.0:
                raise UserError(f"{name}={value!r} must be a number from 0 up to, not including, 1")
        for name in ("initializer_range", "layer_norm_eps"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value > 0:
                raise UserError(f"{name}={value!r} must be a positive number")
        if not isinstance(self.pad_token_id, int) or not 0 <= self.pad_token_id < self.vocab_size:
            raise UserError(f"pad_token_id={self.pad_token_id!r} lies outside the vocabulary of {self.vocab_size}")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def gelu_approximation(self) -> str:
        """`"none"` for GELU by the error function, `"tanh"` for its approximation (torch's names)."""
        return ACTIVATIONS[self.hidden_act]

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> BertConfig:
        """One of the published sizes (`tiny` to `large`), with fields replaced by `overrides`."""
        if name not in PRESETS:
            raise UserError(f"unknown model size {name!r}: choose one of {', '.join(PRESETS)}, or give a config.json")
        layers, width, heads = PRESETS[name]
        shape = cls(num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width)
        return replace(shape, **overrides)

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> BertConfig:
        """Read a dictionary in transformers' format; keys that do not describe the encoder's shape are left out.

        Raises `UserError` where the dictionary describes a model that is not BERT as published.
        """
        if values.get("model_type", "bert") != "bert":
            raise UserError(f"{source}: model_type={values['model_type']!r} is not supported, only 'bert'")
        if values.get("position_embedding_type", "absolute") not in ("absolute", None):
            raise UserError(f"{source}: position_embedding_type={values['position_embedding_type']!r} is not supported")
        if values.get("is_decoder") or values.get("add_cross_attention"):
            raise UserError(f"{source}: a BERT decoder (is_decoder=true) is not supported")
        known = {field.name for field in fields(cls)}
        chosen = {name: value for name, value in values.items() if name in known}
        if "num_labels" not in chosen and isinstance(values.get("id2label"), dict) and values["id2label"]:
            chosen["num_labels"] = len(values["id2label"])
        if chosen.get("pad_token_id", 0) is None:
            del chosen["pad_token_id"]
        try:
            return cls(**chosen)
        except UserError as error:
            raise UserError(f"{source}: {error}") from None

    @classmethod
    def from_pretrained(cls, path: str | Path) -> BertConfig:
        """Read `config.json` of a model folder, or the given JSON file."""
        file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{file}: no such file; a model folder holds a config.json") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise UserError(f"{file}: not a JSON file ({error})") from None
        if not isinstance(values, dict):
            raise UserError(f"{file}: must hold a JSON object, not a {type(values).__name__}")
        return cls.from_dict(values, source=str(file))

    def to_dict(self, architecture: str | None = None) -> dict[str, Any]:
        """The dictionary that transformers' `BertConfig.from_dict` reads back as the same model."""
        values = asdict(self)
        labels = values.pop("num_labels")
        values["id2label"] = {str(index): f"LABEL_{index}" for index in range(labels)}
        values["label2id"] = {f"LABEL_{index}": index for index in range(labels)}
        values["model_type"] = "bert"
        if architecture:
            values["architectures"] = [architecture]
        return dict(sorted(values.items()))

    def num_parameters(self, heads: bool = False) -> int:
        """Parameters of the encoder with its pooler, or of the pre-training model with both (tied) heads."""
        width, inner = self.hidden_size, self.intermediate_size
        embeddings = (self.vocab_size + self.max_position_embeddings + self.type_vocab_size + 2) * width
        layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
        total = embeddings + self.num_hidden_layers * layer + width * width + width
        if heads:
            total += width * width + width + 2 * width + self.vocab_size + 2 * width + 2
        return total
