"""Pre-training runs: from text to a trained model in one folder, started or resumed.

One file: what a run does, from its start to its model, in that order.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.checkpoints.source import GENERATOR, find_source
from fastbert.config import PRESETS, BertConfig
from fastbert.data.dedup import DedupReport
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import PretrainingData, fold_rare, unigram_counts, unigram_cross_entropy
from fastbert.data.sentence_sample import leak_warning
from fastbert.data.shards import INDEX, IndexReader, TokenShards
from fastbert.distillation.models import DISTILLATION, copied_layers, student_from
from fastbert.distillation.pretraining import PretrainingDistillationLoss, load_teacher
from fastbert.errors import UserError
from fastbert.io.atomic_write import sync, sync_tree
from fastbert.io.checksums import sha256
from fastbert.io.remote_files import is_url
from fastbert.models import registry
from fastbert.models.elmo.config import ElmoConfig
from fastbert.models.heads.pretraining import ForPreTraining
from fastbert.ops import gpu
from fastbert.tokenizers.layouts import lower_cases
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.tokenizers.piece_training import train_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.tokenizers.words import check_words, word_tokenizer
from fastbert.training import defaults
from fastbert.training.batches import PretrainingBatches
from fastbert.training.checkpoint import weights_fingerprint
from fastbert.training.config import Budget, Objective, PretrainConfig, default_kind, described
from fastbert.training.device import choose_device, deterministic_algorithms, kernels_of_run
from fastbert.training.initialisation import can_be_structured, initialise_structured
from fastbert.training.loop import Trainer
from fastbert.training.metrics import Metrics, read_metrics
from fastbert.training.objectives import (
    OBJECTIVES,
    described_generator,
    described_model,
    model_config,
    pretraining_model,
    sample_kind,
    trained_models,
    with_boundary_tokens,
    with_dropout,
    with_objective,
)
from fastbert.training.plot import plot_runs
from fastbert.training.reference_curves import ReferenceCurve, find_reference
from fastbert.training.reporter import Record, Reporter
from fastbert.training.run_files import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    check_spared,
    keep_tokenizer,
    locked_run,
    remove_run,
    save_tokenizer,
)
from fastbert.training.run_folder import LOSS_CURVE, RUN_FILES, RUN_FOLDERS, Run, open_folder
from fastbert.training.verdict import verdict


@dataclass(frozen=True)
class PretrainResult:
    """The run's folder, its last validation, the cross-entropy of word frequencies on the same text, in nats, and what
    follows from the two (`fastbert.training.verdict`)."""

    folder: Path
    validation: Metrics
    unigram_cross_entropy: float
    loss_curve: Path
    model: Path
    verdict: str
    objective: Objective

    @property
    def generator(self) -> Path | None:
        """Return the folder of the generator of `rtd`; other objectives have none."""
        return self.folder / GENERATOR if self.objective == "rtd" else None

    @property
    def title(self) -> str:
        """Return the name of the loss in messages."""
        return OBJECTIVES[self.objective].title


def pretrain(config: PretrainConfig, reporter: Reporter | None = None) -> PretrainResult:
    """Pre-train as `config` says, or continue the run in `config.out` when `config.resume` is set.

    With `resume` the same call can be repeated until it returns: it starts where there is no run, continues one that
    was interrupted at any moment, and returns at once where the run is finished. Raises `UserError` (one line: value,
    place, cure) for input that cannot be trained on, and `Stopped` after SIGINT or SIGTERM, when a checkpoint has been
    written. The same configuration and machine give the same model, bit for bit, also across interruptions (with
    --hours the schedule follows the clock, and no two runs are equal).
    """
    reporter = reporter or Reporter()
    with locked_run(config.out):
        run = open_folder(config, reporter)
        if run.finished and (done := _result_of(run)) is not None:
            reporter.on_message(f"{config.out}: the run is finished; --epochs N or --steps N trains it further")
            return done
        config = run.config = with_objective(run.config)
        _check_inputs(config)
        device, dtype = choose_device(config.device, config.dtype, reporter.on_message)
        if config.overwrite:
            remove_run(config.out, (*RUN_FILES, *RUN_FOLDERS))
        with deterministic_algorithms(config.deterministic):
            return _pretrain(run, device, dtype, reporter)


def _pretrain(run: Run, device: torch.device, dtype: torch.dtype, reporter: Reporter) -> PretrainResult:
    config = run.config
    assert config.objective is not None
    run.finished = None
    run.write()
    _set_vocabulary_size(run)
    tokenizer = _tokenizer(run, reporter)
    shards = _shards(run, tokenizer, reporter)
    teacher = None if config.teacher is None else load_teacher(find_source(config.teacher), tokenizer)
    _bind_teacher(run, teacher)
    if run.model is None:
        run.model = _new_config(config, tokenizer, teacher).to_dict()
        run.write()
    bert = registry.config_from_dict(run.model, source=str(config.out / "config.json"))
    samples = sample_kind(config.objective)
    data = {
        split: PretrainingData(
            shards,
            objective=samples,
            max_length=config.max_length,
            short_sequence_prob=config.short_sequence_prob,
            mask_prob=config.mask_prob,
            mask_replacement=config.replacement_shares,
            whole_word=config.whole_word,
            seed=config.seed,
            split=split,
            validation_fraction=config.validation_fraction,
        )
        for split in ("train", "validation")
    }
    if warning := leak_warning(shards.folder, data["train"].documents, data["validation"].documents):
        reporter.on_message(warning)
    config = _set_hyper_parameters(run, bert, data["train"])
    assert config.objective is not None
    budget = _budget(config, data["train"])
    frequencies = unigram_counts(
        shards, objective=samples, seed=config.seed, validation_fraction=config.validation_fraction
    )

    def outputs(ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how often each output of the model occurs, from how often each id does."""
        return fold_rare(ids, bert.output_size, bert.unk_token_id) if isinstance(bert, ElmoConfig) else ids

    counts, held_out = map(outputs, frequencies)
    model = pretraining_model(with_dropout(bert, config.dropout), config.objective, config.generator_size)
    model.init_weights(seed=config.seed)
    if isinstance(bert, ElmoConfig):
        special = shards.special_ids
        model.set_vocabulary(shards.vocabulary, *(shards.vocabulary[special[mark]] for mark in ("cls", "sep")))
    if config.init == "structured":
        initialise_structured(model, counts, config.seed)
    distillation: PretrainingDistillationLoss | None = None
    if teacher is not None:
        if config.student_layers is not None:
            model = student_from(teacher, config.student_layers).train()
            model.requires_grad_(True)
        distillation = PretrainingDistillationLoss(model, teacher.to(device), config)
        model.add_module(DISTILLATION, distillation)
    trainer = Trainer(
        model,
        PretrainingBatches(data["train"], data["validation"]),
        config,
        budget,
        device=device,
        dtype=dtype,
        folder=config.out,
        fingerprint=tokenizer.fingerprint,
        data_fingerprint=sha256(shards.folder / "index.json"),
        configuration={"run": run.flags, "model": run.model, "teacher": run.teacher},
        reporter=reporter,
        distillation=distillation,
    )
    if config.resume:
        step = trainer.resume()
        reporter.on_message(f"continuing after step {step}" if step else "no checkpoint yet: starting at step 1")
    reporter.on_message(
        f"{model.num_parameters():,} parameters ({described_model(bert)}{described_generator(model)};"
        f" {data['train'].samples_per_epoch(0):,} training and {data['validation'].samples_per_epoch(0):,} validation"
        f" sequences of up to {config.max_length} tokens"
    )
    reporter.on_message(described(config, budget, data["train"].samples_per_epoch(0)))
    masked = outputs(trainer.data.validation_labels(trainer.validation_samples(), shards.vocab_size))
    unigram = unigram_cross_entropy(counts, masked if masked.any() else held_out)
    if config.compare is not None:
        reference = find_reference(config.compare, config.objective)
        reporter.on_message(f"comparing with {reference.name}: {reference.about}")
        trainer.reporter = _comparing(reporter, reference, unigram)
    most_frequent = float(masked[counts.argmax()] / max(masked.sum(), 1))
    loss_curve = config.out / LOSS_CURVE
    try:
        with kernels_of_run(config.out, device, reporter.on_message), gpu.out_of_memory(_cures(trainer)):
            validation = trainer.run()
    except (Exception, KeyboardInterrupt):
        # The plot helps to understand why a run ended early; an error of plotting must not hide the reason.
        with contextlib.suppress(OSError, UserError):
            plot_runs([config.out], loss_curve, unigram=unigram, most_frequent=most_frequent)
        raise
    plot_runs([config.out], loss_curve, unigram=unigram, most_frequent=most_frequent)
    model._modules.pop(DISTILLATION, None)
    for name, trained in trained_models(model, bert):
        with atomic_folder(config.out / name) as folder:
            trained.save_pretrained(folder)
            save_tokenizer(tokenizer, folder, segments=bert.type_vocab_size > 1)
            sync_tree(folder)
    sync(config.out)
    run.finished = {
        "validation": asdict(validation),
        "unigram_cross_entropy": unigram,
        "most_frequent_share": most_frequent,
    }
    run.write()
    return _result(run, validation, unigram, bert)


