"""Failing disks: whatever call of a command fails, its output is the old one or the new one, whole, and it says so."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("tyro", reason="the command line needs tyro")

from torture.campaign import Campaign
from torture.disk_faults import KINDS, Call, FaultyCommands, Kind, Result
from torture.faulty_commands import Corpora, Files, Scene, Stage, files_of, scenes, write_inputs
from torture.ledger import Figures
from torture.scorecard import scored

GOAL = "the old output or the new one is whole, and the exit code and one line tell which"


class Theatre:
    """The warm process, its inputs, and the scenes that have been set up so far."""

    def __init__(self, folder: Path) -> None:
        for name in ("server", "inputs", "watched"):
            (folder / name).mkdir()
        self.folder, self.watched = folder, folder / "watched"
        self.commands = FaultyCommands(folder / "server", self.watched)
        self.inputs: Corpora = write_inputs(folder / "inputs")
        self._stages: dict[str, Stage] = {}
        self.repeated: set[tuple[str, str]] = set()

    def stage(self, scene: Scene) -> Stage:
        if scene.name not in self._stages:
            self._stages[scene.name] = Stage(self.commands, scene, self.folder / f"stage-{len(self._stages)}")
        return self._stages[scene.name]


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    result = Theatre(tmp_path_factory.mktemp("faults").resolve())
    yield result
    result.commands.close()


def faults_of(command: str, theatre: Theatre) -> Callable[[range], Figures]:
    """Return the attempt of a check: its numbers go round the scenes of a command, and over all faults of each."""

    def attempt(numbers: range) -> Figures:
        all_scenes, counts = scenes(command, theatre.inputs, theatre.watched), Counter[str]()
        for number in numbers:
            stage = theatre.stage(all_scenes[number % len(all_scenes)])
            fault = fault_of(stage.calls, number // len(all_scenes))
            if fault is not None:
                counts.update(try_fault(theatre, stage, *fault))
        return dict(counts)

    return attempt


def fault_of(calls: list[Call], number: int) -> tuple[int, Kind] | None:
    """Return the call, counted from 1, and the kind of a fault; None behind the last one.

    Each call has one fault, of all kinds in turn, before any has a second one.
    """
    turn, index = divmod(number, len(calls))
    index = spread(index, len(calls))
    kinds = [kind for kind in KINDS if calls[index].op in kind.ops]
    return (index + 1, kinds[(index + turn) % len(kinds)]) if turn < len(kinds) else None


def spread(number: int, total: int) -> int:
    """Permute the numbers below `total`, so that the first ones lie far apart."""
    step = next(step for step in (7919, 7927, 7933) if total % step)
    return number * step % total


def try_fault(theatre: Theatre, stage: Stage, index: int, kind: Kind) -> list[str]:
    """Run a command whose call `index` has a fault; return what is counted."""
    scene = stage.scene
    stage.set_up()
    result = theatre.commands.run(scene.arguments, index, kind)
    where = f"{scene.name}: {kind.name}, call {index}"
    if index <= len(result.calls):
        where += f" ({result.calls[index - 1]})"
    assert_ends_well(result, kind, where)
    files = files_of(scene.out)
    is_new = files == stage.new
    assert is_new or is_old(files, stage.old), f"{where}: {difference(files, stage)}; it printed: {result.errors}"
    assert is_new or result.code != 0, f"{where}: exit code 0 with the old output"
    again(theatre, stage, where)
    counted = "killed" if kind.kills else "failed" if result.code else "passed"
    return ["faults", counted, "new_whole" if is_new else "old_whole"]


def assert_ends_well(result: Result, kind: Kind, where: str) -> None:
    """An exit code that tells whether it failed, and one line of the reason."""
    shown = f"{where}: exit code {result.code}, printed: {result.errors}"
    assert "Traceback" not in result.errors, shown
    if kind.kills and result.code != 0:
        assert result.code == -signal.SIGKILL, shown
        return
    assert result.code in (0, 2), shown
    lines = [line for line in result.errors.splitlines() if line.startswith("fastbert: error: ")]
    assert len(lines) == (result.code == 2), shown


def is_old(files: Files, old: Files) -> bool:
    """Return True for the old output; where there was none, an empty folder is as good."""
    return files == old or (not old and files == {"/": b""})


def difference(files: Files, stage: Stage) -> str:
    """Tell what of the files is neither old nor new."""
    names = sorted(files.keys() | stage.new.keys() | stage.old.keys())
    kinds = {name: (files.get(name) == stage.old.get(name), files.get(name) == stage.new.get(name)) for name in names}
    told = {(True, False): "old", (False, True): "new", (False, False): "neither"}
    return ", ".join(f"{name} {told[kind]}" for name, kind in kinds.items() if kind in told)


def again(theatre: Theatre, stage: Stage, where: str) -> None:
    """What a failed command leaves does not disturb the next one."""
    left = {re.sub(r"\.[0-9a-f]{8}\.", ".*.", name): content for name, content in files_of(theatre.watched).items()}
    state = (stage.scene.name, repr(sorted(left.items())))
    if state in theatre.repeated or sorted(os.listdir(theatre.watched)) in ([], stage.beside):
        return
    result = theatre.commands.run([*stage.scene.arguments, *["--overwrite"] * takes_overwrite(stage.scene)])
    assert result.code == 0, f"{where}: the repeated command failed: {result.errors}"
    assert files_of(stage.scene.out) == stage.new, f"{where}: the repeated command has another output"
    theatre.repeated.add(state)


def takes_overwrite(scene: Scene) -> bool:
    return scene.arguments[0] != "save_pretrained" and "--overwrite" not in scene.arguments


@scored(row=7, unit="faults", short=1, full=848, chunk=106, goal=GOAL)
def test_faults_of_save_pretrained(campaign: Campaign, theatre: Theatre) -> None:
    """A model's folder is the old one or the new one."""
    campaign.run(faults_of("save_pretrained", theatre))


