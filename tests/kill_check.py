"""Kill a pre-training run again and again, half of the times inside its saves, and compare its weights at the end.

`python tests/kill_check.py --kills 50 --in-saves 20 --json FILE` writes a record like those in benchmarks/results.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from killing import SAVING, Commands

SAVES = 8  # of a run
# About how often an operation occurs in a save; others once or twice.
OCCURS = {"write": 40, "open": 8, "fsync": 6, "unlink": 4}


def toy_run(folder: Path) -> list[str]:
    """Write a corpus and a model's config to a folder; return the command of a run of 24 steps that saves each third
    step in the background, without --out."""
    draw = random.Random(5)
    words = ["".join(draw.choices("abcdefghij", k=4)) for _ in range(30)]
    documents = ["\n".join(" ".join(draw.choices(words, k=9)) + "." for _ in range(8)) for _ in range(60)]
    (folder / "corpus.txt").write_text("\n\n".join(documents) + "\n")
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    (folder / "model.json").write_text(json.dumps({**shape, "vocab_size": 60, "max_position_embeddings": 32}))
    return [
        "pretrain", "--corpus", str(folder / "corpus.txt"), "--text-format", "lines", "--model",
        str(folder / "model.json"), "--vocab-size", "60", "--steps", "24", "--batch-size", "8", "--max-length", "32",
        "--lr", "3e-3", "--dtype", "fp32", "--device", "cpu", "--log-every", "5", "--eval-every", "10",
        "--eval-samples", "16", "--checkpoint-every", "3", "--async-save", "on", "--resume", "--quiet",
    ]  # fmt: skip


def weights_sha256(run: Path) -> str:
    return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()


@dataclass
class Kills:
    """How often a run was started and killed, and the hashes of the weights that it ended with."""

    starts: int = 0
    at_random: int = 0
    in_saves: Counter[str] = field(default_factory=Counter)
    weights: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.at_random + self.in_saves.total()

    def count(self, operation: str | None) -> None:
        """Count a kill, inside an operation of a save or at random."""
        if operation is None:
            self.at_random += 1
        else:
            self.in_saves[operation] += 1

    def row(self, runs: int, expected: str) -> dict[str, Any]:
        """What a record has of so many runs, which should end with these weights."""
        return {
            "runs": runs,
            "starts": self.starts,
            "kills": self.total,
            "kills_in_saves": self.in_saves.total(),
            "operations_killed": dict(sorted(self.in_saves.items())),
            "weights_sha256": expected,
            "different_weights": runs - self.weights[expected],
        }


def kill_run(commands: Commands, arguments: list[str], out: Path, draw: random.Random, seconds: float) -> Kills:
    """Start a run until it ends by itself; kill every second start inside a save, the others at a random moment."""
    kills = Kills()
    while True:
        kills.starts += 1
        operation, ending = None, {"kill_after": draw.uniform(0, seconds)}
        if kills.starts % 2:
            operation = draw.choice(SAVING)
            times = draw.randint(1, SAVES * OCCURS.get(operation, 1))
            ending = {"fault": times, "operations": [operation], "within": "checkpoints"}
        code, _ = commands.run([*arguments, "--out", str(out)], **ending)
        if code == -signal.SIGKILL:
            kills.count(operation)
        else:
            assert code == 0, commands.output.read_text()
            kills.weights[weights_sha256(out)] += 1
            return kills


def kill_runs(commands: Commands, folder: Path, seed: int, least: int, least_in_saves: int) -> dict[str, Any]:
    """Kill as many runs as it takes; return the row of a record. Raises AssertionError for different weights."""
    arguments, draw, started = toy_run(folder), random.Random(seed), time.monotonic()
    code, seconds = commands.run([*arguments, "--out", str(folder / "undisturbed")])
    assert code == 0, commands.output.read_text()
    expected, total, runs = weights_sha256(folder / "undisturbed"), Kills(), 0
    while total.total < least or total.in_saves.total() < least_in_saves:
        runs += 1
        kills = kill_run(commands, arguments, folder / f"run-{runs}", draw, seconds)
        assert set(kills.weights) == {expected}, f"seed {seed}, run {runs}: {kills}"
        total.starts, total.at_random = total.starts + kills.starts, total.at_random + kills.at_random
        total.in_saves += kills.in_saves
        total.weights += kills.weights
        print(f"{total.total} kills in {runs} runs, {total.in_saves.total()} of them in saves", flush=True)
    return {
        "workload": "kill -9 of a pre-training run with asynchronous saves",
        "seed": seed,
        **total.row(runs, expected),
        "seconds": round(time.monotonic() - started),
    }


def write_rows(rows: list[dict[str, Any]], command: str, path: Path | None) -> None:
    """Print a record of rows; write it to a file, in which rows of other workloads stay."""
    from fastbert.benchmarks.harness import records

    note = "A check of correctness, whose results do not depend on the machine."
    rows = [{**row, "command": command} for row in rows]
    record = {**records.record("restart-checks", rows), "machine": None, "note": note}
    print(json.dumps(record, indent=1))
    if path is None:
        return
    if path.exists():
        # The versions and the commit of a record are those of its first row's.
        stored, new = json.loads(path.read_text()), {row["workload"] for row in rows}
        kept = [row for row in stored["rows"] if row["workload"] not in new]
        if kept:
            added = [{**row, "commit": record["commit"], "versions": record["versions"]} for row in rows]
            record = {**stored, "rows": [*kept, *added]}
    records.write(path, record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="least number of kills")
    parser.add_argument("--in-saves", type=int, default=20, help="least number of them inside saves")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the record")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        commands = Commands(Path(folder))
        try:
            row = kill_runs(commands, Path(folder), options.seed, options.kills, options.in_saves)
        finally:
            commands.close()
    names = f"--kills {options.kills} --in-saves {options.in_saves} --seed {options.seed}"
    write_rows([row], f"python tests/kill_check.py {names}", options.json)


if __name__ == "__main__":
    main()