def _comparing(reporter: Reporter, reference: ReferenceCurve, unigram: float) -> Reporter:
    """Return the hooks of a run whose validations say where they stand beside a reference curve."""

    def validated(record: Record) -> None:
        stands = reference.described(record["tokens"], record["mlm_loss"], unigram)
        reporter.on_validation({**record, "reference": stands})

    return replace(reporter, on_validation=validated)


def _cures(trainer: Trainer) -> list[str]:
    """Return the flags with which a run that does not fit into a GPU's memory may fit."""
    cures = gpu.smaller("--micro-batch", trainer.micro_batch)
    if not trainer.config.checkpoint_activations:
        cures.append("--checkpoint-activations")
    if trainer.graphs is not None:
        cures.append("--cuda-graphs off")
    return cures


def _result(run: Run, validation: Metrics, unigram: float, model: BertConfig) -> PretrainResult:
    out, usual = run.config.out, defaults.learning_rate(model.hidden_size)
    history = read_metrics(out / "metrics.jsonl") or [validation]
    structured = run.config.init != "normal" or not can_be_structured(model)
    judged = verdict(history, unigram, lr=run.config.lr or usual, usual_lr=usual, structured=structured)
    assert run.config.objective is not None
    return PretrainResult(out, validation, unigram, out / LOSS_CURVE, out / "model", judged, run.config.objective)


