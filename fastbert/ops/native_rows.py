"""The row-wise operations of the `native` backend: how tensors reach the kernels of csrc/cpu/rows.h.

A kernel reads its arguments and writes to memory that nothing else has, so arguments may share memory, rows may lie
apart or be one and the same, and may even lie inside of each other. Forward only: `serves` says which calls come here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fastbert import _C
from fastbert.ops import native
from fastbert.ops.dropout import TokenDropout
from fastbert.ops.embedding_ids import refuse_id
from fastbert.ops.native import DTYPES

_PLAIN = frozenset((Tensor, torch.nn.Parameter))
# Addresses say nothing of what tracers and transforms make of a call.
_len_modes, _is_tracing = torch._C._len_torch_dispatch_stack, torch._C._is_tracing
_peek_transforms = torch._C._functorch.peek_interpreter_stack


def serves(operation: str, x: Tensor, *others: Tensor | None) -> bool:
    """Whether the native kernel takes a call with rows `x`; where it was forced and does not, raises UserError."""
    if torch.compiler.is_compiling():
        # A kernel that torch cannot look into would part the operations that the compiler fuses.
        return native.declines(operation, "the call is being compiled")
    if x.shape[-1] == 0:
        return native.declines(operation, "a row has no element")
    # Asked in this order because it is quick: that costs a small call more than its rows.
    if not (_simple(x) and all(map(_simple, others))):
        if not native.serves(operation, x, *others):
            return False
        if not all(_plain(tensor) for tensor in (x, *others)):
            return native.declines(operation, "a tensor is of a class that has no plain values in memory")
    if _len_modes() or _peek_transforms() is not None or _is_tracing():
        return native.declines(operation, "torch traces or transforms the call")
    if forward_ad._current_level >= 0:
        return native.declines(operation, "it has no forward-mode derivative (torch.func.jvp)")
    return True


def _simple(x: Tensor | None) -> bool:
    """Whether nothing needs a closer look."""
    return x is None or (x.dtype in DTYPES and x.is_cpu and not x.requires_grad and _plain(x))


def _plain(x: Tensor | None) -> bool:
    """Whether a tensor's values are what lies at its address."""
    return x is None or (type(x) in _PLAIN and not x.is_neg())


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    x, rows, stride = _rows(x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    weight, bias, dtype = _pair(weight, bias)
    _C.layer_norm(
        rows, x.shape[-1], DTYPES[x.dtype], x.data_ptr(), stride,
        weight.data_ptr(), bias.data_ptr(), dtype, eps, y.data_ptr(),
    )  # fmt: skip
    return y


def dropout_add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    token_dropout: TokenDropout | None,
    x_bias: Tensor | None,
    return_sum: bool,
) -> tuple[Tensor, Tensor]:
    """The norm and, with `return_sum`, the sum; else the norm twice."""
    assert token_dropout is None
    x, rows, stride = _rows(x)
    residual, _, residual_stride = _rows(residual.to(x.dtype))
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    total = torch.empty_like(y) if return_sum else y
    weight, bias, x_bias, dtype = _triple(weight, bias, x_bias)
    _C.sum_layer_norm(
        rows, x.shape[-1], DTYPES[x.dtype], x.data_ptr(), stride, residual.data_ptr(), residual_stride,
        native.address("x_bias", x_bias), weight.data_ptr(), bias.data_ptr(), dtype, eps,
        total.data_ptr() if return_sum else 0, y.data_ptr(),
    )  # fmt: skip
    return y, total


