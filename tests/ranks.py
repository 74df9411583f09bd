"""Commands of several processes, as torchrun starts them: forked from a warm one, so that a start costs no imports.

`Ranks` starts this file as a server in a fresh interpreter. Each process writes to a file of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ended:
    """How the processes of a command ended: exit codes, negative for signals, and outputs, in the order of ranks."""

    codes: list[int]
    outputs: list[str]


class Ranks:
    """Runs `fastbert` commands in several processes, and ends some of them when asked to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
        self._server = subprocess.Popen(
            [sys.executable, "-P", __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **one_thread, "TORCH_CPP_LOG_LEVEL": "ERROR"},
            cwd=folder,
        )

    def close(self) -> None:
        self._server.communicate()

    def run(self, commands: Sequence[list[str]], **ending: Any) -> Ended:
        """Run one command line per process.

        `kill`: the rank that gets a signal once the file `after` exists; `signal`: its number, SIGKILL by default.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps({"commands": list(commands), **ending}) + "\n")
        self._server.stdin.flush()
        codes = json.loads(self._server.stdout.readline())
        return Ended(codes, [_output(self.folder, rank).read_text() for rank in range(len(codes))])


def _output(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.txt"


def _serve(folder: Path) -> None:
    answers = os.fdopen(os.dup(1), "w")
    import torch

    torch.set_num_threads(1)
    import torch._dynamo
    import torch.distributed.fsdp
    import tyro  # noqa: F401

    import fastbert.cli.finetune
    import fastbert.cli.pretrain
    import fastbert.finetuning.run
    import fastbert.tasks.prediction_files
    import fastbert.training.pretrain  # noqa: F401

    packages = ("sklearn.metrics", "scipy.stats", "seqeval.metrics", "matplotlib.backends.backend_agg")
    for package in (*packages, "matplotlib.figure"):  # where they are installed
        with contextlib.suppress(ImportError):
            importlib.import_module(package)

    for line in sys.stdin:
        request = json.loads(line)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        size = len(request["commands"])
        children = []
        for rank, words in enumerate(request["commands"]):
            child = os.fork()
            if not child:
                _work(folder, words, rank, size, port)
            children.append(child)
        if request.get("kill") is not None:
            after = Path(request["after"])
            while not after.exists() and not _ended(children[request["kill"]]):
                time.sleep(0.002)
            os.kill(children[request["kill"]], request.get("signal", signal.SIGKILL))
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        answers.write(json.dumps(codes) + "\n")
        answers.flush()


def _ended(child: int) -> bool:
    with open(f"/proc/{child}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def _work(folder: Path, words: list[str], rank: int, size: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    os.dup2(os.open(_output(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), 1)
    os.dup2(1, 2)
    from fastbert.cli import main

    code = 1
    try:
        code = main(words)
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
