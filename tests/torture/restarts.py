"""Toy runs of pre-training and fine-tuning that are repeated by the same command until they return, whatever ends them.

Each start is a process that is forked from a warm one. What a run leaves is compared with that of an undisturbed run,
and what each start takes again with what the one before had done.
"""

from __future__ import annotations

import atexit
import functools
import json
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from killing import POINTS, SAVING, Commands, Ended, Step
from toy_tasks import sentiment, toy_folder

from fastbert.training.metrics import MEASURED

INTERVAL = 3  # steps between two checkpoints
# About how often an operation occurs in a save, and in half of a run; others once or twice.
IN_SAVE = {"write": 40, "open": 8, "fsync": 6, "unlink": 4}
IN_RUN = {"fsync": 60, "rename": 8, "replace": 20, "mkdir": 15, "unlink": 30, "rmdir": 8}
SAVES = 3  # of a start, in which it may be killed: the next one is killed in later ones
ATTEMPTS = 100  # starts until one ends as it should


@functools.cache
def warm_commands(folder: Path) -> Commands:
    """Return the server of commands of this process, which ends with it."""
    folder.mkdir()
    commands = Commands(folder)
    atexit.register(commands.close)
    return commands


class Starts(Protocol):
    """Starts a command, ended as `killing.Commands.run` describes."""

    def __call__(self, arguments: list[str], /, **ending: Any) -> Ended: ...


@dataclass
class Kind:
    """A command without --out, the number of steps of each trial and of trials; the folder of an undisturbed run, what
    it left, and the seconds of processor time that it took."""

    arguments: list[str]
    steps: int
    trials: int
    out: Path
    left: dict[str, bytes] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return self.arguments[0]

    def command(self, out: Path, *flags: str) -> list[str]:
        return [*self.arguments, "--out", str(out), "--resume", *flags]

    def position(self, step: Step) -> int:
        """The number of steps of a run up to a step, over all trials."""
        return (step.trial - 1) * self.steps + step.number


def pretraining(folder: Path, start: Starts, *flags: str, steps: int = 18, micro_batch: int = 8) -> Kind:
    """A vocabulary, shards and steps of eight sequences; metrics, validations and checkpoints come at different
    steps."""
    write_corpus(folder)
    arguments = [
        "pretrain", "--corpus", str(folder / "corpus.txt"), "--text-format", "lines", "--model",
        str(folder / "model.json"), "--vocab-size", "60", "--steps", str(steps), "--batch-size", "8",
        "--micro-batch", str(micro_batch), "--max-length", "32", "--lr", "3e-3", "--dropout", "0.1", "--dtype", "fp32",
        "--device", "cpu", "--log-every", "5", "--eval-every", "10", "--eval-samples", "16", "--checkpoint-every",
        str(INTERVAL), *flags,
    ]  # fmt: skip
    return undisturbed(Kind(arguments, steps, 1, folder / "pretrain"), start)


def write_corpus(folder: Path) -> None:
    """Write a corpus and a model's configuration to a folder."""
    draw = random.Random(5)
    words = ["".join(draw.choices("abcdefghij", k=4)) for _ in range(30)]
    documents = ["\n".join(" ".join(draw.choices(words, k=9)) + "." for _ in range(8)) for _ in range(40)]
    (folder / "corpus.txt").write_text("\n\n".join(documents) + "\n")
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    (folder / "model.json").write_text(json.dumps({**shape, "vocab_size": 60, "max_position_embeddings": 32}))


def finetuning(folder: Path, start: Starts, *flags: str, steps: int = 12, trials: int = 2) -> Kind:
    """Trials of two epochs, or of as many steps."""
    model = toy_folder(folder / "model", num_hidden_layers=1)
    train, dev = sentiment(folder / "train.tsv", 96, seed=1), sentiment(folder / "dev.tsv", 16, seed=2)
    arguments = [
        "finetune", "--task", "classification", "--model", str(model), "--train", str(train), "--eval", str(dev),
        "--seeds", str(trials), "--epochs", str(steps / 6), "--batch-size", "16", "--micro-batch", "8", "--lr", "1e-2",
        "--max-length", "32", "--dtype", "fp32", "--device", "cpu", "--log-every", "5", "--eval-every", "4",
        "--checkpoint-every", str(INTERVAL), *flags,
    ]  # fmt: skip
    return undisturbed(Kind(arguments, steps, trials, folder / "finetune"), start)


def undisturbed(kind: Kind, start: Starts) -> Kind:
    """Run a command to its end, and keep what it left."""
    ended = start(kind.command(kind.out))
    assert ended.code == 0, ended.output
    kind.left, kind.seconds = left(kind.out), ended.seconds
    assert len(kind.left) >= 4
    assert ended.last == Step(kind.trials, kind.steps)
    return kind


