"""Measure what checkpoints cost a run: the stall of a save, and the slowdown of steps while it is written behind them.

    python benchmarks/bench_saves.py --quick
    python benchmarks/bench_saves.py --models mini base --rounds 3 --json rows.json

Each round takes steps without a save, then saves with `--async-save on` and takes steps until the checkpoint is
durable, then saves at once (`off`). Steps before and after each save are the baseline of its slowdown, so that the load
of a machine that does other work counts on both sides. The cost of a save is its stall plus what the steps during the
writing took longer, as seconds and as a share of the run with one save in five minutes. `processor_seconds` are those
that a save takes, of which the load of the machine is no part. After the last round the newest checkpoint is compared
with the tensors at its call.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastbert.benchmarks.harness import records
from fastbert.config import PRESETS, BertConfig
from fastbert.models import BertForPreTraining
from fastbert.tasks.predicting import autocast
from fastbert.training import checkpoint
from fastbert.training.device import choose_device
from fastbert.training.optimizer import AdamW, adamw
from fastbert.training.saving import Checkpoints
from fastbert.training.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from fastbert.models.heads.pretraining import ForPreTraining

INTERVAL_SECONDS = 300.0
SEQUENCES, LENGTH = {"base": 2}, 128
DEFAULT_SEQUENCES = 8
BASELINE_STEPS = 4


class Training:
    """A model, its optimiser, and a batch of random tokens of which 15 % are predicted."""

    def __init__(self, name: str, device: torch.device, dtype: torch.dtype, sequences: int | None = None) -> None:
        """`sequences` of a batch are by default as few as a step of the model can be measured with."""
        generator = torch.Generator().manual_seed(0)
        config = BertConfig.preset(name)
        self.model: ForPreTraining = BertForPreTraining(config).to(device)
        self.model.init_weights(seed=0)
        self.optimizer: AdamW = adamw(self.model, lr=1e-4, weight_decay=0.01)
        self.optimizer.flatten_if_faster(self.model, device, dtype)
        self.device = device
        self.dtype = dtype
        self.sequences: int = sequences or SEQUENCES.get(name, DEFAULT_SEQUENCES)
        ids = torch.randint(1000, config.vocab_size, (self.sequences, LENGTH), generator=generator)
        labels = ids.where(torch.rand(ids.shape, generator=generator) < 0.15, -100)
        pairs = torch.randint(0, 2, (self.sequences,), generator=generator)
        self.batch: dict[str, torch.Tensor] = {
            name: tensor.to(device)
            for name, tensor in {"input_ids": ids, "labels": labels, "next_sentence_label": pairs}.items()
        }

    def step(self) -> float:
        """Take a step; return its seconds."""
        started = time.perf_counter()
        with self.optimizer.copies(), autocast(self.device, self.dtype):
            loss = self.model(**self.batch).loss
            loss.backward()
        self.optimizer.clip_gradients(1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._synchronize()
        return time.perf_counter() - started

    def steps(self, count: int) -> list[float]:
        """Take steps; return the seconds of each."""
        return [self.step() for _ in range(count)]

    @property
    def snapshot(self) -> Snapshot:
        """Return the tensors that a checkpoint holds."""
        return snapshot(self.model, self.optimizer)

    def timed(self, call: Callable[[], object]) -> float:
        """Return the seconds until a call has returned, and the device has done what steps would wait for."""
        started = time.perf_counter()
        call()
        self._synchronize()
        return time.perf_counter() - started

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def measure(name: str, rounds: int, folder: Path, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for saves in the background and one for saves at once; exit if a checkpoint is wrong."""
    device, dtype = choose_device("auto", "auto", say)
    training = Training(name, device, dtype)
    training.steps(3)
    behind, at_once = Checkpoints(folder / "on", 1, background="on"), Checkpoints(folder / "off", 1)
    values = [_round(training, behind, at_once, number, say) for number in range(1, rounds + 2)]
    first, *others = values  # the first one allocates the memory of the copies
    _compare(training, behind, rounds + 2)
    median = {key: statistics.median(value[key] for value in others) for key in first}
    shared = {
        "model": name,
        "device": device.type,
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "tokens_per_step": training.sequences * LENGTH,
        "snapshot_bytes": training.snapshot.nbytes,
        "rounds": rounds,
        "step_ms": round(median["step"] * 1e3, 1),
    }
    asynchronous = {
        "stall_ms": round(median["stall"] * 1e3, 1),
        "first_stall_ms": round(first["stall"] * 1e3, 1),
        "copied_gb_per_second": round(training.snapshot.nbytes / median["stall"] / 1e9, 2),
        "written_seconds": round(median["writing"], 2),
        "slowdown_while_writing": round(median["slowdown"], 3),
        "cost_seconds": round(median["cost"], 3),
    }
    synchronous = {
        "stall_ms": round(median["sync"] * 1e3, 1),
        "processor_seconds": round(median["processor"], 3),
        "cost_seconds": round(median["sync"], 3),
    }
    rows = []
    for mode, row in (("on", asynchronous), ("off", synchronous)):
        share = round(row["cost_seconds"] / INTERVAL_SECONDS, 5)
        rows.append({"workload": f"{name}, --async-save {mode}", **shared, **row, "share_at_one_per_5_minutes": share})
    return rows


