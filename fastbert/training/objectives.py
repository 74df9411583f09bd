"""The objectives of pre-training: the head that each trains, and the models that can have it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from fastbert.checkpoints.source import GENERATOR, MODEL
from fastbert.config import PRESETS, BertConfig
from fastbert.data.pretraining import Objective as Samples
from fastbert.errors import UserError
from fastbert.models import registry
from fastbert.models.architecture import Architecture
from fastbert.models.base import PreTrainedModel
from fastbert.models.electra.config import ElectraConfig
from fastbert.models.electra.pretraining import GeneratorAndDiscriminator
from fastbert.models.elmo.config import ElmoConfig
from fastbert.models.heads.pretraining import ForMaskedLM
from fastbert.models.position_extension import with_positions
from fastbert.models.roberta.config import RobertaConfig
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.training.config import (
    GENERATOR_SIZE,
    MASK_RATE,
    MASK_RATES,
    PAIRED,
    UNMASKED,
    Objective,
    PretrainConfig,
    default_objective,
)
from fastbert.training.initial_flags import PRE_NORM
from fastbert.training.initial_model import generator_size_of_folder, initial_config, objective_of_folder

"""The folders of a run's models: the trained one, and the generator of `rtd` beside its discriminator."""


# Beside RoBERTa's family, architectures whose configs in transformers name the tokens that texts begin and end with.
_NAMING_BOUNDARIES = ("modernbert", "eurobert", "albert", "jina_embeddings_v3")


@dataclass(frozen=True)
class PretrainingObjective:
    """An objective as its head and its names."""

    heads: tuple[str, ...]
    """The classes of heads that can be trained; that of a model is the first that its architecture has."""
    causal: bool
    """True if the model must not see later tokens."""
    title: str
    """The loss in messages."""


OBJECTIVES: dict[Objective, PretrainingObjective] = {
    "mlm+nsp": PretrainingObjective(("ForPreTraining",), False, "masked-LM"),
    "mlm+sop": PretrainingObjective(("ForPreTraining",), False, "masked-LM"),
    "mlm": PretrainingObjective(("ForPreTraining", "ForMaskedLM"), False, "masked-LM"),
    "rtd": PretrainingObjective(("ForReplacedTokenDetection",), False, "generator's masked-LM"),
    "ltr": PretrainingObjective(("ForCausalLM",), True, "next-token"),
    "bilm": PretrainingObjective(("ForBidirectionalLM",), False, "neighbouring-word"),
}


def with_objective(config: PretrainConfig) -> PretrainConfig:
    """Return a run's flags with the objective and the share of masked tokens that they leave open, those of the
    architecture, or with the architecture that an objective requires."""
    config = _with_objective(config)
    if config.mask_prob is not None or config.objective in UNMASKED:
        return config
    architecture = config.architecture
    if config.initial_folder is not None:
        architecture = registry.read_config(config.find_initial()).model_type
    elif config.model not in PRESETS:
        architecture = registry.read_config(config.model).model_type
    return replace(config, mask_prob=MASK_RATES.get(architecture or "bert", MASK_RATE))


def _with_objective(config: PretrainConfig) -> PretrainConfig:
    homes = {"bilm": "elmo", "rtd": "electra"}
    new = config.initial_folder is None
    if config.objective in homes and config.architecture is None and config.model in PRESETS and new:
        return replace(config, architecture=homes[config.objective])
    if config.initial_folder is not None:
        objective = config.objective or objective_of_folder(config)
        size = generator_size_of_folder(config) if objective == "rtd" else config.generator_size
        return replace(config, objective=objective, generator_size=size)
    if config.objective is not None:
        return config
    architecture = config.architecture
    if config.model not in PRESETS:
        architecture = registry.read_config(config.model).model_type
    return replace(config, objective=default_objective(architecture))


