"""Hostile artefacts of every format, loaded in a process with traps for code, sockets and files outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints.toy import save
from torture.campaign import Campaign
from torture.scorecard import scored

TESTS = Path(__file__).resolve().parents[1]
LEAST = 1_190
"""Different artefacts that there are at least."""


def sandbox(folder: Path, first: int, stop: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    environment["FASTBERT_TEST_TRAP"] = str(folder / "executed")
    command = [
        sys.executable,
        "-P",
        "-W",
        "ignore",
        "-m",
        "torture.hostile_sandbox",
        str(folder),
        str(first),
        str(stop),
    ]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@scored(
    row=17, unit="artefacts", short=150, full=LEAST, chunk=250,
    goal="none executes, connects, writes or reads outside, takes 2 s, or 64 MiB and 10 times its size of memory",
)  # fmt: skip
def test_hostile_artefacts(campaign: Campaign, tmp_path: Path) -> None:
    """What comes from elsewhere is refused in one line, or read as if what is hostile in it were not there."""
    pytest.importorskip("peft", reason="needs peft")
    pytest.importorskip("transformers", reason="needs transformers")

    def attempt(numbers: range) -> dict[str, float]:
        folder = tmp_path / str(numbers.start)
        folder.mkdir()
        done = sandbox(folder, numbers.start, numbers.stop)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        problems = [
            f"number {line['number']}, {line['artefact']}: {line['problem']}" for line in lines[1:] if line["problem"]
        ]
        assert not problems, "\n".join(problems[:20])
        assert done.returncode == 0, (done.stderr[-2000:], lines[-1:])
        assert len(lines) == len(numbers) + 1
        assert lines[0]["artefacts"] >= LEAST
        assert not list(folder.rglob("executed"))
        return {
            "refused": float(sum(line["refused"] for line in lines[1:])),
            "ignored": float(sum(not line["refused"] for line in lines[1:])),
            "longest_processor_seconds": max(line["seconds"] for line in lines[1:]),
            "largest_memory_bytes": float(max(line["memory"] for line in lines[1:])),
        }

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
