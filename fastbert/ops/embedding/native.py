"""`embedding_layer_norm` by the row-wise C++ kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastbert import _C
from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.ops.embedding.arguments import EmbeddingArguments
from fastbert.ops.embedding.ids import refuse_id
from fastbert.ops.native import buffers, rowwise
from fastbert.ops.native.caching_allocator import empty
from fastbert.ops.operation import NativeBackend, Reason


class Native(NativeBackend[EmbeddingArguments]):
    """Any number of tables, all bf16 or all fp32; sum and statistics in fp32."""

    def supports(self, arguments: EmbeddingArguments) -> Reason | None:
        """Support tables of one dtype, bf16 or fp32, outside of compilers, tracers and transforms."""
        tables = arguments.tables
        if any(table.dtype != tables[0].dtype for table in tables):
            return Reason("the tables differ in dtype")
        if any(table.stride(1) != 1 and table.shape[1] > 1 for table in tables):
            return Reason("the elements of a table's row are not contiguous")
        if arguments.dtype not in buffers.DTYPES:
            return Reason(f"autocast asks for {arguments.dtype}")
        return rowwise.unsupported(*tables, arguments.weight, arguments.bias)

    def forward(self, arguments: EmbeddingArguments) -> Tensor:
        """Return the result (tokens, width), contiguous."""
        return self.forward_rows(arguments, False)[0]

    def forward_rows(self, arguments: EmbeddingArguments, save: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the result, and mean and rstd fp32 (tokens,), which are empty without `save`.

        Raises UserError for an id outside its table.
        """
        ids, tables, weight, bias, eps, dtype, token_dropout = arguments
        tokens, width = ids[0].shape[0], tables[0].shape[1]
        y, (mean, rstd) = empty((tokens, width), dtype), rowwise.empty_statistics(tokens, save)
        weight, shift, _, vector_dtype = rowwise.as_vectors(weight, bias)
        dropout, _tensors = rowwise.dropout_arguments(token_dropout, tokens)
        element, out_element = buffers.DTYPES[tables[0].dtype], buffers.DTYPES[dtype]
        invalid = _C.embedding_layer_norm(
            tokens, width, element, out_element, _table_values(ids, tables), weight.data_ptr(),
            buffers.address("bias", shift), vector_dtype, eps, dropout, y.data_ptr(), mean.data_ptr(), rstd.data_ptr(),
        )  # fmt: skip
        if invalid is not None:
            table, position, index = invalid
            refuse_id(index, position, table, tables)
        return y, mean, rstd

    def backward(
        self,
        grad: Tensor,
        ids: Sequence[Tensor],
        tables: Sequence[Tensor],
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor,
        token_dropout: TokenDropout | None,
        needs_gradient: Sequence[bool],
    ) -> list[Tensor]:
        """Return the gradients of the tables, dense and in their dtype, of weight and of bias, in that of weight.

        grad (tokens, width), fp32 or bf16. The gradient of a token's sum of embeddings is fp32, and every row of a
        table is written once. Gradients that are not needed have no elements.
        """
        width, tokens = tables[0].shape[1], ids[0].shape[0]
        grad, _, grad_stride = rowwise.as_rows(grad)
        dsum, sums = empty((tokens, width), torch.float32), empty((2, width), torch.float32)
        buffers.address("weight", weight)
        mean, rstd, weight = mean.contiguous(), rstd.contiguous(), weight.contiguous()
        dropout, _tensors = rowwise.dropout_arguments(token_dropout, tokens)
        table_values = _table_values(ids, tables)
        _C.embedding_layer_norm_backward(
            tokens, width, buffers.DTYPES[tables[0].dtype], buffers.DTYPES[grad.dtype], table_values, grad.data_ptr(),
            grad_stride, mean.data_ptr(), rstd.data_ptr(), weight.data_ptr(), buffers.DTYPES[weight.dtype], dropout,
            dsum.data_ptr(), sums.data_ptr(),
        )  # fmt: skip
        gradients = []
        for index, table, needed in zip(ids, tables, needs_gradient, strict=True):
            gradient = empty(table.shape if needed else (0,), table.dtype)
            gradients.append(gradient)
            if needed:
                _C.embedding_backward(
                    tokens, width, buffers.DTYPES[table.dtype], dsum.data_ptr(), index.data_ptr(), index.stride(0),
                    index.dtype == torch.int64, table.shape[0], gradient.data_ptr(),
                )  # fmt: skip
        # Copies, because the results of an operator must not share memory.
        return [*gradients, *(row.to(weight.dtype, copy=True) for row in sums)]


def _table_values(ids: Sequence[Tensor], tables: Sequence[Tensor]) -> list[tuple[int, int, bool, int, int, int]]:
    """Return tables and the ids of their rows as kernels receive them."""
    return [
        (
            index.data_ptr(), index.stride(0), index.dtype == torch.int64,
            table.data_ptr(), table.stride(0), table.shape[0],
        )
        for index, table in zip(ids, tables)
    ]  # fmt: skip
