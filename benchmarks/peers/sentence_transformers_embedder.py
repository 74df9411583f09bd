"""sentence-transformers' `encode`, with its own model or with the encoder exported to a different runtime.

Its ONNX and OpenVINO backends need packages that require an older transformers than the other contenders, so their
steps are reproduced here: the same export, the same tokenizer, texts sorted by length, padded batches, the mean of real
tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from fastbert.benchmarks.peers import Arrays, texts_of

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Embedder:
    """`SentenceTransformer.encode` with a batch size."""

    def __init__(self, folder: Path, *, dtype: str, batch: int, threads: int, scratch: Path) -> None:
        torch.set_num_threads(threads)
        options = {"dtype": DTYPES[dtype]}
        self.model: SentenceTransformer = SentenceTransformer(str(folder), device="cpu", model_kwargs=options)
        self.batch = batch

    def open(self, arrays: Arrays) -> dict[str, Any]:
        self.texts: list[str] = texts_of(arrays)
        return {"batch": self.batch}

    def run(self) -> Any:
        return self.model.encode(self.texts, batch_size=self.batch, show_progress_bar=False, convert_to_tensor=True)

    def values(self, result: Any) -> np.ndarray:
        vectors: np.ndarray = result.float().numpy()
        return vectors


class Exported(Embedder):
    """The same pipeline around an encoder in a different runtime."""

    def __init__(self, folder: Path, *, dtype: str, batch: int, threads: int, scratch: Path) -> None:
        super().__init__(folder, dtype="fp32", batch=batch, threads=threads, scratch=scratch)
        self.tokenizer: Any = self.model.tokenizer
        self.longest: int | None = self.model.max_seq_length
        self.dtype = dtype
        self.threads = threads
        self.scratch = scratch
        self.folder = folder
        self.prepare()

    def prepare(self) -> None:
        """Export and load the encoder."""
        raise NotImplementedError

    def hidden(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Return last hidden states fp32 (texts, length, width) of `input_ids` and `attention_mask`."""
        raise NotImplementedError

    def run(self) -> Any:
        order = np.argsort([-len(text) for text in self.texts], kind="stable")
        batches: list[np.ndarray] = []
        for first in range(0, len(order), self.batch):
            texts = [self.texts[i] for i in order[first : first + self.batch]]
            encoded = self.tokenizer(texts, padding=True, truncation=True, max_length=self.longest, return_tensors="np")
            inputs = {name: encoded[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
            mask = inputs["attention_mask"][:, :, None].astype(np.float32)
            mean = (self.hidden(inputs) * mask).sum(axis=1) / mask.sum(axis=1)
            batches.append(mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12))
        vectors = np.concatenate(batches)
        result = np.empty_like(vectors)
        result[order] = vectors
        return torch.from_numpy(result)


class OnnxRuntime(Exported):
    """ONNX Runtime with fused layers, int8 quantised dynamically."""

    def prepare(self) -> None:
        from fastbert.benchmarks.peers.onnxruntime_encoder import Encoder

        encoder = Encoder(self.folder, dtype=self.dtype, threads=self.threads, scratch=self.scratch)
        self.session: Any = encoder.session

    def hidden(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        states: np.ndarray = self.session.run(None, inputs)[0]
        return states


class OpenVino(Exported):
    """OpenVINO, compiled once for all shapes."""

    def prepare(self) -> None:
        import openvino

        from fastbert.benchmarks.peers.openvino_encoder import HINTS
        from fastbert.benchmarks.peers.transformers_encoder import load

        example = {name: torch.ones(2, 16, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
        model = openvino.convert_model(load(self.folder, "sdpa"), example_input=example)
        options = {
            "INFERENCE_PRECISION_HINT": HINTS[self.dtype],
            "INFERENCE_NUM_THREADS": self.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_HYPER_THREADING": True,
        }
        self.request: Any = openvino.Core().compile_model(model, "CPU", options).create_infer_request()

    def hidden(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        return np.asarray(self.request.infer(inputs, share_inputs=True)[0])
