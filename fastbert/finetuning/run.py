"""Fine-tuning runs: from examples and a pre-trained model to the best model, its scores and its predictions.

With several processes all of them read the examples and train; the first one alone reads and writes the run's folder.
One file: the order of a run's steps, each of which is a module of its own, is read in one place.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.checkpoints.delta.files import write_delta
from fastbert.distributed.world import World, joined
from fastbert.errors import UserError
from fastbert.finetuning import baseline, results, start
from fastbert.finetuning.config import FinetuneConfig, Trial
from fastbert.finetuning.evaluation import (
    PREDICTIONS,
    REPORTS,
    describe,
    file_names,
    is_described,
    predict,
)
from fastbert.finetuning.fit import Fit, Setting
from fastbert.finetuning.inputs import GivenExamples, RunInputs
from fastbert.finetuning.model_card import finetuning_card
from fastbert.finetuning.result import FinetuneResult, ended, finished
from fastbert.finetuning.retrieval_card import RetrievalFacts, retrieval_facts
from fastbert.finetuning.run_folder import NAMES, discard, open_folder, record
from fastbert.finetuning.trial_state import Scores, State, best_folder
from fastbert.models import registry
from fastbert.tasks.examples import Prediction
from fastbert.tasks.finetuned_model import save_task
from fastbert.tasks.reports.baselines import unlogged
from fastbert.tasks.reports.files import contents
from fastbert.tasks.reports.report import Baseline, by_key
from fastbert.tasks.retrieval.task import GroupTask
from fastbert.training import checkpoint
from fastbert.training.device import deterministic_algorithms
from fastbert.training.metrics import MetricsLog, read_records
from fastbert.training.model_card import write_card
from fastbert.training.processes import CONTINUE, SAME_COMMAND, identity
from fastbert.training.reporter import Record, Reporter
from fastbert.training.run_files import check_configuration, locked_run, read_record, remove_run, save_tokenizer
from fastbert.training.stopping import StopRequest
from fastbert.training.trackers.recording import logged_lines, send_finished, tracked
from fastbert.training.trackers.tracker import flat_settings

MAX_NAMES = 6  # of new weights in a message


def finetune(
    config: FinetuneConfig, reporter: Reporter | None = None, examples: GivenExamples | None = None
) -> FinetuneResult:
    """Fine-tune as `config` says, or continue the run in `config.out` when `config.resume` is set. `examples` in memory
    take the place of the file `config.train`, of which only the name counts, and such a run has no picture.

    With `resume` the same call can be repeated until it returns: it starts where there is no run, continues one that
    was interrupted at any moment, and returns at once where the run is finished. Raises `UserError` (one line: value,
    place, cure) for input that cannot be trained on, and `Stopped` after SIGINT or SIGTERM, when a checkpoint has been
    written. The same configuration and machine give the same model, bit for bit, also across interruptions.

    Processes that torchrun started share each step and each evaluation; all of them return the same.
    """
    with joined(config.device) as world, world.watched(CONTINUE):
        reporter = (reporter or Reporter()) if world.is_main else Reporter()
        world.require_equal("command", identity(config), SAME_COMMAND)
        with locked_run(config.out) if world.is_main else contextlib.nullcontext():
            return _finetune(config, reporter, world, examples)


def _finetune(
    config: FinetuneConfig, reporter: Reporter, world: World, examples: GivenExamples | None
) -> FinetuneResult:
    """Open the run's folder in the first process, and train in all of them."""

    def opened() -> dict[str, Any]:
        begun = open_folder(config, reporter.on_message)
        done = finished(begun) if begun.resume else None
        if done is not None:
            reporter.on_message(f"{config.out}: the run is finished; --seeds N adds more seeds")
            if begun.track:
                values = read_record(config.out, "finetune", FinetuneConfig.CHANGEABLE) or {}
                track_finished(begun, done.trials, reporter, values, logged_lines(begun, config.out))
        return {"config": begun.to_dict(), "finished": None if done is None else done.to_dict()}

    shared = world.shared("run", opened)
    if shared["finished"] is not None:
        return FinetuneResult.from_dict(config.out, shared["finished"])
    config = FinetuneConfig.from_dict(shared["config"])
    with deterministic_algorithms(config.deterministic):
        return _Run(config, reporter, world, examples).run()


