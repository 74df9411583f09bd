"""Measure what checks cost: those round a training step, and the verification of a model that is loaded.

    python benchmarks/bench_checks.py --quick
    python benchmarks/bench_checks.py --models mini base --rounds 9 --json rows.json

A step, of 4,096 tokens, with checks and logs does what the loop of `fastbert pretrain` does beside the computing: it
watches the wait for data, looks for an error of a save in the background, judges the loss, appends the exact step to
steps.jsonl and, every `--log-every` steps, a line to metrics.jsonl with the sum of all weights. `checks_ms` times these
calls alone; `ratio` compares steps with and without them, which take turns. The finite check of the gradients is part
of the pass that computes their norm for clipping (`norm_ms`), and not counted.

Loading is measured from `from_pretrained` to the output of a sentence of 16 tokens, and alone, each in a new process,
with and without FASTBERT_VERIFY=0 in turns. The file is in the page cache. Processor seconds are those of all threads,
of which the load of the machine is no part.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fastbert.benchmarks.bench_encoder import save_model
from fastbert.benchmarks.bench_saves import LENGTH, Training
from fastbert.benchmarks.harness import child_process, records
from fastbert.config import PRESETS, BertConfig
from fastbert.tasks.predicting import autocast
from fastbert.training.config import PretrainConfig
from fastbert.training.device import choose_device
from fastbert.training.meters import RunMeters
from fastbert.training.metrics import Totals
from fastbert.training.monitors import Monitors
from fastbert.training.reporter import Reporter
from fastbert.training.saving import Checkpoints
from fastbert.training.step_log import weights_sum
from fastbert.training.step_reports import Step, StepReports
from fastbert.training.step_spec import StepCounts

GOALS = {"step": 0.005, "loading": 0.05}
BLOCK = 5  # steps with checks, then as many without
SEQUENCES = 32  # of 128 tokens: a small batch of pre-training, as checks cost the same in large ones
STEP_SECONDS = 120.0  # of steps at most, once each kind of step was among them
SENTENCE = 16
WORKLOADS = ("load", "first-sentence")
Clock = Callable[[], float]


class CheckedTraining(Training):
    """Steps as the loop takes them, with its checks and logs round each."""

    def __init__(self, name: str, device: torch.device, dtype: torch.dtype, folder: Path) -> None:
        super().__init__(name, device, dtype, SEQUENCES)
        config = PretrainConfig(corpus=("text",))
        self.log_every: int = config.log_every
        self.monitors: Monitors = Monitors(config, folder, device, self.model.num_parameters(), lambda message: None)
        self.reports: StepReports = StepReports(Reporter(), RunMeters(device), self.monitors, lambda *_: None)
        self.reports.open(folder, 0, 0.0)
        self.checkpoints: Checkpoints = Checkpoints(folder / "checkpoints", 1)
        self.number: int = 0
        self.seconds: float = 0.0
        self.norm: float = 0.0
        self.norm_seconds: list[float] = []

    def step(self) -> float:
        """Take a step without checks; return its seconds."""
        started = time.perf_counter()
        with self.optimizer.copies(), autocast(self.device, self.dtype):
            self.output: Any = self.model(**self.batch)
            self.output.loss.backward()
        before = time.perf_counter()
        self.norm = float(self.optimizer.clip_gradients(1.0))
        self.norm_seconds.append(time.perf_counter() - before)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._synchronize()
        return time.perf_counter() - started

    def before(self) -> None:
        """Do what precedes a step."""
        self.number += 1
        self.checkpoints.check()
        with self.monitors.waiting(self.number):
            pass

    def after(self) -> None:
        """Report the step that was taken, as the loop does."""
        losses = Totals()
        losses.add(self.output)
        tokens = self.sequences * LENGTH
        counts, logs = StepCounts(tokens=tokens, sequences=self.sequences), self.number % self.log_every == 0
        total = weights_sum(self.model) if logs else None
        where = (self.number * tokens, self.seconds, 1e-4, 0.5)
        self.reports.pending.append(Step(self.number, counts, *where, losses, [], logs, 0, self.norm, weights=total))
        self.reports.read(keep=0)


def measure_steps(name: str, rounds: int, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the row of a training step."""
    device, dtype = choose_device("auto", "auto", say)
    folder.mkdir()
    training = CheckedTraining(name, device, dtype, folder)
    training.steps(3)
    training.norm_seconds.clear()
    plain, checked, checks, processor = [], [], [], []
    period = max(1, -(-training.log_every // BLOCK))  # blocks until a step that has a line of metrics.jsonl
    end = time.monotonic() + STEP_SECONDS
    for block in range(period * rounds):
        if block % period == 0 and block and time.monotonic() > end:
            break
        plain += training.steps(BLOCK)
        for _ in range(BLOCK):
            started, used = time.perf_counter(), time.thread_time()
            training.before()
            spent, burnt = time.perf_counter() - started, time.thread_time() - used
            training.seconds += training.step()
            began, used = time.perf_counter(), time.thread_time()
            training.after()
            now = time.perf_counter()
            checks.append(spent + now - began)
            processor.append(burnt + time.thread_time() - used)
            checked.append(now - started)
    step = statistics.median(plain)
    # Lines of metrics.jsonl are rare: of the checks the mean counts.
    cost = statistics.fmean(processor)
    return {
        "workload": f"{name}, a training step",
        "model": name,
        "device": device.type,
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "tokens_per_step": training.sequences * LENGTH,
        "steps": len(checked),
        "step_ms": round(step * 1e3, 3),
        "norm_ms": round(statistics.median(training.norm_seconds) * 1e3, 3),
        "checks_ms": round(statistics.fmean(checks) * 1e3, 4),
        "checks_processor_ms": round(cost * 1e3, 4),
        "share": round(cost / step, 6),
        "ratio": round(statistics.median(checked) / step, 4),
        "goal": GOALS["step"],
    }


def measure_loading(
    name: str, rounds: int, folder: Path, threads: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return a row per workload of loading."""
    save_model(folder, BertConfig.preset(name))
    size = (folder / "model.safetensors").stat().st_size
    rows = []
    for workload in WORKLOADS:
        runs: dict[str, list[dict[str, Any]]] = {"1": [], "0": []}
        for _ in range(rounds):
            for verify, group in runs.items():
                words, environment = (
                    (workload, folder, threads),
                    {"FASTBERT_VERIFY": verify, "OMP_NUM_THREADS": str(threads)},
                )
                group.append(child_process.answer_of("fastbert.benchmarks.bench_checks", words, workload, environment))
        medians = {
            (verify, key): statistics.median(run[key] for run in group)
            for verify, group in runs.items()
            for key in ("seconds", "processor")
        }
        row = {
            "workload": f"{name}, {workload}",
            "model": name,
            "threads": threads,
            "weight_bytes": size,
            "rounds": rounds,
            "verified_seconds": round(medians["1", "seconds"], 4),
            "unverified_seconds": round(medians["0", "seconds"], 4),
            "verified_processor": round(medians["1", "processor"], 4),
            "unverified_processor": round(medians["0", "processor"], 4),
            "share": round(medians["1", "seconds"] / medians["0", "seconds"] - 1, 4),
            "goal": GOALS["loading"],
        }
        verification = medians["1", "processor"] - medians["0", "processor"]
        row["verified_gb_per_processor_second"] = round(size / max(verification, 1e-9) / 1e9, 2)
        rows.append(row)
        say(f"{row['workload']}: {row['verified_seconds']:.3f} s, unverified {row['unverified_seconds']:.3f} s")
    return rows


def child(workload: str, folder: str, threads: str) -> dict[str, Any]:
    """Load a model and compute a sentence; return seconds."""
    from fastbert import BertModel

    torch.set_num_threads(int(threads))
    ids = torch.randint(100, 1000, (1, SENTENCE), generator=torch.Generator().manual_seed(0))
    start, processor = time.perf_counter(), time.process_time()
    model = BertModel.from_pretrained(folder)
    if workload == "first-sentence":
        with torch.no_grad():
            model(input_ids=ids)
    return {"seconds": time.perf_counter() - start, "processor": time.process_time() - processor}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if child_process.answered(argv, child):
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the mini model, one round")
    parser.add_argument("--models", nargs="+", choices=sorted(PRESETS), default=["mini", "base"])
    parser.add_argument("--rounds", type=int, default=5, help="rounds with and without checks (default: 5)")
    parser.add_argument("--json", type=Path, help="file for the record")
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds} must be at least 1")
    models, rounds = (["mini"], 1) if options.quick else (options.models, options.rounds)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as folder:
        for name in models:
            rows.append(measure_steps(name, rounds, Path(folder) / f"{name}-run", print))
            rows += measure_loading(name, rounds, Path(folder) / name, torch.get_num_threads(), print)
    for row in rows:
        print(f"{row['workload']:<28}{row['share']:>9.3%} of it are checks (goal: {row['goal']:.1%})")
    if options.json is not None:
        records.write(options.json, records.record("checks", rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
