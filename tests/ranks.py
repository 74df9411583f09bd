"""Commands of several processes, as torchrun starts them: forked from a warm one (`warm_server`).

Each process writes to a file of its own.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from killing import MODULES
from warm_server import WarmServer, end_with, serve, write_to


@dataclass(frozen=True)
class Ended:
    """How the processes of a command ended: exit codes, negative for signals, and outputs, in the order of ranks."""

    codes: list[int]
    outputs: list[str]

    def assert_killed(self, rank: int) -> None:
        """One of two processes was killed; the other has ended with one line that says so."""
        assert self.codes[rank] == -signal.SIGKILL
        assert self.codes[1 - rank] == 2
        assert self.outputs[1 - rank].count("fastbert: error:") == 1
        assert "another process of the run has ended" in self.outputs[1 - rank]


class Ranks:
    """Runs `fastbert` commands in several processes, and ends some of them when asked to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = WarmServer(__file__, folder)
        self.close = self._server.close

    def run(self, commands: Sequence[list[str]], **ending: Any) -> Ended:
        """Run one command line per process.

        `kill`: the rank that gets a signal once the file `after` exists; `signal`: its number, SIGKILL by default.
        `keep_store`: the processes meet in a store that outlives them, as those that an agent of torchrun starts again.
        `before`: the code that each rank runs before its command.
        """
        codes = self._server.ask({"commands": list(commands), **ending})
        return Ended(codes, [_output(self.folder, rank).read_text() for rank in range(len(codes))])


def _output(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.txt"


def _serve(folder: Path) -> None:
    kept: list[int] = []

    def answer(request: dict[str, Any]) -> list[int]:
        keep = request.get("keep_store", False)
        if keep and not kept:
            kept.append(_kept_store(folder / "port"))
        port = kept[0] if keep else _free_port()
        size = len(request["commands"])
        children = []
        for rank, words in enumerate(request["commands"]):
            child = os.fork()
            if not child:
                _work(folder, words, rank, size, port, keep, request.get("before", [""] * size)[rank])
            children.append(child)
        if request.get("kill") is not None:
            after = Path(request["after"])
            while not after.exists() and not _ended(children[request["kill"]]):
                time.sleep(0.002)
            os.kill(children[request["kill"]], request.get("signal", signal.SIGKILL))
        return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]

    serve(folder / "server.txt", (*MODULES, "torch._dynamo", "torch.distributed.fsdp"), answer)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _kept_store(file: Path) -> int:
    """Start a process with a store, which ends with this one; return its port."""
    parent = os.getpid()
    if not os.fork():
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        file.with_suffix(".new").write_text(str(store.port))
        file.with_suffix(".new").rename(file)
        while os.getppid() == parent:
            time.sleep(0.1)
        os._exit(0)
    while not file.exists():
        time.sleep(0.01)
    return int(file.read_text())


def _ended(child: int) -> bool:
    with open(f"/proc/{child}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def _work(folder: Path, words: list[str], rank: int, size: int, port: int, keep: bool, before: str) -> NoReturn:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": str(keep),
    }  # fmt: skip
    write_to(_output(folder, rank))
    exec(before, {})
    from fastbert.cli import main

    end_with(lambda: main(words))


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