def _result_of(run: Run) -> PretrainResult | None:
    """Return the result of a finished run, None if some of its files are missing."""
    out, finished = run.config.out, run.finished
    assert finished is not None
    model, loss_curve = out / "model", out / LOSS_CURVE
    files = [model / name for name in ("config.json", "model.safetensors", TOKENIZER_CONFIG)]
    if run.config.objective == "rtd":
        files += [out / GENERATOR / path.name for path in files]
    if not all(path.is_file() for path in (*files, loss_curve)):
        return None
    try:
        validation = Metrics(**finished["validation"])
        bert = registry.config_from_dict(run.model or {}, source=str(out / "config.json"))
        return _result(run, validation, float(finished["unigram_cross_entropy"]), bert)
    except (KeyError, TypeError) as error:
        raise UserError(f"{out / 'config.json'}: not a run's configuration (finished: {error})") from None


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
    if config.max_length > teacher.config.max_sequence_length:
        raise UserError(f"--max-length {config.max_length} is more than the teacher's positions; lower it")
    copied_layers(teacher.config.num_hidden_layers, config.student_layers)
    return replace(teacher.config, num_hidden_layers=config.student_layers)


def _check_inputs(config: PretrainConfig) -> None:
    """Raise `UserError` for invalid inputs, before a run is replaced and before hours of preparation."""
    if config.resume:
        return
    model_config(config, None)
    if config.corpus:
        config.find_corpus()
    if config.data is not None:
        IndexReader(config.data)
    if config.tokenizer is not None:
        tokenizer = load_tokenizer(config.tokenizer)
        if config.objective == "bilm":
            check_words(tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size)), f"--tokenizer {config.tokenizer}")
        model_config(config, tokenizer)
    if not config.overwrite:
        return
    inputs = [("--data", config.data), ("--tokenizer", config.tokenizer)]
    inputs += [] if config.model in PRESETS else [("--model", Path(config.model))]
    inputs += [] if config.teacher is None else [("--teacher", Path(config.teacher))]
    inputs += [("--corpus", Path(path)) for path in config.corpus if not is_url(path)]
    check_spared(config.out, (*RUN_FILES, *RUN_FOLDERS), inputs)
    if config.tokenizer is not None and config.tokenizer.resolve() == config.out.resolve():
        check_spared(config.out.parent, (config.out.name,), [("--tokenizer", config.tokenizer)])


