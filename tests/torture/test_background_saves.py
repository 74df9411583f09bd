"""A save in the background is a snapshot of the step that it is made after, and the newest checkpoint is always whole.

Runs of the command write each checkpoint to a disk that is slow, while the next steps change the weights; most are
killed inside a save. A watcher loads the newest checkpoint as long as they run, and compares its tensors with those of
a run that saved each step at once.
"""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from killing import SAVING, Commands
from torture import restarts
from torture.campaign import Campaign
from torture.restarts import Kind
from torture.scorecard import scored

from fastbert.errors import CheckpointError
from fastbert.training import checkpoint

TENSORS = (checkpoint.MODEL, checkpoint.OPTIMIZER)
Hashes = dict[str, str]
"""SHA-256 by the name of a file."""


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    return restarts.warm_commands(tmp_path_factory.getbasetemp() / "commands")


@pytest.fixture(scope="module")
def every_step(tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> tuple[Kind, dict[str, Hashes]]:
    """A run that saved each step before the next one, and the hashes of its checkpoints by their names."""
    flags = ("--checkpoint-every", "1", "--keep-checkpoints", "99", "--async-save", "off")
    kind = restarts.pretraining(tmp_path_factory.mktemp("saves"), commands.run, *flags)
    hashes = {folder.name: hashes_of(folder) for folder in checkpoint.find(kind.out / "checkpoints")}
    assert len(hashes) == kind.steps
    return kind, hashes


def hashes_of(folder: Path) -> Hashes:
    """Load a checkpoint, which compares it with its manifest, and return the hashes of its tensors there."""
    checkpoint.load(folder)
    hashes = json.loads((folder / checkpoint.MANIFEST).read_text())["sha256"]
    return {name: hashes[name] for name in TENSORS}


class Watcher(threading.Thread):
    """Loads the newest checkpoint of a run, and that which `latest` names, again and again."""

    def __init__(self, root: Path, expected: dict[str, Hashes]) -> None:
        super().__init__()
        self.root, self.expected = root, expected
        self.ending = threading.Event()
        self.loads, self.seen = 0, set[str]()
        self.errors: list[str] = []

    def run(self) -> None:
        while not self.ending.is_set() and not self.errors:
            self.look()
            time.sleep(0.005)

    def look(self) -> str | None:
        """Load what is the newest now; return the name of what `latest` names."""
        named = checkpoint.latest(self.root)
        newest = checkpoint.find(self.root)[-1:]
        for folder, now in ((named, lambda: checkpoint.latest(self.root)), *((each, self._newest) for each in newest)):
            if folder is None:
                continue
            try:
                if hashes_of(folder) != self.expected[folder.name]:
                    self.errors.append(f"{folder.name} is not the state after its step")
                self.loads += 1
                self.seen.add(folder.name)
            except (CheckpointError, OSError) as error:
                if folder == now():  # else a newer one has taken its place, and it is removed
                    self.errors.append(f"{folder.name} is the newest, and not whole: {error}")
        return None if named is None else named.name

    def _newest(self) -> Path | None:
        return (checkpoint.find(self.root) or [None])[-1]


@scored(
    row=12,
    unit="runs with background saves",
    short=4,
    full=200,
    goal="each checkpoint is the state at the call, and the newest one is whole at every moment",
)
def test_background_saves(
    campaign: Campaign, every_step: tuple[Kind, dict[str, Hashes]], commands: Commands, tmp_path: Path
) -> None:
    """Whatever a kill interrupts, the newest checkpoint loads, is that of its step, and is not two intervals old."""
    kind, expected = every_step

    def save(numbers: range) -> dict[str, float]:
        figures = dict.fromkeys(("kills_in_saves", "checkpoints", "loads_by_the_watcher"), 0)
        for number in numbers:
            draw, out = random.Random(f"background saves {number}"), tmp_path / "run"
            interval, keep = draw.randint(1, 4), draw.randint(1, 2)
            flags = ("--checkpoint-every", str(interval), "--keep-checkpoints", str(keep), "--async-save", "on")
            watcher = Watcher(out / "checkpoints", expected)
            watcher.start()
            try:
                delay = draw.choice((0, 5e-4, 2e-3))
                ended = commands.run(kind.command(out, *flags), delay=delay, **ending(number))
            finally:
                watcher.ending.set()
                watcher.join()
            assert ended.killed or ended.code == 0, f"number {number}: ended with {ended.code}\n{ended.output}"
            watcher.look()
            assert not watcher.errors, f"number {number}, {ended.last}: {watcher.errors[0]}"
            assert ended.last is not None
            saved = max(map(checkpoint.step_of, checkpoint.find(watcher.root)), default=0)
            message = f"number {number}: ended in step {ended.last.number}, its newest checkpoint is of step {saved}"
            assert ended.last.number - saved <= 2 * interval, message
            figures["kills_in_saves"] += ended.killed
            figures["checkpoints"] += len(watcher.seen)
            figures["loads_by_the_watcher"] += watcher.loads
            shutil.rmtree(out)
        return {**figures}

    campaign.run(save)


def ending(number: int) -> dict[str, Any]:
    """A kill inside a save, unless the number is a multiple of four."""
    draw = random.Random(f"kills of background saves {number}")
    operation = SAVING[number % len(SAVING)]
    fault = draw.randint(1, 4 * restarts.IN_SAVE.get(operation, 1))
    return {"fault": fault, "operations": [operation], "within": "checkpoints"} if number % 4 else {}


@scored(
    row=12,
    unit="saves",
    short=1,
    full=60,
    goal="the call takes the processor less time than a step",
)
def test_stalls_of_background_saves(
    campaign: Campaign, every_step: tuple[Kind, dict[str, Hashes]], commands: Commands, tmp_path: Path
) -> None:
    """The call copies the weights and moments of a model of three million weights; a step has 32 sequences."""
    kind, _ = every_step
    shape = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    (tmp_path / "large.json").write_text(json.dumps({**shape, "vocab_size": 60, "max_position_embeddings": 32}))

    def save(numbers: range) -> dict[str, float]:
        file, out = tmp_path / "stalls", tmp_path / "run"
        flags = {
            "--model": str(tmp_path / "large.json"),
            "--steps": str(4 * len(numbers) + 1),
            "--batch-size": "32",
            "--micro-batch": "32",
            "--checkpoint-every": "4",
            "--async-save": "on",
        }
        words = [word for flag in flags.items() for word in flag]
        ended = commands.run([*without(kind.arguments, flags), *words, "--out", str(out)], stalls=str(file))
        assert ended.code == 0, ended.output
        stalls = [tuple(map(float, line.split())) for line in file.read_text().splitlines()]
        assert len(stalls) == len(numbers)
        steps = [call / step for call, step in stalls]
        assert max(steps) <= 1, f"numbers {numbers}: a save stalls {max(steps)} steps"
        shutil.rmtree(out)
        file.unlink()
        return {"largest_stall_in_steps": round(max(steps), 4), "sum_of_stalls_in_steps": round(sum(steps), 4)}

    campaign.run(save)


def without(arguments: list[str], flags: dict[str, str]) -> list[str]:
    """Leave out the flags of a command that are given otherwise."""
    skipped = {index for index, word in enumerate(arguments) if word in flags}
    return [word for index, word in enumerate(arguments) if not {index, index - 1} & skipped]
