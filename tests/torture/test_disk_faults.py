"""Failing disks: whatever call of a command fails, its output is the old one or the new one, whole, and it says so."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("tyro", reason="the command line needs tyro")

from torture.campaign import Campaign
from torture.disk_faults import KINDS, Call, FaultyCommands, Kind, Result
from torture.faulty_commands import Corpora, Files, Scene, Stage, empty, files_of, scenes, write_inputs
from torture.faulty_training import Run, undisturbed
from torture.ledger import Figures
from torture.power_cuts import CONTENTS, NAMES, Recording, below, write_tree
from torture.scorecard import scored
from torture.traced_calls import traced_calls

COMMANDS = ("save_pretrained", "convert", "convert_delta", "export", "prepare", "vocab", "embed", "search_index")
RESTARTS = "the last checkpoint loads, and the restarted run ends with the same weights and metrics"
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
        self._runs: dict[str, Run] = {}
        self._recordings: dict[str, Recording] = {}
        self.repeated: set[tuple[str, str]] = set()

    def stage(self, scene: Scene) -> Stage:
        if scene.name not in self._stages:
            self._stages[scene.name] = Stage(self.commands, scene, self.folder / f"stage-{len(self._stages)}")
        return self._stages[scene.name]

    def training(self, kind: str) -> Run:
        if kind not in self._runs:
            self._runs[kind] = undisturbed(self.commands, kind, self.inputs, self.folder / kind)
        return self._runs[kind]

    def recording(self, run: Run) -> Recording:
        key = " ".join(run.arguments)
        if key not in self._recordings:
            empty(self.watched)
            self._recordings[key] = Recording(self.commands, run.arguments)
        return self._recordings[key]


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
    """A model's folder."""
    campaign.run(faults_of("save_pretrained", theatre))


@scored(row=7, unit="faults", short=1, full=3840, chunk=240, goal=GOAL)
def test_faults_of_convert(campaign: Campaign, theatre: Theatre) -> None:
    """Converted folders: in one file, in shards, and in TensorFlow's files."""
    campaign.run(faults_of("convert", theatre))


@scored(row=7, unit="faults", short=1, full=240, chunk=60, goal=GOAL)
def test_faults_of_convert_to_delta(campaign: Campaign, theatre: Theatre) -> None:
    """The file of a model's difference from its base."""
    campaign.run(faults_of("convert_delta", theatre))


@scored(row=7, unit="faults", short=1, full=944, chunk=59, goal=GOAL)
def test_faults_of_export(campaign: Campaign, theatre: Theatre) -> None:
    """A folder with an ONNX file."""
    campaign.run(faults_of("export", theatre))


@scored(row=7, unit="faults", short=1, full=1376, chunk=86, goal=GOAL)
def test_faults_of_prepare(campaign: Campaign, theatre: Theatre) -> None:
    """Token shards."""
    campaign.run(faults_of("prepare", theatre))


@scored(row=7, unit="faults", short=1, full=2568, chunk=107, goal=GOAL)
def test_faults_of_vocab(campaign: Campaign, theatre: Theatre) -> None:
    """A vocabulary, and a model that is extended by one."""
    campaign.run(faults_of("vocab", theatre))


@scored(row=7, unit="faults", short=1, full=544, chunk=68, goal=GOAL)
def test_faults_of_embed(campaign: Campaign, theatre: Theatre) -> None:
    """Files of vectors, of each kind."""
    campaign.run(faults_of("embed", theatre))


@scored(row=7, unit="faults", short=1, full=880, chunk=110, goal=GOAL)
def test_faults_of_search_index(campaign: Campaign, theatre: Theatre) -> None:
    """An index of texts."""
    campaign.run(faults_of("search_index", theatre))