def bias_gelu(x: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    x, rows, stride = _rows(x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    bias = None if bias is None else bias.contiguous()
    _C.bias_gelu(
        rows, x.shape[-1], DTYPES[x.dtype], x.data_ptr(), stride, native.address("bias", bias),
        "fp32" if bias is None else DTYPES[bias.dtype], approximate == "tanh", y.data_ptr(),
    )  # fmt: skip
    return y


def gelu_layer_norm(
    x: Tensor, bias: Tensor | None, weight: Tensor, norm_bias: Tensor, eps: float, approximate: str
) -> Tensor:
    x, rows, stride = _rows(x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    weight, norm_bias, bias, dtype = _triple(weight, norm_bias, bias)
    _C.gelu_layer_norm(
        rows, x.shape[-1], DTYPES[x.dtype], x.data_ptr(), stride, native.address("bias", bias),
        weight.data_ptr(), norm_bias.data_ptr(), dtype, eps, approximate == "tanh", y.data_ptr(),
    )  # fmt: skip
    return y


def serves_tables(tables: Sequence[Tensor], weight: Tensor, bias: Tensor, token_dropout: TokenDropout | None) -> bool:
    """As `serves`, for embedding_layer_norm."""
    operation = "embedding_layer_norm"
    if token_dropout is not None:
        return native.declines(operation, "it drops nothing in this version")
    if any(table.dtype != tables[0].dtype for table in tables):
        return native.declines(operation, "the tables differ in dtype")
    if any(table.stride(1) != 1 and table.shape[1] > 1 for table in tables):
        return native.declines(operation, "the elements of a table's row do not lie side by side")
    if _result_dtype(tables[0]) not in DTYPES:
        return native.declines(operation, f"autocast asks for {_result_dtype(tables[0])}")
    return serves(operation, *tables, weight, bias)


def embedding_layer_norm(
    ids: Sequence[Tensor],
    tables: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor,
    eps: float,
    token_dropout: TokenDropout | None,
) -> Tensor:
    assert token_dropout is None
    tokens, width = ids[0].shape[0], tables[0].shape[1]
    dtype = _result_dtype(tables[0])
    y = torch.empty(tokens, width, dtype=dtype)
    weight, bias, vectors = _pair(weight, bias)
    bad = _C.embedding_layer_norm(
        tokens, width, DTYPES[tables[0].dtype], DTYPES[dtype],
        [
            (one.data_ptr(), one.stride(0), one.dtype == torch.int64, table.data_ptr(), table.stride(0), table.shape[0])
            for one, table in zip(ids, tables)
        ],
        weight.data_ptr(), bias.data_ptr(), vectors, eps, y.data_ptr(),
    )  # fmt: skip
    if bad is not None:
        table, place, wrong = bad
        refuse_id(wrong, place, table, tables)
    return y


def softmax(scores: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """scores (sequences, heads, queries, keys) of any strides; mask bool, broadcastable to them."""
    if scores.shape[3] > 1 and scores.stride(3) != 1:
        scores = scores.contiguous()
    out = torch.empty_like(scores, memory_format=torch.contiguous_format)
    mask_strides: Sequence[int] = (0, 0, 0, 0)
    if mask is not None:
        mask = mask.expand(scores.shape)
        mask_strides = mask.stride()
    _C.softmax(
        scores.shape, DTYPES[scores.dtype], scores.data_ptr(), scores.stride(),
        0 if mask is None else mask.data_ptr(), mask_strides, scale, out.data_ptr(),
    )  # fmt: skip
    return out


def _rows(x: Tensor) -> tuple[Tensor, int, int]:
    """x, its rows and their stride; a copy of x where no one stride leads through rows whose elements lie together."""
    width = x.shape[-1]
    if not x.is_contiguous():
        if x.dim() == 2 and (x.stride(1) == 1 or width == 1):
            return x, x.shape[0], x.stride(0)
        x = x.contiguous()
    return x, x.numel() // width, width


def _pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, str]:
    """Two vectors as kernels take them, and their one dtype."""
    if a.dtype != b.dtype:
        a, b = a.float(), b.float()
    return a.contiguous(), b.contiguous(), DTYPES[a.dtype]


def _triple(a: Tensor, b: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, str]:
    if c is None:
        a, b, name = _pair(a, b)
        return a, b, None, name
    if not a.dtype == b.dtype == c.dtype:
        a, b, c = a.float(), b.float(), c.float()
    return a.contiguous(), b.contiguous(), c.contiguous(), DTYPES[a.dtype]


def _result_dtype(table: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else table.dtype
