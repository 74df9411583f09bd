"""fastembed's `TextEmbedding` with a local export of the same weights, registered as a custom model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

from fastbert.benchmarks.peers import Arrays, texts_of
from fastbert.benchmarks.peers.onnx_folder_names import FOLDER, MODEL

NAME = "local/model"


class Embedder:
    """`embed` with a batch size, the mean of real tokens, normalised; 256 is its default size."""

    def __init__(self, folder: Path, *, dtype: str, batch: int, threads: int, scratch: Path) -> None:
        local = scratch / FOLDER
        width = json.loads((local / "config.json").read_text(encoding="utf-8"))["hidden_size"]
        # The source is never read: the folder is named below.
        source = ModelSource(hf=NAME)
        TextEmbedding.add_custom_model(
            NAME, pooling=PoolingType.MEAN, normalization=True, sources=source, dim=width, model_file=MODEL
        )
        self.model: Any = TextEmbedding(NAME, threads=threads, specific_model_path=str(local))
        self.batch = batch

    def open(self, arrays: Arrays) -> dict[str, Any]:
        self.texts: list[str] = texts_of(arrays)
        return {"batch": self.batch}

    def run(self) -> Any:
        return list(self.model.embed(self.texts, batch_size=self.batch))

    def values(self, result: Any) -> np.ndarray:
        return np.asarray(result, np.float32)
