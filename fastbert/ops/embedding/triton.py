"""`embedding_layer_norm` by the Triton kernels, which are imported when they first run."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fastbert.kernels.configs.embedding import WIDEST
from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.ops.dropout.triton import kernel_inputs
from fastbert.ops.embedding.arguments import EmbeddingArguments
from fastbert.ops.operation import Reason
from fastbert.ops.triton_backend import DTYPES, TritonBackend, unsupported_dtype

MAX_TABLES = 4


class Triton(TritonBackend[EmbeddingArguments]):
    """Up to 4 tables of one dtype, bf16, fp16 or fp32; sum and statistics in fp32."""

    def supports(self, arguments: EmbeddingArguments) -> Reason | None:
        """Support half precision and fp32 up to WIDEST columns on GPUs, and in Triton's interpreter."""
        tables, weight, bias = arguments.tables, arguments.weight, arguments.bias
        self.require_device(tables[0].device, "tables[0]")
        dtypes, width = sorted({str(table.dtype) for table in tables}), tables[0].shape[1]
        if len(dtypes) > 1:
            return Reason(f"tables have dtypes {' and '.join(dtypes)}, not one for all")
        if weight.dtype not in DTYPES or bias.dtype != weight.dtype:
            dtypes = [str(weight.dtype), str(bias.dtype)]
            return Reason(
                f"weight and bias have dtypes {' and '.join(dtypes)}, not bfloat16, float16 or float32 for both"
            )
        if not 1 <= width <= WIDEST:
            return Reason(f"the tables' rows have {width} columns, not 1 to {WIDEST}")
        if len(tables) > MAX_TABLES:
            return Reason(f"there are {len(tables)} tables, more than {MAX_TABLES}")
        return unsupported_dtype("tables[0]", tables[0])

    def forward_rows(self, arguments: EmbeddingArguments, save: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the result (tokens, width), and mean and rstd fp32 (tokens,), which are empty without `save`."""
        from fastbert.kernels.embedding import layer_norm as kernels

        ids, tables, weight, bias, eps, dtype, dropout = arguments
        return kernels.forward(list(ids), list(tables), weight, bias, eps, dtype, kernel_inputs(dropout), save)

    def backward(
        self,
        grad: Tensor,
        ids: Sequence[Tensor],
        tables: Sequence[Tensor],
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor,
        dropout: TokenDropout | None,
        needs_gradient: Sequence[bool],
    ) -> list[Tensor]:
        """Return the gradients of tables, empty where not needed, and of weight and bias in the dtype of weight."""
        from fastbert.kernels.embedding import layer_norm as kernels

        inputs = kernel_inputs(dropout)
        # One pass computes the gradients of all tables.
        dtables, dweight, dbias = kernels.backward(grad, list(ids), list(tables), mean, rstd, weight, inputs)
        needed = (x if needs else x.new_empty(0) for x, needs in zip(dtables, needs_gradient, strict=True))
        return [*needed, dweight, dbias]
