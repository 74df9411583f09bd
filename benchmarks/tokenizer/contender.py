"""A tokenizer as a contender: it opens texts, encodes them in every measured way, and returns the times.

The object lives in the contender's process or in the parent's (`fastbert.benchmarks.harness.isolation`), so its methods
take and return JSON values; ids are passed as files.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fastbert.benchmarks import peers
from fastbert.benchmarks.harness.measure import Timing, clock
from fastbert.benchmarks.tokenizer.hostile import hostile_text, read_tokens

PADDED_ARRAYS = ("input_ids", "token_type_ids", "attention_mask")


def save_texts(path: Path, texts: list[str]) -> None:
    """Write texts for `TokenizerContender.open`."""
    path.write_text(json.dumps(texts), encoding="utf-8")


class TokenizerContender:
    """One tokenizer with a fixed number of threads."""

    def __init__(self, name: str, threads: int, kind: str = "tokenizer") -> None:
        self.make: Any = peers.load(kind, name)
        self.threads = threads

    def open(self, texts: str, path: str, options: dict[str, Any]) -> dict[str, Any]:
        """Read the texts and load the vocabulary, or the folder, for the calls that follow."""
        self.path: Path = Path(path)
        self.options = options
        self.raw: list[Any] = [text.encode() for text in json.loads(Path(texts).read_text(encoding="utf-8"))]
        self.texts: list[str] = self._fresh_texts()
        self.tokenizer: Any = self._fresh_tokenizer()
        return {"dtype": self.tokenizer.dtype}

    def save_rows(self, path: str) -> None:
        """Write the ids of all texts, flat, and their offsets."""
        ids, offsets = self.tokenizer.rows(self.tokenizer.encode(self.texts))
        np.savez(path, ids=ids, offsets=offsets)

    def save_padded(self, path: str, length: int, count: int) -> bool:
        """Write the padded arrays of the first texts side by side; return False if not supported."""
        arrays = self.tokenizer.encode_padded(self.texts[:count], length)
        if arrays is None:
            return False
        wide = np.concatenate([np.asarray(arrays[name]) for name in PADDED_ARRAYS], axis=1)
        np.savez(path, ids=wide.reshape(-1), offsets=np.arange(len(wide) + 1) * wide.shape[1])
        return True

    def time_load(self, path: str, options: dict[str, Any]) -> Timing:
        """Time the construction of a tokenizer from a vocab.txt, or from a folder."""
        return clock(lambda: self.make(Path(path), threads=self.threads, **options))

    def time_cold(self) -> Timing:
        """Time the first pass of a new tokenizer over new string objects."""
        tokenizer, texts = self.fresh()
        return clock(lambda: tokenizer.encode(texts))

    def fresh(self) -> tuple[Any, list[str]]:
        """Return a new tokenizer, and new string objects of the texts."""
        return self._fresh_tokenizer(), self._fresh_texts()

    def time_warm(self) -> Timing:
        """Time a repeated pass over the same texts."""
        return clock(lambda: self.tokenizer.encode(self.texts))

    def time_padded(self, length: int, count: int) -> Timing:
        """Time padded arrays of the first texts; both ends of every row of all three are read."""
        texts = self.texts[:count]

        def encode() -> None:
            arrays = self.tokenizer.encode_padded(texts, length)
            for name in PADDED_ARRAYS:
                arrays[name][:, 0].sum(), arrays[name][:, -1].sum()

        return clock(encode)

    def time_aligned(self) -> Timing:
        """Time a repeated pass with the position and the word of each token; fastbert only."""
        return clock(lambda: self.tokenizer.encode_aligned(self.texts))

    def time_hostile(self, kind: str, size: int, seed: int) -> Timing:
        """Time a new hostile text by itself."""
        text = hostile_text(kind, size, seed, self._tokens())
        return clock(lambda: self.tokenizer.encode([text]))

    def time_part(self, start: int, size: int, cold: bool = False) -> Timing:
        """Time a part of the opened texts as one text, for comparison with hostile text; `cold`: by a new tokenizer."""
        text = b"\n".join(self.raw)[start : start + size].decode(errors="ignore")
        tokenizer = self._fresh_tokenizer() if cold else self.tokenizer
        return clock(lambda: tokenizer.encode([text]))

    def grown_memory(self) -> int | None:
        """Return the growth of the process in bytes after two passes, results released; None if unknown.

        Valid only in a process in which nothing else has been measured. Texts outside ASCII are left out, since Python
        caches their UTF-8 form on first use.
        """
        texts = [text for text in self.texts if text.isascii()]
        self.tokenizer = self._fresh_tokenizer()
        before = resident_bytes()
        for _ in range(2):
            self.tokenizer.encode(texts)
        after = resident_bytes()
        return None if before is None or after is None else after - before

    def _fresh_texts(self) -> list[str]:
        return [text.decode() for text in self.raw]

    def _fresh_tokenizer(self) -> Any:
        tokenizer = self.make(self.path, threads=self.threads, **self.options)
        tokenizer.forget()
        return tokenizer

    def _tokens(self) -> list[str]:
        if getattr(self, "_read", None) != self.path:
            self._read, self._read_tokens = self.path, read_tokens(self.path)
        return self._read_tokens


def resident_bytes() -> int | None:
    """Return the resident bytes of this process, after trimming the heap; None except on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    gc.collect()
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
