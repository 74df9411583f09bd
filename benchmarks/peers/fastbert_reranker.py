"""fastbert's cross-encoders as a contender: `CrossEncoder.predict` of a query and a list of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fastbert import CrossEncoder
from fastbert.benchmarks.peers import Arrays, texts_of


class Reranker:
    """A folder's model in fp32 or bf16; int8 is the bf16 model quantised."""

    def __init__(self, folder: Path, *, dtype: Literal["fp32", "bf16", "int8"], threads: int, scratch: Path) -> None:
        torch.set_num_threads(threads)
        self.model: CrossEncoder = CrossEncoder(folder, device="cpu", dtype=dtype)

    def open(self, arrays: Arrays) -> dict[str, Any]:
        query, *texts = texts_of(arrays)
        self.pairs: list[tuple[str, str]] = [(query, text) for text in texts]
        return {}

    def run(self) -> Any:
        return self.model.predict(self.pairs)

    def values(self, result: Any) -> np.ndarray:
        return centred(result.numpy())


def centred(scores: np.ndarray) -> np.ndarray:
    """Return scores (pairs,) as (1, pairs) minus their mean, so that their cosine is a correlation."""
    row: np.ndarray = (scores - scores.mean())[None].astype(np.float32)
    return row
