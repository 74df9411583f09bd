"""Hugging Face: tokenizers for ids, transformers for padded arrays; the reference for both."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from fastbert.benchmarks.peers import thread_environment


class Tokenizer:
    """`encode_batch_fast` for ids (objects; their conversion to lists is not timed), `BertTokenizerFast` for padded."""

    dtype = "list"

    def __init__(self, vocab: Path, *, lower_case: bool, threads: int) -> None:
        self.tokenizer: Any = transformers.BertTokenizerFast(vocab=str(vocab), do_lower_case=lower_case)
        self.threads = threads

    def encode(self, texts: Sequence[str]) -> list[Any]:
        self._set_threads()
        backend = self.tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        return backend.encode_batch_fast(texts)

    def rows(self, encoded: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        rows = [row.ids for row in encoded]
        offsets = np.fromiter(accumulate(map(len, rows), initial=0), np.int64)
        return np.fromiter(chain.from_iterable(rows), np.int64, offsets[-1]), offsets

    def encode_padded(self, texts: Sequence[str], length: int) -> dict[str, np.ndarray]:
        self._set_threads()
        options: dict[str, Any] = {"padding": "max_length", "truncation": True, "max_length": length}
        return dict(self.tokenizer(texts, **options, return_tensors="np"))

    def forget(self) -> None:
        """Do nothing: its WordPiece model has no cache."""

    def _set_threads(self) -> None:
        # Read at each call, and shared by all objects of a process.
        os.environ["TOKENIZERS_PARALLELISM"] = thread_environment(self.threads)["TOKENIZERS_PARALLELISM"]
