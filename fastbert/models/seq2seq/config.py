"""The config of a sequence-to-sequence model: a BERT encoder's config, and how the decoder is derived from it."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

from fastbert.config import CONFIGS, BertConfig, check_size, config_class
from fastbert.errors import UserError
from fastbert.io.untrusted_input import read_json_file, shown

Kind = Literal["decoder", "bert2bert", "prefix"]
Sharing = Literal["none", "embeddings", "all"]
ENCODER_DECODER = "encoder-decoder"
# The section of config.json for settings that transformers has no field for.
SECTION = "fastbert_seq2seq"
# Fields of transformers' decoders, which are the same for all of them.
_OF_DECODERS = ("is_decoder", "add_cross_attention")
# Fields in which an encoder and a decoder may differ.
_FREE = ("num_hidden_layers", "num_labels", "label_names", "problem_type", "classifier_dropout", "extra")


@config_class
class SequenceConfig(BertConfig):
    """A BERT encoder with a decoder, or with a prefix mask.

    `kind`: "decoder" is a decoder of new layers with cross-attention; "bert2bert" begins it as the encoder, with new
    cross-attention (Rothe et al. 2020); "prefix" is the encoder itself, whose source tokens see the source, and target
    tokens the source and the target before them (Dong et al. 2019). `decoder_layers` (None: as many as the encoder).
    `sharing`: the parameters that the decoder shares with the encoder; None is "embeddings" for new
    layers, "none" for a copy of the encoder. `begin_token_id` and `end_token_id`: [CLS] and [SEP] of the vocabulary,
    with which targets begin and end. Raises `UserError` for values that cannot make a model.
    """

    default_label_smoothing: ClassVar[float] = 0.0
    """Label smoothing of training."""

    kind: Kind = "decoder"
    decoder_layers: int | None = None
    sharing: Sharing | None = None
    begin_token_id: int | None = None
    end_token_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in get_args(Kind):
            raise UserError(f"kind={shown(self.kind)} is not one of {', '.join(get_args(Kind))}")
        if self.sharing not in (None, *get_args(Sharing)):
            raise UserError(f"sharing={shown(self.sharing)} is not one of {', '.join(get_args(Sharing))}, or None")
        layers = self.decoder_layers
        if layers is not None:
            check_size("decoder_layers", layers)
        if self.kind == "prefix" and layers not in (None, self.num_hidden_layers):
            raise UserError(f"decoder_layers={layers}: kind='prefix' has no decoder beside its encoder; leave it out")
        if self.kind == "bert2bert" and layers is not None and layers > self.num_hidden_layers:
            raise UserError(
                f"decoder_layers={layers} is more than the encoder's num_hidden_layers={self.num_hidden_layers}, of"
                " which kind='bert2bert' makes the decoder; use kind='decoder'"
            )
        if self.sharing == "all" and self.kind == "decoder":
            raise UserError("sharing='all' makes the decoder of the encoder's layers; use kind='bert2bert'")
        for name in ("begin_token_id", "end_token_id"):
            check_token_id(name, getattr(self, name), self.vocab_size)

    @property
    def shared(self) -> Sharing:
        """Return the fields that decoder and encoder share."""
        if self.sharing is not None:
            return self.sharing
        return "embeddings" if self.kind == "decoder" else "none"

    @property
    def encoder(self) -> BertConfig:
        """Return the encoder's config."""
        return BertConfig(**{field.name: getattr(self, field.name) for field in fields(BertConfig)})

    @property
    def decoder(self) -> BertConfig:
        """Return the decoder's config, which differs only in the number of layers."""
        return replace(self.encoder, num_hidden_layers=self.decoder_layers or self.num_hidden_layers)

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> Self:
        """Make a config of a dictionary in transformers' format, of BERT or of an encoder-decoder of two BERTs. Fields
        of this class take precedence over the encoder's and the decoder's."""
        section = values.get(SECTION)
        names = {field.name for field in fields(cls)} - {field.name for field in fields(BertConfig)}
        settings = {name: section[name] for name in names if name in section} if isinstance(section, dict) else {}
        settings.update({name: values[name] for name in names if name in values})
        rest = {name: value for name, value in values.items() if name not in (SECTION, *names)}
        if values.get("model_type") == ENCODER_DECODER:
            rest, joined = _joined(rest, source)
            settings = {**joined, **settings}
        config = super().from_dict({**rest, **settings}, source)
        assert isinstance(config, cls)
        return config

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Read `config.json` of a model folder, or the given JSON file."""
        values = _values(path)
        if values.get("model_type") == ENCODER_DECODER:
            return cls.from_dict(values, str(path))
        config = super().from_pretrained(path)
        assert isinstance(config, cls)
        return config

    @classmethod
    def of_writer(cls, path: str | Path) -> Self | None:
        """Return the config of a folder with a sequence-to-sequence model; None if it holds an encoder."""
        values = _values(path)
        # A model of another task may have been made of one with a prefix mask, and still have its section.
        prefixed = SECTION in values and values.get("architectures") == ["BertForMaskedLM"]
        return cls.from_pretrained(path) if prefixed or values.get("model_type") == ENCODER_DECODER else None

    def to_dict(self, architecture: str | None = None) -> dict[str, Any]:
        """Return the dictionary that transformers reads as the same model: `EncoderDecoderModel`, or for a prefix mask
        the encoder with its masked-LM head. `architecture` is ignored, since `kind` decides."""
        section = {"kind": self.kind, "sharing": self.shared, "decoder_layers": self.decoder_layers}
        ids = {"begin_token_id": self.begin_token_id, "end_token_id": self.end_token_id}
        if self.kind == "prefix":
            return {**self.encoder.to_dict("BertForMaskedLM"), SECTION: {**section, **ids}}
        decoder = {**self.decoder.to_dict("BertLMHeadModel"), **dict.fromkeys(_OF_DECODERS, True)}
        return {
            "architectures": ["EncoderDecoderModel"],
            "decoder": decoder,
            "decoder_start_token_id": self.begin_token_id,
            "encoder": self.encoder.to_dict("BertModel"),
            "eos_token_id": self.end_token_id,
            SECTION: section,
            "is_encoder_decoder": True,
            "model_type": ENCODER_DECODER,
            "pad_token_id": self.pad_token_id,
        }


def check_token_id(name: str, value: Any, vocab_size: int) -> None:
    """Raise `UserError` unless a value is None or the id of a token."""
    if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab_size):
        raise UserError(f"{name}={shown(value)} lies outside the vocabulary of {vocab_size}")


def _values(path: str | Path) -> dict[str, Any]:
    """Return the content of a folder's `config.json`, or of a JSON file; empty if there is none."""
    file = Path(path)
    if file.is_dir():
        file = next((file / name for name in CONFIGS if (file / name).exists()), file / CONFIGS[0])
    values = read_json_file(file) if file.exists() else None
    return values if isinstance(values, dict) else {}


