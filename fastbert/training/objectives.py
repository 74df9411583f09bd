"""The objectives of pre-training: the head that each trains, and the models that can have it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from fastbert.config import PRESETS, BertConfig
from fastbert.errors import UserError
from fastbert.models import registry
from fastbert.models.elmo.config import ElmoConfig
from fastbert.training.config import Objective, PretrainConfig, default_objective


@dataclass(frozen=True)
class PretrainingObjective:
    """An objective as its head and its names."""

    head: str
    """The class of `fastbert.models.heads` that is trained."""
    causal: bool
    """True if the model must not see later tokens."""
    title: str
    """The loss in messages."""


OBJECTIVES: dict[Objective, PretrainingObjective] = {
    "mlm+nsp": PretrainingObjective("ForPreTraining", False, "masked-LM"),
    "mlm+sop": PretrainingObjective("ForPreTraining", False, "masked-LM"),
    "mlm": PretrainingObjective("ForPreTraining", False, "masked-LM"),
    "ltr": PretrainingObjective("ForCausalLM", True, "next-token"),
    "bilm": PretrainingObjective("ForBidirectionalLM", False, "neighbouring-word"),
}


def with_objective(config: PretrainConfig) -> PretrainConfig:
    """Return a run's flags with the objective that --objective leaves open, that of the architecture, or with the
    architecture that an objective requires."""
    if config.objective == "bilm" and config.architecture is None and config.model in PRESETS:
        return replace(config, architecture="elmo")
    if config.objective is not None:
        return config
    architecture = config.architecture
    if config.model not in PRESETS:
        architecture = registry.read_config(config.model).model_type
    return replace(config, objective=default_objective(architecture))


def model_config(config: PretrainConfig, vocab_size: int | None) -> BertConfig:
    """Return the config of the model to train: a preset with the run's vocabulary, or the given config.json.

    Raises `UserError` for a model that cannot have the objective, and for a config.json that does not agree with
    --max-length, --architecture, or with `vocab_size` unless that is None.
    """
    if config.model in PRESETS:
        record = registry.architecture(config.architecture or "bert")
        if record.config is None:
            raise UserError(f"--architecture {record.name}: fastbert has no models of it to train")
        model = record.config.preset(config.model, **({} if vocab_size is None else {"vocab_size": vocab_size}))
        if isinstance(model, ElmoConfig) and config.vocab_size is not None:
            model = replace(model, output_size=min(config.vocab_size, model.vocab_size))
    else:
        model = registry.read_config(config.model)
        if config.architecture not in (None, model.model_type):
            raise UserError(
                f"--architecture {config.architecture}, but {config.model} has model_type={model.model_type!r}: leave"
                " --architecture out"
            )
        if isinstance(model, ElmoConfig) and vocab_size is not None:  # no weight has a row per word that is read
            model = replace(model, vocab_size=vocab_size, output_size=min(model.output_size, vocab_size))
        if vocab_size is not None and model.vocab_size != vocab_size:
            raise UserError(
                f"{config.model}: vocab_size={model.vocab_size}, but the vocabulary has {vocab_size} entries;"
                " set vocab_size to that number or give the vocabulary that belongs to it"
            )
    if config.objective is not None:
        if OBJECTIVES[config.objective].causal and "is_decoder" not in model.constants:
            model = replace(model, is_decoder=True)
        _check_objective(config.objective, model)
    if config.max_length > model.max_sequence_length:
        raise UserError(
            f"--max-length {config.max_length} is more than the model's max_position_embeddings="
            f"{model.max_sequence_length}; lower one or raise the other"
        )
    return model


def _check_objective(name: Objective, model: BertConfig) -> None:
    """Raise `UserError` for an objective that a model cannot have."""
    record = registry.architecture_of(model)
    heads = {kind.__name__ for kind in record.heads}
    possible = [key for key, value in OBJECTIVES.items() if value.head in heads and (value.causal == model.is_decoder)]
    if name in possible:
        return
    reads = "reads left to right" if model.is_decoder else "sees the whole text"
    homes = [
        home
        for home, other in registry.ARCHITECTURES.items()
        if other.config is not None and OBJECTIVES[name].head in {kind.__name__ for kind in other.heads}
    ]
    cures = " or ".join([f"--objective {key}" for key in possible] + [f"--architecture {homes[0]}"] * (len(homes) == 1))
    cures = cures or "another --architecture"
    raise UserError(f"--objective {name}: a model of {record.name} that {reads} cannot have it; use {cures}")


def pretraining_model(config: BertConfig, objective: Objective) -> Any:
    """Return a new model with the head of an objective."""
    return registry.head_class(config, OBJECTIVES[objective].head)(config)


def described_model(model: BertConfig) -> str:
    """Describe the shape of a model and its vocabulary in a few words."""
    shape = f"{model.num_hidden_layers} layers, {model.hidden_size} wide"
    if isinstance(model, ElmoConfig):
        return (
            f"{shape}, {model.intermediate_size} units), {model.output_size:,} words predicted of {model.vocab_size:,}"
        )
    return f"{shape}, {model.num_attention_heads} heads), vocabulary of {model.vocab_size:,}"


def with_boundary_tokens(model: BertConfig, begin: int, end: int) -> BertConfig:
    """Return a left-to-right model's config with the ids of the tokens with which texts begin and end, under
    transformers' names; others unchanged."""
    if not model.is_decoder:
        return model
    ids: dict[str, Any] = {"bos_token_id": begin, "eos_token_id": end}
    if {"bos_token_id", "eos_token_id"} <= {field.name for field in fields(model)}:
        return replace(model, **ids)
    return replace(model, extra={**model.extra, **ids})


def with_dropout(model: BertConfig, dropout: float | None) -> BertConfig:
    """Return a model's config with another dropout probability; None leaves it as it is."""
    if dropout is None:
        return model
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob", "embedding_dropout_prob")
    present = {field.name for field in fields(model)}
    changes: dict[str, Any] = {name: dropout for name in names if name in present}
    return replace(model, **changes)
