"""The architectures by name, and the models of folders. A new architecture adds a package beside
`fastbert.models.bert` and an entry here."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastbert.checkpoints.hub import MAIN
from fastbert.checkpoints.manifest import MODEL, verifying
from fastbert.checkpoints.source import config_folder, find_source
from fastbert.config import BertConfig, read_config_file
from fastbert.errors import UserError
from fastbert.io.untrusted_input import shown
from fastbert.models import loading
from fastbert.models.albert.architecture import ALBERT
from fastbert.models.architecture import Architecture, TransformersLayout
from fastbert.models.base import PreTrainedModel, match_weights
from fastbert.models.bert.architecture import BERT
from fastbert.models.deberta_v2.architecture import DEBERTA_V2
from fastbert.models.distilbert.architecture import DISTILBERT
from fastbert.models.electra.architecture import ELECTRA
from fastbert.models.elmo.architecture import ELMO
from fastbert.models.encoder import EncoderModel
from fastbert.models.eurobert.architecture import EUROBERT
from fastbert.models.gpt2.architecture import GPT2
from fastbert.models.heads.base import ModelWithHead
from fastbert.models.jina_bert.architecture import JINA_BERT
from fastbert.models.jina_embeddings_v3.architecture import JINA_EMBEDDINGS_V3
from fastbert.models.modernbert.architecture import MODERNBERT
from fastbert.models.mpnet.architecture import MPNET
from fastbert.models.nomic_bert.architecture import NOMIC_BERT
from fastbert.models.openai_gpt.architecture import OPENAI_GPT
from fastbert.models.roberta.architecture import CAMEMBERT, ROBERTA, XLM_ROBERTA
from fastbert.models.roberta_prelayernorm.architecture import PRE_NORM
from fastbert.models.seq2seq.transformer.config import TransformerConfig
from fastbert.models.seq2seq.transformer.model import TransformerForSequenceToSequence

logger: logging.Logger = logging.getLogger("fastbert")

_RECORDS = (
    BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ELECTRA, DISTILBERT, GPT2, OPENAI_GPT, ELMO, PRE_NORM, MPNET, MODERNBERT,
    DEBERTA_V2, NOMIC_BERT, EUROBERT, ALBERT, JINA_EMBEDDINGS_V3, JINA_BERT,
)  # fmt: skip
ARCHITECTURES: dict[str, Architecture] = {architecture.name: architecture for architecture in _RECORDS}


# Models that are not an encoder with a head, by the `model_type` of their configs.
SEQUENCE_MODELS: dict[str, type[TransformerForSequenceToSequence]] = {
    TransformerConfig.model_type: TransformerForSequenceToSequence
}


def architecture(name: str) -> Architecture:
    """Return an architecture by its `model_type`. Raises UserError for one that is not registered."""
    if name not in ARCHITECTURES:
        raise UserError(f"model_type={shown(name)} is not one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def layouts() -> tuple[TransformersLayout, ...]:
    """Return the encoders of transformers that fastbert accelerates."""
    return tuple(layout for record in ARCHITECTURES.values() for layout in record.layouts)


def model_classes(record: Architecture) -> dict[str, type[PreTrainedModel]]:
    """Return the classes of an architecture's models by name: the encoder, and one per head."""
    kinds: tuple[type[PreTrainedModel], ...] = () if record.config is None else (EncoderModel, *record.heads)
    return {model.__name__: model for model in map(record.model_class, kinds)}


def find_class(name: str) -> type[PreTrainedModel] | None:
    """Return the class of a model by its name, as transformers has it ("RobertaForMaskedLM"); None for other names."""
    others: dict[str, type[PreTrainedModel]] = {model.__name__: model for model in SEQUENCE_MODELS.values()}
    classes = (model_classes(record).get(name) for record in ARCHITECTURES.values())
    return next((model for model in classes if model is not None), others.get(name))


def read_config(source: str | Path) -> BertConfig:
    """Return the config of a model folder, of the class of its architecture.

    Raises `UserError` for a missing or unreadable file, and for an architecture that fastbert has no models of.
    """
    file, values = read_config_file(source)
    return _config_class(values, str(file)).from_pretrained(file)


def config_from_dict(values: dict[str, Any], source: str = "config") -> BertConfig:
    """Return the config of a dictionary in transformers' format, of the class of its architecture.

    Raises `UserError` for an architecture that fastbert has no models of.
    """
    return _config_class(values, source).from_dict(values, source)


def _config_class(values: dict[str, Any], source: str) -> type[BertConfig]:
    """Return the class of the config that a dictionary describes."""
    name = values.get("model_type", BERT.name)
    if isinstance(name, str) and name in SEQUENCE_MODELS:
        return SEQUENCE_MODELS[name].config_type
    record = ARCHITECTURES.get(name) if isinstance(name, str) else None
    others = (other for other in ARCHITECTURES.values() if other.describes is not None and other.describes(values))
    record = next(others, record)
    _refuse_remote_code(values, record, source)
    if record is not None and record.config is not None:
        return record.config
    known = ", ".join([*(name for name, record in ARCHITECTURES.items() if record.config), *SEQUENCE_MODELS])
    cure = "; load it with transformers and give it to fastbert.accelerate" if record is not None else ""
    raise UserError(f"{source}: model_type={shown(name)} is not one of {known}{cure}")


