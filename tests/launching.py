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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from killing import MARKS, MODULES, Ended, Step, arrange_end, mark_steps, marked_steps, processor_time
from warm_server import WarmServer, know, serve, write_to

LONGEST = 300  # seconds of a command


class Launches:
    """Runs `fastbert` commands under torchrun's agent, and kills one of their processes when asked to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = WarmServer(__file__, folder)
        self.close = self._server.close

    def run(self, arguments: Sequence[str], ranks: int, **ending: Any) -> Ended:
        """Run a command in `ranks` processes. `rank` is the one that is ended, by SIGKILL, as `killing.Commands.run`
        describes.

        The code is that of SIGKILL if a process got it, else the largest. Seconds are those of the processor in the
        killed rank or the first, and steps those that the first reported.
        """
        answer = self._server.ask({"arguments": list(arguments), "ranks": ranks, **ending})
        output = "\n".join(_file(self.folder, "output", rank).read_text() for rank in range(ranks))
        codes, steps = answer["codes"], [None if step is None else Step(*step) for step in answer["steps"]]
        code = -signal.SIGKILL if -signal.SIGKILL in codes else max(codes, key=abs)
        return Ended(code, answer["seconds"], None, *steps, f"codes: {codes}\n{output}")


def _file(folder: Path, kind: str, rank: int) -> Path:
    return folder / f"{kind}-{rank}.txt"


def _serve(folder: Path) -> None:
    marks = folder / "steps"

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        for rank in range(request["ranks"]):
            for kind in ("output", "process", "seconds"):
                _file(folder, kind, rank).unlink(missing_ok=True)
            _file(folder, "output", rank).touch()
        marks.write_bytes(bytes(MARKS.size))
        know(request["arguments"])
        started, agent = time.monotonic(), os.fork()
        if not agent:
            _launch(folder, request)
        rank, after = request.get("rank", 0), request.get("after")
        used = 0.0
        while os.waitpid(agent, os.WNOHANG)[0] == 0:
            assert time.monotonic() - started < LONGEST, "the processes of a killed run do not end"
            process = _file(folder, "process", rank)
            if after is not None and process.exists() and process.read_text():
                used = processor_time(int(process.read_text()))
                if used >= after:
                    if used < float("inf"):
                        os.kill(int(process.read_text()), signal.SIGKILL)
                    after = None
            time.sleep(0.002)
        ended = _file(folder, "seconds", rank)
        return {
            "codes": json.loads((folder / "codes.json").read_text()),
            "seconds": float(ended.read_text()) if ended.exists() else used,
            "steps": marked_steps(marks),
        }

    agent_modules = (
        *("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.elastic.multiprocessing.api"),
        "torch.distributed.launcher.api",
    )
    serve(folder / "agent.txt", (*MODULES, *agent_modules), answer)


def _launch(folder: Path, request: dict[str, Any]) -> None:
    """Be torchrun's agent; write the exit codes of the ranks that failed, or of all if none did."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    size = request["ranks"]
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=size, run_id=str(os.getpid()), rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0", max_restarts=0, monitor_interval=0.05, start_method="fork",
        local_addr="127.0.0.1",
    )  # fmt: skip
    codes = [0] * size
    try:
        try:
            elastic_launch(config, _work)(str(folder), request)
        except ChildFailedError as error:
            codes = [failure.exitcode for failure in error.failures.values()]
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
    from fastbert.distributed import world

    world.REASON_SECONDS = 0.5  # a killed process gives none
    code = 1
    try:
        if rank == 0:
            mark_steps(Path(folder) / "steps")
        if rank == request.get("rank", 0):
            arrange_end(request)
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
