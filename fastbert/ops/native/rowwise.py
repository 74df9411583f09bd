"""Calls of the row-wise kernels of csrc/cpu/rowwise: which they support, and how tensors are passed to them.

A kernel reads its arguments and writes to memory of its own, so arguments may share memory, rows may have any stride,
coincide, or overlap. Gradients of vectors are fp32, summed in blocks of a fixed number of rows and then in the order of
the blocks: the same bits on every run and with any number of threads.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from fastbert import _C
from fastbert.errors import UserError
from fastbert.ops.dropout.arguments import TokenDropout, quantized
from fastbert.ops.native import buffers, caching_allocator
from fastbert.ops.operation import Reason

# Mean and rstd (1 / deviation) of the rows that are normed, fp32 (rows,).
Statistics: TypeAlias = tuple[Tensor, Tensor]


def unsupported(x: Tensor, *others: Tensor | None) -> Reason | None:
    """Return why the row-wise kernels do not support a call with rows `x`, None if they do."""
    reason = buffers.unsupported(x, *others)
    if reason is None and x.shape[-1] == 0:
        return Reason("a row has no element")
    if reason is None and not buffers.direct(x, *others):
        if torch.compiler.is_compiling():
            # An opaque kernel would part the operations that the compiler fuses.
            return Reason("the call is being compiled")
        return Reason("torch traces or transforms the call, or a tensor is of a class without plain values in memory")
    return reason


def as_rows(x: Tensor) -> tuple[Tensor, int, int]:
    """Return x, its number of rows and their stride; x is copied if no single stride leads through contiguous rows."""
    width = x.shape[-1]
    if not x.is_contiguous():
        if x.dim() == 2 and (x.stride(1) == 1 or width == 1):
            return x, x.shape[0], x.stride(0)
        x = x.contiguous()
    return x, x.numel() // width, width


def as_vectors(
    weight: Tensor, bias: Tensor | None, x_bias: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None, str]:
    """Return vectors, contiguous and of one dtype, and the name of that dtype; absent ones are None."""
    buffers.address("weight", weight)
    buffers.address("bias", bias)
    buffers.address("x_bias", x_bias)
    same = all(vector is None or vector.dtype == weight.dtype for vector in (bias, x_bias))
    if not same:
        weight = weight.float()
        bias, x_bias = (None if vector is None else vector.float() for vector in (bias, x_bias))
    bias, x_bias = (None if vector is None else vector.contiguous() for vector in (bias, x_bias))
    return weight.contiguous(), bias, x_bias, buffers.DTYPES[weight.dtype]


def empty_statistics(rows: int, save: bool) -> Statistics:
    """Return memory for mean and rstd, fp32 (rows,), without elements unless they are saved."""
    shape = (rows if save else 0,)
    return caching_allocator.empty(shape, torch.float32), caching_allocator.empty(shape, torch.float32)


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
