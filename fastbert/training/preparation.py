"""Prepare a pre-training run: its tokenizer, its token shards, its model, and what its flags leave open.

One file: the stages of the preparation in their order, each of which config.json records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from fastbert.checkpoints.source import find_source
from fastbert.config import PRESETS, BertConfig
from fastbert.data.dedup import DedupReport
from fastbert.data.leaks import leak_warnings
from fastbert.data.mixing import SampleData, open_data
from fastbert.data.prepare import prepare
from fastbert.data.shards import TokenShards
from fastbert.data.streamed_shards import open_index, open_shards, tokenizer_folder
from fastbert.distillation.models import copied_layers
from fastbert.distillation.pretraining import load_teacher
from fastbert.errors import UserError
from fastbert.flags import flag
from fastbert.io.locations import is_remote, local_path
from fastbert.models import registry
from fastbert.models.heads.pretraining import ForPreTraining
from fastbert.tokenizers.layouts import lower_cases
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.tokenizers.piece_training import train_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.tokenizers.words import check_words, word_tokenizer
from fastbert.training import defaults
from fastbert.training.batches import Phase, PretrainingBatches
from fastbert.training.checkpoint import weights_fingerprint
from fastbert.training.config import Budget, PretrainConfig, default_kind
from fastbert.training.given_data import fingerprint, given_shards
from fastbert.training.initial_model import initial_tokenizer
from fastbert.training.initialisation import can_be_structured
from fastbert.training.objectives import (
    model_config,
    sample_kind,
    with_boundary_tokens,
)
from fastbert.training.reporter import Reporter
from fastbert.training.run_files import (
    TOKENIZER,
    check_spared,
    keep_tokenizer,
    remove_run,
)
from fastbert.training.run_folder import RUN_FILES, RUN_FOLDERS, Run

GRID = 1000  # steps by which schedules are averaged
SPLITS: tuple[Literal["train"], Literal["validation"]] = ("train", "validation")


@dataclass
class Inputs:
    """What a run trains on, and with."""

    tokenizer: Tokenizer
    shards: tuple[TokenShards, ...]
    teacher: ForPreTraining | None
    phases: list[Phase]

    @classmethod
    def of(cls, config: PretrainConfig, tokenizer: Tokenizer, shards: tuple[TokenShards, ...], teacher: Any) -> Inputs:
        """Plan the samples of a run."""
        return cls(tokenizer, shards, teacher, [_phase(config, shards, end, size) for end, size in config.lengths])


def check_inputs(config: PretrainConfig) -> None:
    """Raise `UserError` for invalid inputs, before a run is replaced and before hours of preparation."""
    if config.resume:
        return
    for name in ("batch_tokens", "batch_schedule"):
        if getattr(config, name) is not None and config.batch_size is not None:
            raise UserError(f"--batch-size and {flag(name)} exclude each other; leave one out")
    model_config(config, None)
    if config.corpus:
        config.find_corpus()
    for data in config.data or ():
        open_index(data, config.stream_options)
    if config.tokenizer is not None:
        tokenizer = load_tokenizer(config.tokenizer)
        if config.objective == "bilm":
            check_words(tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size)), f"--tokenizer {config.tokenizer}")
        model_config(config, tokenizer)
    if not config.overwrite:
        return
    inputs: list[tuple[str, Path | None]] = [("--tokenizer", config.tokenizer)]
    inputs += [("--data", local_path(data)) for data in config.data or () if not is_remote(data)]
    inputs += [] if config.model in PRESETS else [("--model", Path(config.model))]
    inputs += [] if config.teacher is None else [("--teacher", Path(config.teacher))]
    inputs += [] if config.initial_folder is None else [("--init", config.find_initial())]
    inputs += [("--corpus", local_path(path)) for path in config.corpus if not is_remote(path)]
    check_spared(config.out, (*RUN_FILES, *RUN_FOLDERS), inputs)
    if config.tokenizer is not None and config.tokenizer.resolve() == config.out.resolve():
        check_spared(config.out.parent, (config.out.name,), [("--tokenizer", config.tokenizer)])


def prepare_run(run: Run, reporter: Reporter) -> Inputs:
    """Make or open what a run trains on, choose what its flags leave open, and record each stage in config.json."""
    config = run.config
    assert config.objective is not None
    run.finished = None
    begun = run.data is not None
    if not begun:
        run.write()
    _set_vocabulary_size(run)
    tokenizer = _tokenizer(run, reporter)
    shards = _shards(run, tokenizer, reporter)
    teacher = None if config.teacher is None else load_teacher(find_source(config.teacher), tokenizer)
    _bind_teacher(run, teacher)
    if begun:
        # Another place of the shards is recorded once they have been found there.
        run.write()
    if run.model is None:
        run.model = _new_config(config, tokenizer, teacher).to_dict()
        run.write()
    inputs = Inputs.of(run.config, tokenizer, shards, teacher)
    for warning in leak_warnings(inputs.phases[0].train, inputs.phases[0].validation):
        reporter.on_message(warning)
    _set_hyper_parameters(run, model_of(run), inputs.phases[0].train)
    return inputs


def read_inputs(run: Run, locations: Sequence[str] = ()) -> Inputs:
    """Return what the first process has prepared, in one of the others; `locations` are those of the shards, by default
    as the run has them. Raises `UserError` for a folder that is missing there, and for other shards."""
    config = run.config
    locations = locations or config.data or (str(config.out / "data"),)
    shared = "all processes need the same files: use a file system that all machines share"
    for path in (config.out / TOKENIZER, *(local_path(data) for data in locations if not is_remote(data))):
        if not path.exists():
            raise UserError(f"no such folder: {path}; {shared}")
    for data, expected in zip(locations, (run.data or "").split(), strict=True):
        if open_index(data, config.stream_options).sha256 != expected:
            raise UserError(f"{data}: holds other token shards than in process 0; {shared}")
    tokenizer = load_tokenizer(config.out / TOKENIZER)
    teacher = None if config.teacher is None else load_teacher(find_source(config.teacher), tokenizer)
    shards = tuple(open_shards(data, config.stream_options, verify=False) for data in locations)
    return Inputs.of(config, tokenizer, shards, teacher)


def model_of(run: Run) -> BertConfig:
    """Return the config of a run's model."""
    return registry.config_from_dict(run.model or {}, source=str(run.config.out / "config.json"))


