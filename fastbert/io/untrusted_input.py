"""Read untrusted files: regular files only, and never more than a stated number of bytes.

A file that a user or a checkpoint names may be a pipe nobody writes to, an endless device, or terabytes of JSON. Every
reader of such a file goes through this module.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from fastbert.errors import CheckpointError, UserError
from fastbert.io.text import has_surrogates

# The index of ten thousand tensors takes 1 MB; parsed, JSON takes up to thirty times its size.
MAX_JSON_BYTES = 4 << 20
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def require_regular_file(path: str | os.PathLike[str], error: type[UserError] = UserError) -> None:
    """Raise `error` if `path` is a folder, a pipe, a socket or a device.

    Links are followed. Raises OSError where the path cannot be examined, FileNotFoundError for a missing file.
    """
    _check_kind(path, os.stat(path).st_mode, error)


def require_file(path: str | os.PathLike[str]) -> None:
    """Raise UserError unless `path` is a regular file."""
    try:
        require_regular_file(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:  # no permission, a loop of links
        raise UserError(f"{path}: cannot be opened ({error.strerror})") from None


def open_regular(path: str | os.PathLike[str], error: type[UserError] = UserError) -> IO[bytes]:
    """Open a regular file for buffered reading.

    The path is examined before it is opened, and again afterwards: a pipe that replaces the file in between does not
    block.

    Raises:
        error: the path is a folder, a pipe, a socket or a device.
        OSError: the file cannot be opened.
    """
    require_regular_file(path, error)
    # The caller closes it.
    file = open(path, "rb", opener=_open_nonblocking)  # noqa: SIM115
    try:
        _check_kind(path, os.fstat(file.fileno()).st_mode, error)
    except UserError:
        file.close()
        raise
    return file


def read_regular(path: str | os.PathLike[str], max_bytes: int, error: type[UserError] = UserError) -> bytes:
    """Read a regular file of at most `max_bytes`; raises as `open_regular` does, and `error` for a larger file."""
    with open_regular(path, error) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(max_bytes + 1) if size <= max_bytes else b""
    if size > max_bytes or len(data) > max_bytes:
        bytes_read = max(size, len(data))
        raise error(f"{path}: has {bytes_read:,} bytes, and at most {max_bytes:,} are read; name a smaller file")
    return data


class UntrustedFile:
    """A regular file of a checkpoint, open for reads by offset.

    Raises `CheckpointError` for a file that is missing, is not regular or cannot be opened, and for reads beyond its
    end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = open_regular(path, CheckpointError)
        except FileNotFoundError:
            raise CheckpointError(f"{path}: no such file") from None
        except CheckpointError:
            raise
        except (OSError, ValueError) as error:  # no permission, a loop of links; a NUL in the name
            raise CheckpointError(f"{path}: cannot be opened ({error})") from None
        self.size: int = os.fstat(self._file.fileno()).st_size

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on."""
        self._check_range(offset, size)
        data = bytearray(size)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def read_into(self, memory: memoryview, offset: int) -> None:
        """Fill `memory`, a view of bytes, from `offset` on."""
        self._check_range(offset, len(memory))
        while memory:
            try:
                count = os.preadv(self._file.fileno(), [memory], offset)
            except OSError as error:
                raise CheckpointError(f"{self.path}: cannot be read at byte {offset:,} ({error.strerror})") from None
            if not count:
                raise CheckpointError(f"{self.path}: was truncated while it was read")
            memory, offset = memory[count:], offset + count

    def fileno(self) -> int:
        """Return the descriptor of the open file."""
        return self._file.fileno()

    def _check_range(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise CheckpointError(
                f"{self.path}: truncated or damaged: needs {size:,} bytes at {offset:,}, but has {self.size:,} bytes"
            )

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> UntrustedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_json_file(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Return the content of a JSON file of at most `max_bytes`. Raises `CheckpointError`."""
    with UntrustedFile(path) as file:
        if file.size > max_bytes:
            raise CheckpointError(f"{path}: {file.size:,} bytes of JSON; at most {max_bytes:,} are read")
        return parse_json(file.read(0, file.size), str(path))


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds. Raises `CheckpointError`."""
    content = read_json_file(path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: damaged: must hold a JSON object ({shown(content)} is not an object)")
    return content


def parse_json(data: bytes, source: str) -> Any:
    """Parse JSON in UTF-8; `source` is its name in messages. Raises `CheckpointError`, also for a repeated key."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique_keys)
    except RecursionError:
        raise CheckpointError(f"{source}: JSON nested too deeply") from None
    except ValueError as error:  # invalid JSON or UTF-8, a number of ten thousand digits, a repeated key
        raise CheckpointError(f"{source}: not a JSON file ({error})") from None


def is_plain_name(name: str) -> bool:
    """Return True if a name from a file is one in the same folder: no path, and nothing that a message cannot show."""
    if name in ("", ".", "..") or (not name.isascii() and has_surrogates(name)):
        return False
    return len(name.encode()) < 256 and not any(character in "/\\\x7f" or character < " " for character in name)


def shown(value: object) -> str:
    """Return the repr of a value from a file, shortened to fit an error's one line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits; deeply nested lists
        return "something too long to show"
    return text if len(text) <= 100 else f"{text[:97]}..."


def shown_error(error: Exception) -> str:
    """Return the message of a library's error, which may quote a file at any length, shortened to fit one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:197]}..."


def _open_nonblocking(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a pipe waits until a process writes to it. It has no effect on regular files.
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _check_kind(path: str | os.PathLike[str], mode: int, error: type[UserError]) -> None:
    if stat.S_ISREG(mode):
        return
    kind = next((name for matches, name in _KINDS if matches(mode)), "a special file")
    raise error(f"{Path(path)}: is {kind}, not a regular file; name a file on disk")


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        keys: set[str] = set()
        repeated = next(key for key, _ in pairs if key in keys or keys.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shown(repeated)} is repeated")
    return content
