"""Run entries of the speed run, keep their logs, and write the record.

    python benchmarks/speedrun/run.py short-20 bert-2018-20 --seeds 0 1 2
    python benchmarks/speedrun/run.py --report

A run trains by the clock, is scored on the fixed target, and leaves its logs in benchmarks/speedrun/logs. Runs that
have a summary there are not repeated. `--report` prints a table of all logs of each machine class, and writes the
records to benchmarks/results/speedrun.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastbert.benchmarks.gpu.record import device_of
from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.quietness import describe, measure_load
from fastbert.benchmarks.harness.texts import find_data
from fastbert.benchmarks.speedrun import report
from fastbert.benchmarks.speedrun.data import SHA256, SpeedrunData, prepared
from fastbert.benchmarks.speedrun.entries import CORES, CPU, ENTRIES, GPU, Entry
from fastbert.benchmarks.speedrun.evaluate import evaluate
from fastbert.errors import UserError
from fastbert.io.atomic_write import write_atomic

LOGS = Path(__file__).resolve().parent / "logs"
KEPT = ("config.json", "metrics.jsonl", "schedule.jsonl", "loss.png")  # of a run's folder


def command(entry: Entry, data: SpeedrunData, seed: int, out: Path) -> list[str]:
    """Return the command line of an entry's run. One per cent of the training text validates while it trains."""
    launch = [sys.executable, "-P", "-m"]
    if entry.processes > 1:
        launch += ["torch.distributed.run", "--no-python", "--standalone", f"--nproc-per-node={entry.processes}"]
        launch += [sys.executable, "-P", "-m"]
    return [
        *(*launch, "fastbert", "pretrain", f"--data={data.train}", f"--out={out}", f"--hours={entry.minutes / 60!r}"),
        *(*entry.flags, f"--seed={seed}", "--validation-fraction=0.01", "--eval-samples=256", "--log-every=50"),
        *(f"--device={_device(entry)}", "--checkpoint-every=1000000", "--overwrite", "--quiet"),
    ]


def _device(entry: Entry) -> str:
    return "cuda" if entry.machine == GPU else "cpu"


def train(entry: Entry, data: SpeedrunData, seed: int, out: Path) -> dict[str, Any]:
    """Pre-train by an entry; return what it cost. Raises `UserError` if the command fails."""
    load = measure_load()
    busy = load.share if load is not None else 0.0
    if load is not None and load.busy:
        print(f"warning: {describe(load)}", file=sys.stderr)
    environment = {**os.environ, "OMP_NUM_THREADS": str(entry.threads)}
    words, began = command(entry, data, seed, out), time.perf_counter()
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, env=environment)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise UserError(f"{' '.join(words)} ended with code {done.returncode}: {done.stderr.strip()[-500:]}")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    last = [line for line in lines if line["split"] == "train"][-1]
    return {
        "training_seconds": round(last["seconds"], 1),
        "command_seconds": round(seconds, 1),
        "steps": last["step"],
        "tokens": last["tokens"],
        "tokens_per_second": round(last["tokens"] / last["seconds"], 1),
        "busy_before": round(busy, 3),
    }


def machine_of(entry: Entry) -> dict[str, Any]:
    """Return this machine as the logs of an entry are filed under it: by its GPU for an entry that trains on one.
    Raises `UserError` where such an entry has no GPU."""
    machine = records.machine()
    if entry.machine != GPU:
        return machine
    if machine["gpu"] is None:
        raise UserError(f"{entry.name}: is an entry for {GPU}, and there is none")
    return {**machine, "device": device_of(machine["gpu"])}


def _require_cores(entry: Entry, machine: dict[str, Any]) -> None:
    cores = machine["usable_cores"]
    if entry.machine == CPU and cores != CORES:
        raise UserError(
            f"{entry.name}: is an entry for {CPU}, and this process can use {cores:g}; where there are more, start it"
            f" with taskset -c 0-{CORES - 1}"
        )


