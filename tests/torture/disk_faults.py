"""Commands on failing disks: each runs in a process forked from a warm one, in which a call that changes files fails.

The calls are interposed by disk_faults.c, which is compiled here and preloaded into the warm process. Run as a file,
this module is the server of that process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import importlib.util
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

import pytest
from warm_server import WarmServer, end_with, serve

SOURCE = Path(__file__).with_suffix(".c")
MODULES = (
    *(f"fastbert.cli.{name}" for name in ("convert", "embed", "finetune", "prepare", "pretrain", "search", "vocab")),
    *("fastbert.finetuning.run", "fastbert.tasks.prediction_files", "fastbert.training.pretrain"),
    *("fastbert.checkpoints.convert", "fastbert.checkpoints.delta.files", "fastbert.integrations.onnx.export"),
    *("fastbert.data.prepare", "fastbert.search.build", "fastbert.tokenizers.piece_training", "fastbert"),
)
_OPTIONAL = ("onnx", "onnxruntime")
_HANG_SECONDS = 300.0


class Op(IntEnum):
    """Groups of calls, by their numbers in disk_faults.c."""

    OPEN = 1
    WRITE = 2
    FSYNC = 3
    TRUNCATE = 4
    ALLOCATE = 5
    RENAME = 6
    EXCHANGE = 7
    LINK = 8
    SYMLINK = 9
    UNLINK = 10
    MKDIR = 11
    RMDIR = 12
    MODE = 13
    CLOSE = 14
    MSYNC = 15


class Effect(IntEnum):
    """What becomes of the chosen call and of those behind it, by the numbers in disk_faults.c."""

    NONE = 0
    ONCE = 1
    FULL = 2
    LASTING = 3
    SHORT = 4
    KILL = 5
    KILL_HALF = 6


_NAMES = (Op.OPEN, Op.RENAME, Op.EXCHANGE, Op.LINK, Op.SYMLINK, Op.UNLINK, Op.MKDIR, Op.RMDIR, Op.MODE)
_INTERRUPTIBLE = (Op.OPEN, Op.WRITE, Op.FSYNC, Op.TRUNCATE, Op.ALLOCATE)


@dataclass(frozen=True)
class Kind:
    """A kind of fault, and the calls that can have it."""

    name: str
    effect: Effect
    error: int = 0
    ops: tuple[Op, ...] = tuple(Op)

    @property
    def kills(self) -> bool:
        return self.effect in (Effect.KILL, Effect.KILL_HALF)


KINDS = (
    Kind("no space from here on", Effect.FULL, errno.ENOSPC),
    Kind("half a write, then no space", Effect.SHORT, errno.ENOSPC, (Op.WRITE,)),
    Kind("input/output error once", Effect.ONCE, errno.EIO),
    Kind("input/output errors from here on", Effect.LASTING, errno.EIO),
    Kind("read-only from here on", Effect.LASTING, errno.EROFS),
    Kind("not permitted once", Effect.ONCE, errno.EACCES, _NAMES),
    Kind("interrupted once", Effect.ONCE, errno.EINTR, _INTERRUPTIBLE),
    Kind("killed before", Effect.KILL),
    Kind("killed within", Effect.KILL_HALF, 0, (Op.WRITE,)),
)


@dataclass(frozen=True)
class Call:
    """A call as it was logged; `result` is negative for one that failed."""

    op: Op
    result: int
    error: int
    inode: int
    flags: int
    offset: int
    length: int
    first: str
    second: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.op.name.lower()} {self.first}" + (f" {self.second}" if self.second else "")


_HEADER = struct.Struct("=10q")


def read_calls(log: Path) -> Iterator[Call]:
    """Yield the calls of a log, in their order."""
    content, at = log.read_bytes(), 0
    while at + _HEADER.size <= len(content):
        *numbers, first, second, data = _HEADER.unpack_from(content, at)
        at += _HEADER.size
        parts = []
        for length in (first, second, data):
            parts.append(content[at : at + length])
            at += length
        yield Call(Op(numbers[0]), *numbers[1:], os.fsdecode(parts[0]), os.fsdecode(parts[1]), parts[2])


@dataclass(frozen=True)
class Result:
    """How a command ended: its exit code, negative for a signal, what it printed, and its calls."""

    code: int
    output: str
    errors: str
    calls: list[Call]


class FaultyCommands:
    """Runs `fastbert` commands whose calls below the folder `watched` are counted, and can fail."""

    def __init__(self, folder: Path, watched: Path) -> None:
        self.folder, self.watched = folder, watched
        preloaded, before = compile_library(folder), os.environ.get("LD_PRELOAD")
        os.environ["LD_PRELOAD"] = str(preloaded)
        try:
            self._server = WarmServer(__file__, folder)
        finally:
            if before is None:
                del os.environ["LD_PRELOAD"]
            else:
                os.environ["LD_PRELOAD"] = before
        self.close = self._server.close

    def run(self, arguments: list[str], number: int = 0, kind: Kind | None = None, *, keep: bool = False) -> Result:
        """Run a command; its call `number` (from 1) has a fault of a kind. `keep` logs what is written."""
        fault = {"number": number, "effect": int(kind.effect), "error": kind.error} if kind is not None else {}
        request = {"arguments": arguments, "watched": str(self.watched), "keep": int(keep), **fault}
        code = self._server.ask(request)["code"]
        texts = [(self.folder / name).read_text(errors="replace") for name in ("stdout.txt", "stderr.txt")]
        return Result(code, *texts, list(read_calls(self.folder / "calls.log")))


def compile_library(folder: Path) -> Path:
    """Compile disk_faults.c; skips the test on other systems than Linux and without a compiler."""
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if sys.platform != "linux" or compiler is None:
        pytest.skip("faults of the disk are injected on Linux, with a C compiler")
    library = folder / "disk_faults.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def _serve(folder: Path) -> None:
    warmed: set[str] = set()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["arguments"][0] not in warmed:
            warmed.add(request["arguments"][0])
            _warm(request["arguments"][0])
        child = os.fork()
        if not child:
            _work(folder, request)
        descriptor = os.pidfd_open(child)
        if not select.select([descriptor], [], [], _HANG_SECONDS)[0]:
            os.kill(child, signal.SIGALRM)  # no fault ends a command with this signal
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not request.get("number") and code == 0:
            for name in json.loads((folder / "modules.json").read_text()):
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
            gc.freeze()
        return {"code": code}

    optional = [name for name in _OPTIONAL if importlib.util.find_spec(name.partition(".")[0])]
    serve(folder / "server.txt", (*MODULES, *optional), answer)


def _warm(command: str) -> None:
    """Compute what a command caches in its process."""
    from fastbert.cli import COMMANDS, main
    from fastbert.data.sentence_reader import sentence_rules

    if command in COMMANDS:
        main([command, *["index"] * (command == "search"), "--help"])
    if command in ("prepare", "pretrain", "vocab"):
        sentence_rules()


def _work(folder: Path, request: dict[str, Any]) -> NoReturn:
    for descriptor, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    arm(request["watched"], folder / "calls.log", request)
    end_with(lambda: _run(request["arguments"], None if request.get("number") else folder / "modules.json"))


def arm(watched: str, log: str | Path, request: dict[str, Any]) -> None:
    """Count this process's calls below a folder from now on, and let that of the request fail."""
    number, effect, error, keep = (request.get(name, 0) for name in ("number", "effect", "error", "keep"))
    paths = [os.fsencode(path) for path in (watched, log)]
    armed = ctypes.CDLL(None).disk_faults_arm(*paths, ctypes.c_int64(number), effect, error, keep)
    assert armed == 0, "the log of calls cannot be written"


def _run(arguments: list[str], modules: Path | None) -> int:
    """Run a command; write the names of what it has imported to the file `modules`."""
    before = set(sys.modules)
    code = call(arguments)
    if modules is not None:
        modules.write_text(json.dumps(sorted(sys.modules.keys() - before)))
    return code


def call(arguments: list[str]) -> int:
    """Run a command, or save a model; return the exit code."""
    from fastbert.cli import main

    if arguments[0] != "save_pretrained":
        return main(arguments)
    from fastbert import BertModel
    from fastbert.errors import UserError

    # The call of a program, which gets an exception of one line.
    model = BertModel.from_pretrained(arguments[1])
    try:
        model.save_pretrained(arguments[2])
    except (OSError, UserError) as error:
        print(f"fastbert: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