def _round(
    training: Training, behind: Checkpoints, at_once: Checkpoints, number: int, say: Callable[[str], None]
) -> dict[str, float]:
    """Save once behind steps and once at once; return seconds, and the slowdown of the steps as a fraction."""
    state = {"step": number}
    baseline = training.steps(BASELINE_STEPS)
    started = time.perf_counter()
    stall = training.timed(lambda: behind.save_async(training.snapshot, state))
    during: list[float] = []
    while checkpoint.latest(behind.root) != behind.root / f"step-{number:08d}":
        behind.check()
        during.append(training.step())
    writing = time.perf_counter() - started
    behind.wait()
    usual = statistics.median(baseline + training.steps(BASELINE_STEPS))
    extra = sum(during) - len(during) * usual
    processor = time.process_time()
    sync = training.timed(lambda: at_once.save(training.snapshot, state))
    processor = time.process_time() - processor
    say(
        f"save {number}: step {usual * 1e3:.0f} ms, stall {stall * 1e3:.0f} ms, written in {writing:.1f} s behind"
        f" {len(during)} steps that took {extra:+.2f} s; at once {sync:.2f} s, {processor:.2f} s of a processor"
    )
    return {
        "step": usual,
        "stall": stall,
        "writing": writing,
        "slowdown": extra / (len(during) * usual) if during else 0.0,
        "cost": stall + max(extra, 0.0),
        "sync": sync,
        "processor": processor,
    }


def _compare(training: Training, checkpoints: Checkpoints, number: int) -> None:
    """Save, take a step, and exit unless the checkpoint holds the tensors from before the step."""
    now = training.snapshot
    expected = [{key: value.cpu().clone() for key, value in part.items()} for part in (now.model, now.optimizer)]
    saved = checkpoints.save_async(now, {"step": number})
    training.step()
    checkpoints.wait()
    loaded = checkpoint.load(saved)
    for tensors, wanted in zip((loaded.model, loaded.optimizer), expected, strict=True):
        if tensors.keys() != wanted.keys() or not all(torch.equal(tensors[key], wanted[key]) for key in wanted):
            sys.exit(f"{saved}: the checkpoint is not the state at its call: there is nothing to report")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the mini model, one round")
    parser.add_argument("--models", nargs="+", choices=sorted(PRESETS), default=["mini", "base"])
    parser.add_argument("--rounds", type=int, default=3, help="saves of each kind after the first one (default: 3)")
    parser.add_argument("--folder", type=Path, help="an empty folder on the disk to measure (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="file for the record")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds} must be at least 1")
    models, rounds = (["mini"], 1) if options.quick else (options.models, options.rounds)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name in models:
            rows += measure(name, rounds, Path(folder) / name, print)
            shutil.rmtree(Path(folder) / name)
    load = os.getloadavg()[0]
    record = {**records.record("saves", rows), "note": f"The load of the machine was {load:.1f} at the end."}
    for row in rows:
        share = row["share_at_one_per_5_minutes"]
        print(
            f"{row['workload']:<28}stall {row['stall_ms']:>8.1f} ms   cost {row['cost_seconds']:>7.3f} s   {share:.2%}"
        )
    if options.json is not None:
        records.write(options.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