def model_config(config: PretrainConfig, tokenizer: Tokenizer | None) -> BertConfig:
    """Return the config of the model to train: a preset, or the given config.json, with the tokenizer's padding token,
    behind whose id the positions of RoBERTa's family begin; a preset has the tokenizer's vocabulary too.

    Raises `UserError` for a model that cannot have the objective, and for a config.json that does not agree with
    --max-length, --architecture, or with the tokenizer's vocabulary; without a tokenizer the last is not checked.
    """
    vocab_size = None if tokenizer is None else tokenizer.vocab_size
    ids: dict[str, Any] = {}
    if tokenizer is not None:
        # As in configs of GPT-2, whose tokenizer pads nothing: the end of texts stands for padding, never read.
        padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        ids = {} if padding is None else {"pad_token_id": padding}
    if config.initial_folder is not None:
        model = initial_config(config, tokenizer)
    elif config.model in PRESETS:
        name = config.architecture or "bert"
        if name not in registry.ARCHITECTURES:
            raise UserError(f"--architecture {name}: choose one of {', '.join(registry.ARCHITECTURES)}")
        record = registry.architecture(name)
        if record.config is None:
            raise UserError(f"--architecture {record.name}: fastbert has no models of it to train")
        if config.pre_norm:
            # transformers' pre-LN layers have RoBERTa's embeddings; a BERT keeps its two segments.
            ids |= {} if name != "bert" else {"type_vocab_size": 2}
            record = registry.architecture(PRE_NORM)
        assert record.config is not None
        model = record.config.preset(config.model, **ids, **({} if vocab_size is None else {"vocab_size": vocab_size}))
        if config.max_positions is not None:
            model = with_positions(model, config.max_positions, f"--max-positions {config.max_positions}: a new model")
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
        if config.pre_norm and model.model_type != PRE_NORM:
            raise UserError(
                f"--norm pre: {config.model} has model_type={model.model_type!r}; change it to {PRE_NORM!r}, or give a"
                " size"
            )
        if config.max_positions not in (None, model.max_sequence_length):
            raise UserError(
                f"--max-positions {config.max_positions}: {config.model} has positions for {model.max_sequence_length}"
                " tokens; leave --max-positions out, or change max_position_embeddings there"
            )
        model = replace(model, **ids)
    if config.objective is not None:
        if OBJECTIVES[config.objective].causal and "is_decoder" not in model.constants:
            model = replace(model, is_decoder=True)
        _check_objective(config.objective, model)
    if config.longest > model.max_sequence_length:
        flag = "--max-length" if config.length_schedule is None else "--length-schedule: a sequence of"
        reserved = model.max_position_embeddings - model.max_sequence_length
        from_file = config.model not in PRESETS and config.initial_folder is None
        cure = "lower one or raise the other" if from_file else "lower it, or extend them with --max-positions"
        for_text = f", of which {reserved} are reserved" if reserved else ""
        raise UserError(
            f"{flag} {config.longest} is more than the model's max_position_embeddings="
            f"{model.max_position_embeddings}{for_text}; {cure}"
        )
    return model


def _check_objective(name: Objective, model: BertConfig) -> None:
    """Raise `UserError` for an objective that a model cannot have."""
    record = registry.architecture_of(model)
    possible = [key for key, value in OBJECTIVES.items() if _head(record, value) and value.causal == model.is_decoder]
    if name in possible:
        return
    reads = "reads left to right" if model.is_decoder else "sees the whole text"
    homes = [
        home
        for home, other in registry.ARCHITECTURES.items()
        if home != PRE_NORM and other.config is not None and _head(other, OBJECTIVES[name]) is not None
    ]
    elsewhere = [f"--architecture {home}" for home in homes[:1] if len(homes) <= 2]
    cures = " or ".join([f"--objective {key}" for key in possible] + elsewhere)
    cures = cures or "another --architecture"
    raise UserError(f"--objective {name}: a model of {record.name} that {reads} cannot have it; use {cures}")


def _head(record: Architecture, objective: PretrainingObjective) -> str | None:
    """Return the head with which models of an architecture have an objective, None if they cannot have it."""
    heads = {kind.__name__ for kind in record.heads}
    return next((head for head in objective.heads if head in heads), None)


