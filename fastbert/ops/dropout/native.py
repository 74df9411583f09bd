"""`dropout` by the row-wise C++ kernels, or by masks of the C++ generator."""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert.ops.dropout.arguments import DropoutArguments
from fastbert.ops.native import rowwise
from fastbert.ops.native.backend import NativeBackend
from fastbert.ops.native.rowwise_tensors import unsupported_rows


class Native(NativeBackend[DropoutArguments]):
    """Every call: where no kernel drops, PyTorch multiplies with a mask that the C++ generator writes."""

    def has_kernel(self, arguments: DropoutArguments) -> bool:
        """Return whether a kernel drops in one pass: bf16 and fp32 outside of compilers, tracers and transforms."""
        x = arguments.x
        return x.layout == torch.strided and unsupported_rows(x) is None

    def forward(self, arguments: DropoutArguments) -> Tensor:
        """Return x with elements dropped and the others scaled, contiguous, shape and dtype of x."""
        return rowwise.drop(*arguments)
