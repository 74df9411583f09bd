"""nanotoken: WordPiece in Rust with caches per thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import nanotoken
import numpy as np


class Tokenizer:
    """`encode_batch` to flat ids and offsets; with one thread on the calling one."""

    dtype = "uint32"

    def __init__(self, vocab: Path, *, lower_case: bool, threads: int) -> None:
        self.tokenizer: nanotoken.Tokenizer = nanotoken.Tokenizer.from_vocab(vocab, lowercase=lower_case)
        self.parallel: bool = threads > 1

    def encode(self, texts: Sequence[str]) -> nanotoken.RaggedIds:
        return self.tokenizer.encode_batch(texts, parallel=self.parallel)

    def rows(self, encoded: nanotoken.RaggedIds) -> tuple[np.ndarray, np.ndarray]:
        return encoded.ids, encoded.offsets

    def encode_padded(self, texts: Sequence[str], length: int) -> dict[str, np.ndarray]:
        return self.tokenizer.encode_batch_padded(
            texts, padding="max_length", truncation=True, max_length=length, parallel=self.parallel
        )

    def forget(self) -> None:
        self.tokenizer.clear_cache()