def left(run: Path) -> dict[str, bytes]:
    """What a run leaves for its user, without what a clock measured."""
    names = (
        "vocab.txt",
        "tokenizer/vocab.txt",
        "model/config.json",
        "model/model.safetensors",
        "model/vocab.txt",
        "metrics.jsonl",
        "steps.jsonl",
        "results.json",
    )
    files = [run / name for name in names if (run / name).exists()]
    files += sorted((run / "predictions").glob("*"))
    files += sorted((run / "reports").glob("*/*"))
    clocks = rb'(, )?"(%s)": [^,}\n]+' % "|".join((*MEASURED, "sha256")).encode()
    return {str(path.relative_to(run)): re.sub(clocks, b"", path.read_bytes()) for path in files}


class Repeated:
    """Runs of a kind, one after another, each started by the same command until it returns.

    What a finished run left must be that of an undisturbed one. A start may take again at most one interval of steps
    that the one before had taken; two of them while a checkpoint was written in the background.
    """

    def __init__(self, kind: Kind, start: Starts, folder: Path) -> None:
        self.kind, self._start, self.folder = kind, start, folder
        self.starts = self.runs = self.largest_loss = 0
        self.reached, self._lost = 0, 2 * INTERVAL
        self.story: list[str] = []
        """The starts of the run, for the message of a failure."""

    @property
    def out(self) -> Path:
        return self.folder / self.kind.name

    def start(self, label: str, *, background: bool, saves: bool = False, **ending: Any) -> Ended:
        """Start the run, or the next one if it has returned. If it `saves` when it is ended, the next start may take no
        step again."""
        self.starts += 1
        self.story.append(f"{label} {ending}")
        ended = self._start(self.kind.command(self.out, "--async-save", "on" if background else "off"), **ending)
        self._compare_steps(ended)
        if ended.first is not None:
            self._lost = 0 if saves else 2 * INTERVAL if background else INTERVAL
        if ended.code == 0:
            found = left(self.out)
            different = [name for name in {*found, *self.kind.left} if found.get(name) != self.kind.left.get(name)]
            assert not different, f"{self}: {different} differ from those of an undisturbed run, kept in {self.out}"
            shutil.rmtree(self.out)
            self.runs += 1
            self.story.clear()
            self.reached = 0
        return ended

    def finish(self) -> None:
        """Let a run that was ended return."""
        if self.story:
            ended = self.start("finish", background=True)
            assert ended.code == 0, f"{self}: the last start ended with {ended.code}\n{ended.output}"

    def assert_same_steps(self) -> None:
        """Compare what the run has of each step with the undisturbed one: the loss, and in pre-training the gradient's
        norm and the sum of all weights' bits."""
        name = "steps.jsonl" if "steps.jsonl" in self.kind.left else "metrics.jsonl"
        found = left(self.out)[name]
        assert self.kind.left[name].startswith(found), f"{self}: {name} differs from that of an undisturbed run"

    def _compare_steps(self, ended: Ended) -> None:
        if ended.first is None or ended.last is None:
            return
        lost = self.reached - (self.kind.position(ended.first) - 1)
        assert lost <= self._lost, f"{self}: {lost} steps were lost, more than {self._lost}"
        assert lost >= 0, f"{self}: {-lost} steps were left out"
        self.largest_loss = max(self.largest_loss, lost)
        self.reached = self.kind.position(ended.last)  # what earlier starts had reached is counted as lost

    def __str__(self) -> str:
        last = self.story[-1] if self.story else "no start"
        return f"{last}, run {self.runs} of {self.kind.name} after {'; '.join(self.story[:-1]) or 'nothing'}"


def moments(name: str, kind: Kind, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what may end a start, drawn for a number: half of them are operations inside a save, each in turn, a
    quarter any operation of the run on the disk, and a quarter moments of processor time."""
    for attempt in range(ATTEMPTS):
        draw = random.Random(f"{name} {number} {attempt}")
        if number % 2 == 0:
            operation = SAVING[number // 2 % len(SAVING)]
            fault = draw.randint(1, SAVES * IN_SAVE.get(operation, 1))
            yield f"in_saves_{operation}", {"fault": fault, "operations": [operation], "within": "checkpoints"}
        elif number % 4 == 1:
            operation = POINTS[number // 4 % len(POINTS)]
            yield "at_operations", {"fault": draw.randint(1, IN_RUN[operation]), "operations": [operation]}
        else:
            yield "at_random", {"after": draw.uniform(0, kind.seconds)}
    raise AssertionError(f"{name} {number}: no start of {ATTEMPTS} was ended")


def kill(repeated: Repeated, numbers: range, name: str) -> dict[str, float]:
    """Kill a start for each number, and let the last run return; return the figures."""
    kills: Counter[str] = Counter()
    for number in numbers:
        for where, ending in moments(name, repeated.kind, number):
            ended = repeated.start(f"number {number}", background=repeated.runs % 2 == 0, **ending)
            assert ended.code in (0, -signal.SIGKILL), f"{repeated}: ended with {ended.code}\n{ended.output}"
            if ended.killed:
                kills[where] += 1
                break
    repeated.finish()
    in_saves = sum(count for where, count in kills.items() if where.startswith("in_saves"))
    return {
        "in_saves": in_saves,
        "runs": repeated.runs,
        "starts": repeated.starts,
        "largest_steps_lost": repeated.largest_loss,
        **kills,
    }
