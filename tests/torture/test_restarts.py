"""One command, repeated until it returns: whatever ends it before, the files are those of an undisturbed run.

`restarts` has the runs, `killing` ends their processes: by `kill -9` (row 6), in each step (row 9), or by signals that
ask for an end (row 11).
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from killing import SAVING, Commands, Ended, Step
from torture import restarts
from torture.campaign import Campaign
from torture.restarts import Kind, Repeated
from torture.scorecard import scored

LONGEST = 30  # seconds until a run that is asked to end has ended
STOPPED_STEPS = 200
PLACES = ("at_random", "in_saves", "in_steps", "in_validation", "in_loading")
PARTS = ("before_the_first_micro_batch", "between_micro_batches", "after_the_step")
# The report of a step, a micro-batch, a validation, and what is read or written beside it.
CALLS = {
    "pretrain": {
        "report": "fastbert.cli.training_view:TrainingView.step",
        "steps": "fastbert.training.step_loss:StepLoss.forward",
        "validation": "fastbert.training.validating:Validator.totals",
        "loading": "fastbert.training.checkpoint:restore",
    },
    "finetune": {
        "report": "fastbert.cli.training_view:TrainingView.step",
        "steps": "fastbert.finetuning.trial_loss:TrialLoss.__call__",
        "validation": "fastbert.finetuning.run:_Run._evaluate",
        "loading": "fastbert.training.checkpoint:restore",
    },
}


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    return restarts.warm_commands(tmp_path_factory.getbasetemp() / "commands")


@pytest.fixture(scope="module")
def pretraining(tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Kind:
    return restarts.pretraining(tmp_path_factory.mktemp("pretraining"), commands.run)


@pytest.fixture(scope="module")
def finetuning(tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Kind:
    return restarts.finetuning(tmp_path_factory.mktemp("finetuning"), commands.run)


KILLS = "files of an undisturbed run; at most one interval of steps lost, less than two while a save is in flight"


@scored(row=6, unit="kills", short=4, full=500, chunk=20, goal=KILLS)
def test_kills_of_pretraining(campaign: Campaign, pretraining: Kind, commands: Commands, tmp_path: Path) -> None:
    """`kill -9` at any moment, half of the times inside saves; the same command goes on."""
    campaign.run(lambda numbers: kills(pretraining, commands, tmp_path, numbers))


@scored(row=6, unit="kills", short=4, full=200, chunk=20, goal=KILLS)
def test_kills_of_finetuning(campaign: Campaign, finetuning: Kind, commands: Commands, tmp_path: Path) -> None:
    """The same of a run of several trials, which writes its best models beside the checkpoints."""
    campaign.run(lambda numbers: kills(finetuning, commands, tmp_path, numbers))


def kills(kind: Kind, commands: Commands, folder: Path, numbers: range) -> dict[str, float]:
    return restarts.kill(Repeated(kind, commands.run, folder), numbers, f"kills of {kind.name}")


@pytest.fixture(scope="module")
def stopped_kinds(
    tmp_path_factory: pytest.TempPathFactory, commands: Commands, request: pytest.FixtureRequest
) -> list[Kind]:
    """Runs of 200 steps, 30 and 6 of which are an epoch; of 20 in the short form."""
    folder, steps = tmp_path_factory.mktemp("stopped"), STOPPED_STEPS if request.config.option.full else 20
    intervals = ("--eval-every", "70", "--log-every", "1", "--checkpoint-every", "50")
    return [
        restarts.pretraining(folder, commands.run, *intervals, steps=steps, micro_batch=4),
        restarts.finetuning(folder, commands.run, *intervals, steps=steps, trials=1),
    ]


@scored(
    row=9,
    unit="stopped steps",
    short=8,
    full=2 * STOPPED_STEPS,
    chunk=20,
    goal="the loss, gradient norm and weights of each later step are those of an undisturbed run, to the bit",
)
def test_stops_at_every_step(campaign: Campaign, stopped_kinds: list[Kind], commands: Commands, tmp_path: Path) -> None:
    """A run that is stopped in any of its steps, before, between or after its micro-batches, goes on as it would have.

    Twenty numbers are two runs, each of which is stopped in ten steps at equal distances: each start is compared by
    what steps.jsonl has of its steps, and the end of the run by all of its files.
    """

    def stop(numbers: range) -> dict[str, float]:
        where: Counter[str] = Counter()
        runs = [Repeated(kind, commands.run, tmp_path) for kind in stopped_kinds]
        for number in numbers:
            repeated, (stops, first) = runs[number % 2], divmod(number, 20)
            step = first // 2 * (repeated.kind.steps // 10) + stops + 1
            part = PARTS[(stops + first // 2) % 3]
            where[part] += 1
            before = repeated.reached
            if step <= before:  # the numbers begin inside another run
                repeated.finish()
                before = 0
            function = CALLS[repeated.kind.name]["report" if part == "after_the_step" else "steps"]
            call = step - before if part == "after_the_step" else 2 * (step - before) - (part == PARTS[0])
            ended = repeated.start(
                f"number {number}", background=False, saves=True, call=call, function=function, signals=[signal.SIGTERM]
            )
            assert ended.code == 128 + signal.SIGTERM, f"{repeated}: ended with {ended.code}\n{ended.output}"
            assert ended.last == Step(1, step), f"{repeated}: ended after {ended.last}, not in step {step}"
            repeated.assert_same_steps()
        for repeated in runs:
            repeated.finish()
        return dict(where)

    campaign.run(stop)


@scored(
    row=11,
    unit="preemptions",
    short=5,
    full=200,
    goal="out within 30 s, with the code of the signal; no step is lost, and each run ends with the files of an"
    " undisturbed one",
)
def test_preemptions(
    campaign: Campaign, pretraining: Kind, finetuning: Kind, commands: Commands, tmp_path: Path
) -> None:
    """SIGTERM and SIGINT, half of them twice in a row, end a run with its steps saved, wherever they meet it."""

    def preempt(numbers: range) -> dict[str, float]:
        runs = [Repeated(kind, commands.run, tmp_path) for kind in (pretraining, finetuning)]
        figures: Counter[str] = Counter()
        longest = 0.0
        for number in numbers:
            repeated = runs[number // len(PLACES) % 2]
            where, ended = preempted(repeated, number)
            figures[where] += 1
            assert ended.went_on is not None
            longest = max(longest, ended.went_on)
        for repeated in runs:
            repeated.finish()
        return {**figures, "longest_seconds_until_the_end": round(longest, 3)}

    campaign.run(preempt)


def preempted(repeated: Repeated, number: int) -> tuple[str, Ended]:
    """Start runs until the signals of a number meet one; return where they did, and how it ended."""
    kind = repeated.kind
    for attempt in range(restarts.ATTEMPTS):
        draw = random.Random(f"preemptions {number} {attempt}")
        kill = draw.choice((signal.SIGTERM, signal.SIGINT))
        signals = [kill] * (1 + (number + number // 10) % 2)
        where = PLACES[number % len(PLACES)]
        ending: dict[str, Any]
        if where == "at_random":
            ending = {"after": draw.uniform(0, kind.seconds), "gap": draw.uniform(0, 0.05)}
        elif where == "in_saves":
            operation = draw.choice(SAVING)
            fault = draw.randint(1, 4 * restarts.IN_SAVE.get(operation, 1))
            ending = {"fault": fault, "operations": [operation], "within": "checkpoints"}
        else:
            if where == "in_loading":  # of a run that was killed after its first checkpoint
                call, function = restarts.INTERVAL + 2, CALLS[kind.name]["report"]
                repeated.start(f"before number {number}", background=False, call=call, function=function)
            most = {"in_steps": kind.steps, "in_validation": 3, "in_loading": 1}[where]
            function = CALLS[kind.name][where.removeprefix("in_")]
            ending = {"call": draw.randint(1, most), "function": function}
        saves = signals != [signal.SIGINT] * 2
        ended = repeated.start(
            f"number {number}", background=number % 3 == 0, saves=saves, signals=list(map(int, signals)), **ending
        )
        if ended.went_on is None:
            continue
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # it waits for a processor as much longer
        assert ended.went_on < LONGEST * busy, f"{repeated}: went on for {ended.went_on} s"
        assert_code(repeated, ended, kill, len(signals))
        return where, ended
    raise AssertionError(f"preemptions {number}: no start of {restarts.ATTEMPTS} was met")


def assert_code(repeated: Repeated, ended: Ended, kill: int, times: int) -> None:
    """A run that is stopped in training has saved, unless a second Ctrl-C ended it. What is met before training, or
    when that is finished, returns, or ends at once."""
    message = f"{repeated}: ended with {ended.code} after {ended.last}\n{ended.output}"
    assert ended.code in (0, 128 + kill, -kill), message
    is_last = ended.last == Step(repeated.kind.trials, repeated.kind.steps)
    if ended.code == 128 + kill and ended.first is not None and not (kill == signal.SIGINT and times == 2):
        assert "continue with: " in ended.output or is_last, message
    if ended.code == -kill:
        assert kill == signal.SIGTERM, message
        assert ended.first is None or is_last or times == 2, message


def test_a_full_disk_between_any_two_operations(
    pretraining: Kind, finetuning: Kind, commands: Commands, tmp_path: Path, seed: int
) -> None:
    """A run that finds no space ends with one line, or goes on after its first save, and changes nothing."""
    ended = 0
    for kind in (pretraining, finetuning):
        for point in (20, random.Random(f"{seed} {kind.name}").randint(1, 100)):
            repeated = Repeated(kind, commands.run, tmp_path)
            end = repeated.start(f"operation {point}", background=True, fault=point, error=True)
            assert end.code in (0, 2), end.output
            assert end.output.count("fastbert: error:") == (end.code == 2)
            ended += end.code != 0
            repeated.finish()
    assert ended, "no run found the disk full"


@pytest.mark.parametrize("name", ["pretraining", "finetuning"])
def test_a_finished_run_is_left_alone(name: str, commands: Commands, request: pytest.FixtureRequest) -> None:
    kind: Kind = request.getfixturevalue(name)
    before = {path: path.stat().st_mtime_ns for path in kind.out.rglob("*") if path.is_file()}
    ended = commands.run(kind.command(kind.out))
    assert ended.code == 0
    assert ended.first is None
    assert ended.seconds < max(1.0, kind.seconds)
    ended = commands.run([kind.name, "--out", str(kind.out), "--resume"])
    assert ended.code == 0
    assert "the run is finished" in ended.output
    assert {path: path.stat().st_mtime_ns for path in kind.out.rglob("*") if path.is_file()} == before
