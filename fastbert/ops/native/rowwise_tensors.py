"""How tensors reach the row-wise kernels of csrc/cpu/rows.h and rows_gradients.h, and which calls do.

A kernel reads its arguments and writes to memory that nothing else has, so arguments may share memory, rows may lie
apart or be one and the same, and may even lie inside of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fastbert import _C
from fastbert.errors import UserError
from fastbert.ops import dispatch
from fastbert.ops.native import buffers
from fastbert.ops.native.buffers import DTYPES
from fastbert.ops.operation import Reason

if TYPE_CHECKING:
    from fastbert.ops.dropout.op import TokenDropout

# Sizes, dtype, address and strides of scores, address and strides of their mask, scale, and what drops them.
ScoresArguments: TypeAlias = tuple[
    Sequence[int], str, int, Sequence[int], int, Sequence[int], float, tuple[int, int, int, float] | None
]

_PLAIN = frozenset((Tensor, torch.nn.Parameter))
# Addresses say nothing of what tracers and transforms make of a call.
_len_modes, _is_tracing = torch._C._len_torch_dispatch_stack, torch._C._is_tracing
_peek_transforms = torch._C._functorch.peek_interpreter_stack


def serves(operation: str, x: Tensor, *others: Tensor | None) -> bool:
    """Whether the native kernel takes a call with rows `x`; where it was forced and does not, raises UserError."""
    if torch.compiler.is_compiling():
        # A kernel that torch cannot look into would part the operations that the compiler fuses.
        return buffers.declines(operation, "the call is being compiled")
    # Asked in this order because it is quick: that costs a small call more than its rows.
    if not (_simple(x) and all(map(_simple, others))):
        if not buffers.serves(operation, x, *others, trains=True):
            return False
        if not all(plain(tensor) for tensor in (x, *others)):
            return buffers.declines(operation, "a tensor is of a class that has no plain values in memory")
    reason = why_not(x)
    return reason is None or buffers.declines(operation, reason)


def unsupported_rows(x: Tensor, *others: Tensor | None) -> Reason | None:
    """Return why the row-wise kernels do not support a call with rows `x`, None if they do."""
    if torch.compiler.is_compiling():
        # An opaque kernel would part the operations that the compiler fuses.
        return Reason("the call is being compiled")
    # In this order because it is quick: the checks cost a small call more than its rows.
    if not (_simple(x) and all(map(_simple, others))):
        reason = buffers.unsupported(x, *others)
        if reason is not None:
            return reason
        if not all(plain(tensor) for tensor in (x, *others)):
            return Reason("a tensor is of a class that has no plain values in memory")
    text = why_not(x)
    return None if text is None else Reason(text)


def why_not(x: Tensor) -> str | None:
    """Why no native kernel takes a call with rows `x` that lie plainly in memory, outside of a compiler, or None."""
    if x.shape[-1] == 0:
        return "a row has no element"
    if _len_modes() or _peek_transforms() is not None or _is_tracing():
        return "torch traces or transforms the call"
    if forward_ad._current_level >= 0:
        return "it has no forward-mode derivative (torch.func.jvp)"
    return None


def _simple(x: Tensor | None) -> bool:
    """Whether nothing needs a closer look."""
    return x is None or (x.dtype in DTYPES and x.is_cpu and plain(x))


def plain(x: Tensor | None) -> bool:
    """Whether a tensor's values are what lies at its address."""
    return x is None or (type(x) in _PLAIN and not x.is_neg())


def takes(*tensors: Tensor | None) -> bool:
    """Whether what an operator of torch does with these tensors is done by the native kernels, not by Triton's.

    Asked inside of the operators, by which time the call is served: backward may run outside of the `use_backend` of
    its forward, and what that saved is the same.
    """
    return dispatch.forced() != "triton" and all(x is None or (x.is_cpu and x.dtype in DTYPES) for x in tensors)


