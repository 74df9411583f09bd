"""Pre-training runs: from text to a trained model in one folder, started or resumed.

One file: what a run does, from its start to its model, in that order.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.checkpoints.source import GENERATOR, find_source
from fastbert.config import PRESETS, BertConfig
from fastbert.data.dedup import DedupReport
from fastbert.data.leaks import leak_warnings
from fastbert.data.mixing import MixedData, SampleData, open_data, split_unigrams
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import fold_rare, unigram_cross_entropy
from fastbert.data.shards import TokenShards
from fastbert.data.streamed_shards import StreamedShards, open_index, open_shards, tokenizer_folder
from fastbert.distillation.models import DISTILLATION, copied_layers, student_from
from fastbert.distillation.pretraining import PretrainingDistillationLoss, load_teacher
from fastbert.distributed.world import World, joined
from fastbert.errors import UserError
from fastbert.flags import flag
from fastbert.io.atomic_write import sync, sync_tree
from fastbert.io.locations import is_remote, local_path
from fastbert.models import registry
from fastbert.models.base import PreTrainedModel
from fastbert.models.elmo.config import ElmoConfig
from fastbert.models.heads.pretraining import ForPreTraining
from fastbert.ops import gpu
from fastbert.tokenizers.layouts import lower_cases
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.tokenizers.piece_training import train_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.tokenizers.words import check_words, word_tokenizer
from fastbert.training import defaults
from fastbert.training.batches import Phase, PretrainingBatches
from fastbert.training.checkpoint import has_checkpoints, load_weights, weights_fingerprint
from fastbert.training.config import Budget, Objective, PretrainConfig, default_kind, described
from fastbert.training.device import choose_device, deterministic_algorithms, kernels_of_run
from fastbert.training.given_data import fingerprint, given_shards
from fastbert.training.initial_model import initial_tokenizer, load_initial
from fastbert.training.initialisation import can_be_structured, initialise_structured
from fastbert.training.loop import CONTINUE, Trainer
from fastbert.training.meters import RunMeters
from fastbert.training.metrics import Metrics, read_metrics
from fastbert.training.model_card import TextFacts, pretraining_card, write_card
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
from fastbert.training.precision import tf32_matmuls
from fastbert.training.recipes import RECIPES
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
from fastbert.training.trackers.recording import logged_lines, tracked
from fastbert.training.trackers.tracker import flat_settings
from fastbert.training.verdict import verdict
from fastbert.training.watching import facts_of, watched

GRID = 1000  # steps by which schedules are averaged
SPLITS: tuple[Literal["train"], Literal["validation"]] = ("train", "validation")


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
    with joined(config.device) as world, world.watched(CONTINUE):
        reporter = (reporter or Reporter()) if world.is_main else Reporter()
        world.require_equal("command", _identity(config), "start every process with the same command and software")
        with locked_run(config.out) if world.is_main else contextlib.nullcontext():
            return _pretrain(config, world, reporter)


def _identity(config: PretrainConfig) -> dict[str, Any]:
    """Return what all processes of a run must have in common: flags and versions."""
    flags = {flag(name): value for name, value in config.to_dict().items()}
    return {"fastbert": version("fastbert-engine"), "torch": torch.__version__, **flags}


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


def _pretrain(config: PretrainConfig, world: World, reporter: Reporter) -> PretrainResult:
    """Prepare a run in the first process, and train it in all of them."""
    inputs: Inputs | None = None

    def prepare_run() -> dict[str, Any]:
        nonlocal inputs
        run = open_folder(config, reporter)
        if run.finished and _result_of(run) is not None:
            reporter.on_message(f"{config.out}: the run is finished; --epochs N or --steps N trains it further")
            return {"finished": True, **run.to_dict()}
        run.config = with_objective(run.config)
        _check_inputs(run.config)
        choose_device(run.config.device, run.config.matmul_dtype, lambda message: None)
        if run.config.overwrite:
            remove_run(run.config.out, (*RUN_FILES, *RUN_FOLDERS))
        inputs = _prepare(run, reporter)
        return {"finished": False, **run.to_dict()}

    prepared = world.shared("run", prepare_run)
    run = Run.from_dict(prepared["run"])
    if prepared["finished"]:
        result = _result_of(run)
        assert result is not None
        return result
    device, dtype = choose_device(run.config.device, run.config.matmul_dtype, reporter.on_message)
    if run.config.batch_tokens is not None and run.config.batch_tokens < world.size * run.config.longest:
        raise UserError(
            f"--batch-tokens {run.config.batch_tokens} is less than one sequence of {run.config.longest} tokens per"
            f" process for {world.size} processes; raise it, or start fewer processes"
        )
    if run.config.batches.smallest < world.size:
        raise UserError(
            f"--batch-size {run.config.batches.smallest:g} is less than one sequence per process for {world.size}"
            " processes; raise it, or start fewer processes"
        )
    if run.config.recipe is not None:
        reporter.on_message(f"recipe {run.config.recipe}: {RECIPES[run.config.recipe].about}")
    if world.size > 1:
        reporter.on_message(f"{world.size} processes; gradients are summed by {run.config.parallel.upper()}")
    tf32 = tf32_matmuls(run.config.tf32, device, reporter.on_message)
    with deterministic_algorithms(run.config.deterministic), tf32:
        inputs = read_inputs(run) if inputs is None else inputs
        return _train(run, inputs, world, device, dtype, reporter)


def _prepare(run: Run, reporter: Reporter) -> Inputs:
    """Make or open what a run trains on, choose what its flags leave open, and record each stage in config.json."""
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
    inputs = Inputs.of(run.config, tokenizer, shards, teacher)
    for warning in leak_warnings(inputs.phases[0].train, inputs.phases[0].validation):
        reporter.on_message(warning)
    _set_hyper_parameters(run, _model_config(run), inputs.phases[0].train)
    return inputs


def read_inputs(run: Run) -> Inputs:
    """Return what the first process has prepared, in one of the others. Raises `UserError` for a folder that is missing
    there, and for other shards."""
    config = run.config
    locations = config.data or (str(config.out / "data"),)
    shared = "all processes need the same files: use a file system that all machines share"
    for path in (config.out / TOKENIZER, *(local_path(data) for data in locations if not is_remote(data))):
        if not path.exists():
            raise UserError(f"no such folder: {path}; {shared}")
    for data, expected in zip(locations, (run.data or "").split(), strict=True):
        if open_index(data).sha256 != expected:
            raise UserError(f"{data}: holds other token shards than in process 0; {shared}")
    tokenizer = load_tokenizer(config.out / TOKENIZER)
    teacher = None if config.teacher is None else load_teacher(find_source(config.teacher), tokenizer)
    shards = tuple(open_shards(data, config.stream_options, verify=False) for data in locations)
    return Inputs.of(config, tokenizer, shards, teacher)


def _model_config(run: Run) -> BertConfig:
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
            mask_prob=config.mask_prob,
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


@dataclass
class Assembled:
    """A run in memory: its trainer, its data, and the frequencies of the words that it predicts."""

    trainer: Trainer
    model: Any
    bert: BertConfig
    batches: PretrainingBatches
    budget: Budget
    counts: NDArray[np.int64]
    """How often each output of the model occurs in the training text, int64 (outputs,)."""
    held_out: NDArray[np.int64]
    """How often in the validation text."""
    new_model: Callable[[], Any]
    """Makes a model like the trained one, with new weights."""

    def outputs(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how often each output of the model occurs, from how often each id does."""
        return _outputs(self.bert, ids)


