"""`linear_cross_entropy` by the Triton kernels, which are imported when they first run."""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert.ops.autocast import without_autocast
from fastbert.ops.cross_entropy.arguments import CrossEntropyArguments
from fastbert.ops.encoder_layer.flat_layer import in_dtype
from fastbert.ops.linear.arguments import GradMask
from fastbert.ops.operation import Reason
from fastbert.ops.triton_backend import TritonBackend, unsupported_dtype


class Triton(TritonBackend[CrossEntropyArguments]):
    """bf16, fp16 and fp32; the gradients are computed with the loss."""

    def supports(self, arguments: CrossEntropyArguments) -> Reason | None:
        """Support half precision and fp32 on GPUs, and in Triton's interpreter."""
        x, weight, bias, _, _ = arguments
        self.require_device(x.device, "x")
        return unsupported_dtype("x", x) or unsupported_dtype("weight", weight) or unsupported_dtype("bias", bias)

    def forward(
        self, arguments: CrossEntropyArguments, mask: GradMask
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return loss_sum, count, correct, and the gradients of loss_sum by x (in its dtype), weight and bias (fp32).

        Masked gradients are empty. A label that is neither in the vocabulary nor `ignore_index` makes the loss NaN.
        """
        from fastbert.kernels.loss import linear_cross_entropy as kernels

        x, weight, bias, labels, options = arguments
        weight = in_dtype(weight, x.dtype)
        with torch.no_grad(), without_autocast(x.device):
            return kernels.forward(kernels.LossInputs(x, weight, bias, labels.contiguous(), *options, *mask))

    def backward(self, grad: Tensor, gradients: tuple[Tensor, ...], dtypes: tuple[torch.dtype, ...]) -> list[Tensor]:
        """Return the gradients of forward times grad, an fp32 scalar, in `dtypes`."""
        from fastbert.kernels.loss import linear_cross_entropy as kernels

        return [kernels.scaled(gradient, grad, dtype) for gradient, dtype in zip(gradients, dtypes, strict=True)]
