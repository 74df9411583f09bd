"""A whole pre-training run: from text to a trained model in one folder, begun or continued."""

from __future__ import annotations

import contextlib
import json
import math
import platform
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastbert.checkpoints.source import find_source
from fastbert.config import PRESETS, BertConfig
from fastbert.data.corpus import Corpus
from fastbert.data.pretraining import PretrainingData, unigram_cross_entropy
from fastbert.data.shard_format import IndexReader
from fastbert.data.shards import TokenShards, prepare
from fastbert.errors import UserError
from fastbert.finetuning.distillation import layers_of_student, student_from
from fastbert.models.heads import BertForPreTraining
from fastbert.packing import PackedBatch
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.tokenizers.training import train_vocabulary
from fastbert.training.checkpoint import sha256, write_atomic
from fastbert.training.config import Budget, PretrainConfig
from fastbert.training.device import choose_device
from fastbert.training.kernel_table import FILE as KERNEL_TABLE
from fastbert.training.kernel_table import kernels_of_run
from fastbert.training.loop import Reporter, Trainer
from fastbert.training.metrics import Metrics
from fastbert.training.plot import plot_runs
from fastbert.training.run_files import check_spared, remove_run
from fastbert.training.teaching import NAME as LESSON
from fastbert.training.teaching import MaskedLesson, load_teacher

FORMAT_VERSION = 1
# What a run leaves in its folder, and all that --overwrite removes.
RUN_FILES = (
    "config.json",
    "vocab.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "metrics.jsonl",
    "loss.png",
    KERNEL_TABLE,
)
RUN_FOLDERS = ("checkpoints", "model", "data")


@dataclass(frozen=True)
class PretrainResult:
    """Where the run is, its last validation, and what word frequencies alone reach on the same held-out text (nats)."""

    folder: Path
    validation: Metrics
    unigram_cross_entropy: float
    loss_curve: Path
    model: Path


class _Batches:
    """`PretrainingData` in the form the training loop asks for."""

    def __init__(self, train: PretrainingData, validation: PretrainingData) -> None:
        self.train, self.validation = train, validation

    def training_step(self, step: int, batch_size: int, micro_batch: int) -> list[PackedBatch]:
        first, end = step * batch_size, (step + 1) * batch_size
        return [
            self.train.samples(range(start, min(start + micro_batch, end))) for start in range(first, end, micro_batch)
        ]

    def validation_batches(self, samples: int, micro_batch: int) -> list[PackedBatch]:
        chosen = np.arange(min(samples, self.validation.samples_per_epoch(0)))
        return [
            self.validation.batch(0, chosen[start : start + micro_batch])
            for start in range(0, len(chosen), micro_batch)
        ]


def pretrain(config: PretrainConfig, reporter: Reporter | None = None) -> PretrainResult:
    """Pre-train as `config` says, or continue the run in `config.out` when `config.resume` is set.

    Raises `UserError` (one line: value, place, cure) for input that cannot be trained on, and `Stopped` after SIGINT or
    SIGTERM, when a checkpoint has been written. The same configuration and machine give the same model, bit for bit,
    also across interruptions (with --hours the schedule follows the clock, and no two runs are equal).
    """
    reporter = reporter or Reporter()
    config = _open_folder(config)
    device, dtype = choose_device(config.device, config.dtype, reporter.on_message)
    _check_inputs(config)
    if config.overwrite:
        remove_run(config.out, (*RUN_FILES, *RUN_FOLDERS))
    previous = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(config.deterministic or previous)
    try:
        return _pretrain(config, device, dtype, reporter)
    finally:
        torch.use_deterministic_algorithms(previous)