def recorded(*tensors: Tensor | None) -> bool:
    """Whether a backward pass may follow, for which forward must leave something."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def rows_of(x: Tensor) -> tuple[Tensor, int, int]:
    """x, its rows and their stride; a copy of x where no one stride leads through rows whose elements lie together."""
    width = x.shape[-1]
    if not x.is_contiguous():
        if x.dim() == 2 and (x.stride(1) == 1 or width == 1):
            return x, x.shape[0], x.stride(0)
        x = x.contiguous()
    return x, x.numel() // width, width


def pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, str]:
    """Two vectors as kernels take them, and their one dtype."""
    buffers.address("weight", a)
    buffers.address("bias", b)
    if a.dtype != b.dtype:
        a, b = a.float(), b.float()
    return a.contiguous(), b.contiguous(), DTYPES[a.dtype]


def triple(a: Tensor, b: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, str]:
    if c is None:
        a, b, name = pair(a, b)
        return a, b, None, name
    for name, vector in (("weight", a), ("bias", b), ("x_bias", c)):
        buffers.address(name, vector)
    if not a.dtype == b.dtype == c.dtype:
        a, b, c = a.float(), b.float(), c.float()
    return a.contiguous(), b.contiguous(), c.contiguous(), DTYPES[a.dtype]


def dropped(token_dropout: TokenDropout | None, rows: int) -> tuple[tuple[Any, ...] | None, tuple[Tensor, ...]]:
    """A dropout of rows as kernels take it, and the tensors that must live as long as the call.

    Raises UserError for a sequence id that has no key.
    """
    if token_dropout is None or rows == 0:
        return None, ()
    from fastbert.ops.dropout.op import quantized

    key, sequence_ids, offsets = held = (
        token_dropout.key.contiguous(), token_dropout.sequence_ids.contiguous(), token_dropout.offsets.contiguous()
    )  # fmt: skip
    names = ("token_dropout.key", "token_dropout.sequence_ids", "token_dropout.offsets")
    at_key, at_ids, at_offsets = map(buffers.address, names, held)
    wide = [ids.dtype == torch.int64 for ids in (sequence_ids, offsets)]
    place = _C.first_outside(at_ids, 1, wide[0], rows, key.shape[0])
    if place < rows:
        raise UserError(
            f"token_dropout.sequence_ids[{place}]={int(sequence_ids[place])} has no key: ids must be at least 0 and"
            f" below {key.shape[0]}, the number of keys"
        )
    threshold, keep = quantized(token_dropout.p)
    ids = (at_ids, wide[0], at_offsets, wide[1])
    return (at_key, key.shape[0], *ids, token_dropout.site, threshold, keep), held


def table_arguments(ids: Sequence[Tensor], tables: Sequence[Tensor]) -> list[tuple[int, int, bool, int, int, int]]:
    """Tables and the ids of their rows as kernels take them."""
    return [
        (one.data_ptr(), one.stride(0), one.dtype == torch.int64, table.data_ptr(), table.stride(0), table.shape[0])
        for one, table in zip(ids, tables)
    ]


def scores_arguments(
    scores: Tensor, mask: Tensor | None, scale: float, dropout_p: float, dropout_key: Tensor | None, dropout_site: int
) -> tuple[ScoresArguments, tuple[Tensor | None, ...]]:
    """Scores (sequences, heads, queries, keys) of any strides and a mask that broadcasts to them as kernels take them,
    and the tensors that must live as long as the call."""
    from fastbert.ops.dropout.op import quantized

    if scores.shape[3] > 1 and scores.stride(3) != 1:
        # contiguous() would leave scores without elements as they are.
        scores = scores.clone(memory_format=torch.contiguous_format)
    mask_strides: Sequence[int] = (0, 0, 0, 0)
    if mask is not None:
        mask = mask.expand(scores.shape)
        mask_strides = mask.stride()
    dropout = None
    if dropout_key is not None:
        dropout_key = dropout_key.contiguous()
        dropout = (dropout_key.data_ptr(), dropout_site, *quantized(dropout_p))
    arguments = (
        scores.shape, DTYPES[scores.dtype], scores.data_ptr(), scores.stride(), buffers.address("mask", mask),
        mask_strides, scale, dropout,
    )  # fmt: skip
    return arguments, (scores, mask, dropout_key)
