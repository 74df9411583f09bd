"""The `sanitize` command for GPU machines: its command lines, what it makes of their ends, and the resumed run."""

import os
import sys
from pathlib import Path

import pytest
import torch

from fastbert.benchmarks.gpu import command, sanitizing
from fastbert.benchmarks.gpu import sections as gpu_sections
from fastbert.benchmarks.gpu.session import Options

ROOT = Path(__file__).resolve().parents[3]


def test_tools_run_the_tests_of_kernels() -> None:
    files = sanitizing.kernel_files(ROOT)
    assert "tests/ops/attention/test_attention_kernel.py" in files
    assert all("mark.gpu" in (ROOT / file).read_text() for file in files)
    line = sanitizing.command("racecheck", files)
    assert line[:3] == ["compute-sanitizer", "--tool", "racecheck"]
    assert line[line.index("-m") - 2] == sys.executable
    assert sanitizing.command("consan", files)[0] == sys.executable
    assert command.SECTIONS["sanitize"][2:] == sanitizing.NAMES


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        pytest.param("print('fine')", "ok", None, id="clean"),
        pytest.param("raise SystemExit(99)", "failed", "the sanitizer reports an error", id="found"),
        pytest.param("raise SystemExit(1)", "failed", "ended with code 1", id="failed"),
        pytest.param("import time; time.sleep(60)", "failed", "out of time", id="hangs"),
    ],
)
def test_ends_of_a_tool(code: str, status: str, reason: str | None, tmp_path: Path) -> None:
    seconds = 0.5 if reason == "out of time" else 60.0
    line, report = [sys.executable, "-c", code], tmp_path / "report.txt"
    result = sanitizing.run(line, dict(os.environ), report, tmp_path, seconds)
    assert (result["status"], result.get("reason")) == (status, reason)
    assert report.exists()


def test_a_dry_run_skips_tools_and_resumes_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: None
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(sanitizing, "STEPS", 3)
    monkeypatch.setattr(sanitizing, "STOP", 2)
    monkeypatch.setattr(sanitizing.shutil, "which", lambda name: None)
    options = Options(command="sanitize", out=tmp_path, root=ROOT, started=0.0, dry_run=True)
    sections = {section.name: section for section in gpu_sections.COMMANDS["sanitize"]}

    class Asked:
        """A session whose measuring process is this one."""

        def __init__(self) -> None:
            self.options = options

        def ask(self, function: str, timeout: float) -> dict[str, object]:
            assert function == "gpu.sanitizing:resumed"
            return sanitizing.resumed(dry=True)

    session = Asked()
    result = sections["memcheck"].run(session, 1.0)  # type: ignore[arg-type]
    assert result["reason"] == "compute-sanitizer is not installed: it comes with the CUDA toolkit"
    assert sections["consan"].run(session, 1.0)["reason"] == "a dry run has no GPU"  # type: ignore[arg-type]
    result = sections["resume"].run(session, 1.0)  # type: ignore[arg-type]
    assert result == {"status": "ok", "steps": 3, "equal": {"steps.jsonl": True, "model": True}}