def _outputs(bert: BertConfig, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    return fold_rare(ids, bert.output_size, bert.unk_token_id) if isinstance(bert, ElmoConfig) else ids


def assemble(
    run: Run,
    inputs: Inputs,
    world: World,
    device: torch.device,
    dtype: torch.dtype,
    reporter: Reporter,
    at_most: int | None = None,
) -> Assembled:
    """Return the trainer of a prepared run, at its first step; the weights of --init are read unless a checkpoint, of
    step `at_most` or earlier if given, will replace them."""
    config, shards, teacher = run.config, inputs.shards[0], inputs.teacher
    bert = _model_config(run)
    assert config.objective is not None
    budget = _budget(config, inputs.phases)
    frequencies = split_unigrams(inputs.phases[0].train, inputs.phases[0].validation)
    counts, held_out = (_outputs(bert, ids) for ids in frequencies)

    def new_model() -> Any:
        assert config.objective is not None
        return pretraining_model(with_dropout(bert, config.dropout), config.objective, config.generator_size)

    model = new_model()
    model.init_weights(seed=config.seed)
    if isinstance(bert, ElmoConfig):
        special = shards.special_ids
        model.set_vocabulary(shards.vocabulary, *(shards.vocabulary[special[mark]] for mark in ("cls", "sep")))
    if config.init == "structured":
        initialise_structured(model, counts, config.seed)
    if config.initial_folder is not None and not has_checkpoints(config.out, at_most):
        load_initial(model, config, inputs.tokenizer, reporter.on_message)
        _bind_initial(run, model, writes=world.is_main)
    distillation: PretrainingDistillationLoss | None = None
    if teacher is not None:
        if config.student_layers is not None:
            model = student_from(teacher, config.student_layers).train()
            model.requires_grad_(True)
        distillation = PretrainingDistillationLoss(model, teacher.to(device), config)
        model.add_module(DISTILLATION, distillation)
    batches = _batches(config, inputs.phases)
    trainer = Trainer(
        model,
        batches,
        config,
        budget,
        device=device,
        dtype=dtype,
        folder=config.out,
        fingerprint=inputs.tokenizer.fingerprint,
        data_fingerprint=fingerprint(inputs.shards),
        configuration={"run": run.flags, "model": run.model, "teacher": run.teacher, "initial": run.initial},
        reporter=reporter,
        distillation=distillation,
        world=world,
    )
    meters = RunMeters.of_model(bert, config.objective, device, dtype, config.generator_size, devices=world.size)
    trainer.measure_with(meters)
    return Assembled(trainer, model, bert, batches, budget, counts, held_out, new_model)


def _train(
    run: Run, inputs: Inputs, world: World, device: torch.device, dtype: torch.dtype, reporter: Reporter
) -> PretrainResult:
    """Train the model of a prepared run; the first process writes its folder."""
    config, shards, tokenizer = run.config, inputs.shards, inputs.tokenizer
    train, validation_data = inputs.phases[0].train, inputs.phases[0].validation
    assembled = assemble(run, inputs, world, device, dtype, reporter)
    trainer, model, bert, batches = assembled.trainer, assembled.model, assembled.bert, assembled.batches
    counts = assembled.counts
    assert config.objective is not None
    if config.resume:
        step = trainer.resume()
        reporter.on_message(f"continuing after step {step}" if step else "no checkpoint yet: starting at step 1")
    reporter.on_message(
        f"{model.num_parameters():,} parameters ({described_model(bert)}{described_generator(model)};"
        f" {train.samples_per_epoch(0):,} training and {validation_data.samples_per_epoch(0):,} validation"
        f" sequences of up to {train.max_length} tokens"
    )
    if isinstance(train, MixedData):
        reporter.on_message(train.described())
    reporter.on_message(described(config, assembled.budget, train.samples_per_epoch(0)))
    masked = assembled.outputs(batches.validation_labels(trainer.validation_samples(), shards[0].vocab_size))
    unigram = unigram_cross_entropy(counts, masked if masked.any() else assembled.held_out)
    if config.compare is not None:
        reference = find_reference(config.compare, config.objective)
        reporter.on_message(f"comparing with {reference.name}: {reference.about}")
        trainer.report_to(_comparing(reporter, reference, unigram))
    if config.objective != "rtd":  # a generator is small, and stays near word frequencies
        facts = facts_of(
            config,
            bert,
            assembled.budget,
            unigram=unigram,
            usual_lr=_usual_lr(config, bert),
            samples_per_epoch=train.samples_per_epoch(0),
            text=counts,
            masked=masked,
            unknown_id=None if isinstance(bert, ElmoConfig) else shards[0].special_ids.get("unk"),
        )
        before: list[Metrics] = []
        with contextlib.suppress(UserError):  # damaged lines are reported when the run opens its log
            before = [line for line in read_metrics(config.out / "metrics.jsonl") if line.step <= trainer.step]
        trainer.report_to(watched(trainer.reporter, facts, before))
    most_frequent = float(masked[counts.argmax()] / max(masked.sum(), 1))
    loss_curve = config.out / LOSS_CURVE
    settings = flat_settings({**run.flags, "model": run.model, "torch": torch.__version__})
    flags = config if world.is_main else replace(config, track=())
    logged = logged_lines(flags, config.out)
    try:
        with (
            kernels_of_run(config.out, device, reporter.on_message),
            gpu.out_of_memory(_cures(trainer)),
            tracked(flags, config.out, trainer.reporter, settings, step=trainer.step, logged=logged) as hooks,
        ):
            trainer.report_to(hooks)
            validation = trainer.run()
            for each in shards:
                if isinstance(each, StreamedShards):
                    reporter.on_message(each.described_stats())
    except (Exception, KeyboardInterrupt):
        # The plot helps to understand why a run ended early; an error of plotting must not hide the reason.
        with contextlib.suppress(OSError, UserError):
            if world.is_main:
                plot_runs([config.out], loss_curve, unigram=unigram, most_frequent=most_frequent)
        raise
    if trainer.replicas.gathers:
        weights = trainer.replicas.snapshot(trainer.optimizer).model
        model = assembled.new_model() if world.is_main else model
        if world.is_main:
            load_weights(model, weights)
    if not world.is_main:
        world.wait("finished")
        return _result(run, validation, unigram, bert)
    plot_runs([config.out], loss_curve, unigram=unigram, most_frequent=most_frequent)
    model._modules.pop(DISTILLATION, None)
    card = pretraining_card(
        config,
        bert.to_dict(),
        read_metrics(config.out / "metrics.jsonl") or [validation],
        TextFacts(
            tokens=sum(each.num_tokens for each in shards),
            documents=sum(each.num_documents for each in shards),
            vocab_size=shards[0].vocab_size,
            fingerprint=str(run.data),
        ),
        unigram=unigram,
        device=device,
        parameters=model.num_parameters(),
        judged=_judged(run, validation, unigram, bert),
    )
    for name, trained in trained_models(model, bert):
        with atomic_folder(config.out / name) as folder:
            trained.save_pretrained(folder)
            save_tokenizer(tokenizer, folder, segments=bert.type_vocab_size > 1)
            write_card(folder, card, loss_curve)
            sync_tree(folder)
    sync(config.out)
    run.finished = {
        "validation": asdict(validation),
        "unigram_cross_entropy": unigram,
        "most_frequent_share": most_frequent,
    }
    run.write()
    world.wait("finished")
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


def _judged(run: Run, validation: Metrics, unigram: float, model: BertConfig) -> str:
    """Return the verdict on a finished run."""
    usual = _usual_lr(run.config, model)
    history = read_metrics(run.config.out / "metrics.jsonl") or [validation]
    structured = run.config.init != "normal" or not can_be_structured(model)
    return verdict(history, unigram, lr=run.config.lr or usual, usual_lr=usual, structured=structured)


def _result(run: Run, validation: Metrics, unigram: float, model: BertConfig) -> PretrainResult:
    out, judged = run.config.out, _judged(run, validation, unigram, model)
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


def _bind_initial(run: Run, model: PreTrainedModel, *, writes: bool) -> None:
    """Record the fingerprint of the first weights of a continued model. Raises `UserError` if the run began with
    different ones."""
    fingerprint = weights_fingerprint(model)
    if run.initial not in (None, fingerprint):
        raise UserError(
            f"--init {run.config.init}: has different weights than when the run began; put those back, or start another"
            " run with another --out"
        )
    if run.initial is None:
        run.initial = fingerprint
        if writes:
            run.write()


def _new_config(config: PretrainConfig, tokenizer: Tokenizer, teacher: ForPreTraining | None) -> BertConfig:
    """Return the config of the model: that of --model, or the teacher's with fewer layers."""
    if teacher is None or config.student_layers is None:
        model = model_config(config, tokenizer)
        return with_boundary_tokens(model, tokenizer.cls_token_id, tokenizer.sep_token_id)
    if config.longest > teacher.config.max_sequence_length:
        raise UserError(f"--max-length {config.longest} is more than the teacher's positions; lower it")
    copied_layers(teacher.config.num_hidden_layers, config.student_layers)
    return replace(teacher.config, num_hidden_layers=config.student_layers)


def _check_inputs(config: PretrainConfig) -> None:
    """Raise `UserError` for invalid inputs, before a run is replaced and before hours of preparation."""
    if config.resume:
        return
    if config.batch_tokens is not None and config.batch_size is not None:
        raise UserError("--batch-size and --batch-tokens exclude each other; leave one out")
    model_config(config, None)
    if config.corpus:
        config.find_corpus()
    for data in config.data or ():
        open_index(data)
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
    """Return the shards that an earlier start of the run completed, none if they are missing or damaged."""
    if run.data is None or not folder.exists():
        return ()
    try:
        shards = TokenShards.open(folder)
        if fingerprint((shards,)) == run.data:
            return (shards,)
        reporter.on_message(f"{folder}: not the shards that the run began with; tokenizing the corpus again")
    except UserError as error:
        reporter.on_message(f"{error}: tokenizing the corpus again")
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
    batch_size = config.batch_size or max(usual, config.micro_batch or 1)
    if config.batch_tokens is not None and config.batch_size is None:  # on average
        batch_size = max(round(config.batch_tokens / float(data.lengths(0).mean())), config.micro_batch or 1)
    dropout, init = config.dropout, config.init
    continued = config.initial_folder is not None
    if dropout is None and config.model in PRESETS and config.student_layers is None and not continued:
        steps = _budget(replace(config, batch_size=batch_size), [Phase(1.0, data, data)]).steps
        epochs = 0.0 if steps is None else steps * batch_size / per_epoch
        dropout = defaults.dropout(epochs, bert.hidden_dropout_prob)
    # A run with checkpoints has its weights, and one from before --init has none stored.
    if init is None and config.student_layers is None and not (config.out / "checkpoints").exists():
        init = "structured" if defaults.starts_structured(usual) and can_be_structured(bert) else "normal"
    if init == "structured" and not can_be_structured(bert):
        raise UserError(f"--init structured: is not for a model of {bert.model_type}; use --init normal")
    lr = config.lr or _usual_lr(config, bert)
    run.config = replace(config, lr=lr, batch_size=batch_size, dropout=dropout, init=init)
    if run.config != config:
        run.write()
    return run.config


def _usual_lr(config: PretrainConfig, model: BertConfig) -> float:
    """Return the default learning rate of a run."""
    choose = defaults.learning_rate if config.initial_folder is None else defaults.continued_learning_rate
    return choose(model.hidden_size)


def _budget(config: PretrainConfig, phases: Sequence[Phase]) -> Budget:
    """Return the length of the run: by --steps, --epochs and --hours, else by the size of the corpus."""
    limits = [] if config.steps is None else [config.steps]
    if config.epochs is not None or (config.steps is None and config.hours is None):
        epochs = config.epochs or defaults.epochs(phases[0].train.tokens_per_epoch)
        limits.append(math.ceil(_steps_per_epoch(config, phases) * epochs))
    return Budget(steps=min(limits, default=None), seconds=None if config.hours is None else config.hours * 3600)


def _batches(config: PretrainConfig, phases: Sequence[Phase]) -> PretrainingBatches:
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
    batches = _batches(config, phases)
    if len(phases) == 1 and (config.batch_tokens is not None or config.batches.is_constant):
        return batches.steps_per_epoch()
    middles = ((index + 0.5) / GRID for index in range(GRID))
    steps = (batches.spec(1, batches.start, progress) for progress in middles)
    return GRID / sum(len(step.samples) / sizes[step.phase] for step in steps)
