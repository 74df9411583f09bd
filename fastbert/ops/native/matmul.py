"""Matmuls on CPUs with prepacked weights.

A row's result has the same bits in every batch and on any number of threads. Sums are fp32 in the order of the depth,
or exact for int8 operands with one scale per row; bias, GELU, residual and LayerNorm follow in fp32 before the result
is rounded once to its dtype.

A gated weight holds the rows of all gates, then those of their values. Its copy is interleaved, so that the epilogue
multiplies the activation of each gate with its value, and the result has half as many columns.

One file: matmuls, their gradients, and the checks that all of them share.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from fastbert._C import PrepackedWeight
from fastbert._C import matmul as _native_matmul
from fastbert._C import quantize_rows as _native_quantize_rows
from fastbert._C import repack as _native_repack
from fastbert._C import weight_gradient as _native_weight_gradient
from fastbert.errors import UserError
from fastbert.ops.native import buffers, caching_allocator
from fastbert.ops.native.buffers import DTYPES

_ELEMENTS = ("bf16", "fp32", "int8")
_ACTIVATIONS = ("gelu", "gelu_tanh")
GATED_ACTIVATIONS = {"gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu", "silu": "swiglu"}
"""Activations of gated weights by the activation of the gate."""


def prepack(weight: Tensor, element: str, transposed: bool = False, *, gated: bool = False) -> PrepackedWeight:
    """Return a prepacked copy of `weight` (out, in), bf16 or fp32, in elements `"bf16"`, `"fp32"` or `"int8"`.

    bf16 rounds to nearest. int8 has one scale per output, the row's largest magnitude / 127; an output whose weights
    have a NaN or an infinity is NaN. The copy does not follow later changes of `weight`. `transposed`, for bf16 and
    fp32, packs the weight's transpose, the operand of dx = dy weight. `gated` interleaves gates and values; the
    transpose of a gated weight is packed like any other.
    Raises UserError, a ValueError, that names the wrong argument.
    """
    if element not in _ELEMENTS:
        raise UserError(f"element={element!r} must be one of {', '.join(map(repr, _ELEMENTS))}")
    if transposed and element == "int8":
        raise UserError("element='int8' has no transposed copy: gradients are summed in bf16 or fp32")
    if transposed and gated:
        raise UserError("a transposed copy is not interleaved: leave out gated")
    weight = weight.detach().resolve_neg()
    _check_matrix("weight", weight, None)
    if gated:
        check_gated(weight.shape[0])
    columns, depth = reversed(weight.shape) if transposed else weight.shape
    return PrepackedWeight(_matrix(weight), columns, depth, element, transposed, gated)


def check_gated(rows: int) -> None:
    """Raise UserError for a number of rows that is not one of gates and as many values."""
    if rows < 2 or rows % 2:
        raise UserError(f"a gated weight has {rows} rows: it must have as many values as gates, and at least one")


def repack(
    packed: PrepackedWeight, weight: Tensor, first: int, last: int, *, offset: int = 0, transposed: bool = False
) -> None:
    """Rewrite rows first..last of `weight` (out, in) in its prepacked copy, bf16 or fp32.

    `offset` is the weight's first row in the copy, for weights that were concatenated; `transposed` must be as in
    `prepack`. The result has the bits of a new copy.
    Raises UserError, a ValueError, that names the wrong argument.
    """
    if packed.element == "int8":
        raise UserError("packed holds int8: prepack() the whole weight again")
    weight = weight.detach().resolve_neg()
    if transposed and packed.gated_width:
        raise UserError("packed is gated, and thus not transposed")
    rows, width = (packed.depth, packed.columns) if transposed else (input_columns(packed), packed.depth)
    _check_matrix("weight", weight, (weight.shape[0] if weight.dim() else 0, width))
    if not 0 <= first <= last <= weight.shape[0]:
        raise UserError(f"rows {first} to {last} are not in weight, which has {weight.shape[0]}")
    if not 0 <= offset <= rows - last:
        raise UserError(f"offset={offset} places rows up to {last} beyond the copy, which has {rows}")
    buffers.address("weight", weight)
    _native_repack(packed, transposed, offset, _matrix(weight), first, last)


def output_columns(packed: PrepackedWeight) -> int:
    """Return the columns of a matmul's result: half of those of `input_columns` if the weight is gated."""
    return packed.gated_width or packed.columns


