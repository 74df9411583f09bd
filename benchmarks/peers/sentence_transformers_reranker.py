"""sentence-transformers' `CrossEncoder.predict`, and the same steps around a model in OpenVINO."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastbert.benchmarks.peers import Arrays, texts_of
from fastbert.benchmarks.peers.fastbert_reranker import centred
from fastbert.benchmarks.peers.sentence_transformers_embedder import DTYPES

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

CALIBRATION = 64
"""Pairs from which the ranges of int8 activations are taken."""


class Reranker:
    """`CrossEncoder.predict` with a batch size."""

    def __init__(self, folder: Path, *, dtype: str, batch: int, threads: int, scratch: Path) -> None:
        from sentence_transformers import CrossEncoder

        torch.set_num_threads(threads)
        options = {"dtype": DTYPES[dtype]}
        self.model: CrossEncoder = CrossEncoder(str(folder), device="cpu", model_kwargs=options)
        self.batch = batch

    def open(self, arrays: Arrays) -> dict[str, Any]:
        query, *texts = texts_of(arrays)
        self.pairs: list[tuple[str, str]] = [(query, text) for text in texts]
        return {"batch": self.batch}

    def run(self) -> Any:
        return self.model.predict(self.pairs, batch_size=self.batch, show_progress_bar=False)

    def values(self, result: Any) -> np.ndarray:
        return centred(np.asarray(result, np.float32))


class OpenVino(Reranker):
    """OpenVINO, compiled once for all shapes: texts sorted by length, padded batches. int8 quantises weights and
    activations with NNCF, calibrated on texts of the first workload."""

    def __init__(self, folder: Path, *, dtype: str, batch: int, threads: int, scratch: Path) -> None:
        super().__init__(folder, dtype="fp32", batch=batch, threads=threads, scratch=scratch)
        self.tokenizer: Any = self.model.tokenizer
        self.longest: int | None = self.model.max_seq_length
        self.folder = folder
        self.dtype = dtype
        self.threads = threads
        self.request: Any = None

    def open(self, arrays: Arrays) -> dict[str, Any]:
        details = super().open(arrays)
        if self.request is None:
            self.request = self._compiled().create_infer_request()
        return details

    def run(self) -> Any:
        order = np.argsort([-len(text) for _, text in self.pairs], kind="stable")
        scores = np.empty(len(order), np.float32)
        for first in range(0, len(order), self.batch):
            indices = order[first : first + self.batch]
            inputs = self._inputs([self.pairs[index] for index in indices])
            scores[indices] = np.asarray(self.request.infer(inputs, share_inputs=True)[0])[:, 0]
        return scores

    def _inputs(self, pairs: list[tuple[str, str]]) -> dict[str, np.ndarray]:
        encoded = self.tokenizer(pairs, padding=True, truncation=True, max_length=self.longest, return_tensors="np")
        return {name: encoded[name].astype(np.int64) for name in self.names if name in encoded}

    def _compiled(self) -> Any:
        import openvino
        from transformers import AutoModelForSequenceClassification

        model = AutoModelForSequenceClassification.from_pretrained(self.folder, attn_implementation="sdpa").eval()
        self.names: tuple[str, ...] = ("input_ids", "attention_mask", "token_type_ids")
        example = {name: torch.ones(2, 16, dtype=torch.int64) for name in self.names}
        converted = openvino.convert_model(model, example_input=example)
        if self.dtype == "int8":
            import nncf

            data = nncf.Dataset([self._inputs([pair]) for pair in self.pairs[:CALIBRATION]])
            converted = nncf.quantize(converted, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=CALIBRATION)
        options = {
            "INFERENCE_NUM_THREADS": self.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_HYPER_THREADING": True,  # else it uses fewer threads than requested on cores with two
        }
        if self.dtype == "fp32":
            options["INFERENCE_PRECISION_HINT"] = "f32"
        return openvino.Core().compile_model(converted, "CPU", options)
