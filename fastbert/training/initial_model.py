"""Continue the training of a model folder: its config, its tokenizer and its weights as the beginning of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch

from fastbert.checkpoints.source import GENERATOR, MODEL, config_folder
from fastbert.checkpoints.tokenizer_files import holds_tokenizer
from fastbert.config import PRESETS, BertConfig
from fastbert.errors import UserError
from fastbert.io.untrusted_input import read_json_file
from fastbert.models import loading, registry
from fastbert.models.base import PreTrainedModel
from fastbert.models.electra.config import ElectraConfig, generator_config
from fastbert.models.electra.pretraining import GeneratorAndDiscriminator
from fastbert.models.position_extension import extend_positions, with_more_positions
from fastbert.models.vocabulary_extension import extend_embeddings
from fastbert.tokenizers.extension import Extension
from fastbert.tokenizers.extension_check import find_extension
from fastbert.tokenizers.fit import check_tokenizer
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.tokenizers.wordpiece import WordPieceTokenizer
from fastbert.tokenizers.words import WordTokenizer
from fastbert.training.checkpoint import require_finite
from fastbert.training.config import GENERATOR_SIZE, Objective, PretrainConfig, default_objective
from fastbert.training.initial_flags import PRE_NORM

_SHAPE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
MAX_NAMES = 6  # of weights in a message


def read_initial_config(config: PretrainConfig) -> BertConfig:
    """Return the config of the model of --init.

    Raises `UserError` for an architecture that cannot be trained, and for --architecture, --model and --norm of a
    different model.
    """
    folder = config.initial_folder
    model = registry.read_config(config_folder(config.find_initial()))
    if model.model_type not in registry.ARCHITECTURES:
        raise UserError(f"--init {folder}: fastbert pretrain trains no model_type={model.model_type!r}")
    if config.architecture not in (None, model.model_type):
        raise UserError(
            f"--architecture {config.architecture}, but --init {folder} has model_type={model.model_type!r}; leave"
            " --architecture out"
        )
    norm = "pre" if model.model_type == PRE_NORM else "post"
    if config.norm not in (None, norm):
        raise UserError(
            f"--norm {config.norm}: the layers of --init {folder} are {norm}-norm, and keep what they were trained"
            " with; leave --norm out"
        )
    _check_shape(config, model)
    return model


def _check_shape(config: PretrainConfig, model: BertConfig) -> None:
    """Raise `UserError` where --model names a model of a different shape; its default stands for none."""
    name = config.model
    if name == type(config).model:
        return
    other = type(model).preset(name) if name in PRESETS else registry.read_config(name)
    if other.model_type != model.model_type:
        field, expected, actual = "model_type", other.model_type, model.model_type
    else:
        differing = [field for field in _SHAPE if getattr(other, field) != getattr(model, field)]
        if not differing:
            return
        field = differing[0]
        expected, actual = getattr(other, field), getattr(model, field)
    raise UserError(
        f"--model {name} has {field}={expected}, but --init {config.initial_folder} has {actual}, which stays;"
        " leave --model out"
    )


def initial_config(config: PretrainConfig, tokenizer: Tokenizer | None) -> BertConfig:
    """Return the config of the model to train: that of --init with the positions of --max-positions and, with a
    tokenizer, rows for all its entries.

    Raises `UserError` as `read_initial_config` and `vocabulary_extension` do.
    """
    model = read_initial_config(config)
    if config.max_positions is not None:
        source = f"--max-positions {config.max_positions}: --init {config.initial_folder}"
        model = with_more_positions(model, config.max_positions, source)
    if tokenizer is not None and vocabulary_extension(config, tokenizer) is not None:
        model = replace(model, vocab_size=max(model.vocab_size, len(tokenizer)))
    return model


def initial_tokenizer(config: PretrainConfig) -> Tokenizer | None:
    """Return the tokenizer in the folder of --init, None if it has none."""
    folder = config_folder(config.find_initial())
    if not holds_tokenizer(folder):
        return None
    tokenizer = load_tokenizer(folder)
    # Runs number ELMo's words by their vocabulary.
    return WordPieceTokenizer.from_pretrained(folder) if isinstance(tokenizer, WordTokenizer) else tokenizer


def vocabulary_extension(config: PretrainConfig, tokenizer: Tokenizer) -> Extension | None:
    """Return the entries by which the run's tokenizer extends that of --init; None if there are none, and for a folder
    without a tokenizer, to whose model that of the run must fit in size.

    Raises `UserError` for a tokenizer that is neither that of --init nor an extension of it.
    """
    folder = config.initial_folder
    base = initial_tokenizer(config)
    if base is None:
        check_tokenizer(tokenizer, read_initial_config(config).vocab_size, f"--init {folder}")
        return None
    extension = find_extension(base, tokenizer)
    if extension is None:
        named = (("tokenizer", config.tokenizer), ("data", config.data and " ".join(config.data)))
        source = next((f"--{name} {value}" for name, value in named if value), "")
        raise UserError(
            f"{source or 'the tokenizer'}: was not made from the vocabulary of --init {folder}; "
            + (
                f"prepare the text again with `fastbert prepare --tokenizer {folder}`"
                if config.tokenizer is None
                else "leave --tokenizer out, or extend that vocabulary with `fastbert vocab --extend`"
            )
        )
    return extension if extension.entries else None


def objective_of_folder(config: PretrainConfig) -> Objective:
    """Return the objective that --objective leaves open: that of the run whose model --init is, else the one whose head
    the folder has; that of the architecture for a folder with the encoder alone or a head for a task, but masked LM
    alone for a BERT without next-sentence prediction."""
    model = read_initial_config(config)
    if (objective := _objective_of_run(config.find_initial())) is not None:
        return objective
    if model.is_decoder and "is_decoder" not in model.constants:
        return "ltr"
    names = loading.find_weights(config.find_initial()).tensors
    default = default_objective(model.model_type)
    if default == "rtd" and any(name.startswith("generator_predictions.") for name in names):
        return "mlm"
    if default in ("mlm", "mlm+nsp"):
        return "mlm+nsp" if any(name.startswith("cls.seq_relationship.") for name in names) else "mlm"
    return default


def _objective_of_run(source: Path) -> Objective | None:
    """Return the objective of the run of pre-training that wrote a model, None for other folders."""
    record = source.parent / "config.json"
    if source.name != MODEL or not record.is_file():
        return None
    values = read_json_file(record)
    flags = values.get("run") if isinstance(values, dict) else None
    name = flags.get("objective") if isinstance(flags, dict) else None
    return next((objective for objective in get_args(Objective) if objective == name), None)


def find_generator(config: PretrainConfig) -> Path | None:
    """Return the folder of the generator beside the discriminator of --init, None if there is none."""
    source = config.find_initial()
    generator = source.parent / GENERATOR
    return generator if source.name == MODEL and (generator / "config.json").is_file() else None


def generator_size_of_folder(config: PretrainConfig) -> float:
    """Return --generator-size, by default that of the generator beside the discriminator of --init."""
    if config.generator_size is not None:
        return config.generator_size
    folder = find_generator(config)
    if folder is None:
        return GENERATOR_SIZE
    model, generator = read_initial_config(config), registry.read_config(folder)
    assert isinstance(model, ElectraConfig)
    fraction = generator.hidden_size / model.hidden_size
    fits = 0 < fraction <= 1 and _same_shape(generator_config(model, fraction), generator)
    return fraction if fits else GENERATOR_SIZE


def _same_shape(config: BertConfig, other: BertConfig) -> bool:
    return all(getattr(config, name) == getattr(other, name) for name in _SHAPE)


def load_initial(model: Any, config: PretrainConfig, tokenizer: Tokenizer, report: Callable[[str], None]) -> None:
    """Replace the weights of a run's new model by those of --init, extended to its positions and its vocabulary.

    Weights that the folder lacks, of a head or a pooler, are drawn from the run's seed; they are reported, and so are
    weights of the folder that the model does not have. Raises `UserError` for weights that are not finite, and the
    errors of `from_pretrained`.
    """
    extension = vocabulary_extension(config, tokenizer)
    source = config.find_initial()
    base = read_initial_config(config)
    drops = "" if config.dropout is not None else f", with its own dropout of {base.hidden_dropout_prob:g}"
    report(f"--init {config.initial_folder}: continuing a {base.model_type} of {base.num_hidden_layers} layers{drops}")
    if isinstance(model, GeneratorAndDiscriminator):
        generator = find_generator(config)
        if generator is not None and _same_shape(registry.read_config(generator), model.generator.config):
            # Before the discriminator, whose embeddings both have.
            _load(model.generator, generator, registry.read_config(generator), config, extension, report)
        else:
            report(
                f"--init {config.initial_folder}: no generator beside it fits; a new one of {config.generator_size:g}"
                " times its width"
            )
        _load(model.discriminator, source, base, config, extension, report)
        return
    _load(model, source, base, config, extension, report)


def _load(
    model: PreTrainedModel,
    source: Path,
    base: BertConfig,
    config: PretrainConfig,
    extension: Extension | None,
    report: Callable[[str], None],
) -> None:
    """Load the weights of a folder, whose config is `base`, into a model that may be larger."""
    target = model.config
    base = replace(base, is_decoder=target.is_decoder)
    loaded = loading.outline(type(model), base)
    weights = model.architecture.from_file(loading.find_weights(source))
    loading.check_config(type(model), base, weights)
    unused = sorted(loaded.match(weights).keys() - loading.model_shapes(loaded).keys() - set(loaded.tied_keys))
    loading.load(loaded, weights, torch.float32, mapped=False, warn=False)
    generator = torch.Generator().manual_seed(config.seed)
    loading.initialise(loaded, loaded.new_weights, base.initializer_range, generator)
    require_finite(loaded, f"--init {config.initial_folder}")
    for what, names in (("new weights for", sorted(loaded.new_weights)), ("left out:", unused)):
        if names:
            more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            report(f"--init {config.initial_folder}: {what} {', '.join(names[:MAX_NAMES])}{more}")
    if extension is not None:
        extend_embeddings(loaded, extension)
        report(f"{len(extension.entries):,} new entries, each initialised as the mean of its former pieces")
    if target.max_sequence_length != base.max_sequence_length:
        method = config.extend_positions or "repeat"
        extend_positions(loaded, target.max_sequence_length, method)
        how = "repetition of" if method == "repeat" else "interpolation between"
        report(f"positions {base.max_sequence_length:,} to {target.max_sequence_length:,} by {how} the first ones")
    model.load_state_dict(loaded.state_dict())