@scored(row=7, unit="faults", short=1, full=3840, chunk=240, goal=GOAL)
def test_faults_of_convert(campaign: Campaign, theatre: Theatre) -> None:
    """So is a converted folder, in one file, in shards, and in TensorFlow's files."""
    campaign.run(faults_of("convert", theatre))


@scored(row=7, unit="faults", short=1, full=240, chunk=60, goal=GOAL)
def test_faults_of_convert_to_delta(campaign: Campaign, theatre: Theatre) -> None:
    """So is the file of a model's difference from its base."""
    campaign.run(faults_of("convert_delta", theatre))


@scored(row=7, unit="faults", short=1, full=944, chunk=59, goal=GOAL)
def test_faults_of_export(campaign: Campaign, theatre: Theatre) -> None:
    """So is a folder with an ONNX file."""
    campaign.run(faults_of("export", theatre))


@scored(row=7, unit="faults", short=1, full=1376, chunk=86, goal=GOAL)
def test_faults_of_prepare(campaign: Campaign, theatre: Theatre) -> None:
    """So are token shards."""
    campaign.run(faults_of("prepare", theatre))


@scored(row=7, unit="faults", short=1, full=2568, chunk=107, goal=GOAL)
def test_faults_of_vocab(campaign: Campaign, theatre: Theatre) -> None:
    """So is a vocabulary, and an extended model."""
    campaign.run(faults_of("vocab", theatre))


@scored(row=7, unit="faults", short=1, full=544, chunk=68, goal=GOAL)
def test_faults_of_embed(campaign: Campaign, theatre: Theatre) -> None:
    """So are files of vectors, of each kind."""
    campaign.run(faults_of("embed", theatre))


@scored(row=7, unit="faults", short=1, full=880, chunk=110, goal=GOAL)
def test_faults_of_search_index(campaign: Campaign, theatre: Theatre) -> None:
    """So is an index of texts."""
    campaign.run(faults_of("search_index", theatre))
