"""The input of the encoder: the embeddings of a token's ids, their sum, LayerNorm and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fastbert.ops import custom_op, dispatch
from fastbert.ops.autocast import is_autocast_enabled
from fastbert.ops.dropout.arguments import FlatDropout, TokenDropout, flatten
from fastbert.ops.embedding import eager, native, triton
from fastbert.ops.embedding.arguments import EmbeddingArguments, check_counts
from fastbert.ops.embedding.ids import check_ids
from fastbert.ops.kernel_failures import retried
from fastbert.ops.operation import Operation

EMBEDDING_LAYER_NORM = Operation("embedding_layer_norm", eager.Eager(), native.Native(), triton.Triton())


@retried
def embedding_layer_norm(
    ids: Sequence[Tensor],
    tables: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor,
    eps: float = 1e-12,
    token_dropout: TokenDropout | None = None,
) -> Tensor:
    """Compute dropout(LayerNorm(token + position + segment embedding)) (Devlin et al. 2019, figure 2), for any tables.

    ids: for each table int64 or int32 (tokens,), of any stride: token, position and segment ids; tables: their
    embeddings (rows, width) of one floating dtype; weight and bias (width,). The sum and the statistics are fp32; the
    result (tokens, width) has autocast's dtype where autocast is enabled, else that of the tables, to which PyTorch
    also rounds the sum. Gradients have the dtypes of tables, weight and bias and are dense: every row of a table is
    written, and none is skipped as padding.

    An id outside its table is an error on a CPU: a UserError of the native backend that names the table, the id, its
    position and the table's rows, or PyTorch's IndexError. On a GPU there is no host-device sync: on the triton backend
    the token's row is NaN, which makes the loss NaN, and the token adds nothing to the gradient of any table. With
    FASTBERT_DEBUG=1 in the environment ids are checked first, on every device and backend, with a sync, and raise that
    UserError.

    The `triton` backend supports up to 4 tables of bf16, fp16 or fp32 and of at most 8192 columns. Its backward reads
    the tables again, so they must not change before it, and sums their gradients in fp32, in an order that is the same
    on every run. So does that of the `native` backend, which supports any number of tables, all bf16 or all fp32.
    Raises UserError, a ValueError, that names the wrong argument.

    Example:
        >>> import torch
        >>> from fastbert import ops
        >>> tokens, positions = torch.randn(100, 16), torch.randn(8, 16)  # tables
        >>> ids = torch.tensor([5, 7, 9]), torch.tensor([0, 1, 2])
        >>> ops.embedding_layer_norm(ids, (tokens, positions), torch.ones(16), torch.zeros(16)).shape
        torch.Size([3, 16])
    """
    ids, tables = tuple(ids), tuple(tables)
    check_counts(ids, tables)
    if token_dropout is not None and token_dropout.p == 0.0:
        token_dropout = None
    device, dtype = tables[0].device, tables[0].dtype
    if is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device.type)
    arguments = EmbeddingArguments(ids, tables, weight, bias, eps, dtype, token_dropout)
    backend, direct, _ = dispatch.choose(EMBEDDING_LAYER_NORM, arguments, *tables, weight, bias)
    check_ids(ids, tables)
    if direct:
        return backend.forward(arguments)
    dropout = flatten(token_dropout)
    return _forward(list(ids), list(tables), weight, bias, eps, dtype, *dropout, backend.name)[0]


@custom_op.operator("fastbert::embedding_layer_norm")
def _forward(
    ids: Sequence[Tensor],
    tables: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor,
    eps: float,
    dtype: torch.dtype,
    dropout: FlatDropout,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result in `dtype`, and mean and rstd fp32 (tokens,); `key` is None where nothing is dropped."""
    arguments = EmbeddingArguments(tuple(ids), tuple(tables), weight, bias, eps, dtype, dropout.rebuild())
    return EMBEDDING_LAYER_NORM.backend(backend).forward_rows(arguments, True)


@_forward.register_fake
def _(
    ids: Sequence[Tensor], tables: Sequence[Tensor], weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype,
    *others: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    tokens, width = ids[0].shape[0], tables[0].shape[1]
    statistic = tables[0].new_empty(tokens, dtype=torch.float32)
    return tables[0].new_empty(tokens, width, dtype=dtype), statistic, torch.empty_like(statistic)


@custom_op.operator("fastbert::embedding_layer_norm_backward")
def _backward(
    grad: Tensor,
    ids: Sequence[Tensor],
    tables: Sequence[Tensor],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    dropout: FlatDropout,
    wanted: Sequence[bool],
    backend: str,
) -> list[Tensor]:
    """Return the gradients of the tables, empty where not `wanted`, of weight and of bias."""
    return EMBEDDING_LAYER_NORM.backend(backend).backward(
        grad, ids, tables, mean, rstd, weight, dropout.rebuild(), wanted
    )


@_backward.register_fake
def _(
    grad: Tensor, ids: Sequence[Tensor], tables: Sequence[Tensor], mean: Tensor, rstd: Tensor, weight: Tensor,
    dropout: FlatDropout, wanted: Sequence[bool], backend: str,
) -> list[Tensor]:  # fmt: skip
    dtables = [table.new_empty(table.shape if needed else 0) for table, needed in zip(tables, wanted, strict=True)]
    return [*dtables, weight.new_empty(weight.shape), weight.new_empty(weight.shape)]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ids, tables, weight, _, _, _, *dropout, backend = inputs
    custom_op.save(ctx, *ids, *tables, *output[1:], weight, *dropout, backend)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


@_forward.register_autograd(setup_context=_setup_context)
def _(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    needs_gradient = list(ctx.needs_input_grad[1])
    none = [None] * len(needs_gradient)
    if grad is None:
        return none, none, *[None] * 10
    *ids_and_tables, mean, rstd, weight, p, key, sequence_ids, offsets, site, backend = custom_op.saved(ctx)
    ids, tables = ids_and_tables[: len(none)], ids_and_tables[len(none) :]
    *gradients, dweight, dbias = _backward(
        grad, ids, tables, mean, rstd, weight, p, key, sequence_ids, offsets, site, needs_gradient, backend
    )
    dtables = [gradient if needed else None for gradient, needed in zip(gradients, needs_gradient, strict=True)]
    return none, dtables, dweight, dbias, *[None] * 8
