"""How tensors reach the row-wise kernels of csrc/cpu/rowwise, and which calls do.

A kernel reads its arguments and writes to memory of its own, so arguments may share memory, rows may have any stride,
coincide, or overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fastbert import _C
from fastbert.errors import UserError
from fastbert.ops.dropout.arguments import TokenDropout, quantized
from fastbert.ops.native import buffers
from fastbert.ops.native.buffers import DTYPES
from fastbert.ops.operation import Reason
from fastbert.ops.softmax.arguments import SoftmaxArguments

# Sizes, dtype, address and strides of scores; address and strides of their mask; scale; key, site, threshold and scale
# of their dropout.
ScoresArguments: TypeAlias = tuple[
    Sequence[int], str, int, Sequence[int], int, Sequence[int], float, tuple[int, int, int, float] | None
]

_PLAIN = frozenset((Tensor, torch.nn.Parameter))
# A kernel receives addresses, which tracers, transforms and dispatch modes do not follow.
_len_modes, _is_tracing = torch._C._len_torch_dispatch_stack, torch._C._is_tracing
_peek_transforms = torch._C._functorch.peek_interpreter_stack


def unsupported_rows(x: Tensor, *others: Tensor | None) -> Reason | None:
    """Return why the row-wise kernels do not support a call with rows `x`, None if they do."""
    if torch.compiler.is_compiling():
        # An opaque kernel would part the operations that the compiler fuses.
        return Reason("the call is being compiled")
    # In this order because it is quick: the checks cost a small call more than its rows.
    if not (_is_simple(x) and all(map(_is_simple, others))):
        reason = buffers.unsupported(x, *others)
        if reason is not None:
            return reason
        if not all(map(_is_plain, (x, *others))):
            return Reason("a tensor is of a class that has no plain values in memory")
    if x.shape[-1] == 0:
        return Reason("a row has no element")
    if _len_modes() or _peek_transforms() is not None or _is_tracing():
        return Reason("torch traces or transforms the call")
    if forward_ad._current_level >= 0:
        return Reason("it has no forward-mode derivative (torch.func.jvp)")
    return None


def _is_simple(x: Tensor | None) -> bool:
    """Return whether a tensor needs no closer check."""
    return x is None or (x.dtype in DTYPES and x.is_cpu and _is_plain(x))


def _is_plain(x: Tensor | None) -> bool:
    """Return whether the values of a tensor are what its memory holds."""
    return x is None or (type(x) in _PLAIN and not x.is_neg())


def as_rows(x: Tensor) -> tuple[Tensor, int, int]:
    """Return x, its number of rows and their stride; x is copied if no single stride leads through contiguous rows."""
    width = x.shape[-1]
    if not x.is_contiguous():
        if x.dim() == 2 and (x.stride(1) == 1 or width == 1):
            return x, x.shape[0], x.stride(0)
        x = x.contiguous()
    return x, x.numel() // width, width


def as_vectors(weight: Tensor, bias: Tensor, x_bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None, str]:
    """Return vectors, contiguous and of one dtype, and the name of that dtype."""
    buffers.address("weight", weight)
    buffers.address("bias", bias)
    same = weight.dtype == bias.dtype
    if x_bias is not None:
        buffers.address("x_bias", x_bias)
        same = same and x_bias.dtype == bias.dtype
        x_bias = (x_bias if same else x_bias.float()).contiguous()
    if not same:
        weight, bias = weight.float(), bias.float()
    return weight.contiguous(), bias.contiguous(), x_bias, DTYPES[weight.dtype]


def dropout_arguments(
    token_dropout: TokenDropout | None, rows: int
) -> tuple[tuple[Any, ...] | None, tuple[Tensor, ...]]:
    """Return a dropout of rows as kernels receive it, and the tensors that must outlive the call.

    Raises UserError for a sequence id without a key.
    """
    if token_dropout is None or rows == 0:
        return None, ()
    key, sequence_ids, offsets = tensors = (
        token_dropout.key.contiguous(), token_dropout.sequence_ids.contiguous(), token_dropout.offsets.contiguous()
    )  # fmt: skip
    names = ("token_dropout.key", "token_dropout.sequence_ids", "token_dropout.offsets")
    key_address, ids_address, offsets_address = map(buffers.address, names, tensors)
    is_int64 = [ids.dtype == torch.int64 for ids in (sequence_ids, offsets)]
    position = _C.find_bad_id(ids_address, 1, is_int64[0], rows, key.shape[0])
    if position < rows:
        raise UserError(
            f"token_dropout.sequence_ids[{position}]={int(sequence_ids[position])} has no key: ids must be at least 0"
            f" and below {key.shape[0]}, the number of keys"
        )
    ids = (ids_address, is_int64[0], offsets_address, is_int64[1])
    return (key_address, key.shape[0], *ids, token_dropout.site, *quantized(token_dropout.p)), tensors


def table_arguments(ids: Sequence[Tensor], tables: Sequence[Tensor]) -> list[tuple[int, int, bool, int, int, int]]:
    """Return tables and the ids of their rows as kernels receive them."""
    return [
        (
            index.data_ptr(),
            index.stride(0),
            index.dtype == torch.int64,
            table.data_ptr(),
            table.stride(0),
            table.shape[0],
        )
        for index, table in zip(ids, tables)
    ]


def scores_arguments(arguments: SoftmaxArguments) -> tuple[ScoresArguments, tuple[Tensor | None, ...]]:
    """Return scores and mask, of any strides, as kernels receive them, and the tensors that must outlive the call."""
    scores, mask, scale, dropout_p, dropout_key, dropout_site = arguments
    if scores.shape[3] > 1 and scores.stride(3) != 1:
        # contiguous() would not copy scores without elements.
        scores = scores.clone(memory_format=torch.contiguous_format)
    mask_strides: Sequence[int] = (0, 0, 0, 0)
    if mask is not None:
        mask = mask.expand(scores.shape)
        mask_strides = mask.stride()
    dropout = None
    if dropout_key is not None:
        dropout_key = dropout_key.contiguous()
        dropout = (dropout_key.data_ptr(), dropout_site, *quantized(dropout_p))
    values = (
        scores.shape, DTYPES[scores.dtype], scores.data_ptr(), scores.stride(), buffers.address("mask", mask),
        mask_strides, scale, dropout,
    )  # fmt: skip
    return values, (scores, mask, dropout_key)
