"""Checksums of files: CRC-32C (Castagnoli), computed by the C++ core, and SHA-256."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastbert import _C, cpu_capability
from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import UntrustedFile


def crc32c(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """Return the CRC-32C of `data`, continuing from `value`, the CRC-32C of the preceding bytes."""
    cpu_capability.apply()
    return _C.crc32c(data, value)


def range_crc32c(file: UntrustedFile, offset: int, size: int) -> int:
    """Return the CRC-32C of `size` bytes of a file from `offset` on; other threads run meanwhile.

    Raises `CheckpointError` for reads that fail or go beyond the file's end.
    """
    cpu_capability.apply()
    try:
        return _C.file_crc32c(file.fileno(), offset, size)
    except OSError as error:
        raise CheckpointError(f"{file.path}: cannot be read from byte {offset:,} on ({error.strerror})") from None
    except ValueError:
        raise CheckpointError(f"{file.path}: was truncated while it was read") from None


def combine_crc32c(first: int, second: int, second_size: int) -> int:
    """Return the CRC-32C of two concatenated byte ranges, from that of each and the second one's size in bytes."""
    return _C.crc32c_combine(first, second, second_size)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


SEAL = "sha256"
"""Key of the SHA-256 that `sealed` adds."""


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as read back from a JSON file, with the SHA-256 of them all."""
    copied = json.loads(json.dumps(values))
    return {**copied, SEAL: json_sha256(copied)}


def is_sealed(values: Mapping[str, Any]) -> bool:
    """Return True if the values are unchanged since `sealed`."""
    return values.get(SEAL) == json_sha256({name: value for name, value in values.items() if name != SEAL})


def json_sha256(values: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of values as JSON, whatever their order."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