def _phase(config: PretrainConfig, shards: Sequence[TokenShards], end: float, length: int) -> Phase:
    """Plan the samples of a phase of a run with sequences of `length` tokens."""
    assert config.objective is not None
    samples = sample_kind(config.objective)
    train, validation = (
        open_data(
            shards,
            config.mix,
            objective=samples,
            max_length=length,
            short_sequence_prob=config.short_sequence_prob,
            mask_prob=config.mask_rate,
            mask_replacement=config.replacement_shares,
            masking=config.mask_unit,
            static_masks=config.static_masks,
            seed=config.seed,
            split=split,
            shuffle_window=config.window_tokens if split == "train" else None,
            validation_fraction=config.validation_fraction,
        )
        for split in SPLITS
    )
    return Phase(end, train, validation)


def _bind_teacher(run: Run, teacher: ForPreTraining | None) -> None:
    """Record the fingerprint of the teacher's weights. Raises `UserError` if the run began with different weights."""
    fingerprint = None if teacher is None else weights_fingerprint(teacher)
    if run.teacher not in (None, fingerprint):
        raise UserError(
            f"--teacher {run.config.teacher}: has different weights than when the run began; put those back, or start"
            " another run with another --out"
        )
    run.teacher = fingerprint


def _new_config(config: PretrainConfig, tokenizer: Tokenizer, teacher: ForPreTraining | None) -> BertConfig:
    """Return the config of the model: that of --model, or the teacher's with fewer layers."""
    if teacher is None or config.student_layers is None:
        model = model_config(config, tokenizer)
        return with_boundary_tokens(model, tokenizer.cls_token_id, tokenizer.sep_token_id)
    if config.longest > teacher.config.max_sequence_length:
        raise UserError(f"--max-length {config.longest} is more than the teacher's positions; lower it")
    copied_layers(teacher.config.num_hidden_layers, config.student_layers)
    return replace(teacher.config, num_hidden_layers=config.student_layers)


def _tokenizer(run: Run, reporter: Reporter) -> Tokenizer:
    """Return the tokenizer that the run keeps, or a new one, which is written to the run."""
    tokenizer = keep_tokenizer(run.config.out, run.vocabulary, lambda: _new_tokenizer(run.config, reporter))
    if run.vocabulary is None:
        run.vocabulary = tokenizer.fingerprint
        run.write()
    return tokenizer


