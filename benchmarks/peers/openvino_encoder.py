"""OpenVINO: the transformers model converted, and compiled for the shape of each workload."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import torch

from fastbert.benchmarks.peers import Arrays
from fastbert.benchmarks.peers.padded_batches import padded, real_tokens
from fastbert.benchmarks.peers.transformers_encoder import load

HINTS = {"fp32": "f32", "bf16": "bf16"}
MATMULS = ("FullyConnected", "MatMul")


class Encoder:
    """A static shape, latency mode, all requested threads."""

    def __init__(self, folder: Path, *, dtype: str, threads: int, scratch: Path) -> None:
        self.folder = folder
        self.dtype = dtype
        self.threads = threads
        self.core: Any = openvino.Core()

    def open(self, arrays: Arrays) -> dict[str, Any]:
        self.arrays: dict[str, np.ndarray] = padded(arrays)
        shape = self.arrays["input_ids"].shape
        # Converted again: a static shape is folded into the model.
        model = self._converted()
        model.reshape({name: list(shape) for name in self.arrays})
        hint = HINTS[self.dtype]
        self.compiled: Any = self.core.compile_model(
            model,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": hint,
                "INFERENCE_NUM_THREADS": self.threads,
                "PERFORMANCE_HINT": "LATENCY",
                "ENABLE_HYPER_THREADING": True,  # else it uses fewer threads than requested on cores with two
            },
        )
        ran = self._precisions()
        if self.dtype == "bf16" and not ran["bf16"]:
            raise NotImplementedError("not available on this CPU: OpenVINO computes no matmul in bf16")
        self.request: Any = self.compiled.create_infer_request()
        details: dict[str, Any] = {"matmuls_computed_in": dict(ran)}
        if self.dtype == "bf16" and "BF16" not in self.core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            details["note"] = "bf16 emulated: it is not among this CPU's capabilities for OpenVINO"
        return details

    def run(self) -> Any:
        return self.request.infer(self.arrays, share_inputs=True, share_outputs=True)

    def values(self, result: Any) -> np.ndarray:
        return real_tokens(result[0], self.arrays["attention_mask"])

    def _converted(self) -> Any:
        example = {name: torch.ones(2, 16, dtype=torch.int64) for name in self.arrays}
        return openvino.convert_model(load(self.folder, "sdpa"), example_input=example)

    def _precisions(self) -> Counter[str]:
        """Count the matmuls of the compiled model by precision."""
        infos = [node.get_rt_info() for node in self.compiled.get_runtime_model().get_ops()]
        return Counter(str(_value(info["runtimePrecision"])) for info in infos if _value(info["layerType"]) in MATMULS)


def _value(info: Any) -> Any:
    return getattr(info, "value", info)
