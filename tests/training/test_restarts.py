"""One command, repeated until it returns: whatever ends it before, the files are those of an undisturbed run."""

from __future__ import annotations

import json
import random
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kill_check import kill_runs
from killing import Commands, restart_until_done
from toy_tasks import sentiment, toy_folder

from fastbert.training.metrics import MEASURED


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    server = Commands(tmp_path_factory.mktemp("commands"))
    yield server
    server.close()


@dataclass
class Kind:
    """A command without --out, what an undisturbed run of it left, and the seconds of processor time that it took."""

    arguments: list[str]
    left: dict[str, bytes]
    seconds: float

    def command(self, out: Path) -> list[str]:
        return [*self.arguments, "--out", str(out), "--resume", "--quiet"]


def left(run: Path) -> dict[str, bytes]:
    """What a run leaves for its user, without what a clock measured."""
    names = (
        "vocab.txt",
        "tokenizer/vocab.txt",
        "model/config.json",
        "model/model.safetensors",
        "model/vocab.txt",
        "metrics.jsonl",
    )
    files = [run / name for name in (*names, "results.json") if (run / name).exists()]
    files += sorted((run / "predictions").glob("*"))
    files += sorted((run / "reports").glob("*/*"))
    names = "|".join((*MEASURED, "sha256")).encode()
    clocks = rb'"(%s)": [^,}\n]+' % names
    return {str(path.relative_to(run)): re.sub(clocks, b"", path.read_bytes()) for path in files}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def pretraining(toy: Path, commands: Commands) -> Kind:
    """A vocabulary, shards and twelve steps, whose lines of metrics and checkpoints come at different ones."""
    draw = random.Random(5)
    words = ["".join(draw.choices("abcdefghij", k=4)) for _ in range(30)]
    documents = ["\n".join(" ".join(draw.choices(words, k=9)) + "." for _ in range(8)) for _ in range(40)]
    (toy / "corpus.txt").write_text("\n\n".join(documents) + "\n")
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    (toy / "model.json").write_text(json.dumps({**shape, "vocab_size": 60, "max_position_embeddings": 32}))
    arguments = [
        "pretrain", "--corpus", str(toy / "corpus.txt"), "--text-format", "lines", "--model",
        str(toy / "model.json"), "--vocab-size", "60", "--steps", "12", "--batch-size", "8", "--micro-batch", "4",
        "--max-length", "32", "--lr", "3e-3", "--dtype", "fp32", "--device", "cpu", "--log-every", "5",
        "--eval-every", "4", "--eval-samples", "16", "--checkpoint-every", "3", "--async-save", "on",
    ]  # fmt: skip
    return undisturbed(arguments, toy / "pretrain", commands)


@pytest.fixture(scope="module")
def finetuning(toy: Path, commands: Commands) -> Kind:
    """Two trials of twelve steps each."""
    model = toy_folder(toy / "model")
    train, dev = sentiment(toy / "train.tsv", 96, seed=1), sentiment(toy / "dev.tsv", 16, seed=2)
    arguments = [
        "finetune", "--task", "classification", "--model", str(model), "--train", str(train), "--eval", str(dev),
        "--seeds", "2", "--epochs", "2", "--batch-size", "16", "--lr", "1e-2", "--max-length", "32", "--dtype", "fp32",
        "--device", "cpu", "--log-every", "5", "--eval-every", "4", "--checkpoint-every", "3", "--async-save", "on",
    ]  # fmt: skip
    return undisturbed(arguments, toy / "finetune", commands)


def undisturbed(arguments: list[str], out: Path, commands: Commands) -> Kind:
    kind = Kind(arguments, {}, 0.0)
    code, kind.seconds = commands.run(kind.command(out))
    assert code == 0, commands.output.read_text()
    kind.left = left(out)
    assert len(kind.left) >= 4
    return kind


@pytest.fixture(params=["pretraining", "finetuning"])
def kind(request: pytest.FixtureRequest) -> Kind:
    result: Kind = request.getfixturevalue(request.param)
    return result


def assert_killed(kind: Kind, commands: Commands, folder: Path, seed: int, least: int) -> None:
    """At least so many kills, over as many runs as that takes, change nothing."""
    draw, kills, runs = random.Random(seed), 0, 0
    while kills < least:
        runs += 1
        out = folder / f"run-{runs}"
        kills += restart_until_done(commands, kind.command(out), draw, kind.seconds)
        assert left(out) == kind.left, f"seed {seed}, run {runs}"
        print(f"{kills} kills in {runs} runs", flush=True)


def test_kills_at_random_change_nothing(kind: Kind, commands: Commands, tmp_path: Path, seed: int) -> None:
    assert_killed(kind, commands, tmp_path, seed, least=2)


@pytest.mark.slow
def test_a_hundred_kills_change_nothing(kind: Kind, commands: Commands, tmp_path: Path, seed: int) -> None:
    assert_killed(kind, commands, tmp_path, seed, least=100 if kind.arguments[0] == "pretrain" else 50)


@pytest.mark.parametrize(("kills", "in_saves"), [(3, 2), pytest.param(50, 20, marks=pytest.mark.slow)])
def test_kills_inside_asynchronous_saves_change_nothing(
    kills: int, in_saves: int, commands: Commands, tmp_path: Path, seed: int
) -> None:
    row = kill_runs(commands, tmp_path, seed, kills, in_saves)
    assert row["kills"] >= kills
    assert row["kills_in_saves"] >= in_saves


def end_at(kind: Kind, commands: Commands, folder: Path, points: list[int], error: bool) -> int:
    """End a run at each of its operations on the disk, and go on; returns how often it ended."""
    ended = 0
    for point in points:
        out = folder / f"{point}-{error}"
        code, _ = commands.run(kind.command(out), fault=point, error=error)
        assert code in ((0, 2) if error else (0, -signal.SIGKILL)), commands.output.read_text()
        ended += code != 0
        code, _ = commands.run(kind.command(out))
        assert code == 0, commands.output.read_text()
        assert left(out) == kind.left, point
    return ended


@pytest.mark.parametrize("error", [False, True], ids=["killed", "disk full"])
def test_ends_between_any_two_operations_on_the_disk(
    kind: Kind, commands: Commands, tmp_path: Path, seed: int, error: bool, request: pytest.FixtureRequest
) -> None:
    slow = request.config.option.slow
    points = list(range(1, 200)) if slow else sorted(random.Random(seed).sample(range(1, 100), 2))
    least = 6 if error else 3  # a run goes on after the first save that finds no space
    assert end_at(kind, commands, tmp_path, points, error) >= len(points) // least


def test_two_sigterms_save_once(kind: Kind, commands: Commands, tmp_path: Path) -> None:
    out, ended = tmp_path / "run", []
    for point in (20, 60, 80):
        code, _ = commands.run(kind.command(out), fault=point, terminate=True)
        # Before training begins there is nothing to save, and the signal ends the process by itself.
        assert code in (0, 143, -signal.SIGTERM), commands.output.read_text()
        ended.append(code)
    code, _ = commands.run(kind.command(out))
    assert code == 0, commands.output.read_text()
    assert 143 in ended
    assert left(out) == kind.left


def test_a_finished_run_is_left_alone(kind: Kind, commands: Commands, toy: Path) -> None:
    out = toy / kind.arguments[0]
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    code, seconds = commands.run(kind.command(out))
    assert code == 0
    assert seconds < max(1.0, kind.seconds)
    code, _ = commands.run([kind.arguments[0], "--out", str(out), "--resume"])
    assert code == 0
    assert "the run is finished" in commands.output.read_text()
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before
