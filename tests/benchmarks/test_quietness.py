"""The check for other processes on the cores, on faked clock ticks and on this machine's."""

import os
from pathlib import Path

import pytest

from fastbert.benchmarks.harness import quietness
from fastbert.benchmarks.harness.quietness import Load


def ticks(**columns: int) -> list[int]:
    return [columns.get(name, 0) for name in ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")]


@pytest.fixture
def statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the kernel's counters, of two cores that this process may use."""
    path = tmp_path / "stat"
    monkeypatch.setattr(quietness, "STATISTICS", path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    return path


def write(path: Path, *cores: list[int]) -> None:
    lines = [f"cpu{core} {' '.join(map(str, row))} 0 0" for core, row in enumerate(cores)]
    path.write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "ctxt 5"]))


def measured(path: Path, *cores: list[int]) -> Load | None:
    """The load after the counters have grown to these, the third core being no business of this process."""
    return quietness.measure_load(2.0, pause=lambda seconds: write(path, *cores))


def test_a_busy_machine_is_named_with_its_figures(statistics: Path) -> None:
    write(statistics, ticks(idle=100), ticks(idle=100), ticks(idle=100))
    load = measured(statistics, ticks(idle=200, user=80, nice=20), ticks(idle=280, steal=20), ticks(user=300))
    assert load is not None
    assert (load.cores, load.stolen_cores) == (2, pytest.approx(0.1))
    assert load.busy_cores == pytest.approx(0.5, abs=0.05)  # this process's own time is deducted
    assert load.busy
    assert "other processes use 0." in quietness.describe(load)
    assert "of 2 cores (and 0.10 were withheld by the hypervisor), load average" in quietness.describe(load)


def test_a_quiet_machine_is_quiet(statistics: Path) -> None:
    write(statistics, ticks(idle=100), ticks(idle=100))
    load = measured(statistics, ticks(idle=298, user=2), ticks(idle=300))
    assert load is not None
    assert not load.busy


def test_a_system_that_does_not_tell_has_no_load(statistics: Path) -> None:
    assert quietness.measure_load() is None, "no file"
    write(statistics, ticks(), ticks())
    assert measured(statistics, ticks(), ticks()) is None, "no ticks"


def test_a_setting_of_a_record_keeps_what_matters() -> None:
    setting = Load(cores=2, busy_cores=0.714, stolen_cores=0.1, load_average=1.234).setting()
    assert setting == {"cores": 2, "busy_cores": 0.71, "stolen_cores": 0.1, "load_average": 1.23}
    assert quietness.describe_setting(setting) == "other processes used 0.81 of 2 cores"


@pytest.mark.parametrize("busy", [0.0, 1.5])
def test_a_warning_is_a_line_or_nothing(busy: float, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(cores=2, busy_cores=busy, stolen_cores=0.0, load_average=busy)
    monkeypatch.setattr(quietness, "measure_load", lambda seconds: load)
    said: list[str] = []
    quietness.warn(said.append)
    assert [line.partition(":")[0] for line in said] == ["the machine is busy"] * (busy > 1)
    said.clear()
    cores = len(os.sched_getaffinity(0))
    quietness.warn(said.append, threads=cores)
    quietness.warn(said.append, threads=cores + 1)
    assert [line for line in said if line.startswith("--threads")] == [
        f"--threads {cores + 1}: the process may use {cores} cores; threads will wait for each other"
    ]


def test_this_machine_is_read() -> None:
    load = quietness.measure_load(0.05)
    if load is not None:  # else it has no /proc/stat
        assert load.cores == len(os.sched_getaffinity(0))
        assert 0 <= load.share <= 1.1
