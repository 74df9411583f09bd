"""The calls of a command that change files, as strace sees them: the preloaded library must have logged the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from torture.disk_faults import FaultyCommands, read_calls

# Nothing waits for the disk in a process with the library; closing a file that was opened to read is not counted.
UNTRACED = ("FSYNC", "MSYNC", "CLOSE")
TRACED = {
    **dict.fromkeys(("open", "openat", "creat"), "OPEN"),
    **dict.fromkeys(("write", "pwrite64", "writev", "pwritev", "pwritev2", "sendfile", "copy_file_range"), "WRITE"),
    **dict.fromkeys(("fsync", "fdatasync", "sync_file_range", "syncfs"), "FSYNC"),
    **dict.fromkeys(("ftruncate", "truncate"), "TRUNCATE"),
    **dict.fromkeys(("rename", "renameat", "renameat2"), "RENAME"),
    **dict.fromkeys(("link", "linkat"), "LINK"),
    **dict.fromkeys(("symlink", "symlinkat"), "SYMLINK"),
    **dict.fromkeys(("unlink", "unlinkat"), "UNLINK"),
    **dict.fromkeys(("mkdir", "mkdirat"), "MKDIR"),
    **dict.fromkeys(("chmod", "fchmod", "fchmodat", "fchmodat2", "utimensat", "utime", "utimes"), "MODE"),
    "fallocate": "ALLOCATE",
    "rmdir": "RMDIR",
    "mmap": "MAP",
    "setxattr": "MODE",
    "fsetxattr": "MODE",
}


def traced_calls(commands: FaultyCommands, arguments: list[str], folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Return the calls by their kinds, as the library has logged them and as strace has seen them."""
    library, log, trace = commands.folder / "disk_faults.so", folder / "calls.log", folder / "trace.txt"
    program = (
        "import sys, torture.disk_faults as faults; torch = __import__('torch'); torch.set_num_threads(1);"
        " faults.arm(sys.argv[1], sys.argv[2], {}); sys.exit(faults.call(sys.argv[3:]))"
    )
    watched = str(commands.watched)
    words = [
        "strace",
        "-f",
        "-y",
        "-s",
        "0",
        "-e",
        f"trace={','.join(f'?{name}' for name in TRACED)}",
        "-o",
        str(trace),
    ]
    words += ["-E", f"LD_PRELOAD={library}", sys.executable, "-P", "-c", program, watched, str(log), *arguments]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert result.returncode == 0, result.stderr
    logged = Counter(call.op.name for call in read_calls(log) if call.result >= 0 and call.op.name not in UNTRACED)
    traced = Counter[str]()
    for line in trace.read_text().splitlines():
        match = re.match(r"\d+ +(\w+)\((.*)\) = (\d+)", line)
        if match and watched in match[2] and (name := kind_of_traced(match[1], match[2])):
            traced[name] += 1
    return logged, traced


def kind_of_traced(name: str, arguments: str) -> str | None:
    """Return the kind of a call that strace has seen; None for one that changes nothing."""
    if name in ("open", "openat") and not re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", arguments):
        return None
    if name == "mmap" and not ("PROT_WRITE" in arguments and "MAP_SHARED" in arguments):
        return None
    if name == "unlinkat" and "AT_REMOVEDIR" in arguments:
        return "RMDIR"
    if name == "renameat2" and "RENAME_EXCHANGE" in arguments:
        return "EXCHANGE"
    return TRACED[name]
