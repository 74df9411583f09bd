"""Commands that torchrun's own agent starts in several processes, and that are killed: forked from a warm process.

For each command the server (`warm_server`) forks an agent (`torch.distributed.launcher`), which forks the workers; when
one of them dies, the agent ends the others.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from killing import MODULES, arrange_fault, processor_time
from warm_server import WarmServer, serve, write_to

LONGEST = 300  # seconds of a command


@dataclass(frozen=True)
class Launched:
    """How a command ended: exit codes by rank, negative for signals; the processor time of the killed or first rank in
    seconds; and the outputs of all ranks."""

    codes: dict[int, int]
    seconds: float
    output: str

    @property
    def killed(self) -> bool:
        return -signal.SIGKILL in self.codes.values()


class Launches:
    """Runs `fastbert` commands under torchrun's agent, and kills one of their processes when asked to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = WarmServer(__file__, folder)
        self.close = self._server.close

    def run(self, arguments: list[str], ranks: int, **ending: Any) -> Launched:
        """Run a command in `ranks` processes. `rank` is the one that is killed: after `kill_after` seconds of its
        processor time, or at its operation `fault`, as `killing.Commands.run` describes."""
        answer = self._server.ask({"arguments": arguments, "ranks": ranks, **ending})
        output = "\n".join(_file(self.folder, "output", rank).read_text() for rank in range(ranks))
        codes = {int(rank): code for rank, code in answer["codes"].items()}
        return Launched(codes, answer["seconds"], output)


def _file(folder: Path, kind: str, rank: int) -> Path:
    return folder / f"{kind}-{rank}.txt"


def _serve(folder: Path) -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        for rank in range(request["ranks"]):
            for kind in ("output", "process", "seconds"):
                _file(folder, kind, rank).unlink(missing_ok=True)
            _file(folder, "output", rank).touch()
        started, agent = time.monotonic(), os.fork()
        if not agent:
            _launch(folder, request)
        rank, after = request.get("rank", 0), request.get("kill_after")
        used = 0.0
        while os.waitpid(agent, os.WNOHANG)[0] == 0:
            assert time.monotonic() - started < LONGEST, "the processes of a killed run do not end"
            process = _file(folder, "process", rank)
            if after is not None and process.exists() and process.read_text():
                try:
                    used = processor_time(int(process.read_text()))
                    if used >= after:
                        os.kill(int(process.read_text()), signal.SIGKILL)
                        after = None
                except (FileNotFoundError, ProcessLookupError):
                    after = None
            time.sleep(0.002)
        ended = _file(folder, "seconds", rank)
        codes = json.loads((folder / "codes.json").read_text())
        return {"codes": codes, "seconds": float(ended.read_text()) if ended.exists() else used}

    agent_modules = ("torch.distributed.elastic.multiprocessing.api", "torch.distributed.launcher.api")
    serve(folder / "agent.txt", (*MODULES, *agent_modules), answer)


def _launch(folder: Path, request: dict[str, Any]) -> None:
    """Be torchrun's agent; write the exit code of each rank that failed, or of all if none did."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    size = request["ranks"]
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=size, run_id=str(os.getpid()), rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0", max_restarts=0, monitor_interval=0.05, start_method="fork",
        local_addr="127.0.0.1",
    )  # fmt: skip
    codes = dict.fromkeys(range(size), 0)
    try:
        try:
            elastic_launch(config, _work)(str(folder), request)
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        (folder / "codes.json").write_text(json.dumps(codes))
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(0)


def _work(folder: str, request: dict[str, Any]) -> None:
    """Be one process of the command."""
    rank = int(os.environ["RANK"])
    write_to(_file(Path(folder), "output", rank))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _file(Path(folder), "process", rank).write_text(str(os.getpid()))
    from fastbert.cli import main

    code = 1
    try:
        if request.get("fault") is not None and rank == request.get("rank", 0):
            names = ("fault", "error", "terminate", "operations", "within")
            arrange_fault(**{name: request[name] for name in names if name in request})
        code = main(request["arguments"])
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        _file(Path(folder), "seconds", rank).write_text(str(usage.ru_utime + usage.ru_stime))
        sys.stdout.flush()
        sys.stderr.flush()
        if code:  # of a worker that succeeds, the agent awaits the result
            os._exit(code)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
