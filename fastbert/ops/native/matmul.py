"""Matrix products of packed tokens on CPUs, with weights that are laid out once.

A row's result has the same bits in every batch, on any number of threads. Sums are fp32, in the order of the depth, or
exact, of integers to which each row is rounded with a scale of its own; bias, GELU, residual and LayerNorm follow in
fp32 before the one rounding to the result's dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert._C import PackedWeight
from fastbert._C import gradient_product as _native_gradient_product
from fastbert._C import product as _native_product
from fastbert._C import quantize_rows as _native_quantize_rows
from fastbert._C import repack as _native_repack
from fastbert.errors import UserError
from fastbert.ops.native import buffers, caching_allocator
from fastbert.ops.native.buffers import DTYPES

_ELEMENTS = ("bf16", "fp32", "int8")
_ACTIVATIONS = ("gelu", "gelu_tanh")


def pack(weight: Tensor, element: str, transposed: bool = False) -> PackedWeight:
    """A copy of `weight` (out, in), bf16 or fp32, as products read it, in elements `"bf16"`, `"fp32"` or `"int8"`.

    bf16 rounds to nearest. int8 has one scale an output, the row's largest magnitude / 127; an output whose weights
    have a NaN or an infinity is NaN. The copy does not follow later changes of `weight`. `transposed`, for bf16 and
    fp32, is the weight's transpose: the operand of dx = dy weight.
    Raises UserError, a ValueError, that names the wrong argument.
    """
    if element not in _ELEMENTS:
        raise UserError(f"element={element!r} must be one of {', '.join(map(repr, _ELEMENTS))}")
    if transposed and element == "int8":
        raise UserError("element='int8' has no transposed copy: gradients are summed in bf16 or fp32")
    weight = weight.detach().resolve_neg()
    _check_matrix("weight", weight, None)
    columns, depth = reversed(weight.shape) if transposed else weight.shape
    return PackedWeight(_matrix(weight), columns, depth, element, transposed)


def repack(
    packed: PackedWeight, weight: Tensor, first: int, last: int, *, offset: int = 0, transposed: bool = False
) -> None:
    """Write rows first..last of `weight` (out, in), which has changed, into its packed copy, bf16 or fp32.

    `offset` is the weight's first row among those of the copy, where several weights were packed one below the other;
    `transposed` must be what the copy was made with. The result has the bits that `pack` would give.
    Raises UserError, a ValueError, that names the wrong argument.
    """
    if packed.element == "int8":
        raise UserError("packed holds int8: such copies are made as a whole, by pack()")
    weight = weight.detach().resolve_neg()
    rows, width = (packed.depth, packed.columns) if transposed else (packed.columns, packed.depth)
    _check_matrix("weight", weight, (weight.shape[0] if weight.dim() else 0, width))
    if not 0 <= first <= last <= weight.shape[0]:
        raise UserError(f"rows {first} to {last} are not in weight, which has {weight.shape[0]}")
    if not 0 <= offset <= rows - last:
        raise UserError(f"offset={offset} places rows up to {last} beyond the copy, which has {rows}")
    buffers.address("weight", weight)
    _native_repack(packed, transposed, offset, _matrix(weight), first, last)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (rows, width), bf16 or fp32, as integers (rows, width) in int8 and scales (rows,) in fp32: x ~ integer * scale.

    scale = max |x| / 127 of the row; integer = x * (127 / max |x|), rounded to nearest, ties to even. A row of zeros
    has scale 0, as have rows below 2^-100 throughout; a row with a NaN or an infinity has scale NaN and zeros.
    Raises UserError, a ValueError, that names the wrong argument.
    """
    x = x.detach().resolve_neg()
    _check_matrix("x", x, None)
    rows, width = x.shape
    integers = caching_allocator.empty((rows, width), torch.int8)
    scales = caching_allocator.empty((rows,), torch.float32)
    _native_quantize_rows(_matrix(x), rows, width, integers.data_ptr(), scales.data_ptr())
    return integers, scales


