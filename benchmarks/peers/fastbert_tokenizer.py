"""fastbert's tokenizer as a contender."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastbert.tokenizers import WordPieceTokenizer


class Tokenizer:
    """`WordPieceTokenizer`: `encode_ragged` for ids, the ordinary call for padded arrays."""

    dtype = "int32"

    def __init__(self, vocab: Path, *, lower_case: bool, threads: int) -> None:
        self.tokenizer: WordPieceTokenizer = WordPieceTokenizer(vocab, do_lower_case=lower_case)
        self.threads = threads

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return self.tokenizer.encode_ragged(texts, True, threads=self.threads)

    def rows(self, encoded: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return encoded

    def encode_padded(self, texts: Sequence[str], length: int) -> dict[str, np.ndarray]:
        encoding = self.tokenizer(
            texts,
            padding="max_length",
            truncation=True,
            max_length=length,
            return_tensors="np",
            threads=self.threads,
        )
        return {name: encoding[name] for name in ("input_ids", "token_type_ids", "attention_mask")}

    def encode_aligned(self, texts: Sequence[str]) -> Any:
        """Return ids, first and last characters, words and row offsets."""
        return self.tokenizer.encode_aligned_ragged(texts, threads=self.threads)

    def forget(self) -> None:
        """Do nothing: each object has its own caches."""
