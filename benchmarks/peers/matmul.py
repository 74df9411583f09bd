"""The matmuls of an encoder alone: x weight^T + bias, fastbert's and torch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastbert.benchmarks.peers import Arrays

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Product:
    """A matmul whose weights rotate from call to call, as in a model's layers."""

    def __init__(self, folder: None, *, dtype: str, threads: int, scratch: Path) -> None:
        torch.set_num_threads(threads)
        self.dtype = DTYPES[dtype]

    def open(self, arrays: Arrays) -> dict[str, Any]:
        x, weights, self.bias = (torch.from_numpy(arrays[name]).to(self.dtype) for name in ("x", "weight", "bias"))
        self.x, self.calls = x, 0
        with torch.no_grad():
            self.weights = [self.packed(weight.clone()) for weight in weights]
        return {"weights": len(self.weights)}

    def run(self) -> Tensor:
        with torch.no_grad():
            weight = self.weights[self.calls % len(self.weights)]
            self.calls += 1
            return self.product(weight)

    def values(self, result: Tensor) -> np.ndarray:
        found: np.ndarray = result.float().numpy()
        return found

    def packed(self, weight: Tensor) -> Any:
        """Convert a weight to the form that `product` reads."""
        return torch.nn.Parameter(weight, requires_grad=False)

    def product(self, weight: Any) -> Tensor:
        raise NotImplementedError


class Own(Product):
    """`fastbert.ops.linear`."""

    def product(self, weight: Any) -> Tensor:
        from fastbert import ops

        return ops.linear(self.x, weight, self.bias)


class Plain(Product):
    """`torch.nn.functional.linear`."""

    def product(self, weight: Any) -> Tensor:
        return torch.nn.functional.linear(self.x, weight, self.bias)


class Prepacked(Product):
    """oneDNN with a prepacked weight: what inductor calls for frozen bf16 weights."""

    def packed(self, weight: Tensor) -> Any:
        return torch.ops.mkldnn._reorder_linear_weight(weight, len(self.x))

    def product(self, weight: Any) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(self.x, weight, self.bias, "none", [], "")
        return found


class PrepackedMkl(Product):
    """MKL with a prepacked weight: what inductor calls for frozen fp32 weights."""

    def packed(self, weight: Tensor) -> Any:
        if not torch.backends.mkl.is_available():
            raise NotImplementedError("this build of torch has no MKL")
        return torch.ops.mkl._mkl_reorder_linear_weight(weight, len(self.x)), weight

    def product(self, weight: Any) -> Tensor:
        packed, plain = weight
        found: Tensor = torch.ops.mkl._mkl_linear(self.x, packed, plain, self.bias, len(self.x))
        return found
