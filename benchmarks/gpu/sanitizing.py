"""Kernels under sanitizers, and a run that is resumed to the bit on a GPU: the `sanitize` command.

- memcheck, initcheck, racecheck, synccheck: the tests of kernels under NVIDIA's compute-sanitizer, without PyTorch's
  caching allocator, in whose blocks an access beyond a tensor would stay unseen.
- debug: the same tests with TRITON_DEBUG=1, which compiles device-side asserts and checks of integer overflow.
- consan: the same tests with Triton's instrumentation of shared memory (TRITON_INSTRUMENTATION_MODE=consan).
- resume: a run in deterministic mode, stopped and resumed, against one that was not: losses and weights to the bit.

No machine of ours has run it yet: until one does, what it finds is unmeasured.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastbert.benchmarks.gpu.processes import LAST_LINES, kill
from fastbert.benchmarks.gpu.session import Session
from fastbert.kernels.tuning.processes import child_of_ours

TOOLS = ("memcheck", "initcheck", "racecheck", "synccheck")
TOOL = "compute-sanitizer"
FOUND = 99  # the exit code of the tool if it reports an error
VARIABLES = {
    **{tool: {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} for tool in TOOLS},
    "debug": {"TRITON_DEBUG": "1"},
    "consan": {"TRITON_INSTRUMENTATION_MODE": "consan"},
}
NAMES = (*VARIABLES, "resume")
STEPS, STOP = 8, 5


def kernel_files(root: Path) -> list[str]:
    """Return the test files of single kernels, which have few launches each."""
    return sorted(str(path.relative_to(root)) for path in (root / "tests" / "ops").rglob("test_*_kernel.py"))


def command(name: str, files: Sequence[str]) -> list[str]:
    """Return the command line of a section: the tests of `files`, under a tool of compute-sanitizer or without one."""
    tests = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "gpu", *files]
    if name not in TOOLS:
        return tests
    options = ["--tool", name, "--error-exitcode", str(FOUND), "--target-processes", "all"]
    return [TOOL, *options, *(["--track-unused-memory", "no"] if name == "initcheck" else []), *tests]


def sanitized(name: str) -> Callable[[Session, float], dict[str, Any]]:
    """Return the section of a sanitizer."""

    def section(session: Session, seconds: float) -> dict[str, Any]:
        root = session.options.root
        line = command(name, kernel_files(root))
        if line[0] == TOOL and shutil.which(TOOL) is None:
            return {"status": "skipped", "reason": f"{TOOL} is not installed: it comes with the CUDA toolkit"}
        if session.options.dry_run:
            return {"status": "skipped", "reason": "a dry run has no GPU"}
        session.worker.close()  # its memory, and its share of the GPU
        environment = {**os.environ, **session.environment, **child_of_ours(), **VARIABLES[name]}
        # Kernels that were compiled without the instrumentation must not be taken from the cache.
        with tempfile.TemporaryDirectory(prefix="fastbert-triton-") as cache:
            return run(
                line, environment | {"TRITON_CACHE_DIR": cache}, session.options.out / f"{name}.txt", root, seconds
            )

    return section


def run(line: Sequence[str], environment: dict[str, str], report: Path, root: Path, seconds: float) -> dict[str, Any]:
    """Run a command for at most `seconds`, its output in `report`; return its result."""
    with report.open("wb") as file:
        process = subprocess.Popen(
            line, stdout=file, stderr=subprocess.STDOUT, cwd=root, env=environment, start_new_session=True
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            kill(process)
    lines = report.read_text(errors="replace").splitlines()[-LAST_LINES:]
    if code == 0:
        return {"status": "ok", "lines": lines[-1:]}
    reasons = {None: "out of time", 5: "no test is marked gpu", FOUND: "the sanitizer reports an error"}
    return {"status": "failed", "reason": reasons.get(code, f"ended with code {code}"), "lines": lines}


def resume(session: Session, seconds: float) -> dict[str, Any]:
    """Compare a resumed run with an uninterrupted one, in the measuring process."""
    return dict(session.ask("gpu.sanitizing:resumed", seconds))


def resumed(dry: bool) -> dict[str, Any]:
    """Train twice, once stopped and resumed; return whether the steps and the weights are equal."""
    from dataclasses import replace

    from fastbert.training.pretrain import pretrain
    from fastbert.training.reporter import Reporter
    from fastbert.training.stopping import Stopped

    def on_step(metrics: Any, progress: float) -> None:
        del progress
        if metrics["step"] == STOP:
            os.kill(os.getpid(), signal.SIGTERM)

    with tempfile.TemporaryDirectory(prefix="fastbert-resume-") as temporary:
        config = _config(Path(temporary), "cpu" if dry else "cuda")
        stopped = replace(config, out=config.out.with_name("stopped"))
        pretrain(config)
        try:
            pretrain(stopped, Reporter(on_step=on_step))
        except Stopped:
            pretrain(replace(stopped, resume=True))
        else:
            return {"status": "failed", "reason": f"the run did not stop at step {STOP}"}
        equal = {name: _digest(config.out / name) == _digest(stopped.out / name) for name in ("steps.jsonl", "model")}
    different = [name for name, same in equal.items() if not same]
    if different:
        return {"status": "failed", "reason": f"{' and '.join(different)} of the resumed run differ", "equal": equal}
    return {"status": "ok", "steps": STEPS, "equal": equal}


def _config(folder: Path, device: str) -> Any:
    from fastbert.training.config import PretrainConfig

    draw = random.Random(5)
    words = ["".join(draw.choices("abcdefghij", k=4)) for _ in range(30)]
    documents = ["\n".join(" ".join(draw.choices(words, k=9)) + "." for _ in range(6)) for _ in range(40)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *sorted(set(words))]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    return PretrainConfig(
        corpus=(folder / "text.txt",), tokenizer=folder / "vocab.txt", model="tiny", out=folder / "whole",
        device=device, text_format="lines", steps=STEPS, batch_size=8, max_length=64, eval_samples=8,
        checkpoint_every=3, log_every=1, deterministic=True,
    )  # fmt: skip


def _digest(path: Path) -> str:
    """Return the SHA-256 of a log, or of the weights of a trained model's folder."""
    return hashlib.sha256((path / "model.safetensors" if path.is_dir() else path).read_bytes()).hexdigest()
