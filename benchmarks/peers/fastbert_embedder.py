"""fastbert's embeddings as a contender: `model.embed` of a list of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastbert.benchmarks.peers import Arrays, texts_of
from fastbert.embeddings.folder import load_embedder
from fastbert.tokenizers.tokenizer import Tokenizer


class Embedder:
    """A folder's model in fp32 or bf16; int8 is the bf16 model quantised."""

    def __init__(self, folder: Path, *, dtype: str, threads: int, scratch: Path) -> None:
        torch.set_num_threads(threads)
        self.tokenizer: Tokenizer
        model, self.tokenizer, _ = load_embedder(folder, dtype=torch.float32 if dtype == "fp32" else torch.bfloat16)
        self.model: Any = model.quantize("int8" if dtype == "int8" else None)

    def open(self, arrays: Arrays) -> dict[str, Any]:
        self.texts: list[str] = texts_of(arrays)
        return {}

    def run(self) -> Any:
        return self.model.embed(self.texts, self.tokenizer)

    def values(self, result: Any) -> np.ndarray:
        vectors: np.ndarray = result.numpy()
        return vectors
