"""Errors of the operating system name the flag of the file or folder, and the cure."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from fastbert.cli.os_errors import describe


@dataclass(frozen=True)
class Flags:
    """Flags of a command."""

    text: str = "in.txt"
    eval: tuple[Path, ...] = (Path("a.tsv"), Path("b.tsv"))
    out: Path | None = Path("runs/mine")
    json: Path | None = Path("scores.json")
    task: str | None = "span"


def failure(number: int, filename: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), filename)


SPACE = "free some space, or name a place on another disk"
PLACE = "name a place that you may write to"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        pytest.param(
            failure(errno.EROFS, "scores.json.05400ca2.partial"),
            f"--json scores.json: Read-only file system; {PLACE}",
            id="temporary-file",
        ),
        pytest.param(
            failure(errno.ENOENT, "runs/mine"), f"--out runs/mine: No such file or directory; {PLACE}", id="folder"
        ),
        pytest.param(failure(errno.EACCES, "runs"), f"--out runs/mine: Permission denied; {PLACE}", id="folder-above"),
        pytest.param(
            failure(errno.ENOSPC, "runs/mine/model/a.bin"),
            f"--out runs/mine: No space left on device; {SPACE}",
            id="inside",
        ),
        pytest.param(failure(errno.ENOSPC), f"--out runs/mine: No space left on device; {SPACE}", id="without-a-name"),
        pytest.param(
            failure(errno.EACCES, "b.tsv"), "--eval b.tsv: Permission denied; name a file that you may read", id="input"
        ),
        pytest.param(failure(errno.EIO, "in.txt"), "--text in.txt: Input/output error", id="damaged-disk"),
        pytest.param(failure(errno.EACCES, "/other"), "/other: Permission denied", id="of-no-flag"),
        pytest.param(failure(errno.EIO), "[Errno 5] Input/output error", id="of-nothing"),
    ],
)
def test_the_flag_and_the_cure_are_named(error: OSError, message: str) -> None:
    assert describe(error, Flags()) == message


def test_a_full_disk_without_an_output_is_still_reported() -> None:
    assert "No space left" in describe(failure(errno.ENOSPC), Flags(out=None, json=None))