def product(
    x: Tensor,
    packed: PackedWeight,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    norm: tuple[Tensor, Tensor | None, float] | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    out: Tensor | None = None,
    before: Tensor | None = None,
    blocking: tuple[int, int] = (0, 0),
) -> Tensor:
    """norm(activation(x weight^T + bias) + residual): x (rows, in), bias (out,), residual and result (rows, out).

    x and residual are bf16 or fp32 with neighbouring elements in a row; `activation` is None, `"gelu"` (by erf) or
    `"gelu_tanh"`; `norm` is LayerNorm's (weight, bias or None, eps). Where `packed` holds int8, x is rounded by
    `quantize_rows`, and a row with a NaN or an infinity gives NaN. The result has `out_dtype`, by default x's, or is
    written to `out`, which may be `residual` itself. `before` (rows, out), of the result's dtype, is written too: x
    weight^T + bias, rounded, of which the activation is then computed. `blocking` (rows, columns) that a thread keeps
    in its second cache changes the time only; zeros choose.
    Raises UserError, a ValueError, that names the wrong argument.
    """
    if activation is not None and activation not in _ACTIVATIONS:
        raise UserError(f"activation={activation!r} must be None, {' or '.join(map(repr, _ACTIVATIONS))}")
    if min(blocking) < 0:
        raise UserError(f"blocking={blocking} must not be negative: zeros choose by the shape")
    x = x.detach().resolve_neg()
    rows, columns = x.shape[0] if x.dim() else 0, packed.columns
    _check_matrix("x", x, (rows, packed.depth))
    buffers.address("x", x)
    if out is None:
        dtype = x.dtype if out_dtype is None else out_dtype
        if dtype not in DTYPES:
            raise UserError(f"out_dtype={dtype} must be torch.bfloat16 or torch.float32")
        out = torch.empty((rows, columns), dtype=dtype, device="cpu")
    elif out_dtype not in (None, out.dtype):
        raise UserError(f"out has dtype {out.dtype}, which is not out_dtype={out_dtype}: leave one of them out")
    _check_result("out", out, (rows, columns), x=x)
    if residual is not None:
        residual = residual.detach().resolve_neg()
        _check_matrix("residual", residual, (rows, columns))
        if _overlap(out, residual) and _matrix(out) != _matrix(residual):
            raise UserError("out lies in the memory of residual: give it memory of its own, or residual itself")
    if before is not None:
        if activation is None or norm is not None:
            raise UserError("before is kept of products with an activation and without norm")
        _check_result("before", before, (rows, columns), out.dtype, x=x, out=out, residual=residual)
    bias = None if bias is None else _vector("bias", bias, columns)
    scale = None
    if norm is not None:
        weight, shift, eps = norm
        weight = _vector("norm's weight", weight, columns)
        shift = None if shift is None else _vector("norm's bias", shift, columns)
        scale = (weight.data_ptr(), 0 if shift is None else shift.data_ptr(), eps)
    operand, row_scales = _matrix(x), None
    if packed.element == "int8":
        if out.numel() == 0:
            return out
        integers, row_scales = quantize_rows(x)
        operand = (integers.data_ptr(), "int8", packed.depth)
    _native_product(
        operand,
        rows,
        packed,
        _matrix(out),
        bias=0 if bias is None else bias.data_ptr(),
        activation=activation,
        residual=None if residual is None else _matrix(residual),
        norm=scale,
        row_scales=0 if row_scales is None else row_scales.data_ptr(),
        blocking=blocking,
        before=None if before is None else _matrix(before),
    )
    return out