def faults_of_training(kinds: tuple[str, ...], theatre: Theatre) -> Callable[[range], Figures]:
    """Return the attempt of a check whose numbers go over all faults of training runs of these kinds."""

    def attempt(numbers: range) -> Figures:
        counts = Counter[str]()
        for number in numbers:
            run = theatre.training(kinds[number % len(kinds)])
            fault = fault_of(run.calls, number // len(kinds))
            if fault is not None:
                counts.update(try_training(theatre, run, *fault))
        return dict(counts)

    return attempt


def try_training(theatre: Theatre, run: Run, index: int, kind: Kind) -> list[str]:
    """Run a training of which a call has a fault, and restart it; return what is counted."""
    empty(theatre.watched)
    result = theatre.commands.run(run.arguments, index, kind)
    call = result.calls[index - 1] if index <= len(result.calls) else "not reached"
    where = f"{' '.join(run.arguments[:1])}: {kind.name}, call {index} ({call})"
    assert_ends_well(result, kind, where)
    run.assert_checkpoint(result.calls, where)
    run.restart(where)
    return ["faults", "killed" if result.code < 0 else "failed" if result.code else "passed"]


@scored(row=7, unit="faults", short=1, full=1160, chunk=40, goal=RESTARTS)
def test_faults_of_pretraining(campaign: Campaign, theatre: Theatre) -> None:
    """Checkpoints of pre-training, saved at once and in the background."""
    campaign.run(faults_of_training(("pretrain", "pretrain-async"), theatre))


@scored(row=7, unit="faults", short=1, full=450, chunk=30, goal=RESTARTS)
def test_faults_of_finetuning(campaign: Campaign, theatre: Theatre) -> None:
    """Checkpoints, predictions and reports of fine-tuning."""
    campaign.run(faults_of_training(("finetune-async",), theatre))


def power_cuts_of(commands: tuple[str, ...], theatre: Theatre) -> Callable[[range], Figures]:
    """Return the attempt of a check whose numbers go round the scenes of commands, and over the moments of each."""
    all_scenes = [scene for command in commands for scene in scenes(command, theatre.inputs, theatre.watched)]

    def attempt(numbers: range) -> Figures:
        counts = Counter[str]()
        for number in numbers:
            stage = theatre.stage(all_scenes[number % len(all_scenes)])
            moment = number // len(all_scenes)
            if moment <= len(stage.calls):
                cut_power(theatre, stage, len(stage.calls) - spread(moment, len(stage.calls) + 1), counts)
        return dict(counts)

    return attempt


def cut_power(theatre: Theatre, stage: Stage, moment: int, counts: Counter[str]) -> None:
    """Try what a disk may hold when power fails after so many calls of a command."""
    recorded = stage.recording()
    disk, name = recorded.disk_at(moment), stage.scene.out.relative_to(theatre.watched).as_posix()
    done, draw = moment == len(recorded.calls), random.Random(f"{stage.scene.name} {moment}")
    for names, contents in itertools.product(NAMES, CONTENTS):
        where = f"{stage.scene.name}: power cut after {moment} calls, names {names}, contents {contents}"
        tree = disk.after_cut(names, contents, draw)
        files = below(tree, name)
        assert files == stage.new or (not done and is_old(files, stage.old)), f"{where}: {difference(files, stage)}"
        counts.update(["states", "new_whole" if files == stage.new else "old_whole"])
        shape = (stage.scene.name, *sorted(re.sub(r"[0-9a-f]{8}\.partial", "*", path) for path in tree))
        if shape not in theatre.repeated:
            theatre.repeated.add(shape)
            empty(theatre.watched)
            write_tree(tree, theatre.watched)
            again(theatre, stage, where)
    counts["power_cuts"] += 1


@scored(row=7, unit="moments", short=3, full=2800, chunk=140, goal="the old output or the new one is whole")
def test_power_cuts_of_commands(campaign: Campaign, theatre: Theatre) -> None:
    """Whenever power fails in a command, the disk has its old output or the new one; after exit code 0 the new one."""
    campaign.run(power_cuts_of(COMMANDS, theatre))


def power_cuts_of_training(kinds: tuple[str, ...], theatre: Theatre) -> Callable[[range], Figures]:
    """Return the attempt of a check whose numbers are power cuts of training runs, in all of their moments in turn."""

    def attempt(numbers: range) -> Figures:
        for number in numbers:
            run, draw = theatre.training(kinds[number % len(kinds)]), random.Random(f"power cut {number}")
            recorded = theatre.recording(run)
            moment = spread(number // len(kinds) % (len(recorded.calls) + 1), len(recorded.calls) + 1)
            names, contents = draw.choice(NAMES), draw.choice(CONTENTS)
            where = (
                f"power cut {number} of {run.arguments[0]}: after {moment} calls, names {names}, contents {contents}"
            )
            empty(theatre.watched)
            write_tree(recorded.disk_at(moment).after_cut(names, contents, draw), theatre.watched)
            run.assert_checkpoint(recorded.calls[:moment], where)
            run.restart(where)
        return {"power_cuts": len(numbers)}

    return attempt


@scored(row=7, unit="power cuts", short=2, full=600, chunk=40, goal=RESTARTS)
def test_power_cuts_of_pretraining(campaign: Campaign, theatre: Theatre) -> None:
    """Whenever power fails, the checkpoint before loads, and the restarted run ends with the same weights."""
    campaign.run(power_cuts_of_training(("pretrain", "pretrain-async"), theatre))


@scored(row=7, unit="power cuts", short=1, full=450, chunk=30, goal=RESTARTS)
def test_power_cuts_of_finetuning(campaign: Campaign, theatre: Theatre) -> None:
    """Whenever power fails while a model is fine-tuned."""
    campaign.run(power_cuts_of_training(("finetune-async",), theatre))


@pytest.mark.slow
def test_no_call_is_missed(theatre: Theatre, tmp_path: Path) -> None:
    """strace sees no call that changes a file but those that the preloaded library has logged."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    for command in (
        "save_pretrained",
        "convert",
        "convert_delta",
        "export",
        "prepare",
        "vocab",
        "embed",
        "search_index",
    ):
        stage = theatre.stage(scenes(command, theatre.inputs, theatre.watched)[-1])
        stage.set_up()
        logged, traced = traced_calls(theatre.commands, stage.scene.arguments, tmp_path)
        assert logged == traced, command
        assert logged.total() > 2