def _new_tokenizer(config: PretrainConfig, reporter: Reporter) -> Tokenizer:
    """Return the tokenizer of --tokenizer, --data, --teacher or --init, else one whose vocabulary is built from the
    corpus."""
    if config.initial_folder is not None and not (config.tokenizer or config.data):
        tokenizer = initial_tokenizer(config)
        if tokenizer is None:
            raise UserError(f"--init {config.init}: holds no tokenizer; name that of its training with --tokenizer")
        return tokenizer
    source = _tokenizer_source(config)
    if source:
        return load_tokenizer(source)
    corpus = config.find_corpus()
    report = reporter.on_stage("vocabulary", corpus.total_bytes)
    sentences = chain.from_iterable(corpus.documents(report))
    assert config.vocab_size is not None
    if config.objective == "bilm":
        return word_tokenizer(sentences, config.vocab_size)
    architecture = config.architecture if config.pre_norm else model_config(config, None).model_type
    kind = config.vocab_kind or default_kind(architecture)
    lower_case = lower_cases(kind, cased=config.cased, lower_case=config.lower_case)
    return train_tokenizer(sentences, kind, config.vocab_size, lower_case=lower_case)


def _tokenizer_source(config: PretrainConfig) -> Path | None:
    """Return where the tokenizer comes from, None if it is to be built."""
    if config.tokenizer is not None:
        return config.tokenizer
    if config.data is not None:
        return tokenizer_folder(config.data[0], config.stream_options)
    return None if config.teacher is None else find_source(config.teacher)


def _shards(run: Run, tokenizer: Tokenizer, reporter: Reporter) -> tuple[TokenShards, ...]:
    """Return the token shards to train on: those of --data, those of an earlier start of the run, or new ones."""
    config = run.config
    folder = config.out / "data"
    if config.data is not None:
        shards = given_shards(config.data, run.data, config.stream_options, config.window_tokens, reporter)
    else:
        shards = _stored_shards(run, folder, reporter)
    source = config.data[0] if config.data is not None else str(folder)
    if shards and config.objective == "bilm":
        check_words(shards[0].vocabulary, source)
    if not shards:
        corpus = config.find_corpus()
        report = reporter.on_stage("tokenizing", corpus.total_bytes)
        prepared = prepare(
            corpus,
            tokenizer,
            folder,
            overwrite=True,
            dedup=config.dedup,
            progress=lambda done, sentences: report(done),
        )
        if dropped := DedupReport.read(folder):
            reporter.on_message(str(dropped))
        shards = (prepared,)
    if shards[0].fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"{source}: was tokenized with a different vocabulary than {config.tokenizer or config.out / TOKENIZER};"
            " prepare it again with this tokenizer, or leave --tokenizer out"
        )
    identity = fingerprint(shards)
    if run.data not in (None, identity):
        raise UserError(
            f"{source}: the corpus gives other token shards than the run began with; put the run's own back, or start"
            " another run with another --out"
        )
    if run.data is None:
        run.data = identity
        run.write()
    return shards


def _stored_shards(run: Run, folder: Path, reporter: Reporter) -> tuple[TokenShards, ...]:
    """Return the shards that an earlier start of the run completed, none if they are missing or damaged. Raises
    `UserError` for damaged ones whose corpus is not there, and leaves them as they are."""
    if run.data is None or not folder.exists():
        return ()
    try:
        shards = TokenShards.open(folder)
        if fingerprint((shards,)) == run.data:
            return (shards,)
        problem = f"{folder}: not the shards that the run began with"
    except UserError as error:
        problem = str(error)
    try:
        run.config.find_corpus()
    except UserError as error:
        raise UserError(
            f"{problem}, but the corpus is not there ({error}); put it back, and repeat the command"
        ) from None
    reporter.on_message(f"{problem}: tokenizing the corpus again")
    remove_run(run.config.out, (folder.name,))
    return ()


