"""Load hostile artefacts where nothing may be executed, fetched or written: each must be refused in one line.

python -m torture.hostile_sandbox FOLDER FIRST STOP files|paths      print a line of JSON per artefact
"""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
import sys
import time
import types
from pathlib import Path
from typing import Any

SECONDS = 2.0
"""Of the processor, after which a load counts as a hang."""
BASE, FACTOR = 64 << 20, 10
"""Bytes that a load may add to the process: these, and this often the artefact."""
EXECUTING = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "subprocess.Popen", "pty.spawn",
    "pickle.find_class", "ctypes.dlopen", "code.__new__", "webbrowser.open",
)  # fmt: skip
CONNECTING = (
    "socket.connect",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "socket.bind",
    "socket.sendto",
    "urllib.Request",
)
CHANGING = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod")
SECRETS = ("/etc/", "/dev/zero")


class Traps:
    """Records what a load does that it may not."""

    def __init__(self, folder: Path) -> None:
        self.inside = f"{folder.resolve()}{os.sep}"
        self.armed = False
        self.sprung: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        problem = self.problem(event, arguments)
        if problem:
            self.sprung.append(problem[:200])

    def problem(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        if event in EXECUTING or event in CONNECTING:
            return f"{event} {arguments!r}"
        if event == "exec":
            code = arguments[0]
            # Modules of installed packages are files; their dataclasses and named tuples are made of strings.
            if isinstance(code, types.CodeType) and code.co_filename.startswith(self.inside):
                return f"exec of {code.co_filename}"
        if event == "import" and "fastbert_test_trap" in str(arguments[0]):
            return f"import of {arguments[0]}"
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if isinstance(path, str | bytes | os.PathLike):
                return self.left(os.fsdecode(path), f"{event} for writing" if writes else event, bool(writes))
        # Relative to an open folder, as shutil.rmtree removes what was checked before, if the last argument is one.
        if event in CHANGING and isinstance(arguments[0], str | bytes | os.PathLike) and arguments[-1] in (-1, None):
            return self.left(os.fsdecode(arguments[0]), event, True)
        return None

    def left(self, path: str, event: str, writes: bool) -> str | None:
        """Return a problem for a path outside of the folder, which is written, or read though it is a secret."""
        absolute = os.path.realpath(path)
        if "/outside/" in f"{absolute}/":
            return f"{event} of {absolute}"
        if absolute.startswith(self.inside) or absolute == "/dev/null" or f"{absolute}{os.sep}" == self.inside:
            return None
        secret = absolute.startswith(SECRETS)
        return f"{event} of {absolute}" if writes or secret else None


def peak() -> int:
    """Return the largest resident size since `forget_peak`, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def main(root: Path, first: int, stop: int, kind: str) -> None:
    from torture.hostile_files import TRAP, artefacts

    if kind == "files":
        from torture.hostile_files import families
    else:
        from torture.leaving_paths import families

    from torture.networkless import Network

    from fastbert.errors import UserError

    logging.getLogger("fastbert").setLevel(logging.CRITICAL)
    trap = root / "importable" / TRAP
    trap.mkdir(parents=True)
    (trap / "__init__.py").write_text("class Trap: pass\n")
    sys.path.append(str(trap.parent))
    (root / "outside").mkdir()
    (root / "outside" / "secret.json").write_text("{}")
    (root / "whole").mkdir()
    (root / "box").mkdir()
    os.environ["FASTBERT_VERIFY"] = "0"
    network = Network()
    sys.addaudithook(network)
    network.doing = "writing all folders"  # which trains, converts, prepares, embeds and indexes
    made = families(root / "whole")
    for family in made:  # imports, caches
        try:
            family.load(root / "whole" / family.name)
        except UserError:
            if not family.name.startswith("data-"):  # tables, whatever the name says
                raise
    assert not network.reached, network.reached
    traps = Traps(root / "box")
    sys.addaudithook(traps)
    sys.dont_write_bytecode = True
    soft = 1024 * int(Path("/proc/self/status").read_text().split("VmSize:")[1].split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (soft + (3 << 30),) * 2)
    every = artefacts(made)
    print(json.dumps({"artefacts": len(every), "families": len(made)}), flush=True)
    for number in range(first, stop):
        artefact = every[number % len(every)]
        folder = root / "box" / "artefact"
        shutil.copytree(root / "whole" / artefact.family.name, folder, symlinks=True)
        artefact.family.damages[artefact.name](folder)
        os.environ["FASTBERT_VERIFY"] = "1" if artefact.family.checked else "0"
        allowed = BASE + FACTOR * size_of(folder)
        forget_peak()
        before, begin = peak(), time.process_time()
        traps.sprung.clear()
        message, problem = None, None
        traps.armed = True
        try:
            artefact.family.load(folder)
        except UserError as error:
            message = str(error)
        except BaseException as error:  # noqa: BLE001 - all are reported
            problem = f"another error: {error!r}"[:500]
        finally:
            traps.armed = False
        seconds, memory = time.process_time() - begin, peak() - before
        if traps.sprung:
            problem = f"trap: {traps.sprung[:3]}"
        elif message is not None and ("\n" in message or len(message) > 1500):
            problem = f"not one line: {message[:300]!r}"
        elif kind == "paths" and message is None and problem is None:
            problem = "a name that leads outside was read"
        elif seconds > SECONDS:
            problem = f"{seconds:.1f} s of the processor"
        elif memory > allowed:
            problem = f"{memory:,} bytes more, of which {allowed:,} are allowed"
        shutil.rmtree(folder)
        shutil.rmtree(folder.parent / "outside", ignore_errors=True)
        record = {
            "number": number, "artefact": artefact.label, "refused": message is not None, "problem": problem,
            "seconds": round(seconds, 3), "memory": memory,
        }  # fmt: skip
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