def input_columns(packed: PrepackedWeight) -> int:
    """Return the columns of a matmul before the activation, which are the rows of the weight."""
    return 2 * packed.gated_width or packed.columns


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize x (rows, width), bf16 or fp32, to int8 (rows, width) and fp32 scales (rows,): x ~ integer * scale.

    scale = max |x| / 127 of the row; integer = x * (127 / max |x|), rounded to nearest, ties to even. A row whose
    magnitudes are all below 2^-100 has scale 0; a row with a NaN or an infinity has scale NaN and zeros.
    Raises UserError, a ValueError, that names the wrong argument.
    """
    x = x.detach().resolve_neg()
    _check_matrix("x", x, None)
    rows, width = x.shape
    integers = caching_allocator.empty((rows, width), torch.int8)
    scales = caching_allocator.empty((rows,), torch.float32)
    _native_quantize_rows(_matrix(x), rows, width, integers.data_ptr(), scales.data_ptr())
    return integers, scales


def matmul(
    x: Tensor,
    packed: PrepackedWeight,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    norm: tuple[Tensor, Tensor | None, float] | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    out: Tensor | None = None,
    pre_activation: Tensor | None = None,
    blocking: tuple[int, int] = (0, 0),
) -> Tensor:
    """Return norm(activation(x weight^T + bias) + residual), (rows, out).

    x (rows, in) and residual (rows, out) are bf16 or fp32 with contiguous rows, bias is (out,); `activation` is None,
    `"gelu"` (by erf) or `"gelu_tanh"`; `norm` is the (weight, bias or None, eps) of LayerNorm. Where `packed` holds
    int8, x is rounded by `quantize_rows`, and a row with a NaN or an infinity gives NaN. The result has `out_dtype`,
    by default the dtype of x, or is written to `out`, which may be `residual` itself. With `pre_activation` (rows,
    out), of the result's dtype, x weight^T + bias is rounded and written there, and the activation computed from it.
    A gated weight of 2 x out rows needs an activation of `GATED_ACTIVATIONS`; bias and `pre_activation` then have 2 x
    out columns, gates before values, and `residual` and `norm` must be None.
    `blocking` (rows, columns), the block that a thread keeps in its L2 cache, changes the time only; zeros choose it.
    Raises UserError, a ValueError, that names the wrong argument.
    """
    if packed.gated_width:
        _check_gate(activation, GATED_ACTIVATIONS.values(), " for a gated weight")
        if residual is not None or norm is not None:
            raise UserError("a gated activation has no residual and no norm: add them afterwards")
    elif activation is not None:
        _check_gate(activation, _ACTIVATIONS, ", or None, for a weight that is not gated")
    if min(blocking) < 0:
        raise UserError(f"blocking={blocking} must not be negative: zeros choose by the shape")
    x = x.detach().resolve_neg()
    rows, columns = x.shape[0] if x.dim() else 0, output_columns(packed)
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
            raise UserError("out overlaps residual in memory: pass separate memory, or residual itself")
    if pre_activation is not None:
        if activation is None or norm is not None:
            raise UserError("pre_activation needs an activation, and no norm")
        shape = (rows, input_columns(packed))
        _check_result("pre_activation", pre_activation, shape, out.dtype, x=x, out=out, residual=residual)
    bias = None if bias is None else _vector("bias", bias, input_columns(packed))
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
    _native_matmul(
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
        pre_activation=None if pre_activation is None else _matrix(pre_activation),
    )
    return out


def matmul_gelu_backward(
    x: Tensor,
    packed: PrepackedWeight,
    u: Tensor,
    tanh: bool,
    *,
    out: Tensor | None = None,
    activation_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return du = (x weight^T) GELU'(u) and h = GELU(u), for the gradient x weight^T (rows, out) of h; u (rows, out).

    x, u and both results have one dtype, bf16 or fp32; sums, GELU and its derivative are fp32, each result is rounded
    once, and h has the bits of `matmul` with an activation and a `pre_activation` of u. `tanh` selects GELU's
    approximation. Results are written to `out` (du) and `activation_out` (h), one of which may be u itself.
    Raises UserError, a ValueError, that names the wrong argument.
    """
    x, u, out, activation_out = _gradient_operands(x, packed, u, out, activation_out, packed.columns)
    matmul_gelu_backward_unchecked(x, packed, u, tanh, out, activation_out)
    return out, activation_out


