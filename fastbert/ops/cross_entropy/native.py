"""`linear_cross_entropy` by C++ kernels: logits of a chunk of rows, over which their gradients are written."""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert import _C
from fastbert.ops.autocast import matmul_dtype
from fastbert.ops.cross_entropy.arguments import CrossEntropyArguments
from fastbert.ops.linear.arguments import GradMask
from fastbert.ops.native import buffers, caching_allocator, matmul, matmul_table, prepacked_weights
from fastbert.ops.operation import NativeBackend, Reason

# The logits of a chunk of rows: smaller chunks would write the weight's gradient more often.
LOGITS_BYTES = 64 << 20
MIN_ROWS = 128


class Native(NativeBackend[CrossEntropyArguments]):
    """bf16 and fp32 on CPUs; the gradients are computed with the loss."""

    summary = "inference and training in fp32 and bf16, where the table of matmuls prefers it"

    def supports(self, arguments: CrossEntropyArguments) -> Reason | None:
        """Support calls outside of compilers and transforms where the table of matmuls prefers the native one."""
        x, weight, bias, _, _ = arguments
        if torch.compiler.is_compiling() or buffers.is_transformed():
            return Reason("torch traces or transforms the call")
        reason, dtype = buffers.unsupported(x, weight, bias), matmul_dtype(x)
        if reason is None and dtype not in buffers.DTYPES:
            return Reason(f"autocast multiplies {dtype}, not bfloat16 or float32")
        if reason is None and not matmul_table.prefers_native(buffers.DTYPES[dtype], x.shape[0], *weight.shape):
            return Reason("the table of matmuls prefers PyTorch's")
        return reason

    def forward(
        self, arguments: CrossEntropyArguments, mask: GradMask
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return loss_sum, count, correct, and the gradients of loss_sum by x (in its dtype), weight and bias (fp32).

        x is bf16 or fp32, the dtype of the matmuls; weight and bias may be either. Masked gradients are empty. Raises
        UserError for a label that is neither in the vocabulary nor `ignore_index`.
        """
        arguments.check_labels()
        x, weight, bias, labels, options = arguments
        x, labels = x.contiguous(), labels.contiguous()
        rows, element = len(x), buffers.DTYPES[x.dtype]
        losses = torch.zeros(rows, dtype=torch.float32, device="cpu")
        correct = torch.zeros(rows, dtype=torch.uint8, device="cpu")
        dx = caching_allocator.empty(x.shape if mask.x else (0,), x.dtype)
        dweight = caching_allocator.empty(weight.shape if mask.weight else (0,), torch.float32)
        dbias = torch.zeros(len(weight) if mask.bias else 0, dtype=torch.float32, device="cpu")
        if not rows and mask.weight:
            dweight.zero_()
        prepacked = prepacked_weights.prepacked(weight, element)
        chunk = max(MIN_ROWS, LOGITS_BYTES // max(1, len(weight) * x.element_size()))
        for first in range(0, rows, chunk):
            part = slice(first, min(rows, first + chunk))
            logits = caching_allocator.empty((part.stop - first, len(weight)), x.dtype)
            matmul.matmul(x[part], prepacked, bias, out=logits)
            _C.cross_entropy(
                (logits.data_ptr(), element, len(weight)), len(logits), len(weight), labels[part].data_ptr(), *options,
                any(mask), losses[part].data_ptr(), correct[part].data_ptr(),
            )  # fmt: skip
            if mask.x:
                transposed = prepacked_weights.prepacked(weight, element, transposed=True)
                matmul.matmul(logits, transposed, out=dx[part])
            sums = None
            if mask.weight:
                sums = matmul.weight_gradient(logits, x[part], sums=mask.bias, out=dweight, accumulate=first > 0)[1]
            if mask.bias:
                dbias += logits.sum(0, dtype=torch.float32) if sums is None else sums
        count = (labels != options.ignore_index).sum()
        return losses.sum(dtype=torch.float64).float(), count, correct.sum(), dx, dweight, dbias

    def backward(self, grad: Tensor, gradients: tuple[Tensor, ...], dtypes: tuple[torch.dtype, ...]) -> list[Tensor]:
        """Return the gradients of forward times grad, an fp32 scalar, in `dtypes`."""
        return [(gradient * grad).to(dtype) for gradient, dtype in zip(gradients, dtypes, strict=True)]
