"""Make the configuration and the tokenizer of a run's new models, with --architecture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastbert.checkpoints.source import find_source
from fastbert.config import read_config_file
from fastbert.errors import UserError
from fastbert.finetuning.config import NEW_SIZES, FinetuneConfig
from fastbert.models.seq2seq.transformer.config import TransformerConfig
from fastbert.tasks.base import Task
from fastbert.tasks.examples import Dataset, SequenceExample
from fastbert.tasks.reports.baselines import unlogged
from fastbert.tasks.row_template import both_ends
from fastbert.tokenizers import WordPieceTokenizer, train_vocabulary
from fastbert.tokenizers.fit import check_tokenizer
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.training.defaults import vocabulary_size
from fastbert.training.reporter import Reporter
from fastbert.training.run_files import TOKENIZER


def source_of(
    task: Task[Any], config: FinetuneConfig, train: Dataset[Any], reporter: Reporter
) -> tuple[Path | TransformerConfig, Tokenizer]:
    """Return the folder of the pre-trained model, or the config of a new one, and the tokenizer.

    Raises `UserError` for a model that does not exist, and a tokenizer that does not fit a new one.
    """
    if config.architecture is None:
        folder = find_source(str(config.model))
        return folder, task.load_tokenizer(folder)
    tokenizer = new_tokenizer(config, train, reporter)
    model = new_config(config, tokenizer)
    reporter.on_message(f"new weights: all {model.num_parameters():,} of the model")
    return model, tokenizer


def new_tokenizer(config: FinetuneConfig, train: Dataset[Any], reporter: Reporter) -> Tokenizer:
    """Return the tokenizer of --tokenizer, else the one that a resumed run has, else one whose vocabulary is built from
    the sources and targets of the training examples."""
    if config.tokenizer is not None:
        return load_tokenizer(config.tokenizer)
    if config.resume and (config.out / TOKENIZER).is_dir():
        return load_tokenizer(config.out / TOKENIZER)
    size = config.vocab_size or _size_of_file(config)
    if size is not None:
        tokens = train_vocabulary(_texts(train), size, lower_case=not config.cased)
    else:
        size = vocabulary_size(sum(len(text.encode()) for text in _texts(train)))
        with unlogged():  # nobody asked for so many tokens
            tokens = train_vocabulary(_texts(train), size, lower_case=not config.cased)
    reporter.on_message(f"vocabulary: {len(tokens):,} tokens, built from {train.path}")
    return WordPieceTokenizer(tokens, do_lower_case=not config.cased)


def new_config(config: FinetuneConfig, tokenizer: Tokenizer) -> TransformerConfig:
    """Return the config of --model, a size or a config.json, for the tokenizer.

    Raises `UserError` for a config.json of a different architecture, and for a tokenizer that does not fit it.
    """
    size, entries = _size_of_file(config), len(tokenizer)
    model = str(config.model)
    if model in NEW_SIZES:
        bare = TransformerConfig.preset(model, vocab_size=entries)
    else:
        file, values = read_config_file(model)
        if size is not None and config.tokenizer is not None:
            check_tokenizer(tokenizer, size, str(file))
            entries = size
        bare = TransformerConfig.from_dict({**values, "vocab_size": entries}, str(file))
    begin, end = both_ends(tokenizer)
    return replace(
        bare,
        decoder_layers=config.decoder_layers or bare.decoder_layers,
        pad_token_id=tokenizer.pad_token_id,
        begin_token_id=begin,
        end_token_id=end,
    )


def inputs(config: FinetuneConfig) -> list[tuple[str, Path | None]]:
    """Return the files of a new model, by flag."""
    model = None if config.model is None or config.model in NEW_SIZES else Path(config.model)
    return [("--tokenizer", config.tokenizer), ("--model", model)]


def _size_of_file(config: FinetuneConfig) -> int | None:
    """Return the vocabulary's size in the config.json of --model; None if it names none. Raises `UserError`."""
    if config.model in NEW_SIZES:
        return None
    file, values = read_config_file(str(config.model))
    size = values.get("vocab_size")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise UserError(f"{file}: vocab_size={size!r} must be a positive integer")
    return size


def _texts(train: Dataset[SequenceExample]) -> Iterator[str]:
    """Yield the sources and the targets."""
    for example in train:
        yield example.source
        yield example.target or ""
