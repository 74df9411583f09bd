"""The matmuls of an encoder alone: x weight^T + bias, fastbert's and torch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastbert.benchmarks.peers import Arrays

# Of inputs, biases, and weights before they are prepared; int8 matmuls quantise them themselves.
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.float32}


class Matmul:
    """A matmul whose weights rotate from call to call, as in a model's layers."""

    def __init__(self, folder: None, *, dtype: str, threads: int, scratch: Path) -> None:
        torch.set_num_threads(threads)
        self.dtype: torch.dtype = DTYPES[dtype]

    def open(self, arrays: Arrays) -> dict[str, Any]:
        self.bias: torch.Tensor
        x, weights, self.bias = (torch.from_numpy(arrays[name]).to(self.dtype) for name in ("x", "weight", "bias"))
        self.x: Tensor = x
        self.calls: int = 0
        with torch.no_grad():
            self.weights: list[Any] = [self.prepare(weight.clone()) for weight in weights]
        return {"weights": len(self.weights)}

    def run(self) -> Tensor:
        with torch.no_grad():
            weight = self.weights[self.calls % len(self.weights)]
            self.calls += 1
            return self.matmul(weight)

    def values(self, result: Tensor) -> np.ndarray:
        values: np.ndarray = result.float().numpy()
        return values

    def prepare(self, weight: Tensor) -> Any:
        """Convert a weight to the form that `matmul` reads."""
        return torch.nn.Parameter(weight, requires_grad=False)

    def matmul(self, weight: Any) -> Tensor:
        raise NotImplementedError


class FastbertMatmul(Matmul):
    """`fastbert.ops.linear`."""

    def matmul(self, weight: Any) -> Tensor:
        from fastbert import ops

        return ops.linear(self.x, weight, self.bias)


class FastbertInt8Matmul(Matmul):
    """fastbert's matmul of bf16 rows with a prepacked int8 weight, as a layer of an int8 model computes it: each row is
    quantised, the result is bf16."""

    def __init__(self, folder: None, *, dtype: str, threads: int, scratch: Path) -> None:
        from fastbert import cpu_capability

        super().__init__(folder, dtype=dtype, threads=threads, scratch=scratch)
        self.dtype: torch.dtype = torch.bfloat16
        cpu_capability.apply()

    def prepare(self, weight: Tensor) -> Any:
        from fastbert.ops.native.matmul import prepack

        return prepack(weight, "int8")

    def matmul(self, weight: Any) -> Tensor:
        from fastbert.ops.native.matmul import matmul

        return matmul(self.x, weight, self.bias)


class DynamicInt8Matmul(Matmul):
    """torch's dynamically quantised linear layer of an engine: fp32 rows are quantised with one scale, fp32 results."""

    def __init__(self, folder: None, *, dtype: str, engine: str, threads: int, scratch: Path) -> None:
        super().__init__(folder, dtype=dtype, threads=threads, scratch=scratch)
        if engine not in torch.backends.quantized.supported_engines:
            raise NotImplementedError(f"this build of torch has no engine {engine}")
        self.engine = engine

    def prepare(self, weight: Tensor) -> Any:
        torch.backends.quantized.engine = self.engine
        scales, zeros = weight.abs().amax(1) / 127, torch.zeros(len(weight), dtype=torch.int64)
        quantized = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(quantized, self.bias)

    def matmul(self, weight: Any) -> Tensor:
        # Inputs of 7 bits, the default of torch's layer: without VNNI, sums of 8 bits overflow.
        values: Tensor = torch.ops.quantized.linear_dynamic(self.x, weight, True)
        return values


class TorchMatmul(Matmul):
    """`torch.nn.functional.linear`."""

    def matmul(self, weight: Any) -> Tensor:
        return torch.nn.functional.linear(self.x, weight, self.bias)


class Prepacked(Matmul):
    """oneDNN with a prepacked weight: what inductor calls for frozen bf16 weights."""

    def prepare(self, weight: Tensor) -> Any:
        return torch.ops.mkldnn._reorder_linear_weight(weight, len(self.x))

    def matmul(self, weight: Any) -> Tensor:
        values: Tensor = torch.ops.mkldnn._linear_pointwise(self.x, weight, self.bias, "none", [], "")
        return values


class PrepackedMkl(Matmul):
    """MKL with a prepacked weight: what inductor calls for frozen fp32 weights."""

    def prepare(self, weight: Tensor) -> Any:
        if not torch.backends.mkl.is_available():
            raise NotImplementedError("this build of torch has no MKL")
        return torch.ops.mkl._mkl_reorder_linear_weight(weight, len(self.x)), weight

    def matmul(self, weight: Any) -> Tensor:
        packed, original = weight
        values: Tensor = torch.ops.mkl._mkl_linear(self.x, packed, original, self.bias, len(self.x))
        return values
