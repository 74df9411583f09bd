"""infinity-emb's engine in this process, without its server and its cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from fastbert.benchmarks.peers import Arrays, texts_of
from fastbert.benchmarks.peers.onnx_folder_names import FOLDER

os.environ |= {"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}

from infinity_emb import EngineArgs, SyncEngineArray
from infinity_emb.log_handler import logger

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
NAME = "model"


class Embedder:
    """Its PyTorch engine; batches are formed by length from all waiting texts."""

    def __init__(self, folder: Path, *, dtype: str, batch: int, threads: int, scratch: Path) -> None:
        self.batch = batch
        self.engine: Any = self.started(folder, DTYPES[dtype])

    def started(self, folder: Path, dtype: str, **options: Any) -> SyncEngineArray:
        """Return the engine of a folder, ready for texts. Its threads are those of the process's environment."""
        logger.setLevel("ERROR")
        settings: dict[str, Any] = {"engine": "torch", "dtype": dtype, **options}
        arguments = EngineArgs(
            model_name_or_path=str(folder),
            served_model_name=NAME,
            device="cpu",
            batch_size=self.batch,
            bettertransformer=False,
            compile=False,
            model_warmup=False,
            **settings,
        )
        return SyncEngineArray.from_args([arguments])

    def open(self, arrays: Arrays) -> dict[str, Any]:
        self.texts: list[str] = texts_of(arrays)
        return {"batch": self.batch}

    def run(self) -> Any:
        vectors, _ = self.engine.embed(model=NAME, sentences=self.texts).result()
        return vectors

    def values(self, result: Any) -> np.ndarray:
        return np.asarray(result, np.float32)


class OnnxRuntime(Embedder):
    """Its ONNX Runtime engine with the exported encoder, layers fused already."""

    def __init__(self, folder: Path, *, dtype: str, batch: int, threads: int, scratch: Path) -> None:
        self.batch = batch
        options = {"onnx_disable_optimize": True, "pooling_method": "mean"}
        self.engine: Any = self.started(scratch / FOLDER, "auto", engine="optimum", **options)