def _joined(values: dict[str, Any], source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return BERT's part of an encoder-decoder's dictionary with the shared fields, and the decoder's other fields.

    Raises `UserError` where one of the two is not BERT, or they differ in more than their layers.
    """
    encoder, decoder = values.get("encoder"), values.get("decoder")
    if not isinstance(encoder, dict) or not isinstance(decoder, dict):
        raise UserError(f"{source}: model_type={ENCODER_DECODER!r} must have an encoder and a decoder")
    plain = {name: value for name, value in decoder.items() if name not in _OF_DECODERS}
    first = BertConfig.from_dict(encoder, f"{source}, encoder")
    second = BertConfig.from_dict(plain, f"{source}, decoder")
    for field in fields(BertConfig):
        value, other = getattr(first, field.name), getattr(second, field.name)
        if field.name not in _FREE and value != other:
            raise UserError(
                f"{source}: the decoder has {field.name}={shown(other)}, but the encoder {shown(value)}; only their"
                " layers may differ"
            )
    known = {field.name for field in fields(BertConfig)} - {"num_labels", "pad_token_id"}
    beside = {name: value for name, value in values.items() if name in known}
    settings = {
        "kind": "bert2bert",
        "sharing": "none",
        "decoder_layers": second.num_hidden_layers,
        "begin_token_id": _one(values.get("decoder_start_token_id", plain.get("bos_token_id"))),
        "end_token_id": _one(values.get("eos_token_id", plain.get("eos_token_id"))),
    }
    if second.num_hidden_layers > first.num_hidden_layers:
        settings["kind"] = "decoder"
    return {**encoder, **beside}, settings


def _one(token: Any) -> Any:
    """Return a token's id, which may be a list of one in transformers' files."""
    return token[0] if isinstance(token, list) and len(token) == 1 else token