def _tokenizer(run: Run, reporter: Reporter) -> Tokenizer:
    """Return the tokenizer that the run keeps, or a new one, which is written to the run."""
    tokenizer = keep_tokenizer(run.config.out, run.vocabulary, lambda: _new_tokenizer(run.config, reporter))
    if run.vocabulary is None:
        run.vocabulary = tokenizer.fingerprint
        run.write()
    return tokenizer


def _new_tokenizer(config: PretrainConfig, reporter: Reporter) -> Tokenizer:
    """Return the tokenizer of --tokenizer, --data or --teacher, else one whose vocabulary is built from the corpus."""
    source = _tokenizer_source(config)
    if source:
        return load_tokenizer(source)
    corpus = config.find_corpus()
    report = reporter.on_stage("vocabulary", corpus.total_bytes)
    sentences = chain.from_iterable(corpus.documents(report))
    assert config.vocab_size is not None
    if config.objective == "bilm":
        return word_tokenizer(sentences, config.vocab_size)
    kind = config.vocab_kind or default_kind(model_config(config, None).model_type)
    lower_case = lower_cases(kind, cased=config.cased, lower_case=config.lower_case)
    return train_tokenizer(sentences, kind, config.vocab_size, lower_case=lower_case)


def _tokenizer_source(config: PretrainConfig) -> Path | None:
    """Return where the tokenizer comes from, None if it is to be built."""
    if config.tokenizer or config.data:
        return config.tokenizer or config.data
    return None if config.teacher is None else find_source(config.teacher)


def _shards(run: Run, tokenizer: Tokenizer, reporter: Reporter) -> TokenShards:
    """Return the token shards to train on: those of --data, those of an earlier start of the run, or new ones."""
    config = run.config
    folder = config.data if config.data is not None else config.out / "data"
    shards = TokenShards.open(folder) if config.data is not None else _stored_shards(run, folder, reporter)
    if shards is not None and config.objective == "bilm":
        check_words(shards.vocabulary, str(folder))
    if shards is None:
        corpus = config.find_corpus()
        report = reporter.on_stage("tokenizing", corpus.total_bytes)
        shards = prepare(
            corpus,
            tokenizer,
            folder,
            overwrite=True,
            dedup=config.dedup,
            progress=lambda done, sentences: report(done),
        )
        if dropped := DedupReport.read(folder):
            reporter.on_message(str(dropped))
    if shards.fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"{folder}: was tokenized with a different vocabulary than {config.tokenizer or config.out / TOKENIZER};"
            " prepare it again with this tokenizer, or leave --tokenizer out"
        )
    fingerprint = sha256(folder / INDEX)
    if run.data not in (None, fingerprint):
        what = "holds" if config.data is not None else "the corpus gives"
        raise UserError(
            f"{folder}: {what} other token shards than the run began with; put the run's own back, or start another run"
            " with another --out"
        )
    if run.data is None:
        run.data = fingerprint
        run.write()
    return shards


