"""Servers that fork the processes of tests from a warm one, so that a start costs no imports.

`WarmServer` starts a file as a server in a fresh interpreter; that file calls `serve`. The server imports what the
commands need and computes nothing, so that no thread of it is lost in a fork. Requests and answers are lines of JSON.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import shortcuts

# What draws plots and computes metrics, where it is installed.
OPTIONAL = (
    *("matplotlib.backends.backend_agg", "matplotlib.figure", "matplotlib.style", "sklearn.metrics", "scipy.stats"),
    "seqeval.metrics",
)
# What commands import when they need it.
LATE = (
    *("fastbert.cli.flags", "fastbert.cli.help", "fastbert.cli.pretrain", "fastbert.cli.finetune"),
    *("fastbert.training.flat_parameters", "rich._emoji_codes", "tokenizers", "torch.profiler._cupti_monitor"),
)
_parsed: dict[tuple[type[Any], str, tuple[str, ...]], Any] = {}


class WarmServer:
    """A file of tests that runs as a server, with one thread, in `folder`."""

    def __init__(self, file: str, folder: Path) -> None:
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
        helpers = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-P", file, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **one_thread, "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONPATH": helpers},
            cwd=folder,
        )

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def serve(log: Path, modules: Sequence[str], answer: Callable[[dict[str, Any]], Any]) -> None:
    """Answer requests until there are no more; what the server and its children print goes to `log`."""
    answers = os.fdopen(os.dup(1), "w")
    write_to(log)
    import torch

    torch.set_num_threads(1)
    for name in ("tyro", *modules):
        importlib.import_module(name)
    for name in OPTIONAL:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    shortcuts.draw_nothing()
    _warm()
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def _warm() -> None:
    """Do once what each start of a run would: import modules, read the properties of characters. Draw no curves, and
    measure no peak of the processor, whose share is in metrics of speed alone. A start then takes a fifth of its
    processor time."""
    from fastbert.data.sentence_reader import sentence_rules
    from fastbert.finetuning import result
    from fastbert.planning import peak
    from fastbert.training import pretrain

    for name in LATE:
        importlib.import_module(name)
    sentence_rules()
    peak._cpu_peak = lambda element, threads: 1e11  # type: ignore[assignment]
    pretrain.plot_runs = lambda runs, out, **options: _draw_nothing(out)  # type: ignore[assignment]
    result.plot_trials = lambda folder, metric: _draw_nothing(folder / "loss.png")  # type: ignore[assignment]
    _parse_once()
    gc.collect()
    gc.freeze()


def _draw_nothing(file: Path) -> Path:
    from fastbert.io.atomic_write import write_atomic

    write_atomic(file, "figure")
    return file


def _parse_once() -> None:
    """Remember the flags of commands that `know` has parsed."""
    from fastbert.cli import flags

    parse = flags.parse

    def remembered(kind: type[Any], command: str, words: Sequence[str], configs: Any = dict) -> Any:
        key = (kind, command, tuple(words))
        if key not in _parsed:
            _parsed[key] = parse(kind, command, words, configs)
        return _parsed[key]

    flags.parse = remembered


def know(arguments: Sequence[str]) -> None:
    """Parse a command's flags in the server, for the processes that are forked from it."""
    from fastbert.cli import COMMANDS, flags
    from fastbert.errors import UserError

    command, *words = arguments
    kind = importlib.import_module(f"fastbert.cli.{COMMANDS[command][0]}").Config
    with contextlib.suppress(UserError):
        flags.parse(kind, command, words)


def write_to(log: Path) -> None:
    """Send what this process prints to a new file."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), 1)
    os.dup2(1, 2)


def end_with(command: Callable[[], int]) -> NoReturn:
    """End this process with the code that `command` returns, or with 1 and a traceback if it raises."""
    code = 1
    try:
        code = command()
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
