"""Compare pre-training by several processes of one machine with one process: the losses, then tokens per second.

    python benchmarks/bench_distributed.py --data shards --json benchmarks/results/distributed/CLASS.json

Each contender is a real `fastbert pretrain` of a few steps, with --dtype auto, started by torchrun where it has several
processes. A step counts from the second half of a run on; runs of all contenders take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbert.benchmarks.harness import records
from fastbert.config import PRESETS

CLOSE = 1e-3  # relative difference of losses in bf16, whose gradients are summed in bf16


@dataclass(frozen=True)
class Contender:
    """A number of processes, the threads of each, and the flags that it needs."""

    name: str
    processes: int
    threads: int
    flags: tuple[str, ...] = ()


CONTENDERS = (
    Contender("1 process, 1 thread", 1, 1),
    Contender("1 process, 2 threads", 1, 2),
    Contender("2 processes (ddp), 1 thread each", 2, 1),
    Contender("2 processes (fsdp), 1 thread each", 2, 1, ("--parallel=fsdp",)),
)


@dataclass(frozen=True)
class Measured:
    """A run: tokens per second of its second half, and its losses."""

    rate: float
    losses: tuple[float, ...]
    waits: float
    """Fraction of the training time that was spent waiting for batches."""


def command(contender: Contender, options: argparse.Namespace, out: Path) -> list[str]:
    """Return the command line of a contender's run."""
    launch = [sys.executable, "-P", "-m"]
    if contender.processes > 1:
        launch += ["torch.distributed.run", "--no-python", "--standalone", f"--nproc-per-node={contender.processes}"]
        launch += [sys.executable, "-P", "-m"]
    return [
        *(*launch, "fastbert", "pretrain", f"--data={options.data}", f"--model={options.model}", f"--out={out}"),
        *(f"--steps={options.steps}", f"--batch-size={options.batch_size}", "--log-every=1", "--eval-samples=8"),
        *(f"--eval-every={options.steps}", f"--checkpoint-every={10 * options.steps}", "--init=normal", "--quiet"),
        *contender.flags,
    ]


def run(contender: Contender, options: argparse.Namespace, folder: Path) -> Measured:
    """Train once; exits with the output of a run that fails."""
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(contender.threads)}
    done = subprocess.run(command(contender, options, out), capture_output=True, text=True, env=environment, cwd=folder)
    if done.returncode:
        sys.exit(f"{contender.name}: {done.stderr.strip()[-2000:]}")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["split"] == "train"]
    begin, end = train[len(train) // 2 - 1], train[-1]
    rate = (end["tokens"] - begin["tokens"]) / (end["seconds"] - begin["seconds"])
    waits = end["data_seconds"] - begin["data_seconds"]
    return Measured(rate, tuple(line["loss"] for line in train), waits / (end["seconds"] - begin["seconds"]))


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row per contender. Exits where losses differ."""
    results: dict[str, list[Measured]] = {contender.name: [] for contender in CONTENDERS}
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as folder:
        for number in range(options.rounds):
            for contender in CONTENDERS:
                results[contender.name].append(run(contender, options, Path(folder)))
                print(
                    f"round {number + 1}: {contender.name}: {results[contender.name][-1].rate:,.0f} tokens/s",
                    flush=True,
                )
    expected = results[CONTENDERS[0].name][0].losses
    alone = statistics.median(measured.rate for measured in results[CONTENDERS[0].name])
    rows = []
    for contender in CONTENDERS:
        runs = results[contender.name]
        difference = max(abs(a / b - 1) for each in runs for a, b in zip(each.losses, expected, strict=True))
        if difference > CLOSE:
            sys.exit(f"{contender.name}: a loss differs by {difference:.2g}: there is nothing to compare")
        rates = [each.rate for each in runs]
        rows.append(
            {
                "workload": f"{options.model}, {options.batch_size} sequences per step",
                "contender": contender.name,
                "tokens_per_second": round(statistics.median(rates), 1),
                "lowest": round(min(rates), 1),
                "highest": round(max(rates), 1),
                "ratio_to_one_thread": round(statistics.median(rates) / alone, 3),
                "largest_relative_difference_of_losses": difference,
                "data_wait": round(statistics.median(each.waits for each in runs), 5),
                "processes": contender.processes,
                "threads": contender.threads,
                "rounds": len(rates),
            }
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="token shards")
    parser.add_argument("--model", choices=sorted(PRESETS), default="mini", help="size of the model (default: mini)")
    parser.add_argument("--batch-size", type=int, default=256, help="sequences per step (default: 256)")
    parser.add_argument("--steps", type=int, default=8, help="steps of each run (default: 8)")
    parser.add_argument("--rounds", type=int, default=5, help="runs per contender (default: 5)")
    parser.add_argument("--json", type=Path, help="file to write the record to")
    options = parser.parse_args(arguments)
    options.data = options.data.resolve()
    if options.steps < 4:
        parser.error(f"--steps {options.steps} must be at least 4: the second half of a run is measured")
    rows = measure(options)
    for row in rows:
        print(
            f"{row['contender']:<36}{row['tokens_per_second']:>10,.0f} tokens/s  {row['ratio_to_one_thread']:.2f}x"
            f"  waits {row['data_wait']:.2%}  losses within {row['largest_relative_difference_of_losses']:.1g}"
        )
    if options.json is not None:
        settings = {"model": options.model, "batch_size": options.batch_size, "steps": options.steps}
        records.write(options.json, records.record("distributed", rows, settings=settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
