"""flash-tokenizer: WordPiece in C++ over an Aho-Corasick trie."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import flash_tokenizer
import numpy as np

UNLIMITED = 1 << 30  # its max_length truncates even without padding


class Tokenizer:
    """`batch_encode` of its core, which omits the masks that its Python call adds as lists."""

    dtype = "list"

    def __init__(self, vocab: Path, *, lower_case: bool, threads: int) -> None:
        self.tokenizer: Any = flash_tokenizer.BertTokenizerFlash(str(vocab), do_lower_case=lower_case)
        self.parallel: bool = threads > 1

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer.tokenizer.batch_encode(texts, "do_not_pad", UNLIMITED, self.parallel)

    def rows(self, encoded: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        offsets = np.fromiter(accumulate(map(len, encoded), initial=0), np.int64)
        return np.fromiter(chain.from_iterable(encoded), np.int64, offsets[-1]), offsets

    def encode_padded(self, texts: Sequence[str], length: int) -> dict[str, np.ndarray]:
        encoding = self.tokenizer(
            list(texts),
            padding="max_length",
            max_length=length,
            return_tensors="np",
            do_multiprocess=self.parallel,
        )
        # Its masks are int32; models take int64.
        masks = {name: np.asarray(encoding[name], np.int64) for name in ("token_type_ids", "attention_mask")}
        return {"input_ids": np.asarray(encoding["input_ids"], np.int64), **masks}

    def forget(self) -> None:
        """Do nothing: it has no caches."""