def matmul_gated_backward(
    x: Tensor,
    packed: PrepackedWeight,
    u: Tensor,
    activation: str,
    *,
    out: Tensor | None = None,
    activation_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return du and h of h = act(gate) * value, u = (gate, value) (rows, 2 x out), for the gradient x weight^T of h.

    With dh = x weight^T (rows, out), du is (dh value act'(gate), dh act(gate)), (rows, 2 x out), and h (rows, out) has
    the bits of `matmul` with a gated weight and a `pre_activation` of u. `activation` is one of `GATED_ACTIVATIONS`;
    `packed` is the transposed copy of the weight that follows. dtypes and rounding are those of `matmul_gelu_backward`.
    Results are written to `out` (du), which may be u itself, and `activation_out` (h).
    Raises UserError, a ValueError, that names the wrong argument.
    """
    _check_gate(activation, GATED_ACTIVATIONS.values())
    x, u, out, activation_out = _gradient_operands(x, packed, u, out, activation_out, 2 * packed.columns)
    if _overlap(activation_out, u):
        raise UserError("activation_out overlaps u in memory: pass separate memory")
    matmul_gated_backward_unchecked(x, packed, u, activation, out, activation_out)
    return out, activation_out


def _gradient_operands(
    x: Tensor, packed: PrepackedWeight, u: Tensor, out: Tensor | None, activation_out: Tensor | None, inputs: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x, u (rows, inputs) and the two results of a gradient through an activation, allocated unless given."""
    x, u = x.detach().resolve_neg(), u.detach().resolve_neg()
    rows, columns = x.shape[0] if x.dim() else 0, packed.columns
    if packed.element == "int8":
        raise UserError("packed holds int8: gradients are summed in bf16 or fp32")
    if packed.gated_width:
        raise UserError("packed is gated: the gradient is of the weight behind the activation")
    _check_matrix("x", x, (rows, packed.depth))
    _check_matrix("u", u, (rows, inputs))
    if u.dtype != x.dtype:
        raise UserError(f"u has dtype {u.dtype}, x {x.dtype}: cast one")
    out = caching_allocator.empty((rows, inputs), x.dtype) if out is None else out
    if activation_out is None:
        activation_out = caching_allocator.empty((rows, columns), x.dtype)
    _check_result("out", out, (rows, inputs), x.dtype, x=x)
    _check_result("activation_out", activation_out, (rows, columns), x.dtype, x=x, out=out)
    for name, result in (("out", out), ("activation_out", activation_out)):
        if _overlap(result, u) and _matrix(result) != _matrix(u):
            raise UserError(f"{name} overlaps u in memory: pass separate memory, or u itself")
    return x, u, out, activation_out


def weight_gradient(
    a: Tensor, b: Tensor, *, sums: bool = False, out: Tensor | None = None, accumulate: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return a^T b (out, in) and the column sums of a (out,): the gradients of a weight and a bias.

    a (tokens, out) and b (tokens, in) are both bf16 or both fp32, with contiguous rows. Sums are fp32 and never rounded
    to less; the second result is None without `sums`. The first is written to `out`, which may be a range of rows of a
    larger tensor, or added to it with `accumulate`. Tokens are split into chunks by their number alone, so the result
    has the same bits on any number of threads.
    Raises UserError, a ValueError, that names the wrong argument.
    """
    a, b = a.detach().resolve_neg(), b.detach().resolve_neg()
    _check_matrix("a", a, None, "(tokens, out)")
    tokens, rows = a.shape
    _check_matrix("b", b, None, f"({tokens}, in)")
    if b.shape[0] != tokens:
        raise UserError(f"b has shape {tuple(b.shape)}: it must be ({tokens}, in), one row per row of a")
    if b.dtype != a.dtype:
        raise UserError(f"b has dtype {b.dtype}, a {a.dtype}: cast one")
    columns = b.shape[1]
    for name, tensor in (("a", a), ("b", b)):
        buffers.address(name, tensor)
    if out is None:
        if accumulate:
            raise UserError("accumulate adds to out: pass it")
        out = caching_allocator.empty((rows, columns), torch.float32)
    _check_result("out", out, (rows, columns), torch.float32, a=a, b=b)
    buffers.address("out", out)
    total = caching_allocator.empty((rows,), torch.float32) if sums else None
    weight_gradient_unchecked(a, b, out, total, accumulate)
    return out, total


# Without the checks of the above, which take longer than small matmuls: for matrices that the caller has allocated, of
# the right shapes and dtypes, in separate memory, with contiguous rows.


def matmul_unchecked(
    x: Tensor,
    packed: PrepackedWeight,
    out: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    pre_activation: Tensor | None = None,
) -> Tensor:
    """Write `matmul` of floats to `out`, and return it."""
    bias = None if bias is None else _vector("bias", bias, input_columns(packed))
    _native_matmul(
        _matrix(x),
        x.shape[0],
        packed,
        _matrix(out),
        bias=0 if bias is None else bias.data_ptr(),
        activation=activation,
        residual=None if residual is None else _matrix(residual),
        pre_activation=None if pre_activation is None else _matrix(pre_activation),
    )
    return out


def matmul_gelu_backward_unchecked(
    x: Tensor, packed: PrepackedWeight, u: Tensor, tanh: bool, out: Tensor, activation_out: Tensor
) -> None:
    """Write `matmul_gelu_backward` to `out` and `activation_out`."""
    _native_matmul(
        _matrix(x),
        x.shape[0],
        packed,
        _matrix(out),
        activation="gelu_tanh_gradient" if tanh else "gelu_gradient",
        pre_activation=_matrix(u),
        activation_out=_matrix(activation_out),
    )


def matmul_gated_backward_unchecked(
    x: Tensor, packed: PrepackedWeight, u: Tensor, activation: str, out: Tensor, activation_out: Tensor
) -> None:
    """Write `matmul_gated_backward` to `out` and `activation_out`."""
    _native_matmul(
        _matrix(x),
        x.shape[0],
        packed,
        _matrix(out),
        activation=f"{activation}_gradient",
        pre_activation=_matrix(u),
        activation_out=_matrix(activation_out),
    )


def weight_gradient_unchecked(a: Tensor, b: Tensor, out: Tensor, sums: Tensor | None, accumulate: bool = False) -> None:
    """Write `weight_gradient` to `out`, or add it, and write the column sums of a to `sums`."""
    _native_weight_gradient(
        _matrix(a),
        _matrix(b),
        a.shape[0],
        a.shape[1],
        b.shape[1],
        _matrix(out),
        0 if sums is None else sums.data_ptr(),
        accumulate,
    )


def row_contiguous(rows: Tensor) -> Tensor:
    """Return a matrix with contiguous rows that do not overlap, a copy only if it must be."""
    return rows if rows.stride(1) == 1 and rows.stride(0) >= rows.shape[1] else rows.contiguous()


def _check_gate(activation: str | None, known: Collection[str], remark: str = "") -> None:
    """Raise UserError for an activation that is not among the known ones."""
    if activation not in known:
        raise UserError(f"activation={activation!r} must be {' or '.join(map(repr, known))}{remark}")


def _check_result(
    name: str, tensor: Tensor, shape: tuple[int, int], dtype: torch.dtype | None = None, **others: Tensor | None
) -> None:
    """Raise UserError for a result that cannot be written, or overlaps others in memory."""
    _check_matrix(name, tensor, shape)
    if dtype not in (None, tensor.dtype):
        raise UserError(f"{name} has dtype {tensor.dtype}: it must be {dtype}")
    if tensor.is_neg():
        raise UserError(f"{name} is a negated view: pass separate memory")
    for other_name, other in others.items():
        if other is not None and _overlap(tensor, other):
            raise UserError(f"{name} overlaps {other_name} in memory: pass separate memory")


def _check_matrix(name: str, tensor: Tensor, shape: tuple[int, int] | None, expected: str = "(out, in)") -> None:
    """Raise UserError for anything but a matrix on the CPU with contiguous rows that do not overlap."""
    if not tensor.is_cpu or tensor.layout != torch.strided:
        raise UserError(f"{name} is on {tensor.device} ({tensor.layout}): it must be a dense tensor on the CPU")
    if tensor.dtype not in DTYPES:
        raise UserError(f"{name} has dtype {tensor.dtype}: it must be torch.bfloat16 or torch.float32")
    if tensor.dim() != 2 or (shape is not None and tuple(tensor.shape) != shape):
        raise UserError(f"{name} has shape {tuple(tensor.shape)}: it must be {shape or expected}")
    if not tensor.numel():  # contiguous() keeps any strides
        return
    if (tensor.shape[1] > 1 and tensor.stride(1) != 1) or (tensor.shape[0] > 1 and tensor.stride(0) < tensor.shape[1]):
        raise UserError(f"{name} has strides {tensor.stride()}: rows must be contiguous; use contiguous()")


def _matrix(tensor: Tensor) -> tuple[int, str, int]:
    # A single row may have any stride.
    stride = tensor.stride(0) if tensor.shape[0] > 1 else tensor.shape[1]
    return tensor.data_ptr(), DTYPES[tensor.dtype], stride


def _vector(name: str, tensor: Tensor, width: int) -> Tensor:
    """Return a vector in contiguous fp32, a copy only if it must be."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu" or not tensor.dtype.is_floating_point or tuple(tensor.shape) != (width,):
        raise UserError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}: it must be floating, of shape"
            f" ({width},), on the CPU"
        )
    buffers.address(name, tensor)
    return tensor.resolve_neg().to(torch.float32).contiguous()


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Return whether the spans of two tensors' elements overlap."""

    def span(tensor: Tensor) -> tuple[int, int]:
        begin, _, stride = _matrix(tensor)
        elements = (tensor.shape[0] - 1) * stride + tensor.shape[1] if tensor.numel() else 0
        return begin, begin + elements * tensor.element_size()

    (a_begin, a_end), (b_begin, b_end) = span(a), span(b)
    return a_begin < b_end and b_begin < a_end