def _pretrain(config: PretrainConfig, device: torch.device, dtype: torch.dtype, reporter: Reporter) -> PretrainResult:
    tokenizer = _tokenizer(config, reporter)
    shards = _shards(config, tokenizer, reporter)
    teacher = None if config.teacher is None else load_teacher(find_source(config.teacher), tokenizer)
    bert = _recorded_model(config) or _new_config(config, tokenizer, teacher)
    _record(config, bert)
    data = {
        split: PretrainingData(
            shards,
            objective=config.objective,
            max_length=config.max_length,
            short_sequence_prob=config.short_sequence_prob,
            mask_prob=config.mask_prob,
            whole_word=config.whole_word,
            seed=config.seed,
            split=split,
            validation_fraction=config.validation_fraction,
        )
        for split in ("train", "validation")
    }
    budget = _budget(config, data["train"])
    model = BertForPreTraining(bert)
    model.init_weights(seed=config.seed)
    lesson: MaskedLesson | None = None
    if teacher is not None:
        if config.student_layers is not None:
            model = student_from(teacher, config.student_layers).train()
            model.requires_grad_(True)
        lesson = MaskedLesson(model, teacher.to(device), config)
        model.add_module(LESSON, lesson)
    trainer = Trainer(
        model,
        _Batches(data["train"], data["validation"]),
        config,
        budget,
        device=device,
        dtype=dtype,
        folder=config.out,
        fingerprint=tokenizer.fingerprint,
        data_fingerprint=sha256(shards.folder / "index.json"),
        reporter=reporter,
        lesson=lesson,
    )
    if config.resume:
        step = trainer.resume()
        reporter.on_message(f"continuing after step {step}" if step else "no checkpoint yet: starting at step 1")
    layers = f"{bert.num_hidden_layers} layers, {bert.hidden_size} wide, {bert.num_attention_heads} heads"
    reporter.on_message(
        f"{model.num_parameters():,} parameters ({layers}), vocabulary of {bert.vocab_size:,};"
        f" {data['train'].samples_per_epoch(0):,} training and {data['validation'].samples_per_epoch(0):,} validation"
        f" sequences of up to {config.max_length} tokens"
    )
    unigram = unigram_cross_entropy(
        shards, objective=config.objective, seed=config.seed, validation_fraction=config.validation_fraction
    )
    loss_curve = config.out / "loss.png"
    try:
        with kernels_of_run(config.out, device, reporter.on_message):
            validation = trainer.run()
    except (Exception, KeyboardInterrupt):
        # A picture of what there is helps to see why a run ended early; failing to draw it must not hide the reason.
        with contextlib.suppress(OSError, UserError):
            plot_runs([config.out], loss_curve, unigram=unigram)
        raise
    plot_runs([config.out], loss_curve, unigram=unigram)
    folder = config.out / "model"
    model._modules.pop(LESSON, None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return PretrainResult(config.out, validation, unigram, loss_curve, folder)


def _new_config(
    config: PretrainConfig, tokenizer: WordPieceTokenizer, teacher: BertForPreTraining | None
) -> BertConfig:
    """That of a model of its own, or of one that begins as some layers of its teacher."""
    if teacher is None or config.student_layers is None:
        return model_config(config, tokenizer.vocab_size)
    if config.max_length > teacher.config.max_position_embeddings:
        raise UserError(f"--max-length {config.max_length} is more than the teacher's positions; lower it")
    layers_of_student(teacher.config.num_hidden_layers, config.student_layers)
    return replace(teacher.config, num_hidden_layers=config.student_layers)


def model_config(config: PretrainConfig, vocab_size: int | None) -> BertConfig:
    """The model that a run trains: a published size with the run's vocabulary, or the given config.json, which must
    agree with length and vocabulary (None where that is not known yet)."""
    if config.model in PRESETS:
        bert = BertConfig.preset(config.model, **({} if vocab_size is None else {"vocab_size": vocab_size}))
    else:
        bert = BertConfig.from_pretrained(config.model)
        if vocab_size is not None and bert.vocab_size != vocab_size:
            raise UserError(
                f"{config.model}: vocab_size={bert.vocab_size}, but the vocabulary has {vocab_size} entries;"
                " set vocab_size to that number or give the vocabulary that belongs to it"
            )
    if config.max_length > bert.max_position_embeddings:
        raise UserError(
            f"--max-length {config.max_length} is more than the model's max_position_embeddings="
            f"{bert.max_position_embeddings}; lower one or raise the other"
        )
    return bert


def _open_folder(config: PretrainConfig) -> PretrainConfig:
    """Refuse a folder that holds a run unless it is to be continued or replaced; returns the run's configuration."""
    out = config.out
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file; give a folder")
    holds_run = any((out / name).exists() for name in ("config.json", "checkpoints", "metrics.jsonl"))
    if config.resume:
        if not (out / "config.json").exists():
            raise UserError(f"--out {out}: holds no run to resume; leave --resume out to start one")
        return config.resumed_from(read_run(out))
    if holds_run and not config.overwrite:
        raise UserError(f"--out {out}: already holds a run; continue it with --resume or replace it with --overwrite")
    if not config.corpus and config.data is None:
        raise UserError(
            "nothing to train on: give --corpus with files, folders or globs, or --data with prepared shards"
        )
    if holds_run and _saved(out) is None:
        raise UserError(f"--out {out}: holds no fastbert run, so --overwrite does not empty it; choose another --out")
    return config


def _check_inputs(config: PretrainConfig) -> None:
    """Find what is wrong with the input before a run is replaced, and before hours of preparing are spent."""
    if config.resume:
        return
    model_config(config, None)
    if config.corpus:
        _corpus(config)
    if config.data is not None:
        IndexReader(config.data)
    if config.tokenizer is not None:
        model_config(config, WordPieceTokenizer.from_pretrained(config.tokenizer).vocab_size)
    if not config.overwrite:
        return
    given = [("--data", config.data), ("--tokenizer", config.tokenizer)]
    given += [] if config.model in PRESETS else [("--model", Path(config.model))]
    given += [] if config.teacher is None else [("--teacher", Path(config.teacher))]
    check_spared(config.out, (*RUN_FILES, *RUN_FOLDERS), [*given, *(("--corpus", path) for path in config.corpus)])
    if config.tokenizer is not None and config.tokenizer.resolve() == config.out.resolve():
        check_spared(config.out.parent, (config.out.name,), [("--tokenizer", config.tokenizer)])


def read_run(folder: Path) -> PretrainConfig:
    """The configuration of the run in `folder`."""
    path = folder / "config.json"
    saved = _saved(folder)
    if saved is None:
        raise UserError(f"{path}: not a run's configuration; put the run's own back, or start again with another --out")
    try:
        return PretrainConfig.from_dict(saved["run"])
    except TypeError as error:
        raise UserError(f"{path}: not a run's configuration ({error})") from None


def _saved(folder: Path) -> dict[str, Any] | None:
    """What `_record` wrote into the folder; None where that is missing or something else."""
    path = folder / "config.json"
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    if not isinstance(saved, dict) or not all(isinstance(saved.get(key), dict) for key in ("run", "model")):
        return None
    version = saved.get("format_version")
    if not isinstance(version, int):
        return None
    if version > FORMAT_VERSION:
        raise UserError(f"{path}: written by a newer fastbert (format {version}); update fastbert")
    return saved


def _recorded_model(config: PretrainConfig) -> BertConfig | None:
    """The model of the run that is resumed, whatever has become of the file that it was read from."""
    saved = _saved(config.out) if config.resume else None
    return None if saved is None else BertConfig.from_dict(saved["model"], source=str(config.out / "config.json"))


def _record(config: PretrainConfig, bert: BertConfig) -> None:
    """Write RUN/config.json when the run begins, and when it is resumed, since --steps and others may be new."""
    values: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "run": replace(config, resume=False, overwrite=False).to_dict(),
        "model": bert.to_dict(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    write_atomic(config.out / "config.json", json.dumps(values, indent=2) + "\n")


def _tokenizer(config: PretrainConfig, reporter: Reporter) -> WordPieceTokenizer:
    """The run's tokenizer: what it already has, the one given, the one of the shards, or a vocabulary built now."""
    own = config.out
    if config.resume and (own / "vocab.txt").exists():
        return WordPieceTokenizer.from_pretrained(own)
    if config.tokenizer is not None:
        tokenizer = WordPieceTokenizer.from_pretrained(config.tokenizer)
    elif config.data is not None:
        tokenizer = WordPieceTokenizer.from_pretrained(config.data)
    elif config.teacher is not None:
        tokenizer = WordPieceTokenizer.from_pretrained(find_source(config.teacher))
    else:
        vocabulary = train_vocabulary(
            _sentences(_corpus(config), reporter),
            config.vocab_size,
            lower_case=not config.cased,
        )
        tokenizer = WordPieceTokenizer(vocabulary, do_lower_case=not config.cased)
    own.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(own)
    return tokenizer


def _shards(config: PretrainConfig, tokenizer: WordPieceTokenizer, reporter: Reporter) -> TokenShards:
    """The token shards to train on: those given, those of an earlier start of this run, or new ones."""
    folder = config.data if config.data is not None else config.out / "data"
    if config.data is None and not (config.resume and folder.exists()):
        corpus = _corpus(config)
        report = reporter.on_stage("tokenizing", corpus.total_bytes)
        prepare(corpus, tokenizer, folder, overwrite=True, progress=lambda done, sentences: report(done))
    shards = TokenShards.open(folder)
    if shards.fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"{folder}: was tokenized with another vocabulary than {config.tokenizer or config.out / 'vocab.txt'};"
            " prepare it again with this tokenizer, or leave --tokenizer out"
        )
    return shards


def _corpus(config: PretrainConfig) -> Corpus:
    return Corpus.find(config.corpus, text_format=config.text_format, text_key=config.text_key)


def _sentences(corpus: Corpus, reporter: Reporter) -> Iterator[str]:
    for document in corpus.documents(reporter.on_stage("reading for the vocabulary", corpus.total_bytes)):
        yield from document


def _budget(config: PretrainConfig, data: PretrainingData) -> Budget:
    """How long to train: as asked, else one epoch."""
    steps = config.steps
    if steps is None and config.hours is None:
        steps = math.ceil(data.samples_per_epoch(0) / config.batch_size)
    return Budget(steps=steps, seconds=None if config.hours is None else config.hours * 3600)
