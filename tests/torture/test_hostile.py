"""Hostile artefacts of every format, loaded in a process with traps for code, sockets and files outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints.toy import save
from torture.campaign import Campaign
from torture.scorecard import scored

TESTS = Path(__file__).resolve().parents[1]
LEAST = 1_190
"""Different artefacts that there are at least."""
PATHS = 585
"""Places of file names, times names that lead elsewhere."""


def sandbox(kind: str, folder: Path, numbers: range, count: int) -> list[dict[str, Any]]:
    """Load artefacts of a kind by their numbers; return a record of each, none of which has a problem."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    environment["FASTBERT_TEST_TRAP"] = str(folder / "executed")
    module = ["-P", "-W", "ignore", "-m", "torture.hostile_sandbox"]
    command = [sys.executable, *module, str(folder), str(numbers.start), str(numbers.stop), kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    problems = [line for line in lines[1:] if line["problem"]]
    assert not problems, "\n".join(f"number {p['number']}, {p['artefact']}: {p['problem']}" for p in problems[:20])
    assert done.returncode == 0, (done.stderr[-2000:], lines[-1:])
    assert len(lines) == len(numbers) + 1
    assert lines[0]["artefacts"] >= count
    assert not list(folder.rglob("executed"))
    shutil.rmtree(folder)
    return lines[1:]


def figures_of(records: list[dict[str, Any]]) -> dict[str, float]:
    return {
        "refused": float(sum(record["refused"] for record in records)),
        "ignored": float(sum(not record["refused"] for record in records)),
        "longest_processor_seconds": max(record["seconds"] for record in records),
        "largest_memory_bytes": float(max(record["memory"] for record in records)),
    }


@scored(
    row=17, unit="artefacts", short=60, full=LEAST, chunk=250,
    goal="none executes, connects, writes or reads outside, takes 2 s, or 64 MiB and 10 times its size of memory",
)  # fmt: skip
def test_hostile_artefacts(campaign: Campaign, tmp_path: Path) -> None:
    """What comes from elsewhere is refused in one line, or read as if what is hostile in it were not there."""
    pytest.importorskip("peft", reason="needs peft")
    pytest.importorskip("transformers", reason="needs transformers")

    campaign.run(lambda numbers: figures_of(sandbox("files", tmp_path / str(numbers.start), numbers, LEAST)))


@scored(
    row=18, unit="names", short=50, full=PATHS, chunk=PATHS,
    goal="every one is refused in one line; nothing outside is read or written",
)  # fmt: skip
def test_paths_that_leave(campaign: Campaign, tmp_path: Path) -> None:
    """A file's name that comes from a file is one in the same folder."""
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    pytest.importorskip("peft", reason="needs peft")

    def attempt(numbers: range) -> dict[str, float]:
        figures = figures_of(sandbox("paths", tmp_path / str(numbers.start), numbers, PATHS))
        assert figures.pop("ignored") == 0
        return figures

    campaign.run(attempt)


def test_the_trap_would_be_sprung_by_executing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torture.hostile_pickles import PICKLES

    monkeypatch.setenv("FASTBERT_TEST_TRAP", str(tmp_path / "executed"))
    for name in ("os.system-in-a-dictionary", "exec"):
        folder = save(tmp_path / name, "zip")
        PICKLES[name](folder)
        torch.load(folder / "pytorch_model.bin", weights_only=False)
        assert (tmp_path / "executed").exists()
        (tmp_path / "executed").unlink()


def test_traps_are_sprung(tmp_path: Path) -> None:
    from torture.hostile_sandbox import Traps

    traps = Traps(tmp_path)
    inside = str(tmp_path / "file")
    for event, arguments in (
        ("os.system", ("id",)),
        ("subprocess.Popen", ("id", [], None, None)),
        ("socket.connect", (None, ("127.0.0.1", 1))),
        ("import", ("fastbert_test_trap", None)),
        ("exec", (compile("1", inside, "eval"),)),
        ("open", ("/etc/passwd", "r", os.O_RDONLY)),
        ("open", ("/somewhere/file", "w", os.O_WRONLY | os.O_CREAT)),
        ("os.rename", ("/somewhere/file", inside, -1, -1)),
    ):
        assert traps.problem(event, arguments), event
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT):
        assert not traps.problem("open", (inside, "x", flags))
    assert not traps.problem("open", (torch.__file__, "r", os.O_RDONLY))
