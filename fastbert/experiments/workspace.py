"""The folder of an experiment: shared token shards, one folder per run, and the result of each run as it ends.

The same call continues a half-finished experiment: every run resumes from its last checkpoint, and finished ones are
read back.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from fastbert.data.corpus import Corpus
from fastbert.data.prepare import prepare
from fastbert.data.shards import TokenShards
from fastbert.errors import UserError
from fastbert.experiments.data import ExperimentData, TaskSet
from fastbert.experiments.scales import Scale
from fastbert.experiments.summary import Score
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import finetune
from fastbert.io.atomic_write import atomic_write, write_json_atomic
from fastbert.io.untrusted_input import read_json_file, read_json_object
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.tokenizers.training import train_vocabulary
from fastbert.training.config import PretrainConfig
from fastbert.training.device import choose_device
from fastbert.training.pretrain import pretrain
from fastbert.training.reporter import Record, Reporter
from fastbert.training.run_files import remove_run

FILE = "experiment.json"


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A pre-trained model and the numbers of its run."""

    name: str
    model: Path
    loss: float
    """Validation loss of predicted tokens, in nats."""
    accuracy: float
    tokens: int
    seconds: float
    steps: int

    def numbers(self) -> dict[str, float]:
        """Return the numbers of a summary's row."""
        return {"loss": round(self.loss, 3), "million tokens": round(self.tokens / 1e6, 2)}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of an experiment that a call may change."""

    seeds: int | None = None
    """Seeds of fine-tuning (None: those of the scale)."""
    steps: int | None = None
    """Optimiser steps of each pre-training run (None: those of the scale)."""
    device: str = "auto"
    words: Sequence[str] = ()
    """The words that polysemy compares, if not its own."""
    reuse: Sequence[Path] = ()
    """Folders of other experiments, of which finished pre-training runs with equal settings are copied."""


class Workspace:
    """An experiment's folder, and its runs so far."""

    def __init__(
        self,
        folder: Path,
        experiment: str,
        scale: Scale,
        data: ExperimentData,
        options: Options,
        reporter: Reporter | None = None,
        processor: str = "",
    ) -> None:
        """Start an experiment in `folder`, or continue one there.

        `processor` is the class of the machine, which all runs of an experiment have in common. Raises `UserError` for
        a folder with another experiment, scale or other data.
        """
        self.folder = folder
        self.scale = scale
        self.data = data
        self.reporter: Reporter = reporter or Reporter()
        self.seeds: int = options.seeds or scale.seeds
        self.steps: int = options.steps or scale.steps
        self.device: str = options.device
        self.words: tuple[str, ...] = tuple(options.words)
        self.details: dict[str, Any] = {}
        settings = {"experiment": experiment, "scale": scale.name, "seeds": self.seeds, "steps": self.steps}
        self.settings: dict[str, Any] = {
            **settings, "processor": processor, "device": self.resolved_device(), "data": data.fingerprint()
        }  # fmt: skip
        if self.words:
            self.settings["words"] = list(self.words)
        file = folder / FILE
        if file.exists() and any((folder / name).exists() for name in ("results", "pretrain")):
            stored = read_json_object(file)
            for name, value in self.settings.items():
                if stored.get(name) != value:
                    what = "other data" if name == "data" else f"{name}={stored.get(name)!r}, now it is {value!r}"
                    raise UserError(f"--out {folder}: holds an experiment with {what}; choose another --out")
        self.reuse: tuple[Path, ...] = tuple(options.reuse)
        for other in self.reuse:
            self._check_reusable(other)
        folder.mkdir(parents=True, exist_ok=True)
        write_json_atomic(file, self.settings)

    def _check_reusable(self, other: Path) -> None:
        """Raise `UserError` unless `other` is the folder of an experiment on the same data and class of processor."""
        if not (other / FILE).is_file():
            raise UserError(f"--reuse {other}: holds no experiment ({FILE} is missing); name the --out of one")
        stored = read_json_object(other / FILE)
        for name in ("scale", "steps", "processor", "device", "data"):
            if stored.get(name) != self.settings[name]:
                what = "other data" if name == "data" else f"{name}={stored.get(name)!r}, not {self.settings[name]!r}"
                raise UserError(f"--reuse {other}: holds an experiment with {what}; leave it out")

    def resolved_device(self) -> str:
        """Return the device, cpu or cuda."""
        return str(choose_device(self.device, "fp32", lambda _: None)[0])

    def say(self, text: str) -> None:
        """Report a line."""
        self.reporter.on_message(text)

    def cached(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the result of a run from its file, or make it and write the file."""
        file = self.folder / "results" / f"{name}.json"
        if file.exists():
            return read_json_object(file)
        began = time.perf_counter()
        values = {"seconds": 0.0, **make()}
        values["seconds"] = values["seconds"] or round(time.perf_counter() - began, 3)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomic(file, values)
        return values

    def shards(self) -> Path:
        """Return the folder of the corpora's token shards, with a vocabulary of their own."""
        folder = self.folder / "shards"
        if not (folder / "index.json").exists():
            for other in self.reuse:
                if (other / "shards" / "index.json").exists():
                    shutil.copytree(other / "shards", folder, dirs_exist_ok=True)
                    TokenShards.open(folder)
                    return folder
            corpus = Corpus.find(self.data.corpora, text_format="lines")
            report = self.reporter.on_stage("vocabulary", corpus.total_bytes)
            vocabulary = train_vocabulary(chain.from_iterable(corpus.documents(report)), self.scale.vocab_size)
            tokenizer = WordPieceTokenizer(vocabulary, do_lower_case=True)
            report = self.reporter.on_stage("tokenizing", corpus.total_bytes)
            prepare(corpus, tokenizer, folder, overwrite=True, progress=lambda done, _: report(done))
        TokenShards.open(folder)
        return folder

    def vocab_size(self) -> int:
        """Return the number of entries of the vocabulary."""
        return len(WordPieceTokenizer.from_pretrained(self.shards()))

    def pretrain(self, name: str, *, model: Mapping[str, Any] | None = None, **flags: Any) -> Pretrained:
        """Pre-train a model of the scale, with changes of its configuration and of the run's flags."""
        out = self.folder / "pretrain" / name
        config = {"vocab_size": self.vocab_size(), **self.scale.model(**(model or {}))}
        # What distinguishes the pre-training runs of experiments on the same data.
        recipe = {"model": config, **{flag: value for flag, value in flags.items() if flag not in ("data", "corpus")}}

        def run() -> dict[str, Any]:
            reused = self._reused(recipe, out)
            if reused:
                return reused
            shape = self.folder / "models" / f"{name}.json"
            shape.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(shape, config)
            settings: dict[str, Any] = {
                "data": self.shards(),
                "model": str(shape),
                "steps": self.steps,
                "batch_size": self.scale.batch_size,
                "max_length": self.scale.max_length,
                "eval_samples": 1024 if self.steps >= 1000 else 16,
                "validation_fraction": 0.05,
                "device": self.device,
                **flags,
            }
            last = pretrain(PretrainConfig(**settings, out=out, resume=True), self._run_reporter(name)).validation
            return {
                "name": name,
                "loss": last.mlm_loss,
                "accuracy": last.mlm_accuracy,
                "tokens": last.tokens,
                "seconds": last.seconds,
                "steps": last.step,
                "recipe": recipe,
            }

        values = self.cached(f"pretrain-{name}", run)
        remove_run(out, ("checkpoints",))
        try:
            numbers = {field: values[field] for field in ("loss", "accuracy", "tokens", "seconds", "steps")}
        except KeyError as error:
            file = self.folder / "results" / f"pretrain-{name}.json"
            raise UserError(f"{file}: is damaged: it lacks {error}; delete it and run the command again") from None
        result = Pretrained(name=name, model=out / "model", **numbers)
        self.say(
            f"{name}: pre-trained on {result.tokens:,} tokens in {result.seconds:,.0f} s, loss"
            f" {result.loss:.3f}, accuracy {result.accuracy:.1%}"
        )
        return result

    def _reused(self, recipe: Mapping[str, Any], out: Path) -> dict[str, Any] | None:
        """Copy a finished run with this recipe from another experiment's folder to `out`; return its result."""
        stored_recipe = json.loads(json.dumps(recipe))  # as a file holds it
        for other in self.reuse:
            for file in sorted((other / "results").glob("pretrain-*.json")):
                values = read_json_object(file)
                source = other / "pretrain" / str(values.get("name"))
                if values.get("recipe") == stored_recipe and (source / "model").is_dir():
                    shutil.copytree(source, out, dirs_exist_ok=True)
                    self.say(f"{out.name}: copied from {source}")
                    return {**values, "name": out.name}
        if self.reuse:
            self.say(f"{out.name}: no folder of --reuse has a finished run with equal settings; training one")
        return None

    def file(self, name: str) -> Path:
        """Return the path of a file in the folder; copy the file from an experiment of --reuse if only that has it."""
        file = self.folder / name
        for source in (other / name for other in self.reuse):
            if not file.exists() and source.is_file():
                file.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(file) as partial:
                    shutil.copyfile(source, partial)
                self.say(f"{file.stem}: copied from {source}")
        return file

    def finetune(self, name: str, model: Path, task: TaskSet, **flags: Any) -> Score:
        """Fine-tune a model on a set with every seed; return its scores."""
        run_name = f"{name}-{task.name}"

        def run() -> dict[str, Any]:
            out = self.folder / "finetune" / run_name
            if (out / "results.json").exists() and not any((out / name).exists() for name in ("model", "checkpoints")):
                shutil.rmtree(out)  # its scores are lost, and what could continue it was removed
            settings: dict[str, Any] = {
                "task": task.task,
                "model": str(model),
                "train": task.train,
                "eval": (task.eval,),
                "steps": self.scale.finetune_steps,
                "batch_size": (self.scale.finetune_batch // (2 if task.task == "span" else 1),),
                "seeds": self.seeds,
                "eval_every": self.scale.finetune_steps,  # once, after the last step: nothing is chosen by its score
                "metric": task.metric,
                "device": self.device,
                "max_length": self._length(task),
                **flags,
            }
            if task.task == "span":
                settings["stride"] = settings["max_length"] // 8
            config = FinetuneConfig(**settings, out=out, resume=True)
            result = finetune(config, self._run_reporter(run_name))
            scores = result.scores[task.eval.name][task.metric]
            stored = read_json_file(out / "results.json")
            baseline = _majority(stored, task)
            seconds = sum(trial.seconds for trial in result.trials)
            return {"metric": task.metric, "values": scores["per_seed"], "baseline": baseline, "seconds": seconds}

        values = self.cached(f"finetune-{run_name}", run)
        remove_run(self.folder / "finetune" / run_name, ("checkpoints", "model", "predictions", "reports"))
        score = Score(**{**values, "values": tuple(values["values"])})
        self.say(f"{name} on {task.name}: {task.metric} {score} ({len(score.values)} seeds, {score.seconds:,.0f} s)")
        return score

    def _run_reporter(self, name: str) -> Reporter:
        """Return the hooks of a run: a bar of its own, and no messages, since an experiment has one line per run."""
        update = self.reporter.on_stage(name, 1.0, "runs")
        trial = [1, 1]

        def begin(number: int, total: int, _: str) -> None:
            trial[:] = number, total

        def step(_: Record, progress: float) -> None:
            update((trial[0] - 1 + progress) / trial[1])

        return Reporter(on_step=step, on_trial=begin)

    def _length(self, task: TaskSet) -> int:
        """Return the tokens per sequence: as in pre-training, twice that, in half as many sequences per step, for
        questions with their paragraphs."""
        return self.scale.max_length * (2 if task.task == "span" else 1)

    def seconds(self) -> float:
        """Return the seconds of training of all finished runs, from their files."""
        total = 0.0
        for file in sorted((self.folder / "results").glob("*.json")):
            values = json.loads(file.read_text())
            total += float(values.get("seconds", 0.0))
        return total

    def described(self) -> dict[str, Any]:
        """Return the settings as a summary stores them."""
        values = asdict(self.scale)
        return {**values, "steps": self.steps, "seeds": self.seeds}


def check_folder(folder: Path) -> None:
    """Raise `UserError` for a folder that holds something else than an experiment, or the beginning of one."""
    begun = ("sets", "unpacked", "python.txt")
    if folder.exists() and not (folder / FILE).exists() and any(path.name not in begun for path in folder.iterdir()):
        raise UserError(f"--out {folder}: holds other files; choose an empty or a new folder")


def _majority(stored: Mapping[str, Any], task: TaskSet) -> float | None:
    """Return the score of predicting the most frequent class, from results.json."""
    try:
        value = stored["baselines"][task.eval.name]["majority"][task.metric]
    except (KeyError, TypeError):
        return None
    return float(value) if isinstance(value, int | float) else None
