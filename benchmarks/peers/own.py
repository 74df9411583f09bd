"""fastbert itself, as a contender."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fastbert.tokenizers import WordPieceTokenizer


class Tokenizer:
    """`WordPieceTokenizer`: `encode_ragged` for ids, the ordinary call for padded arrays."""

    dtype = "int32"

    def __init__(self, vocab: Path, *, lower_case: bool, threads: int) -> None:
        self.tokenizer = WordPieceTokenizer(vocab, do_lower_case=lower_case)
        self.threads = threads

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return self.tokenizer.encode_ragged(texts, True, threads=self.threads)

    def rows(self, encoded: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return encoded

    def encode_padded(self, texts: Sequence[str], length: int) -> dict[str, np.ndarray]:
        with usable_cpus(self.threads):
            encoding = self.tokenizer(
                texts, padding="max_length", truncation=True, max_length=length, return_tensors="np"
            )
        return {name: encoding[name] for name in ("input_ids", "token_type_ids", "attention_mask")}

    def encode_aligned(self, texts: Sequence[str]) -> Any:
        """Ids, begins and ends in characters, words and row offsets."""
        aligned: Any = self.tokenizer
        return aligned.encode_aligned_ragged(texts, threads=self.threads)

    def forget(self) -> None:
        """Each object has caches of its own."""


@contextmanager
def usable_cpus(count: int) -> Iterator[None]:
    """So many CPUs for this thread, the one that it runs on among them: the ordinary call uses all that it may."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    current = ctypes.CDLL(None).sched_getcpu()
    others = sorted(before - {current})
    os.sched_setaffinity(0, {current, *others[: count - 1]} if current in before else others[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