def _set_vocabulary_size(run: Run) -> None:
    """Choose the size of the vocabulary to build, if --vocab-size leaves that open: that of the config.json of --model,
    else by the size of the corpus."""
    config = run.config
    if config.vocab_size is not None or run.vocabulary is not None or config.initial_folder is not None:
        return
    if config.tokenizer or config.data or config.teacher:
        return
    if config.model not in PRESETS:
        size = registry.read_config(config.model).vocab_size
    else:
        size = defaults.vocabulary_size(config.find_corpus().text_bytes)
    run.config = replace(config, vocab_size=size)
    run.write()


def _set_hyper_parameters(run: Run, bert: BertConfig, data: SampleData) -> PretrainConfig:
    """Choose the learning rate, batch size, dropout and initial weights that the flags leave open, and store them;
    return the run's configuration."""
    config = run.config
    per_epoch = data.samples_per_epoch(0)
    if config.steps is not None:
        usual = defaults.batch_size_of_steps(config.steps)
    elif config.epochs is None and config.hours is not None:  # a length that is unknown
        usual = defaults.batch_size(per_epoch)
    else:
        usual = defaults.batch_size(per_epoch * (config.epochs or defaults.epochs(data.tokens_per_epoch)))
    scheduled = config.scheduled("batch_schedule")
    if config.batch_tokens is not None:  # on average
        batch_size = config.batch_size or max(round(config.batch_tokens / float(data.lengths(0).mean())), 1)
    elif scheduled is not None:
        batch_size = config.batch_size or round(scheduled.mean)
    else:
        batch_size = config.batch_size or max(usual, config.micro_batch or 1)
    dropout, init = config.dropout, config.init
    continued = config.initial_folder is not None
    if dropout is None and config.model in PRESETS and config.student_layers is None and not continued:
        steps = budget_of(replace(config, batch_size=batch_size), [Phase(1.0, data, data)]).steps
        epochs = 0.0 if steps is None else steps * batch_size / per_epoch
        dropout = defaults.dropout(epochs, bert.hidden_dropout_prob)
    # A run with checkpoints has its weights, and one from before --init has none stored.
    if init is None and config.student_layers is None and not (config.out / "checkpoints").exists():
        init = "structured" if defaults.starts_structured(usual) and can_be_structured(bert) else "normal"
    if init == "structured" and not can_be_structured(bert):
        raise UserError(f"--init structured: is not for a model of {bert.model_type}; use --init normal")
    lr = config.lr or usual_lr(config, bert)
    run.config = replace(config, lr=lr, batch_size=batch_size, dropout=dropout, init=init)
    if run.config != config:
        run.write()
    return run.config


def usual_lr(config: PretrainConfig, model: BertConfig) -> float:
    """Return the default learning rate of a run."""
    choose = defaults.learning_rate if config.initial_folder is None else defaults.continued_learning_rate
    return choose(model.hidden_size)


def budget_of(config: PretrainConfig, phases: Sequence[Phase]) -> Budget:
    """Return the length of the run: by --steps, --epochs and --hours, else by the size of the corpus."""
    limits = [] if config.steps is None else [config.steps]
    if config.epochs is not None or (config.steps is None and config.hours is None):
        epochs = config.epochs or defaults.epochs(phases[0].train.tokens_per_epoch)
        limits.append(math.ceil(_steps_per_epoch(config, phases) * epochs))
    return Budget(steps=min(limits, default=None), seconds=None if config.hours is None else config.hours * 3600)


def batches_of(config: PretrainConfig, phases: Sequence[Phase]) -> PretrainingBatches:
    """Return the steps of a run, whose batch size must have been chosen."""
    return PretrainingBatches(
        phases,
        batch_size=config.batches,
        mask_prob=config.scheduled("mask_schedule"),
        batch_tokens=config.batch_tokens,
        micro_batch_tokens=config.micro_batch_tokens,
    )


def _steps_per_epoch(config: PretrainConfig, phases: Sequence[Phase]) -> float:
    """Return the steps in which a run draws as many samples as an epoch has; of schedules, on average over the run."""
    sizes = [phase.train.samples_per_epoch(0) for phase in phases]
    batches = batches_of(config, phases)
    if len(phases) == 1 and (config.batch_tokens is not None or config.batches.is_constant):
        return batches.steps_per_epoch()
    middles = ((index + 0.5) / GRID for index in range(GRID))
    steps = (batches.spec(1, batches.start, progress) for progress in middles)
    return GRID / sum(len(step.samples) / sizes[step.phase] for step in steps)
