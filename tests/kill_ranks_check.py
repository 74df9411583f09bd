"""Kill pre-training runs of two processes under torchrun again and again, half of the times inside their saves.

A run that goes on with two processes must end with the weights of an undisturbed one, bit for bit. One that goes on
with one or three must take its next step with the loss of the undisturbed one, within 1e-6.
`python tests/kill_ranks_check.py --kills 20 --restarts 10 --json FILE` adds rows to a record of `kill_check.py`.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kill_check import OCCURS, SAVES, Kills, toy_run, weights_sha256, write_rows
from killing import SAVING
from launching import Launched, Launches

RANKS, OTHERS = 2, (1, 3)
TOLERANCE = 1e-6  # of the loss of the first step after a restart, relative, in fp32
UNDISTURBED = "undisturbed"


class Killer:
    """Starts the toy run in two processes, and kills one of them: every second time the first, inside a save, else any
    of them at a random moment."""

    def __init__(self, launches: Launches, folder: Path, seed: int) -> None:
        self.launches, self.folder, self.draw = launches, folder, random.Random(seed)
        self.arguments, self.kills = toy_run(folder), Kills()
        ended = self.start(folder / UNDISTURBED, RANKS)
        self.seconds = ended.seconds
        self.losses = losses(folder / UNDISTURBED)

    def start(self, out: Path, ranks: int, **ending: Any) -> Launched:
        """Start or continue the run; raises AssertionError unless it ends as it should."""
        ended = self.launches.run([*self.arguments, "--out", str(out)], ranks, **ending)
        assert ended.killed or set(ended.codes.values()) == {0}, f"{ended.codes}\n{ended.output}"
        return ended

    def start_and_kill(self, out: Path) -> bool:
        """Start or continue the run, kill it and count the kill; False if it ended before that."""
        self.kills.starts += 1
        operation = None
        ending = {"rank": self.draw.randrange(RANKS), "kill_after": self.draw.uniform(0, self.seconds)}
        if self.kills.starts % 2:
            operation = self.draw.choice(SAVING)
            times = self.draw.randint(1, SAVES * OCCURS.get(operation, 1))
            ending = {"rank": 0, "fault": times, "operations": [operation], "within": "checkpoints"}
        if not self.start(out, RANKS, **ending).killed:
            return False
        self.kills.count(operation)
        return True

    def run(self, least: int) -> dict[str, Any]:
        """Kill as many runs as it takes, each until it ends by itself; return the row of a record."""
        started, runs, expected = time.monotonic(), 0, weights_sha256(self.folder / UNDISTURBED)
        while self.kills.total < least:
            runs += 1
            out = self.folder / f"run-{runs}"
            while self.start_and_kill(out):
                pass
            assert weights_sha256(out) == expected, f"run {runs}: {self.kills}"
            assert losses(out) == self.losses
            self.kills.weights[expected] += 1
            print(f"{self.kills.total} kills in {runs} runs, {self.kills.in_saves.total()} in saves", flush=True)
        row = self.kills.row(runs, expected)
        return {**self.row(f"kill -9 of one of the {RANKS} processes of a pre-training run", started), **row}

    def restart(self, least: int) -> dict[str, Any]:
        """Kill runs behind their first checkpoint, continue each with another number of processes; return a row."""
        started, differences, attempts = time.monotonic(), [], 0
        processes: Counter[int] = Counter()
        while len(differences) < least:
            attempts += 1
            out = self.folder / f"other-{attempts}"
            if not self.start_and_kill(out):
                continue
            saved = [int(path.name.removeprefix("step-")) for path in (out / "checkpoints").glob("step-*")]
            step = max(saved, default=0) + 1
            if step == 1 or step > len(self.losses):
                continue
            ranks = OTHERS[len(differences) % len(OTHERS)]
            self.start(out, ranks)
            difference = abs(losses(out)[step] / self.losses[step] - 1)
            assert difference <= TOLERANCE, f"step {step} with {ranks} processes: {difference}"
            differences.append(difference)
            processes[ranks] += 1
            print(f"step {step} with {ranks} processes: loss differs by {difference:.1e}", flush=True)
        return {
            **self.row(
                f"kill -9 of a process of a pre-training run of {RANKS}, continued with another number", started
            ),
            "restarts": len(differences),
            "restarts_by_processes": {str(ranks): count for ranks, count in sorted(processes.items())},
            "largest_relative_difference_of_loss": max(differences),
            "equal_to_the_bit": differences.count(0.0),
        }

    def row(self, workload: str, started: float) -> dict[str, Any]:
        return {"workload": workload, "processes": RANKS, "seconds": round(time.monotonic() - started)}


def losses(run: Path) -> dict[int, float]:
    """The exact loss of each step of a run."""
    lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines}


def check(measure: Callable[[Killer], dict[str, Any]], seed: int) -> dict[str, Any]:
    """Return what a method of a killer returns, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        launches = Launches(Path(folder))
        try:
            return {**measure(Killer(launches, Path(folder), seed)), "seed": seed}
        finally:
            launches.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="least number of kills of runs that go on with two")
    parser.add_argument("--restarts", type=int, default=10, help="number of restarts with one or three processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file of the record")
    options = parser.parse_args()
    rows = [
        check(lambda killer: killer.run(options.kills), options.seed),
        check(lambda killer: killer.restart(options.restarts), options.seed + 1),
    ]
    names = f"--kills {options.kills} --restarts {options.restarts} --seed {options.seed}"
    write_rows(rows, f"python tests/kill_ranks_check.py {names}", options.json)


if __name__ == "__main__":
    main()
