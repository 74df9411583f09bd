"""--profile: a trace of a few steps after the warm-up, a table, and nothing where it is off."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from fastbert.training.profiling import ROWS, StepProfiler
from fastbert.training.tracking_flags import TrackingFlags

CPU = torch.device("cpu")


def steps(profiler: StepProfiler, count: int) -> None:
    weight = torch.ones(64, 64)
    for _ in range(count):
        with profiler.step():
            torch.relu(weight @ weight).sum()


def test_a_trace_of_the_steps_after_the_warm_up(tmp_path: Path) -> None:
    said: list[str] = []
    flags = TrackingFlags(profile=True, profile_steps=3)
    with StepProfiler.of(flags, tmp_path, CPU, said.append, steps_left=100) as profiler:
        steps(profiler, 13)
        assert not said
        steps(profiler, 10)
    with gzip.open(tmp_path / "profile.json.gz") as file:
        events = json.load(file)["traceEvents"]
    names = [event.get("name") for event in events]
    assert names.count("fastbert.step") == 3
    assert names.count("aten::mm") == 3
    assert [file.name for file in tmp_path.iterdir()] == ["profile.json.gz"]
    assert said[0].split() == ["operation", "calls/step", "ms/step", "share"]
    assert any(line.startswith("direct kernels and Python ") for line in said)
    shares = [float(line.split()[-1].rstrip("%")) for line in said[1:-1]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 100.5
    assert len(shares) <= ROWS
    assert said[-1].startswith("profile of 3 steps of ")
    assert len(said) == len(shares) + 2


@pytest.mark.parametrize(("left", "recorded"), [(5, 3), (3, 2), (2, 1)])
def test_short_runs_are_profiled_as_far_as_they_go(tmp_path: Path, left: int, recorded: int) -> None:
    said: list[str] = []
    flags = TrackingFlags(profile=True, profile_steps=3)
    with StepProfiler.of(flags, tmp_path, CPU, said.append, steps_left=left) as profiler:
        steps(profiler, left)
    assert f"profile of {recorded} step" in said[-1]


def test_runs_that_end_early_and_runs_without_the_flag(tmp_path: Path) -> None:
    said: list[str] = []
    flags = TrackingFlags(profile=True, profile_steps=5)

    def fails() -> None:
        with StepProfiler.of(flags, tmp_path, CPU, said.append) as profiler:
            steps(profiler, 13)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    with StepProfiler.of(TrackingFlags(), tmp_path, CPU, said.append) as profiler:
        steps(profiler, 30)
    assert not said
    with StepProfiler.of(flags, tmp_path, CPU, said.append) as profiler:
        steps(profiler, 11)
    assert said == ["--profile: the run ended before a step was recorded; there is no trace"]
    assert not list(tmp_path.iterdir())
    with StepProfiler.of(flags, tmp_path, CPU, said.append) as profiler:
        steps(profiler, 13)
    assert said[-1].startswith("profile of 2 steps of "), "those that there were"


def test_a_trace_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    said: list[str] = []
    flags = TrackingFlags(profile=True, profile_steps=1)
    with StepProfiler.of(flags, tmp_path / "gone", CPU, said.append, steps_left=2) as profiler:
        steps(profiler, 4)
    assert len(said) == 1
    assert said[0].startswith("--profile: the trace could not be written")
