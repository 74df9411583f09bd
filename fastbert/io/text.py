"""Text files of any kind: their compression, and characters that text cannot hold."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable
from pathlib import PurePath
from typing import IO, Any

from fastbert.errors import UserError, require_package

COMPRESSIONS = (".gz", ".xz", ".zst", ".bz2")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# zstandard expands a block in one step, at most 2^15 times its size.
_ZSTD_BYTES = 1 << 12
_BZ2_BYTES = 1 << 16
_XZ_BYTES, _XZ_MOST = 1 << 15, 1 << 18
_XZ_STATE = 1 << 20  # of a decoder, beside its dictionary
# bz2 can expand a block more than a million times.
_MOST_BYTES = 1 << 24
# As much as the program zstd takes without --long, and --long alone needs; twice that of xz -9.
_MAX_WINDOW = 1 << 27


class DamagedFileError(OSError):
    """A compressed file that is not intact."""


# Raised while a damaged file is read; EOFError for one that ends too early.
DAMAGED = (lzma.LZMAError, gzip.BadGzipFile, zlib.error, DamagedFileError)


def plain_name(path: str | PurePath) -> str:
    """Return a file's name in lower case, without the suffix of a compression."""
    name = PurePath(path).name.lower()
    suffix = next((suffix for suffix in COMPRESSIONS if name.endswith(suffix)), "")
    return name.removesuffix(suffix)


def decompressor(raw: IO[bytes], path: str | PurePath) -> Any:
    """Return a stream, with `peek`, of what an open file holds, decompressed according to its suffix.

    Reading raises one of `DAMAGED` for a damaged file, and EOFError for one that ends too early. Raises UserError for a
    .zst file if zstandard is missing; so does reading an .xz file that takes more than 128 MiB.
    """
    match PurePath(path).suffix.lower():
        case ".gz":
            return gzip.GzipFile(fileobj=raw)
        case ".xz":
            # LZMAFile knows no limit, and a file of a few bytes may announce a dictionary of 4 GiB.
            new = functools.partial(lzma.LZMADecompressor, memlimit=_MAX_WINDOW + _XZ_STATE)
            too_large = f"{path}: takes more than {_MAX_WINDOW >> 20} MiB of memory to decompress; run `xz -d` first"
            return io.BufferedReader(
                _Frames(raw, new, lzma.LZMAError, _XZ_BYTES, _XZ_MOST, padding=b"\0", too_large=too_large)
            )
        case ".bz2":
            return io.BufferedReader(_Frames(raw, bz2.BZ2Decompressor, OSError, _BZ2_BYTES, _MOST_BYTES))
        case ".zst":
            message = f"{path}: reading .zst needs the package zstandard: `pip install 'fastbert-engine[data]'`"
            zstandard = require_package("zstandard", message)
            options = {"max_window_size": _MAX_WINDOW}
            return io.BufferedReader(
                _Frames(
                    raw,
                    lambda: zstandard.ZstdDecompressor(**options).decompressobj(),
                    zstandard.ZstdError,
                    _ZSTD_BYTES,
                )
            )
        case _:
            return raw


class _Frames(io.RawIOBase):
    """What a file of one or more compressed frames holds."""

    def __init__(
        self,
        raw: IO[bytes],
        new: Callable[[], Any],
        damage: type[Exception],
        block_bytes: int,
        most: int | None = None,
        padding: bytes = b"",
        too_large: str = "",
    ) -> None:
        """`most` is the number of bytes to decompress at once, of frames that know `needs_input`; `padding` may stand
        between frames; `too_large` refuses a frame that exceeds the limit of memory."""
        self._raw, self._new, self._damage, self._block_bytes = raw, new, damage, block_bytes
        self._most = () if most is None else (most,)
        self._frame: Any = None
        self._padding, self._is_first, self._too_large = padding, True, too_large
        self._input = b""
        self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, memory: Any) -> int:
        while not self._output:
            if self._frame is not None and self._frame.eof:
                self._input = self._frame.unused_data or self._input
                self._frame, self._is_first = None, False
            if not self._input and getattr(self._frame, "needs_input", True):
                self._input = self._raw.read(self._block_bytes)
                if not self._input:
                    if self._frame is not None:
                        raise EOFError
                    return 0
            if self._frame is None:
                if not self._is_first:
                    self._input = self._input.lstrip(self._padding)
                    if not self._input:
                        continue
                self._frame = self._new()
            block, self._input = self._input, b""
            try:
                self._output = memoryview(self._frame.decompress(block, *self._most))
            except self._damage as error:
                if self._too_large and "limit" in str(error):  # there is no type for it, and the file is intact
                    raise UserError(self._too_large) from None
                raise DamagedFileError(str(error)) from None
        size = min(len(self._output), len(memory))
        memory[:size] = self._output[:size]
        self._output = self._output[size:]
        return size


def has_surrogates(text: str) -> bool:
    """Return whether a text holds a lone surrogate, half of a character, which JSON can contain."""
    return not text.isascii() and _SURROGATE.search(text) is not None


def whole_characters(text: str) -> str:
    """Replace lone surrogates by U+FFFD."""
    return _SURROGATE.sub("\ufffd", text) if has_surrogates(text) else text
