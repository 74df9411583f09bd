"""The input of the encoder: the embeddings of a token's ids, their sum, LayerNorm and dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import UserError
from fastbert.ops import dispatch
from fastbert.ops.custom_op import operator
from fastbert.ops.dropout.op import TokenDropout, check_token_dropout, dropout
from fastbert.ops.embedding.ids import check_ids
from fastbert.ops.native import rowwise
from fastbert.ops.native.rowwise_tensors import recorded, takes
from fastbert.ops.norm.op import layer_norm

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Of the triton backend: what a program holds of one row, and the tables that its kernels take.
_WIDEST, _MOST_TABLES = 8192, 4


def embedding_layer_norm(
    ids: Sequence[Tensor],
    tables: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor,
    eps: float = 1e-12,
    token_dropout: TokenDropout | None = None,
) -> Tensor:
    """dropout(LayerNorm(token + position + segment embedding)) (Devlin et al. 2019, figure 2), for any tables.

    ids: for each table int64 or int32 (tokens,), of any stride: token, position and segment ids; tables: their
    embeddings (rows, width) of one floating dtype; weight and bias (width,). The sum and the statistics are fp32; the
    result (tokens, width) has autocast's dtype where autocast is on, else that of the tables, in which the eager
    backend also rounds the sum. Gradients have the dtypes of tables, weight and bias and are dense: all rows of a table
    are written, and none is left out as padding.

    An id that is no row of its table is an error on a CPU: a UserError of the native backend that names the table, the
    id, its place and the table's rows, or eager torch's IndexError. On a GPU nothing asks the device: on the triton
    backend the token's row is NaN, so that a loss shows it, and the token adds nothing to any table's gradient. With
    FASTBERT_DEBUG=1 in the environment the ids are looked at first, on every device and backend, which waits for the
    device: the error is then that UserError.

    The `triton` backend serves up to 4 tables of fp32, bf16 or fp16 and of at most 8192 columns. Its backward reads the
    tables again, so they must not change before it, and sums their gradients in fp32, in an order that is the same on
    every run. So does that of the `native` backend, which serves any number of tables, all fp32 or all bf16. Raises
    UserError, a ValueError, that names the wrong argument.
    """
    ids, tables = tuple(ids), tuple(tables)
    if token_dropout is not None and token_dropout.p == 0.0:
        token_dropout = None
    _check(ids, tables, weight, bias, eps, token_dropout)
    check_ids(ids, tables)
    device = tables[0].device
    chosen = dispatch.choose("embedding_layer_norm", device)
    if chosen == "triton":
        chosen = _check_triton(tables, weight, bias)
    elif chosen == "native" and not rowwise.serves_tables(tables, weight, bias):
        chosen = "eager"
    if chosen == "eager" or (chosen == "native" and not recorded(*tables, weight, bias)):
        return dispatch.implementation("embedding_layer_norm", chosen)(ids, tables, weight, bias, eps, token_dropout)
    dispatch.refuse_forward_mode("embedding_layer_norm")
    autocast = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if autocast else tables[0].dtype
    draws = (0.0, None, None, None, 0) if token_dropout is None else _unpacked(token_dropout)
    y, _, _ = _forward(list(ids), list(tables), weight, bias, eps, dtype, *draws)
    return y


def _check(
    ids: tuple[Tensor, ...],
    tables: tuple[Tensor, ...],
    weight: Tensor,
    bias: Tensor,
    eps: float,
    token_dropout: TokenDropout | None,
) -> None:
    """Refuse what no backend can compute, by what the host knows: shapes, dtypes, devices, numbers."""
    if not tables or len(ids) != len(tables):
        raise UserError(f"{len(ids)} ids for {len(tables)} tables: there must be one for each table, and one table")
    width = tables[0].shape[-1] if tables[0].dim() else 0
    for i, (one, table) in enumerate(zip(ids, tables)):
        if one.dim() != 1 or one.shape != ids[0].shape or one.dtype not in (torch.int64, torch.int32):
            raise UserError(
                f"ids[{i}] must be int64 or int32 of shape ({ids[0].shape[0] if ids[0].dim() else 'tokens'},),"
                f" not {one.dtype} {tuple(one.shape)}"
            )
        if table.dim() != 2 or table.shape[1] != width or not table.dtype.is_floating_point:
            raise UserError(
                f"tables[{i}] must be floating of shape (rows, {width}), not {table.dtype} {tuple(table.shape)}"
            )
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor.shape != (width,) or not tensor.dtype.is_floating_point:
            raise UserError(
                f"{name} must be floating of shape ({width},), as wide as the tables' rows, not"
                f" {tensor.dtype} {tuple(tensor.shape)}"
            )
    if not 0.0 <= eps < math.inf:
        raise UserError(f"eps={eps} must be a finite number, at least 0")
    tensors = {f"ids[{i}]": one for i, one in enumerate(ids)}
    tensors |= {f"tables[{i}]": table for i, table in enumerate(tables)} | {"weight": weight, "bias": bias}
    for name, tensor in tensors.items():
        if tensor.device != tables[0].device:
            raise UserError(f"{name} is on {tensor.device}, tables[0] on {tables[0].device}: move them to one device")
    if token_dropout is not None:
        check_token_dropout(token_dropout, ids[0])


def _check_triton(tables: tuple[Tensor, ...], weight: Tensor, bias: Tensor) -> dispatch.BackendName:
    """The backend of a call for which the Triton kernels were chosen: eager where they do not serve its kind."""
    dispatch.require_triton(tables[0].device, "tables[0]")
    width, dtypes = tables[0].shape[1], sorted({str(table.dtype) for table in tables})
    reason = None
    if len(dtypes) > 1 or tables[0].dtype not in _DTYPES:
        reason = f"tables have dtype {' and '.join(dtypes)}: the triton backend serves one of {_names()} for all"
    elif weight.dtype not in _DTYPES or bias.dtype != weight.dtype:
        reason = f"weight and bias have dtypes {weight.dtype} and {bias.dtype}: the triton backend serves one of"
        reason += f" {_names()} for both"
    elif not 1 <= width <= _WIDEST:
        reason = f"the tables' rows have {width} columns: the triton backend serves 1 to {_WIDEST}"
    elif len(tables) > _MOST_TABLES:
        reason = f"there are {len(tables)} tables: the triton backend serves up to {_MOST_TABLES}"
    return "triton" if reason is None else dispatch.without_triton("embedding_layer_norm", reason)


def _names() -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)


def _embedding_layer_norm(
    ids: tuple[Tensor, ...],
    tables: tuple[Tensor, ...],
    weight: Tensor,
    bias: Tensor,
    eps: float,
    token_dropout: TokenDropout | None,
) -> Tensor:
    """The eager backend: torch's own operations, whose gradients torch knows."""
    device = tables[0].device
    summed = F.embedding(ids[0], tables[0])
    for index, table in zip(ids[1:], tables[1:]):
        summed = summed + F.embedding(index, table)
    normed = layer_norm(summed, weight, bias, eps)
    if torch.is_autocast_enabled(device.type):
        normed = normed.to(torch.get_autocast_dtype(device.type))
    return dropout(normed, token_dropout)