def pretraining_model(config: BertConfig, objective: Objective, generator_size: float | None = None) -> Any:
    """Return a new model with the head of an objective; with `rtd` a discriminator and its generator."""
    if objective == "rtd":
        assert isinstance(config, ElectraConfig)
        return GeneratorAndDiscriminator(config, GENERATOR_SIZE if generator_size is None else generator_size)
    head = _head(registry.architecture_of(config), OBJECTIVES[objective])
    assert head is not None
    model: Any = registry.head_class(config, head)(config)
    if isinstance(model, ForMaskedLM):
        model.counts_predictions = True
    return model


def described_model(model: BertConfig) -> str:
    """Describe the shape of a model and its vocabulary in a few words."""
    shape = f"{model.num_hidden_layers} layers, {model.hidden_size} wide"
    if isinstance(model, ElmoConfig):
        return (
            f"{shape}, {model.intermediate_size} units), {model.output_size:,} words predicted of {model.vocab_size:,}"
        )
    return f"{shape}, {model.num_attention_heads} heads), vocabulary of {model.vocab_size:,}"


def sample_kind(objective: Objective) -> Samples:
    """Return the kind of samples that an objective is trained on: with `rtd` those of masked LM."""
    return "mlm" if objective == "rtd" else objective


def trained_models(model: Any, config: BertConfig) -> list[tuple[str, PreTrainedModel]]:
    """Return the folders of a run's models, by name, and the models; they get the run's config, with its own dropout,
    for fine-tuning."""
    if isinstance(model, GeneratorAndDiscriminator):
        assert isinstance(config, ElectraConfig)
        model.set_config(config)
        return [(MODEL, model.discriminator), (GENERATOR, model.generator)]
    model.config = config
    return [(MODEL, model)]


def fill_untrained_segments(model: torch.nn.Module, config: PretrainConfig) -> None:
    """Give later segments the token-type embedding of the first one, in a new model whose objective has no pairs.

    Such a run leaves the other rows near their initial values, far from what the layers have learned to read, and
    fine-tuning on pairs would start from there. Models that start from others keep their rows.
    """
    if config.objective in PAIRED or config.initial_folder is not None or config.student_layers is not None:
        return
    for module in model.modules():
        table = getattr(module, "token_type_embeddings", None)
        if table is not None:
            with torch.no_grad():
                table.weight[1:] = table.weight[0]


def described_generator(model: Any) -> str:
    """Describe the generator beside a discriminator in a few words, other models by nothing."""
    if not isinstance(model, GeneratorAndDiscriminator):
        return ""
    generator = model.generator.config
    return f", generator {generator.hidden_size} wide with {generator.num_attention_heads} heads"


def with_boundary_tokens(model: BertConfig, begin: int, end: int) -> BertConfig:
    """Return a config with the ids of the tokens with which texts begin and end, under transformers' names, where that
    of transformers has ids of its own: of left-to-right models and of RoBERTa's family, among others; the rest
    unchanged."""
    if not model.is_decoder and not isinstance(model, RobertaConfig) and model.model_type not in _NAMING_BOUNDARIES:
        return model
    ids: dict[str, Any] = {"bos_token_id": begin, "eos_token_id": end}
    if model.model_type == "modernbert":
        ids |= {"cls_token_id": begin, "sep_token_id": end}
    if {"bos_token_id", "eos_token_id"} <= {field.name for field in fields(model)}:
        return replace(model, **ids)
    return replace(model, extra={**model.extra, **ids})


def with_dropout(model: BertConfig, dropout: float | None) -> BertConfig:
    """Return a model's config with another dropout probability; None leaves it as it is."""
    if dropout is None:
        return model
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob", "embedding_dropout_prob", "mlp_dropout")
    present = {field.name for field in fields(model)} - model.constants
    changes: dict[str, Any] = {name: dropout for name in names if name in present}
    return replace(model, **changes)