def _stored_shards(run: Run, folder: Path, reporter: Reporter) -> TokenShards | None:
    """Return the shards that an earlier start of the run completed, None if they are missing or damaged."""
    if run.data is None or not folder.exists():
        return None
    try:
        shards = TokenShards.open(folder)
        if sha256(folder / INDEX) == run.data:
            return shards
        reporter.on_message(f"{folder}: not the shards that the run began with; tokenizing the corpus again")
    except UserError as error:
        reporter.on_message(f"{error}: tokenizing the corpus again")
    remove_run(run.config.out, (folder.name,))
    return None


def _set_vocabulary_size(run: Run) -> None:
    """Choose the size of the vocabulary to build, if --vocab-size leaves that open: that of the config.json of --model,
    else by the size of the corpus."""
    config = run.config
    if config.vocab_size is not None or run.vocabulary is not None or _tokenizer_source(config):
        return
    if config.model not in PRESETS:
        size = registry.read_config(config.model).vocab_size
    else:
        size = defaults.vocabulary_size(config.find_corpus().text_bytes)
    run.config = replace(config, vocab_size=size)
    run.write()


def _set_hyper_parameters(run: Run, bert: BertConfig, data: PretrainingData) -> PretrainConfig:
    """Choose the learning rate, batch size, dropout and initial weights that the flags leave open, and store them;
    return the run's configuration."""
    config = run.config
    per_epoch = data.samples_per_epoch(0)
    if config.steps is not None:
        usual = defaults.batch_size_of_steps(config.steps)
    elif config.epochs is None and config.hours is not None:  # a length that is unknown
        usual = defaults.batch_size(per_epoch)
    else:
        usual = defaults.batch_size(per_epoch * (config.epochs or defaults.epochs(_tokens(data))))
    batch_size = config.batch_size or max(usual, config.micro_batch or 1)
    dropout, init = config.dropout, config.init
    if dropout is None and config.model in PRESETS and config.student_layers is None:
        steps = _budget(replace(config, batch_size=batch_size), data).steps
        epochs = 0.0 if steps is None else steps * batch_size / per_epoch
        dropout = defaults.dropout(epochs, bert.hidden_dropout_prob)
    # A run with checkpoints has its weights, and one from before --init has none stored.
    if init is None and config.student_layers is None and not (config.out / "checkpoints").exists():
        init = "structured" if defaults.starts_structured(usual) and can_be_structured(bert) else "normal"
    if init == "structured" and not can_be_structured(bert):
        raise UserError(f"--init structured: is not for a model of {bert.model_type}; use --init normal")
    lr = config.lr or defaults.learning_rate(bert.hidden_size)
    run.config = replace(config, lr=lr, batch_size=batch_size, dropout=dropout, init=init)
    if run.config != config:
        run.write()
    return run.config


def _tokens(data: PretrainingData) -> float:
    """Return the approximate number of tokens of a training split."""
    return data.shards.num_tokens * (1 - data.validation_fraction)


def _budget(config: PretrainConfig, data: PretrainingData) -> Budget:
    """Return the length of the run: by --steps, --epochs and --hours, else by the size of the corpus."""
    assert config.batch_size is not None
    limits = [] if config.steps is None else [config.steps]
    if config.epochs is not None or (config.steps is None and config.hours is None):
        epochs = config.epochs or defaults.epochs(_tokens(data))
        limits.append(math.ceil(data.samples_per_epoch(0) * epochs / config.batch_size))
    return Budget(steps=min(limits, default=None), seconds=None if config.hours is None else config.hours * 3600)
