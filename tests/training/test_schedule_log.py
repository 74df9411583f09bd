"""schedule.jsonl: what is read after a kill, a gap, damage and a full disk."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from fastbert.errors import CheckpointError
from fastbert.training.schedule_log import ScheduledStep, ScheduleLog, scheduled_steps


def written(path: Path, steps: int) -> list[ScheduledStep]:
    """A log of so many steps, whose progress needs all 53 bits."""
    draw, progress = random.Random(1), 0.0
    with ScheduleLog(path) as log:
        for step in range(1, steps + 1):
            progress = min(1.0, progress + draw.random() / steps)
            log.append(step, progress, seconds=draw.random() * 1e5)
    return list(scheduled_steps(path))


def test_a_killed_run_replays_its_steps_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "schedule.jsonl"
    steps = written(path, 9)
    assert [step.step for step in steps] == list(range(1, 10))
    lines = path.read_bytes()
    last = lines.rindex(b"\n", 0, -1) + 1
    for cut in range(last + 1, len(lines)):  # the last line, cut at every byte
        path.write_bytes(lines[:cut])
        with ScheduleLog(path, after=5) as log:
            assert [log.recorded(step) for step in range(5, 11)] == [None, *steps[5:8], None, None]
            assert log.last_step == 8
            for step in (*steps[5:8], steps[8]):
                log.append(step.step, step.progress, **step.values)
            log.sync()
            assert list(log.values(3)) == steps[2:]
        assert path.read_bytes() == lines


def test_another_length_replays_nothing(tmp_path: Path) -> None:
    path = tmp_path / "schedule.jsonl"
    steps = written(path, 9)
    with ScheduleLog(path, after=5, replay=False) as log:
        assert log.recorded(6) is None
        log.append(6, 1.0)
        assert list(log.values(1)) == [*steps[:5], ScheduledStep(6, 1.0)]
    with ScheduleLog(path) as log:
        assert list(log.values(1)) == []
        log.append(1, 0.25)


def test_a_run_from_before_the_log_starts_it_at_its_checkpoint(tmp_path: Path) -> None:
    with ScheduleLog(tmp_path / "schedule.jsonl", after=7) as log:
        log.append(8, 0.5)
        assert list(log.values(1)) == []
        assert list(log.values(8)) == [ScheduledStep(8, 0.5)]


@pytest.mark.parametrize(
    "line",
    [
        "", "[1]", "{", '{"step": 7}', '{"step": "7", "progress": 0.5}', '{"step": 7, "progress": 1.5}',
        '{"step": 7, "progress": NaN}', '{"step": 7, "progress": 0.5, "seconds": null}',
        '{"step": true, "progress": 0}', "[" * 5000,
        '{"step": ' + "9" * 5000 + "}", "x" * 200_000, '{"step": 2, "progress": 0.5}', "\xff\x00",
    ],
)  # fmt: skip
def test_a_damaged_line_ends_what_is_replayed(line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "schedule.jsonl"
    steps = written(path, 9)
    lines = path.read_bytes().split(b"\n")
    lines[7] = line.encode("latin-1")  # step 7, behind the format
    damaged = b"\n".join(lines)
    for after, replayed in ((5, [6]), (7, [8, 9]), (9, [])):
        path.write_bytes(damaged)
        caplog.clear()
        with ScheduleLog(path, after=after) as log:
            assert [step for step in range(1, 12) if log.recorded(step)] == replayed
        assert "1 line(s) are not steps" in caplog.text
        assert steps[:6] == list(scheduled_steps(path))


def test_refusals_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "schedule.jsonl"
    path.write_text('{"format_version": 2}\n')
    with pytest.raises(CheckpointError, match=r"schedule.jsonl: written by a newer fastbert \(format 2\); update"):
        ScheduleLog(path, after=1)
    assert path.read_text() == '{"format_version": 2}\n'
    with ScheduleLog(path) as log:
        log.append(1, 0.1)
        for step, progress, values in ((3, 0.2, {}), (1, 0.2, {}), (2, 1.1, {}), (2, 0.2, {"seconds": float("inf")})):
            with pytest.raises(ValueError, match=r"step|progress|finite"):
                log.append(step, progress, **values)
        before, write = path.read_bytes(), os.write
        monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))  # the disk takes five more bytes
        with pytest.raises(CheckpointError, match=r"schedule.jsonl: cannot be written .*free some disk space"):
            log.append(2, 0.2)
        assert path.read_bytes() == before
        monkeypatch.setattr(os, "write", write)
        log.append(2, 0.2)
    with ScheduleLog(path, after=1) as log, pytest.raises(ValueError, match=r"replayed with progress 0\.3, not 0\.2"):
        log.append(2, 0.3)
    with pytest.raises(CheckpointError, match="cannot be written"):
        ScheduleLog(tmp_path / "missing" / "schedule.jsonl")


def test_a_long_log_is_small_and_read_in_bounded_memory(tmp_path: Path) -> None:
    path, steps = tmp_path / "schedule.jsonl", 20_000
    lines = [json.dumps({"format_version": 1})]
    lines += [json.dumps({"step": step, "progress": step / steps}) for step in range(1, steps + 1)]
    path.write_text("\n".join(lines) + "\n")
    assert path.stat().st_size < 60 * steps
    tracemalloc.start()
    with ScheduleLog(path, after=steps - 1) as log:
        last: Any = log.recorded(steps)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert last == ScheduledStep(steps, 1.0)
    assert peak < 1 << 20