class _Run(RunInputs):
    """The trials of a run on its inputs."""

    def __init__(
        self, config: FinetuneConfig, reporter: Reporter, world: World, examples: GivenExamples | None = None
    ) -> None:
        super().__init__(config, reporter, world, examples)
        self.examples = examples
        # By evaluation file: of the newest evaluation, and of the newest trial's best model where this process scored
        # it; forgotten unless that trial is the best.
        self.newest_predictions: list[list[Prediction]] = []
        self.best_predictions: list[list[Prediction]] | None = None
        # Of the first process, which opens the folder.
        self.log: MetricsLog | None = None
        self.configuration: dict[str, Any] = {}
        self.logged: list[Record] = []
        self.tracks = False
        self.linear: baseline.LinearScores | None = None
        self.constant_loss: float | None = None
        self.baselines: dict[str, tuple[Baseline, ...]] = {}

    def run(self) -> FinetuneResult:
        """Train what trials are left; return the result of all."""
        config, out, world = self.config, self.config.out, self.world
        trials = config.trials()
        begun = world.shared("trials", self._open)
        done = [results.TrialResult.from_dict(values) for values in begun["done"]]
        under_way = None if begun["under_way"] is None else Trial(**begun["under_way"])
        completed = {result.trial for result in done}
        stop = StopRequest(self.reporter.on_message)
        # Signals are still handled while the reason of another process's end is awaited: torchrun sends one then.
        with stop.listening(), world.watched(CONTINUE):
            for number, trial in enumerate(trials, start=1):
                if trial in completed:
                    continue
                self.reporter.on_trial(number, len(trials), str(trial))
                done.append(self._trial(trial, stop, continued=trial == under_way))
                if world.is_main:
                    self._record(done, len(trials))
                world.wait(world.unique("trial"))
        return FinetuneResult.from_dict(out, world.shared("finished", lambda: self._end(done).to_dict()))

    def _open(self) -> dict[str, Any]:
        """Open the run's folder, in the first process; return the trials that are done, and the one under way."""
        config, out = self.config, self.config.out
        if config.overwrite:
            remove_run(out, NAMES)
        out.mkdir(parents=True, exist_ok=True)
        self.baselines = {file.name: self.task.baselines(file.dataset, self.train) for file in self.evaluations}
        self.configuration = record(config, self.parts, self.tokenizer)
        done = results.read(out) if config.resume else []
        under_way = self._under_way() if config.resume else None
        finished = {result.trial for result in done}
        following = next((trial for trial in config.trials() if trial not in finished), None)
        if under_way is not None and under_way.trial not in (following, *finished):
            # --seeds has put others before it, and there is one folder of checkpoints.
            self.reporter.on_message(f"{under_way.trial}: begins again, after the seeds that were added before it")
            under_way = None
        self.linear = self._linear_baseline() if config.baseline else None
        labels_alone = self.teacher is None and not config.lm_weight
        self.constant_loss = self.task.constant_loss(self.rows) if labels_alone else None
        self.logged = logged_lines(config, out) if config.resume else []
        track_finished(config, done, self.reporter, self.configuration, self.logged)
        keep = _kept(finished, under_way) if config.resume else None
        self.log = MetricsLog(out / "metrics.jsonl", keep, self.reporter.on_line)
        return {
            "done": [asdict(result) for result in done],
            "under_way": None if under_way is None else vars(under_way.trial),
        }

    def _record(self, done: list[results.TrialResult], trials: int) -> None:
        """Record the newest of the trials that are done, and keep its model if it is the best."""
        is_best = results.best_trial(done) is done[-1]
        if is_best:
            self._keep(done)
        else:
            self.best_predictions = None
        if self.log is not None:  # a trial that is recorded is not repeated, nor are its lines
            self.log.sync()
        results.write(
            self.config.out,
            self.task.name,
            self.task.main_metric,
            done,
            trials,
            {name: by_key(values) for name, values in self.baselines.items()},
            linear_baseline=None if self.linear is None else self.linear.description,
            constant_loss=self.constant_loss,
        )
        if is_best:  # the trial is recorded: a full disk, or an error in a report, does not lose it
            self._describe(done[-1])

    def _end(self, done: list[results.TrialResult]) -> FinetuneResult:
        """Complete the run's folder, and return the result."""
        out = self.config.out
        if not is_described(out, file_names(self.config)):
            self._describe(results.best_trial(done))
        result = ended(out, self.task.main_metric, done, plot=self.examples is None)
        self._write_card(out / "model", done)
        return result

    def _write_card(self, folder: Path, done: list[results.TrialResult]) -> None:
        """Write README.md beside the model, of the trials that are done; a failure does not end the run."""
        files = {file.name: len(file.dataset) for file in self.evaluations}
        trained_on = " + ".join(path.name for path in (self.config.train, *self.config.more_train) if path is not None)
        try:
            card = finetuning_card(
                self.config,
                self.model_config.to_dict(),
                done,
                read_records(self.config.out / "metrics.jsonl"),
                metric=self.task.main_metric,
                examples={trained_on: self.train_examples, **files},
                fingerprint=self.configuration["data"],
                labels=self.task.labels,
                baselines={name: by_key(values) for name, values in self.baselines.items()},
                device=self.device,
                retrieval=self._facts(folder, results.best_trial(done)),
            )
            write_card(folder, card, self.config.out / "loss.png")
        except (OSError, UserError) as error:
            self.reporter.on_message(f"{folder}: the model card could not be written ({error})")

    def _facts(self, folder: Path, best: results.TrialResult) -> RetrievalFacts | None:
        """Return what the card says of a model of retrieval: its settings, its loss, and the scores of its widths."""
        if not isinstance(self.task, GroupTask):
            return None
        scores = next(iter((best.scores or {}).values()), {})
        widths: dict[int, dict[str, float]] = {}
        for name, value in scores.items():
            metric, _, width = name.partition("/")
            if width:
                widths.setdefault(int(width), {})[metric] = value
        return retrieval_facts(self.task.name, folder, loss=self.task.loss_name, widths=widths)

    def _linear_baseline(self) -> baseline.LinearScores:
        """Fit a linear model on the frozen encoder's vectors, unless results.json has its scores; add them to the
        baselines."""
        linear = baseline.read_results(self.config.out) if self.config.resume else None
        if linear is None:
            self.reporter.on_message("baseline: fits a linear model on the vectors of the frozen model")
            evaluations = [(file.name, file.dataset, file.rows) for file in self.evaluations]
            assert self.train is not None  # the configuration names files to evaluate on
            assert isinstance(self.source, Path)  # the configuration says so, here and below
            model = registry.load_encoder(self.source, dtype=self.scored.weights).to(self.device)
            linear = baseline.score_linear(self.task, model, self.tokenizer, self.train, evaluations, self.reporter)
        for line in baseline.lines(linear, self.task.main_metric):
            self.reporter.on_message(line)
        for name, scores in linear.scores.items():
            self.baselines[name] += (Baseline(baseline.NAME, baseline.SHOWN_NAME, scores),)
        return linear

    def _under_way(self) -> State | None:
        """Return the state of the newest whole checkpoint. Raises `UserError` if a different run wrote it."""
        folder, read = self.config.out / "checkpoints", State.reader(self.config.out / "checkpoints")
        last = checkpoint.last_state(folder, read)
        if last is None:
            return None
        check_configuration(self.config.out, self.configuration, *last, FinetuneConfig.CHANGEABLE)
        return read(last[1])

    def _trial(self, trial: Trial, stop: StopRequest, *, continued: bool) -> results.TrialResult:
        """Train a trial, from the beginning or from its checkpoint."""
        folder = self.config.out / "checkpoints"
        if not continued and self.world.is_main:
            discard(folder)
        begun = start.begin_trial(self.task, self.source, self.config, trial.seed, self.teacher, self.rows)
        self.best_predictions = None

        def save(folder: Path) -> None:
            begun.save(folder)
            self.best_predictions = self.newest_predictions

        model = begun.model
        if not continued and model.new_weights:
            names = model.new_weights
            more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            self.reporter.on_message(f"new weights: {', '.join(names[:MAX_NAMES])}{more}")
        setting = Setting(
            config=self.config,
            task=self.task,
            rows=self.rows,
            objective=begun.objective,
            parts=begun.parts,
            items=self.task.items,
            save=save,
            evaluate=(lambda _: self._evaluate(begun.loaded(self.scored.weights))) if self.evaluations else None,
            choose=self._choose,
            folder=folder,
            device=self.device,
            dtype=self.dtype,
            log=self.log,
            reporter=self.reporter,
            configuration=self.configuration,
            world=self.world,
        )
        fit = Fit(model, trial, setting, stop)
        if continued:
            fit.resume()
        with fit.checkpoints, self._tracked(trial, fit.progress.step):
            return results.TrialResult.of(trial, fit.run(), fit.per_epoch)

    @contextlib.contextmanager
    def _tracked(self, trial: Trial, step: int) -> Iterator[None]:
        """Pass lines of metrics.jsonl to trackers within the block, in the first process; several trials have curves of
        their own."""
        if self.log is None:
            yield
            return
        with tracked(
            self.config,
            self.config.out,
            self.reporter,
            _settings(self.configuration),
            step=step,
            logged=self.logged,
            trial=vars(trial),
            alone=len(self.config.trials()) == 1,
            required=not self.tracks,  # a tracker that fails later does not end the run
        ) as hooks:
            self.tracks = True
            self.log.on_line = hooks.on_line
            yield

    def _evaluate(self, model: Any) -> Scores:
        """Return the scores by file; each process predicts a share, and the first one scores."""
        files, world = self.evaluations, self.world
        self.newest_predictions = [predict(self.task, model, file, self.reporter, world) for file in files]

        def score() -> Scores:
            pairs = zip(files, self.newest_predictions, strict=True)
            with unlogged():  # `_check_metric` has logged what is wrong with the gold labels
                return {file.name: self.task.score(file.dataset, predictions) for file, predictions in pairs}

        return world.shared(world.unique("scores"), score)

    def _describe(self, best: results.TrialResult) -> None:
        """Write the predictions of the kept model, that of the best trial, and the reports on them."""
        out, known = self.config.out, self.best_predictions
        if known is None:  # a resumed run did not make them itself
            model = self.task.load_head(out / "model").to(device=self.device, dtype=self.scored.weights)
            known = [predict(self.task, model, file, self.reporter) for file in self.evaluations]
        for name in (PREDICTIONS, REPORTS):  # what a kill left of them
            discard(out / name)
        for file, predictions in zip(self.evaluations, known, strict=True):
            report = self.task.report(file.dataset, predictions, self.train)
            scores = (best.scores or {}).get(file.name, {})
            values = contents(self.task, report, len(file.dataset), scores, self.baselines[file.name])
            describe(out, self.task.name, file, predictions, report, values)

    def _choose(self, scores: Scores) -> float:
        first, metric = self.evaluations[0], self.task.main_metric
        # A metric that is undefined for these predictions, since all are equal, counts as the worst score.
        return scores[first.name].get(metric, -math.inf)

    def _keep(self, done: list[results.TrialResult]) -> None:
        """Write the model of the newest trial, the best one; remove what describes the model before."""
        newest = done[-1]
        out, best = self.config.out, best_folder(self.config.out / "checkpoints", newest.best_step)
        for name in (PREDICTIONS, REPORTS):
            discard(out / name)
        model = start.finished(self.task, self.source, self.config, newest.trial.seed, best)
        with atomic_folder(out / "model") as folder:
            self.task.save_model(model, folder)
            save_tokenizer(self.tokenizer, folder, segments=self.model_config.type_vocab_size > 1)
            save_task(self.task, folder, self.scored if self.evaluations else None)
            self._write_card(folder, done)
        if self.model_config.bilstm_size is not None:
            self.reporter.on_message(f"{out / 'model'}: has a BiLSTM, which fastbert loads and transformers does not")
        if self.config.lora is not None:
            with atomic_folder(out / "adapter") as folder:
                shutil.copytree(best, folder, dirs_exist_ok=True)
        if self.config.store_delta:
            assert isinstance(self.source, Path)
            write_delta(out / "model", self.source, out / "model.delta", overwrite=True)


def track_finished(
    config: FinetuneConfig,
    done: list[results.TrialResult],
    reporter: Reporter,
    configuration: Mapping[str, Any],
    logged: list[Record],
) -> None:
    """Give trackers what they lack of the trials that are done, from the lines of metrics.jsonl: all of them where
    --resume names a tracker for the first time. `configuration` is the content of config.json."""
    settings, alone = _settings(configuration), len(config.trials()) == 1
    for result in done:
        send_finished(config, config.out, reporter, settings, logged=logged, trial=vars(result.trial), alone=alone)


def _settings(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run, for trackers, from the content of its config.json."""
    flags, model = configuration.get("finetune", {}), configuration.get("model", {})
    return flat_settings({**flags, "model": model, "torch": torch.__version__})


def _kept(finished: set[Trial], under_way: State | None) -> Callable[[Record], bool]:
    """Return a function that selects the lines of metrics.jsonl that a resumed run keeps."""
    names = ("lr", "batch_size", "epochs", "seed")

    def keep(record: Record) -> bool:
        trial, step = Trial(**{name: record[name] for name in names}), int(record["step"])
        if under_way is not None and trial == under_way.trial and trial not in finished:
            return step <= under_way.progress.step
        return trial in finished

    return keep
