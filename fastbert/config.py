"""The configuration of a BERT model, with transformers' field names, and the published sizes.

One file: the fields, their checks and both directions of config.json are one class.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, dataclass_transform

from fastbert.errors import UserError
from fastbert.io.untrusted_input import read_json_file, shown

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
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
ACTIVATIONS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
CONFIGS = ("config.json", "bert_config.json")  # the second is that of the first releases
MOST_LABELS = 1 << 20
SIZES_END = 1 << 31  # kernels index rows and columns with int32
MOST_BILSTM = 1 << 14
# Keys of the file or its writer, which are not copied.
_NOT_COPIED = (
    "model_type",
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "_name_or_path",
    "auto_map",
)


# transformers' Trainer sets these on the config of any model. An encoder does not use them, so setting them has no
# effect; all other fields are frozen.
_IDLE = ("use_cache", "bos_token_id", "eos_token_id")
C = TypeVar("C")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def config_class(cls: type[C]) -> type[C]:
    """Make a model's config, a frozen dataclass, of a class."""
    cls = dataclass(frozen=True, kw_only=True)(cls)
    frozen = cls.__setattr__

    def set_attribute(self: C, name: str, value: Any) -> None:
        if name not in _IDLE:
            frozen(self, name, value)

    cls.__setattr__ = set_attribute  # type: ignore[assignment, method-assign]
    return cls


def check_probability(name: str, value: Any) -> None:
    """Raise UserError unless a value is a dropout probability."""
    if not _is_number(value) or not 0.0 <= value < 1.0:
        raise UserError(f"{name}={shown(value)} must be a number from 0 up to, not including, 1")


