"""Files that nobody vouches for: opened only where they are plain files, and read only up to a bound."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from fastbert.errors import CheckpointError

# Of JSON; the index of ten thousand tensors takes 1 MB. What Python makes of it may take thirty times as much.
MOST_JSON = 4 << 20


class PlainFile:
    """A plain file opened for reading, by offsets. Raises `CheckpointError` for folders, pipes and devices, whose other
    end it does not wait for; and for reads beyond the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._check(os.stat(path).st_mode)
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise CheckpointError(f"{path}: no such file") from None
        except CheckpointError:
            raise
        except (OSError, ValueError) as error:  # no permission, a loop of links; a NUL in the name
            raise CheckpointError(f"{path}: cannot be opened ({error})") from None
        info = os.fstat(self.descriptor)
        self.size = info.st_size
        try:
            self._check(info.st_mode)
        except CheckpointError:
            self.close()
            raise

    def _check(self, mode: int) -> None:
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
            raise CheckpointError(f"{self.path}: is {what}, not a file; name a checkpoint's folder")

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset` on."""
        data = bytearray(self._inside(offset, size))
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def read_into(self, memory: memoryview, offset: int) -> None:
        """Fill `memory`, of bytes, with what begins at `offset`."""
        self._inside(offset, len(memory))
        while memory:
            try:
                done = os.preadv(self.descriptor, [memory], offset)
            except OSError as error:
                raise CheckpointError(f"{self.path}: cannot be read at byte {offset:,} ({error.strerror})") from None
            if not done:
                raise CheckpointError(f"{self.path}: was cut short while it was read")
            memory, offset = memory[done:], offset + done

    def _inside(self, offset: int, size: int) -> int:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise CheckpointError(
                f"{self.path}: truncated or damaged: {size:,} bytes at {offset:,} were to be read, of {self.size:,}"
            )
        return size

    def close(self) -> None:
        """Close it."""
        os.close(self.descriptor)

    def __enter__(self) -> PlainFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_json_file(path: Path, most: int = MOST_JSON) -> Any:
    """What a JSON file of at most `most` bytes holds."""
    with PlainFile(path) as file:
        if file.size > most:
            raise CheckpointError(f"{path}: {file.size:,} bytes of JSON, where at most {most:,} are believed")
        return parse_json(file.read(0, file.size), str(path))


def parse_json(data: bytes, place: str) -> Any:
    """Read JSON in UTF-8; a key that an object holds twice is an error. Raises `CheckpointError`."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_distinct)
    except RecursionError:
        raise CheckpointError(f"{place}: JSON nested too deeply to be believed") from None
    except ValueError as error:  # wrong JSON or UTF-8, a number of ten thousand digits, a key twice
        raise CheckpointError(f"{place}: not a JSON file ({error})") from None


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shown(twice)} is there twice")
    return found


def shown(value: object) -> str:
    """A value from a file in an error's one line, cut short."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits; lists in lists
        return "something too long to show"
    return text if len(text) <= 100 else f"{text[:97]}..."