def _refuse_remote_code(values: dict[str, Any], record: Architecture | None, source: str) -> None:
    """Raise UserError for a config whose models are classes of a folder's own code, unless a record replaces them."""
    classes = values.get("auto_map")
    if not isinstance(classes, dict):
        return
    for key, path in classes.items():
        name = str(path[0] if isinstance(path, list) and path else path).rpartition(".")[2]
        if not str(key).startswith("AutoModel"):
            continue
        if record is None or not record.replaces_remote_code or not name.startswith(record.class_prefix):
            raise UserError(
                f"{source}: asks for remote code, {shown(path)} (auto_map), which fastbert does not execute and has no"
                " architecture of; load it with transformers, or remove auto_map if the weights are of"
                f" model_type={shown(values.get('model_type', BERT.name))}"
            )


def architecture_of(config: BertConfig) -> Architecture:
    """Return the architecture of a config."""
    return architecture(config.model_type)


def head_class(config: BertConfig, head: str) -> type[ModelWithHead]:
    """Return the class of a config's models with a head, such as "ForTokenClassification".

    Raises `UserError` for a head that the architecture does not have.
    """
    record = architecture_of(config)
    kind = next((kind for kind in record.heads if kind.__name__ == head), None)
    if kind is None:
        names = ", ".join(kind.__name__ for kind in record.heads)
        raise UserError(f"model_type={config.model_type!r} has no {head}; it has {names}")
    model: type[ModelWithHead] = record.model_class(kind)
    return model


def refuse_decoder(config: BertConfig, source: str | Path) -> None:
    """Raise `UserError` for a model that reads left to right, where masked tokens are to be predicted."""
    if config.is_decoder:
        raise UserError(
            f"{source}: reads left to right, and sees nothing behind a masked token; use `generate` or `evaluate --task"
            " pseudo-perplexity`, or a model that was pre-trained on masked tokens"
        )


@contextmanager
def _of(source: str | Path) -> Iterator[None]:
    """Put the model's source before the message of a `UserError`."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


@contextmanager
def verifying_config(source: str | Path, options: dict[str, Any]) -> Iterator[BertConfig]:
    """Yield the config of a model's source, whose files are verified while the block loads them, and not again by
    `from_pretrained` with these options."""
    path = find_source(source, options.get("revision", MAIN))
    with verifying(config_folder(path), MODEL, verify=options.get("verify", True)):
        options["verify"] = False
        yield read_config(config_folder(path))


def load_encoder(source: str | Path, **options: Any) -> EncoderModel:
    """Load the encoder of a folder, whatever its architecture; options and errors are those of `from_pretrained`."""
    with verifying_config(source, options) as config:
        with _of(source):
            record = architecture_of(config)
        return record.model_class(EncoderModel).from_pretrained(source, **options)


def load_with_head(source: str | Path, head: str, **options: Any) -> Any:
    """Load the model of a folder with a head, such as "ForMaskedLM", whatever its architecture; options and errors are
    those of `from_pretrained`."""
    with verifying_config(source, options) as config:
        with _of(source):
            model = head_class(config, head)
        return model.from_pretrained(source, **options)


def load(source: str | Path, **options: Any) -> PreTrainedModel:
    """Load the model of a folder with its head: of its architecture's models the one that uses most of the folder's
    weights and lacks none, by preference one that config.json names, else the encoder.

    Raises the errors of `from_pretrained`, whose `source` and options it has.

    Example:
        >>> import fastbert
        >>> model = fastbert.load("runs/mine/model")
        >>> type(model).__name__, model.config.hidden_size
        ('BertForPreTraining', 16)
    """
    with verifying_config(source, options) as config:
        if config.model_type in SEQUENCE_MODELS:
            return SEQUENCE_MODELS[config.model_type].from_pretrained(source, **options)
        path = find_source(source, options.get("revision", MAIN))
        record = architecture_of(config)
        kinds = model_classes(record)
        weights = record.from_file(loading.find_weights(path, options.get("pickles", False), verify=False))
        missing, unused = match_weights(weights, config, kinds.values())
        listed = read_config_file(config_folder(path))[1].get("architectures") or ()
        whole = [name for name, kind in kinds.items() if not missing[kind]]
        name = min(whole, key=lambda name: (len(unused[kinds[name]]), name not in listed), default=next(iter(kinds)))
        if whole and unused[kinds[name]]:
            logger.warning("%s: not used by %s: %s", source, name, ", ".join(unused[kinds[name]]))
        return kinds[name].from_pretrained(source, **options)
