"""`gated_activation` by the Triton kernels, which are imported when they first run."""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert.ops.gated.arguments import GatedArguments
from fastbert.ops.operation import Reason
from fastbert.ops.triton_backend import TritonBackend, unsupported_dtype


class Triton(TritonBackend[GatedArguments]):
    """bf16, fp16 and fp32 with a bias in fp32 or in the dtype of x; fp32 arithmetic."""

    def supports(self, arguments: GatedArguments) -> Reason | None:
        """Support half precision and fp32 on GPUs, and in Triton's interpreter."""
        x, bias, _ = arguments
        self.require_device(x.device, "x")
        if bias is not None and bias.dtype not in (x.dtype, torch.float32):
            return Reason(f"bias has dtype {bias.dtype}, x {x.dtype}: a bias must be float32 or have x's dtype")
        return unsupported_dtype("x", x)

    def forward(self, arguments: GatedArguments) -> Tensor:
        """Return the product, contiguous (..., width) in the dtype of x."""
        from fastbert.kernels.gated import gated_activation as kernels

        return kernels.forward(*arguments)

    def backward(self, arguments: GatedArguments, grad: Tensor, sums: bool) -> tuple[Tensor, Tensor | None]:
        """Return the gradient of x and, with `sums`, its fp32 sums over all but the last axis."""
        from fastbert.kernels.gated import gated_activation as kernels

        return kernels.backward(grad, *arguments, sums)
