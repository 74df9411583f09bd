"""`dropout` by the row-wise C++ kernels, or by masks of the C++ generator."""

from __future__ import annotations

from torch import Tensor

from fastbert import _C
from fastbert.ops.dropout.arguments import DropoutArguments
from fastbert.ops.native import rowwise
from fastbert.ops.native.buffers import DTYPES
from fastbert.ops.native.caching_allocator import empty
from fastbert.ops.operation import NativeBackend, Reason


class Native(NativeBackend[DropoutArguments]):
    """bf16 and fp32 in one pass; in other calls PyTorch multiplies with a mask that the C++ generator writes."""

    composes_others = True

    def supports(self, arguments: DropoutArguments) -> Reason | None:
        """Support bf16 and fp32 outside of compilers, tracers and transforms."""
        return rowwise.unsupported(arguments.x)

    def forward(self, arguments: DropoutArguments) -> Tensor:
        """Return x with elements dropped and the others scaled, contiguous, shape and dtype of x."""
        x, rows, stride = rowwise.as_rows(arguments.x)
        y = empty(x.shape, x.dtype)
        dropout, _tensors = rowwise.dropout_arguments(arguments.dropout, rows)
        if dropout is not None:
            _C.dropout(rows, x.shape[1], DTYPES[x.dtype], x.data_ptr(), stride, dropout, y.data_ptr())
        return y