def gelu_gradient_product(
    x: Tensor,
    packed: PackedWeight,
    u: Tensor,
    tanh: bool,
    *,
    out: Tensor | None = None,
    again: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """du = (x weight^T) GELU'(u) and h = GELU(u), for the gradient x weight^T (rows, out) of h; u (rows, out).

    x, u and both results have one dtype, bf16 or fp32; sums, GELU and its derivative are fp32, each result is rounded
    once, and h has the bits that `product` with an activation gives for a `before` of u. `tanh` is GELU's
    approximation. Results are written to `out` (du) and `again` (h), one of which may be u itself.
    Raises UserError, a ValueError, that names the wrong argument.
    """
    x, u = x.detach().resolve_neg(), u.detach().resolve_neg()
    rows, columns = x.shape[0] if x.dim() else 0, packed.columns
    if packed.element == "int8":
        raise UserError("packed holds int8: gradients are summed in bf16 or fp32")
    _check_matrix("x", x, (rows, packed.depth))
    _check_matrix("u", u, (rows, columns))
    if u.dtype != x.dtype:
        raise UserError(f"u has dtype {u.dtype}, x {x.dtype}: cast one")
    out = caching_allocator.empty((rows, columns), x.dtype) if out is None else out
    again = caching_allocator.empty((rows, columns), x.dtype) if again is None else again
    for name, result, others in (("out", out, {}), ("again", again, {"out": out})):
        _check_result(name, result, (rows, columns), x.dtype, x=x, **others)
        if _overlap(result, u) and _matrix(result) != _matrix(u):
            raise UserError(f"{name} lies in the memory of u: give it memory of its own, or u itself")
    multiply_gelu_gradient(x, packed, u, tanh, out, again)
    return out, again


def gradient_product(
    a: Tensor, b: Tensor, *, sums: bool = False, out: Tensor | None = None, accumulate: bool = False
) -> tuple[Tensor, Tensor | None]:
    """(a^T b, sums of a's columns): the gradients of a weight and a bias, for a (tokens, out) and b (tokens, in).

    a and b are both bf16 or both fp32, with neighbouring elements in a row. Products and sums are fp32 and never
    rounded: the first result is (out, in), the second (out,), or None without `sums`. The first is written to `out`,
    which may be a range of rows of a larger tensor, or added to what it holds with `accumulate`. The tokens are cut in
    chunks by their number alone, so the result has the same bits on any number of threads.
    Raises UserError, a ValueError, that names the wrong argument.
    """
    a, b = a.detach().resolve_neg(), b.detach().resolve_neg()
    _check_matrix("a", a, None, "(tokens, out)")
    tokens, rows = a.shape
    _check_matrix("b", b, None, f"({tokens}, in)")
    if b.shape[0] != tokens:
        raise UserError(f"b has shape {tuple(b.shape)}: it must be ({tokens}, in), a row for each of a")
    if b.dtype != a.dtype:
        raise UserError(f"b has dtype {b.dtype}, a {a.dtype}: cast one")
    columns = b.shape[1]
    for name, tensor in (("a", a), ("b", b)):
        buffers.address(name, tensor)
    if out is None:
        if accumulate:
            raise UserError("accumulate adds to out: give it")
        out = caching_allocator.empty((rows, columns), torch.float32)
    _check_result("out", out, (rows, columns), torch.float32, a=a, b=b)
    buffers.address("out", out)
    total = caching_allocator.empty((rows,), torch.float32) if sums else None
    multiply_transposed(a, b, out, total, accumulate)
    return out, total


# Without the checks of the above, which take longer than small products: for matrices that the caller made, of the
# right shapes and dtypes, in memory of their own, elements of a row side by side.


def multiply(
    x: Tensor,
    packed: PackedWeight,
    out: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    before: Tensor | None = None,
) -> Tensor:
    """`product` of floats, written to `out`."""
    bias = None if bias is None else _vector("bias", bias, packed.columns)
    _native_product(
        _matrix(x),
        x.shape[0],
        packed,
        _matrix(out),
        bias=0 if bias is None else bias.data_ptr(),
        activation=activation,
        residual=None if residual is None else _matrix(residual),
        before=None if before is None else _matrix(before),
    )
    return out


def multiply_gelu_gradient(x: Tensor, packed: PackedWeight, u: Tensor, tanh: bool, out: Tensor, again: Tensor) -> None:
    """`gelu_gradient_product`, written to `out` and `again`."""
    _native_product(
        _matrix(x),
        x.shape[0],
        packed,
        _matrix(out),
        activation="gelu_tanh_gradient" if tanh else "gelu_gradient",
        before=_matrix(u),
        again=_matrix(again),
    )


def multiply_transposed(a: Tensor, b: Tensor, out: Tensor, sums: Tensor | None, accumulate: bool = False) -> None:
    """`gradient_product`, written or added to `out`, and the sums of a's columns to `sums`."""
    _native_gradient_product(
        _matrix(a),
        _matrix(b),
        a.shape[0],
        a.shape[1],
        b.shape[1],
        _matrix(out),
        0 if sums is None else sums.data_ptr(),
        accumulate,
    )


def together(rows: Tensor) -> Tensor:
    """rows (rows, width) as products take them: elements of a row side by side, rows apart; a copy only where they are
    not."""
    return rows if rows.stride(1) == 1 and rows.stride(0) >= rows.shape[1] else rows.contiguous()


def _check_result(
    name: str, tensor: Tensor, shape: tuple[int, int], dtype: torch.dtype | None = None, **others: Tensor | None
) -> None:
    """Refuse what cannot be written to, or lies in the memory of others."""
    _check_matrix(name, tensor, shape)
    if dtype not in (None, tensor.dtype):
        raise UserError(f"{name} has dtype {tensor.dtype}: it must be {dtype}")
    if tensor.is_neg():
        raise UserError(f"{name} is a negated view: give it memory of its own")
    for other, theirs in others.items():
        if theirs is not None and _overlap(tensor, theirs):
            raise UserError(f"{name} lies in the memory of {other}: give it memory of its own")


def _check_matrix(name: str, tensor: Tensor, shape: tuple[int, int] | None, meant: str = "(out, in)") -> None:
    """Refuse what is no matrix in this machine's memory whose rows lie apart and whole."""
    if not tensor.is_cpu or tensor.layout != torch.strided:
        raise UserError(f"{name} is on {tensor.device} ({tensor.layout}): it must be a dense tensor on the CPU")
    if tensor.dtype not in DTYPES:
        raise UserError(f"{name} has dtype {tensor.dtype}: it must be torch.bfloat16 or torch.float32")
    if tensor.dim() != 2 or (shape is not None and tuple(tensor.shape) != shape):
        raise UserError(f"{name} has shape {tuple(tensor.shape)}: it must be {shape or meant}")
    if (tensor.shape[1] > 1 and tensor.stride(1) != 1) or (tensor.shape[0] > 1 and tensor.stride(0) < tensor.shape[1]):
        raise UserError(
            f"{name} has strides {tensor.stride()}: the elements of a row must lie together; use contiguous()"
        )


def _matrix(tensor: Tensor) -> tuple[int, str, int]:
    # The stride of a single row may be anything.
    stride = tensor.stride(0) if tensor.shape[0] > 1 else tensor.shape[1]
    return tensor.data_ptr(), DTYPES[tensor.dtype], stride


def _vector(name: str, tensor: Tensor, width: int) -> Tensor:
    """A contiguous fp32 copy, or the tensor itself."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu" or not tensor.dtype.is_floating_point or tuple(tensor.shape) != (width,):
        raise UserError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}: it must be floating, of shape"
            f" ({width},), on the CPU"
        )
    buffers.address(name, tensor)
    return tensor.resolve_neg().to(torch.float32).contiguous()


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether the spans of two tensors' elements meet."""

    def span(tensor: Tensor) -> tuple[int, int]:
        begin, _, stride = _matrix(tensor)
        elements = (tensor.shape[0] - 1) * stride + tensor.shape[1] if tensor.numel() else 0
        return begin, begin + elements * tensor.element_size()

    (a_begin, a_end), (b_begin, b_end) = span(a), span(b)
    return a_begin < b_end and b_begin < a_end