def _unpacked(token_dropout: TokenDropout) -> tuple[float, Tensor, Tensor, Tensor, int]:
    """Dropout as an operator of torch takes it."""
    d = token_dropout
    return d.p, d.key, d.sequence_ids, d.offsets, d.site


def _packed(
    p: float, key: Tensor | None, sequence_ids: Tensor | None, offsets: Tensor | None, site: int
) -> TokenDropout | None:
    if key is None or sequence_ids is None or offsets is None:
        return None
    return TokenDropout(p, key, sequence_ids, offsets, site)


@operator("fastbert::embedding_layer_norm")
def _forward(
    ids: Sequence[Tensor],
    tables: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor,
    eps: float,
    dtype: torch.dtype,
    p: float,
    key: Tensor | None,
    sequence_ids: Tensor | None,
    offsets: Tensor | None,
    site: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The result in `dtype`, and fp32 (tokens,) mean and 1 / deviation; `key` is None where nothing is dropped."""
    token_dropout = _packed(p, key, sequence_ids, offsets, site)
    forward = rowwise.embedding_forward if takes(*tables, weight, bias) else _Triton.forward
    return forward(list(ids), list(tables), weight, bias, eps, dtype, token_dropout, True)


@_forward.register_fake
def _(
    ids: Sequence[Tensor], tables: Sequence[Tensor], weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype,
    *draws: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    tokens, width = ids[0].shape[0], tables[0].shape[1]
    statistic = tables[0].new_empty(tokens, dtype=torch.float32)
    return tables[0].new_empty(tokens, width, dtype=dtype), statistic, torch.empty_like(statistic)


@operator("fastbert::embedding_layer_norm_backward")
def _backward(
    grad: Tensor,
    ids: Sequence[Tensor],
    tables: Sequence[Tensor],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    p: float,
    key: Tensor | None,
    sequence_ids: Tensor | None,
    offsets: Tensor | None,
    site: int,
    wanted: Sequence[bool],
) -> list[Tensor]:
    """The gradients of the tables, without elements where they are not `wanted`, of weight and of bias."""
    token_dropout = _packed(p, key, sequence_ids, offsets, site)
    backward = rowwise.embedding_gradients if takes(grad, *tables, weight) else _Triton.backward
    dtables, dweight, dbias = backward(grad, list(ids), list(tables), mean, rstd, weight, token_dropout, wanted)
    return [*dtables, dweight, dbias]


@_backward.register_fake
def _(
    grad: Tensor, ids: Sequence[Tensor], tables: Sequence[Tensor], mean: Tensor, rstd: Tensor, weight: Tensor,
    *others: Any,
) -> list[Tensor]:  # fmt: skip
    of_tables = [table.new_empty(table.shape if want else 0) for table, want in zip(tables, others[-1], strict=True)]
    return [*of_tables, weight.new_empty(weight.shape), weight.new_empty(weight.shape)]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ids, tables, weight, _, _, _, p, key, sequence_ids, offsets, site = inputs
    _, mean, rstd = output
    ctx.save_for_backward(*ids, *tables, weight, mean, rstd, key, sequence_ids, offsets)
    ctx.numbers = (len(tables), p, site)
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    count, p, site = ctx.numbers
    none = [None] * count
    if grad is None:
        return none, none, *[None] * 9
    *sources, weight, mean, rstd, key, sequence_ids, offsets = ctx.saved_tensors
    draws, wanted = (p, key, sequence_ids, offsets, site), ctx.needs_input_grad[1]
    *gradients, dweight, dbias = _backward(
        grad, sources[:count], sources[count:], mean, rstd, weight, *draws, list(wanted)
    )
    of_tables = [gradient if want else None for gradient, want in zip(gradients, wanted, strict=True)]
    return none, of_tables, dweight, dbias, *[None] * 7


_forward.register_autograd(_gradients, setup_context=_setup_context)


class _Triton:
    """The kernels of `fastbert.kernels.embedding.layer_norm`, imported when they first run."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        from fastbert.kernels.embedding import layer_norm as kernels

        return kernels.forward(*arguments)

    @staticmethod
    def backward(*arguments: Any) -> tuple[list[Tensor], Tensor, Tensor]:
        from fastbert.kernels.embedding import layer_norm as kernels

        *given, wanted = arguments
        # The tables' gradients are made together, all in one pass.
        gradients, dweight, dbias = kernels.backward(*given)
        of_tables = [one if want else one.new_empty(0) for one, want in zip(gradients, wanted, strict=True)]
        return of_tables, dweight, dbias


dispatch.register("embedding_layer_norm", "eager", _embedding_layer_norm)
dispatch.register("embedding_layer_norm", "triton", _Triton)
dispatch.register("embedding_layer_norm", "native", rowwise.embedding_layer_norm)