def _cost(out: Path, identity: dict[str, Any], here: dict[str, Any]) -> dict[str, Any]:
    """Return what the training of the model in a work folder cost, with its settings and its machine: `identity` and
    `here` where cost.json lacks them. Raises `UserError` for other settings, and for another machine class."""
    cost = {**identity, **here, **json.loads((out / "cost.json").read_text(encoding="utf-8"))}
    for key, value in identity.items():
        if cost[key] != value:
            raise UserError(
                f"{out}: its model was trained with {key} {cost[key]}, not {value}; train it again with --again, or"
                " name another --work"
            )
    trained, kind = (records.machine_class(details["machine_details"]) for details in (cost, here))
    if trained != kind:
        raise UserError(
            f"{out}: its model was trained on a machine of class {trained}, not {kind}; score it there, or train it"
            " again here with --again"
        )
    return cost


def run(entry: Entry, seed: int, options: argparse.Namespace, data: SpeedrunData) -> dict[str, Any]:
    """Train and score an entry with one seed; return its summary, which is stored with the logs."""
    machine = machine_of(entry)
    logs = options.logs / records.machine_class(machine) / entry.name / f"seed-{seed}"
    if (logs / "summary.json").is_file() and not options.again:
        print(f"{entry.name}, seed {seed}: {logs} holds it; --again repeats it", file=sys.stderr)
        summary: dict[str, Any] = json.loads((logs / "summary.json").read_text(encoding="utf-8"))
        return summary
    out = options.work / f"{entry.name}-{seed}"
    settings = {key: value for key, value in asdict(entry).items() if key != "about"}
    identity = {**settings, "flags": list(entry.flags), "seed": seed, "data_sha256": SHA256}
    here = {"machine_details": machine, "versions": records.versions(), "commit": records.commit()}
    if options.again or not (out / "cost.json").is_file():
        _require_cores(entry, machine)
        shutil.rmtree(out, ignore_errors=True)
        cost = {**identity, **here, **train(entry, data, seed, out)}
        write_atomic(out / "cost.json", json.dumps(cost))
    cost = _cost(out, identity, here)
    finetune_seeds, device = options.finetune_seeds, _device(entry)
    scores = evaluate(out / "model", data, out / "scores", seed=seed, seeds=finetune_seeds, device=device)
    summary = {**cost, **scores}
    logs.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        if (out / name).is_file():
            shutil.copyfile(out / name, logs / name)
    config = logs / "config.json"
    if config.is_file():  # the same on every machine
        write_atomic(config, config.read_text(encoding="utf-8").replace(str(options.work), "WORK"))
    write_atomic(logs / "summary.json", json.dumps(summary, indent=1) + "\n")
    return summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entries", nargs="*", metavar="ENTRY", help=f"any of {', '.join(ENTRIES)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds of pre-training (default: 0)")
    parser.add_argument("--finetune-seeds", type=int, default=3, help="seeds of fine-tuning per model (default: 3)")
    parser.add_argument("--data", type=Path, help="the data folder (default: FASTBERT_DATA)")
    parser.add_argument("--work", type=Path, default=Path("runs/speedrun"), help="folder of shards, runs and models")
    parser.add_argument("--logs", type=Path, default=LOGS, help="folder of the logs that are kept")
    parser.add_argument("--again", action="store_true", help="repeat runs that have a summary")
    parser.add_argument("--report", action="store_true", help="print the tables of all logs, and write the records")
    options = parser.parse_args(arguments)
    try:
        unknown = [name for name in options.entries if name not in ENTRIES]
        if unknown:
            raise UserError(f"{unknown[0]} is not an entry; choose from {', '.join(ENTRIES)}")
        if not options.entries and not options.report:
            raise UserError("name an entry to run, or give --report")
        if options.entries:
            if options.data is not None and not options.data.is_dir():
                raise UserError(f"--data {options.data}: no such folder; name the one that holds wiki-en and books-en")
            folder = find_data(options.data)
            if folder is None:
                raise UserError("no data: name its folder with --data, or in FASTBERT_DATA")
            data = prepared(folder, options.work / "data")
            for seed in options.seeds:  # entries take turns
                for name in options.entries:
                    print(report.line(run(ENTRIES[name], seed, options, data)), flush=True)
        if options.report:
            print(report.write(options.logs))
    except UserError as error:
        print(f"run.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