def check_size(name: str, value: Any, least: int = 1) -> None:
    """Raise UserError unless a value is an integer from `least` up to, not including, 2**31."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise UserError(f"{name}={shown(value)} must be {kind}")
    if value >= SIZES_END:
        raise UserError(f"{name}={shown(value)} must be below 2**31")


@config_class
class BertConfig:
    """A BERT encoder as published (Devlin et al. 2019, section 3 and appendix A.2); the defaults are BERT-base.

    The fields have the names and meanings of `transformers.BertConfig`. Raises `UserError` for invalid values.

    Example:
        >>> import fastbert
        >>> config = fastbert.BertConfig.preset("base")
        >>> config.num_hidden_layers, config.hidden_size
        (12, 768)
        >>> fastbert.BertConfig(hidden_size=64, num_attention_heads=2, intermediate_size=256).vocab_size
        30522
        >>> fastbert.BertConfig.from_pretrained("runs/mine/model").hidden_size
        16
    """

    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        f"{task}_{what}" for task in ("mlm", "nsp") for what in ("loss_sum", "count", "correct")
    ]
    """Output fields that transformers' Trainer does not return as predictions."""
    model_type: ClassVar[str] = "bert"
    """The name of the architecture, which peft reads."""
    _commit_hash: ClassVar[None] = None
    """The revision on the Hub, which transformers' pipelines read; it is not recorded."""
    attribute_map: ClassVar[dict[str, str]] = {}
    """The fields with other names in config.json, and these names (transformers' `attribute_map`)."""
    constants: ClassVar[frozenset[str]] = frozenset()
    """Fields that are the same in every model of the architecture, and not in config.json."""
    may_be_zero: ClassVar[frozenset[str]] = frozenset()
    """Sizes that may be 0: of tables that the architecture need not have."""
    activations: ClassVar[tuple[str, ...]] = tuple(ACTIVATIONS)
    """The activations that the architecture's feed-forward networks may have, by transformers' names."""

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
    label_names: tuple[str, ...] | None = None
    """The names of the labels, transformers' `id2label`; ignored unless there are `num_labels` of them."""
    is_decoder: bool = False
    """Causal attention: a token attends to itself and to those before it. Heads that read one vector per sequence then
    read its last token, the only one that attends to all others."""
    problem_type: str | None = None
    """The kind of a sequence classifier's labels, one of `PROBLEM_TYPES`; None: inferred from the labels."""
    bilstm_size: int | None = None
    """The outputs of a bidirectional LSTM between the encoder and a head, half of them per direction (Devlin et al.
    2019, section 5.1); None: the head reads the encoder. transformers has no such models."""
    extra: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Other keys of config.json, which are written back by `save_pretrained`."""

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
            if name not in self.constants:
                check_size(name, getattr(self, name), least=0 if name in self.may_be_zero else 1)
        if self.num_labels > MOST_LABELS:
            raise UserError(f"num_labels={shown(self.num_labels)} is more than the maximum, {MOST_LABELS:,}")
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size={self.hidden_size} must be a multiple of num_attention_heads={self.num_attention_heads}"
            )
        if not isinstance(self.hidden_act, str) or self.hidden_act not in self.activations:
            raise UserError(f"hidden_act={shown(self.hidden_act)} is not one of {', '.join(self.activations)}")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            if name != "classifier_dropout" or self.classifier_dropout is not None:
                check_probability(name, getattr(self, name))
        if not isinstance(self.is_decoder, bool):
            raise UserError(f"is_decoder={shown(self.is_decoder)} must be true or false")
        size = self.bilstm_size
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 2 or size % 2):
            raise UserError(f"bilstm_size={shown(size)} must be an even number from 2 on: each direction gives half")
        if size is not None and size > MOST_BILSTM:
            raise UserError(f"bilstm_size={size} is more than the maximum, {MOST_BILSTM:,}")
        for name in ("initializer_range", "layer_norm_eps"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 < value < math.inf:
                raise UserError(f"{name}={shown(value)} must be a positive number")
        if self.problem_type is not None and self.problem_type not in PROBLEM_TYPES:
            kinds = ", ".join(PROBLEM_TYPES)
            raise UserError(f"problem_type={shown(self.problem_type)} is not one of {kinds}, or None")
        names = self.label_names
        if names is not None and not (isinstance(names, tuple) and all(isinstance(name, str) for name in names)):
            raise UserError(f"label_names={shown(names)} must be a tuple of strings, or None")
        pad = self.pad_token_id
        if not isinstance(pad, int) or isinstance(pad, bool) or not 0 <= pad < self.vocab_size:
            raise UserError(f"pad_token_id={shown(pad)} lies outside the vocabulary of {self.vocab_size}")

    def __getattr__(self, name: str) -> Any:
        """Return a field by its name in config.json."""
        for field_name, alias in type(self).attribute_map.items():
            if alias == name:
                return getattr(self, field_name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def head_dim(self) -> int:
        """Return the width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def token_embedding_size(self) -> int:
        """Return the width of the token embedding, and of the masked-LM head whose decoder is tied to it."""
        return self.hidden_size

    @property
    def bilstm_input_size(self) -> int:
        """Return the width of what a BiLSTM between the encoder and the head of a task reads."""
        return self.hidden_size

    @property
    def head_input_size(self) -> int:
        """Return the width of what a head of a task reads: the encoder's outputs, or those of a BiLSTM behind it."""
        return self.hidden_size if self.bilstm_size is None else self.bilstm_size

    @property
    def max_sequence_length(self) -> int:
        """Return the number of tokens in the longest sequence that has positions."""
        return self.max_position_embeddings

    @property
    def gelu_approximation(self) -> str:
        """Return `"none"` for GELU by the error function, `"tanh"` for its approximation (torch's names)."""
        return ACTIVATIONS[self.hidden_act]

    @property
    def prediction_activation(self) -> str:
        """Return the activation in the masked-LM head, by the names of `fastbert.ops.encoder_layer.spec`."""
        return "gelu_tanh" if self.prediction_gelu_approximation == "tanh" else "gelu"

    @property
    def prediction_gelu_approximation(self) -> str:
        """Return the approximation of the GELU in the masked-LM head."""
        return self.gelu_approximation

    @property
    def attention_output_dropout_prob(self) -> float:
        """Return the dropout probability behind the projection of attention."""
        return self.hidden_dropout_prob

    @property
    def distinct_layers(self) -> int:
        """Return the number of layers with parameters of their own."""
        return self.num_hidden_layers

    @property
    def ties_prediction_head(self) -> bool:
        """Return whether the masked-LM head multiplies with the token embedding."""
        return True

    @property
    def intermediate_outputs(self) -> int:
        """Return the outputs of the first linear layer of feed-forward networks."""
        return self.intermediate_size

    @property
    def feed_forward_dropout_prob(self) -> float:
        """Return the dropout probability behind feed-forward networks."""
        return self.hidden_dropout_prob

    @property
    def intermediate_dropout_prob(self) -> float:
        """Return the dropout probability behind the activation of feed-forward networks."""
        return 0.0

    @property
    def embedding_dropout_prob(self) -> float:
        """Return the dropout probability behind the embeddings."""
        return self.hidden_dropout_prob

    @property
    def sequence_classifier_dropout(self) -> float:
        """Return the dropout probability in front of a classifier of sequences."""
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout

    @property
    def token_classifier_dropout(self) -> float:
        """Return the dropout probability in front of a classifier of tokens."""
        return self.sequence_classifier_dropout

    @property
    def classifier_input_dropout(self) -> float:
        """Return the dropout probability in front of a classification head that drops its input."""
        return self.sequence_classifier_dropout

    @property
    def pair_dropout(self) -> float:
        """Return the dropout probability in front of the head of sentence pairs in pre-training."""
        return 0.0

    @property
    def span_dropout(self) -> float:
        """Return the dropout probability in front of the scores of answers."""
        return 0.0

    @property
    def id2label(self) -> dict[int, str]:
        """Return the name of each label, by default LABEL_0, LABEL_1, ..."""
        names = self.label_names
        if names is None or len(names) != self.num_labels:
            return {index: f"LABEL_{index}" for index in range(self.num_labels)}
        return dict(enumerate(names))

    @property
    def label2id(self) -> dict[str, int]:
        """Return the label of each name."""
        return {name: index for index, name in self.id2label.items()}

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """Return one of the published sizes (`tiny` to `large`), with fields replaced by `overrides`.

        Raises `UserError` for an unknown size.
        """
        if name not in PRESETS:
            raise UserError(f"unknown model size {name!r}: choose one of {', '.join(PRESETS)}, or give a config.json")
        layers, width, heads = PRESETS[name]
        shape = cls(num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width)
        return replace(shape, **overrides)

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> Self:
        """Make a config of a dictionary in transformers' format; other keys are copied to `extra`.

        Raises `UserError`, prefixed with `source`, if the dictionary describes a different architecture, or a model
        that is not as published.
        """
        kind = values.get("model_type", cls.model_type)
        if kind != cls.model_type:
            raise UserError(
                f"{source}: model_type={shown(kind)} is not supported here, only {cls.model_type!r}; read the"
                " folder with fastbert.load, or load it with transformers and give it to fastbert.accelerate"
            )
        if values.get("position_embedding_type", "absolute") not in ("absolute", None):
            kind = shown(values["position_embedding_type"])
            raise UserError(f"{source}: position_embedding_type={kind} is not supported")
        if values.get("add_cross_attention"):
            raise UserError(f"{source}: a decoder with cross-attention (add_cross_attention=true) is not supported")
        if values.get("quantization_config") is not None:
            raise UserError(f"{source}: a quantised checkpoint (quantization_config) is not supported")
        for name, key in cls.attribute_map.items():
            if key in values:
                values = {name: values[key], **values}
                del values[key]
        known = {item.name for item in fields(cls)} - {"extra", *cls.constants}
        chosen = {name: value for name, value in values.items() if name in known}
        if isinstance(chosen.get("label_names"), list):  # as JSON has it
            chosen["label_names"] = tuple(chosen["label_names"])
        names = chosen.get("label_names") or _label_names(values.get("id2label"))
        if names is not None:
            named = any(name != f"LABEL_{index}" for index, name in enumerate(names))
            chosen = {"num_labels": len(names), **chosen, "label_names": names if named else None}
        ignored = {*known, *_NOT_COPIED, "id2label", "label2id", "extra"}
        rest = {name: value for name, value in values.items() if name not in ignored}
        extra = values.get("extra")
        chosen["extra"] = {**rest, **(extra if isinstance(extra, dict) else {})}
        if chosen.get("pad_token_id", 0) is None:
            del chosen["pad_token_id"]
        try:
            return cls(**chosen)
        except UserError as error:
            raise UserError(f"{source}: {error}") from None

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Read `config.json` (or `bert_config.json`) of a model folder, or a JSON file.

        Raises `UserError` if the file is missing, or does not describe a supported model.
        """
        file, values = read_config_file(path)
        config = cls.from_dict(values, source=str(file))
        heads = cls.attribute_map.get("num_attention_heads", "num_attention_heads")
        if heads not in values and config.hidden_size != cls.hidden_size:
            # No weight's shape depends on it: a wrong guess would load, and compute wrong results.
            raise UserError(f"{file}: {heads} is missing; add the number that the model was trained with")
        return config

    def to_dict(self, architecture: str | None = None) -> dict[str, Any]:
        """Return a dictionary that `from_dict`, and that of transformers, reads back as the same model.

        `architecture` is the name of the model's class.
        """
        values = asdict(self)
        extra = values.pop("extra")
        del values["num_labels"], values["label_names"]
        values["id2label"] = {str(index): name for index, name in self.id2label.items()}
        values["label2id"] = self.label2id
        values = {**extra, **values, "model_type": self.model_type}
        if self.problem_type is None:
            del values["problem_type"]
        if not self.is_decoder:
            del values["is_decoder"]
        if self.bilstm_size is None:
            del values["bilstm_size"]
        for name in self.constants:
            values.pop(name, None)
        for name, key in self.attribute_map.items():
            values[key] = values.pop(name)
        if architecture:
            values["architectures"] = [architecture]
        return dict(sorted(values.items()))

    def get_text_config(self) -> BertConfig:
        """Return this config, as peft requests the config of the text model."""
        return self

    def to_json_string(self) -> str:
        """Return `to_dict` as JSON, which transformers' callbacks write."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def num_parameters(self, heads: bool = False) -> int:
        """Return the number of parameters of the encoder with its pooler, or with `heads` of `BertForPreTraining`."""
        width, inner = self.hidden_size, self.intermediate_size
        embeddings = (self.vocab_size + self.max_position_embeddings + self.type_vocab_size + 2) * width
        layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
        total = embeddings + self.num_hidden_layers * layer + width * width + width
        if heads:
            total += width * width + width + 2 * width + self.vocab_size + 2 * width + 2
        return total


def read_config_file(path: str | Path) -> tuple[Path, dict[str, Any]]:
    """Return the path and the content of a model folder's `config.json` (or `bert_config.json`), or of a JSON file.

    Raises `UserError` if the file is missing or does not hold a JSON object.
    """
    file = Path(path)
    if file.is_dir():
        file = next((file / name for name in CONFIGS if (file / name).exists()), file / CONFIGS[0])
    if not file.exists():
        raise UserError(f"{file}: no such file; a model folder holds a config.json")
    values = read_json_file(file)
    if not isinstance(values, dict):
        raise UserError(f"{file}: must hold a JSON object, not a {type(values).__name__}")
    return file, values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _label_names(id2label: Any) -> tuple[str, ...] | None:
    """Return the names in the order of their labels, LABEL_i for missing ones; None without any."""
    if not isinstance(id2label, dict) or not id2label:
        return None
    names = {str(index): str(name) for index, name in id2label.items()}
    return tuple(names.get(str(index), f"LABEL_{index}") for index in range(len(names)))
