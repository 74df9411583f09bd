"""`embedding_layer_norm` by the row-wise C++ kernels."""

from __future__ import annotations

from torch import Tensor

from fastbert.ops.embedding.arguments import EmbeddingArguments
from fastbert.ops.native import rowwise, rowwise_gradients
from fastbert.ops.native.backend import NativeBackend
from fastbert.ops.native.buffers import DTYPES
from fastbert.ops.native.rowwise_tensors import unsupported_rows
from fastbert.ops.operation import Reason


class Native(NativeBackend[EmbeddingArguments]):
    """Any number of tables, all bf16 or all fp32; sum and statistics in fp32."""

    backward = staticmethod(rowwise_gradients.embedding_gradients)

    def supports(self, arguments: EmbeddingArguments) -> Reason | None:
        """Support tables of one dtype, bf16 or fp32, outside of compilers, tracers and transforms."""
        tables = arguments.tables
        if any(table.dtype != tables[0].dtype for table in tables):
            return Reason("the tables differ in dtype")
        if any(table.stride(1) != 1 and table.shape[1] > 1 for table in tables):
            return Reason("the elements of a table's row are not contiguous")
        if arguments.dtype not in DTYPES:
            return Reason(f"autocast asks for {arguments.dtype}")
        return unsupported_rows(*tables, arguments.weight, arguments.bias)

    def forward(self, arguments: EmbeddingArguments) -> Tensor:
        """Return the result (tokens, width), contiguous."""
        return self.forward_rows(arguments, False)[0]

    def forward_rows(self, arguments: EmbeddingArguments, save: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the result, and mean and rstd fp32 (tokens,), which are empty without `save`."""
        return rowwise.embedding_forward(*arguments, save)
