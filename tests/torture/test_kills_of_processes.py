"""Runs of several processes under torchrun, of which one is killed: the run goes on, whatever the number of processes.

With as many processes as before it must end with the files of an undisturbed run, to the bit (row 6); with another
number each loss must be that of one process, within 1e-6 (row 10).
"""

from __future__ import annotations

import functools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from killing import SAVING, Ended
from launching import Launches
from torture import restarts
from torture.campaign import Campaign
from torture.restarts import Kind, Repeated
from torture.scorecard import scored

WORLDS = (2, 4)
STEPS = 12
TOLERANCE = 1e-6  # of a loss, relative, in fp32
# Worlds before and after a kill, in the order of the numbers.
CHANGES = ((2, 1), (1, 2), (4, 2), (2, 4), (3, 2), (1, 4), (4, 3), (8, 1), (1, 8), (2, 8), (8, 4), (3, 1))


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launches]:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    server = Launches(tmp_path_factory.mktemp("launches"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def pretraining(tmp_path_factory: pytest.TempPathFactory, launches: Launches) -> Callable[[int], Kind]:
    """Returns the undisturbed run of a number of processes."""

    @functools.cache
    def run(world: int) -> Kind:
        folder = tmp_path_factory.mktemp(f"world-{world}")
        return restarts.pretraining(folder, functools.partial(launches.run, ranks=world), steps=STEPS)

    return run


@scored(
    row=6,
    unit="kills",
    short=1,
    full=60,
    goal="the run goes on with as many processes, and ends with the files of an undisturbed one, to the bit",
)
def test_kills_of_several_processes(
    campaign: Campaign, pretraining: Callable[[int], Kind], launches: Launches, tmp_path: Path
) -> None:
    """`kill -9` of any of 2 or 4 processes, or of the first one inside a save, ends the others and changes nothing."""

    def kill(numbers: range) -> dict[str, float]:
        runs, figures = dict[int, Repeated](), Counter[str]()
        for number in numbers:
            world = WORLDS[number // 4 % 2]
            if world not in runs:
                start = functools.partial(launches.run, ranks=world)
                runs[world] = Repeated(pretraining(world), start, tmp_path / f"{numbers.start}-{world}")
            where = killed(runs[world], world, number)
            figures[f"{where}_of_{world}_processes"] += 1
        for run in runs.values():
            run.finish()
        return {
            "runs": sum(run.runs for run in runs.values()),
            "starts": sum(run.starts for run in runs.values()),
            "largest_steps_lost": max(run.largest_loss for run in runs.values()),
            **figures,
        }

    campaign.run(kill)


def killed(repeated: Repeated, world: int, number: int) -> str:
    """Start runs until the kill of a number meets one; return where."""
    for attempt in range(restarts.ATTEMPTS):
        draw = random.Random(f"kills of processes {number} {attempt}")
        operation, where = draw.choice(SAVING), "in_saves" if number % 2 == 0 else "at_random"
        if where == "in_saves":
            fault = draw.randint(1, STEPS // restarts.INTERVAL * restarts.IN_SAVE.get(operation, 1))
            ending = {"rank": 0, "fault": fault, "operations": [operation], "within": "checkpoints"}
        else:
            ending = {"rank": draw.randrange(world), "after": draw.uniform(0, repeated.kind.seconds)}
        ended = repeated.start(f"number {number}", background=draw.random() < 0.5, **ending)
        assert ended.killed or ended.code == 0, f"{repeated}: ended with {ended.code}\n{ended.output}"
        if ended.killed:
            return where
    raise AssertionError(f"number {number}: no start of {restarts.ATTEMPTS} was killed")


@scored(
    row=10,
    unit="changes of the number of processes",
    short=1,
    full=24,
    chunk=1,
    goal="each loss is that of one process, within 1e-6 relative in fp32",
)
def test_losses_of_changing_worlds(
    campaign: Campaign, pretraining: Callable[[int], Kind], launches: Launches, tmp_path: Path
) -> None:
    """A run that is killed goes on with another number of processes, 1 to 8, and takes the steps of one process."""

    def change(numbers: range) -> dict[str, float]:
        worst = 0.0
        for number in numbers:
            out, draw = tmp_path / str(number), random.Random(f"changes {number}")
            before, after = CHANGES[number % len(CHANGES)]
            kind = pretraining(1)
            ended = start(launches, kind, out, before, draw.randint(STEPS // 2, STEPS - 1))
            assert ended.killed, f"number {number}: ended with {ended.code}\n{ended.output}"
            ended = launches.run(kind.command(out), after)
            assert ended.code == 0, f"number {number}: ended with {ended.code}\n{ended.output}"
            assert ended.first is not None
            assert ended.first.number > 1, f"number {number}: began again"
            expected, losses = losses_of(kind.out), losses_of(out)
            assert losses.keys() == expected.keys(), f"number {number}: other steps"
            worst = max(worst, *(abs(loss / expected[step] - 1) for step, loss in losses.items()))
            assert worst <= TOLERANCE, f"number {number}, {before} and {after} processes: losses differ by {worst}"
        return {"largest_relative_difference": worst}

    campaign.run(change)


def start(launches: Launches, kind: Kind, out: Path, world: int, step: int) -> Ended:
    """Start a run that is killed when it reports a step."""
    report = "fastbert.cli.training_view:TrainingView.step"
    return launches.run(kind.command(out), world, rank=0, function=report, call=step)


def losses_of(run: Path) -> dict[int, float]:
    """The exact loss of each step of a run."""
    lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines}
