"""Pre-training runs: from text to a trained model in one folder, started or resumed."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.checkpoints.source import GENERATOR
from fastbert.config import BertConfig
from fastbert.data.mixing import MixedData
from fastbert.data.pretraining import unigram_cross_entropy
from fastbert.data.streamed_shards import StreamedShards
from fastbert.distillation.models import DISTILLATION
from fastbert.distributed.world import PeerFailure, World, joined
from fastbert.errors import UserError
from fastbert.models import registry
from fastbert.models.elmo.config import ElmoConfig
from fastbert.ops import gpu
from fastbert.training.assembly import assemble
from fastbert.training.checkpoint import load_weights
from fastbert.training.config import Objective, PretrainConfig, described
from fastbert.training.device import choose_device, deterministic_algorithms, kernels_of_run
from fastbert.training.initialisation import can_be_structured
from fastbert.training.loop import Trainer
from fastbert.training.metrics import Metrics, read_metrics
from fastbert.training.model_card import TextFacts, pretraining_card, write_card
from fastbert.training.objectives import (
    OBJECTIVES,
    described_generator,
    described_model,
    fill_untrained_segments,
    trained_models,
    with_objective,
)
from fastbert.training.plot import plot_runs
from fastbert.training.precision import tf32_matmuls
from fastbert.training.preparation import Inputs, check_inputs, prepare_run, read_inputs, usual_lr
from fastbert.training.processes import CONTINUE, SAME_COMMAND, identity
from fastbert.training.recipes import RECIPES
from fastbert.training.reference_curves import ReferenceCurve, find_reference
from fastbert.training.reporter import Record, Reporter
from fastbert.training.run_files import (
    TOKENIZER_CONFIG,
    locked_run,
    remove_run,
    save_tokenizer,
)
from fastbert.training.run_folder import LOSS_CURVE, RUN_FILES, RUN_FOLDERS, Run, open_folder
from fastbert.training.trackers.recording import logged_lines, send_finished, tracked
from fastbert.training.trackers.tracker import flat_settings
from fastbert.training.validating import validation_samples
from fastbert.training.verdict import verdict
from fastbert.training.watching import LIKE_ADAM, facts_of, watched


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
        world.require_equal("command", identity(config), SAME_COMMAND)
        with locked_run(config.out) if world.is_main else contextlib.nullcontext():
            return _pretrain(config, world, reporter)


def _pretrain(config: PretrainConfig, world: World, reporter: Reporter) -> PretrainResult:
    """Prepare a run in the first process, and train it in all of them."""
    inputs: Inputs | None = None

    def prepared() -> dict[str, Any]:
        nonlocal inputs
        run = open_folder(config, reporter)
        if run.finished and _result_of(run) is not None:
            reporter.on_message(f"{config.out}: the run is finished; --epochs N or --steps N trains it further")
            logged = logged_lines(run.config, config.out)
            send_finished(run.config, config.out, reporter, _settings(run), logged=logged)
            return {"finished": True, **run.to_dict()}
        run.config = with_objective(run.config)
        check_inputs(run.config)
        choose_device(run.config.device, run.config.matmul_dtype, lambda message: None)
        if run.config.overwrite:
            remove_run(run.config.out, (*RUN_FILES, *RUN_FOLDERS))
        inputs = prepare_run(run, reporter)
        return {"finished": False, **run.to_dict()}

    shared = world.shared("run", prepared)
    run = Run.from_dict(shared["run"])
    if shared["finished"]:
        result = _result_of(run)
        assert result is not None
        return result
    device, dtype = choose_device(run.config.device, run.config.matmul_dtype, reporter.on_message)
    chosen = {"--device": device.type, "--dtype": str(dtype)}
    world.require_equal("device", chosen, "give all processes devices of one kind")
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


def _settings(run: Run) -> dict[str, bool | int | float | str]:
    """Return the settings of a run, for trackers."""
    return flat_settings({**run.flags, "model": run.model, "torch": torch.__version__})


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
    masked = assembled.outputs(
        batches.validation_labels(validation_samples(config, assembled.budget, trainer.position), shards[0].vocab_size)
    )
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
            usual_lr=usual_lr(config, bert),
            samples_per_epoch=train.samples_per_epoch(0),
            text=counts,
            masked=masked,
            unknown_id=None if isinstance(bert, ElmoConfig) else shards[0].special_ids.get("unk"),
        )
        before: list[Metrics] = []
        with contextlib.suppress(UserError):  # damaged lines are reported when the run opens its log
            before = [line for line in read_metrics(config.out / "metrics.jsonl") if line.step <= trainer.step]
        trainer.report_to(
            watched(trainer.reporter, facts, before, phase=lambda step: batches.phase_at(trainer.progress))
        )
    most_frequent = float(masked[counts.argmax()] / max(masked.sum(), 1))
    loss_curve = config.out / LOSS_CURVE
    flags = config if world.is_main else replace(config, track=())
    logged = logged_lines(flags, config.out)
    try:
        with (
            kernels_of_run(config.out, device, reporter.on_message),
            gpu.out_of_memory(_cures(trainer)),
            tracked(flags, config.out, trainer.reporter, _settings(run), step=trainer.step, logged=logged) as hooks,
        ):
            trainer.report_to(hooks)
            validation = trainer.run()
            for each in shards:
                if isinstance(each, StreamedShards):
                    reporter.on_message(each.described_stats())
    except (Exception, KeyboardInterrupt) as error:
        # The plot helps to understand why a run ended early; an error of plotting must not hide the reason. Where
        # another process has ended, torchrun ends this one too, and there is no time for it.
        with contextlib.suppress(OSError, UserError):
            if world.is_main and not isinstance(error, PeerFailure):
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
    fill_untrained_segments(model, config)
    for name, trained in trained_models(model, bert):
        with atomic_folder(config.out / name) as folder:
            trained.save_pretrained(folder)
            save_tokenizer(tokenizer, folder, segments=bert.type_vocab_size > 1)
            write_card(folder, card, loss_curve)
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
    if trainer.computer.graphs is not None:
        cures.append("--cuda-graphs off")
    return cures


def _judged(run: Run, validation: Metrics, unigram: float, model: BertConfig) -> str:
    """Return the verdict on a finished run."""
    usual = usual_lr(run.config, model)
    lr = run.config.lr or usual
    history = read_metrics(run.config.out / "metrics.jsonl") or [validation]
    structured = run.config.init != "normal" or not can_be_structured(model)
    comparable = usual if run.config.optimizer in LIKE_ADAM else lr
    return verdict(history, unigram, lr=lr, usual_lr=comparable, structured=structured)


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
