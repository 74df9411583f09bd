"""LayerNorm and RMSNorm, alone and of a sum with dropout and a residual connection; LayerNorm of a GELU.

One file: the five functions share a record of arguments and two formulas of gradients.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor

from fastbert.ops import custom_op, dispatch
from fastbert.ops.dropout.arguments import FlatDropout, TokenDropout, flatten
from fastbert.ops.gelu.arguments import is_tanh
from fastbert.ops.kernel_failures import retried
from fastbert.ops.norm import eager, native, triton
from fastbert.ops.norm.arguments import GeluLayerNormArguments, LayerNormArguments
from fastbert.ops.operation import Operation

LAYER_NORM = Operation("layer_norm", eager.LayerNorm(), native.LayerNorm(), triton.LayerNorm())
DROPOUT_ADD_LAYER_NORM = Operation("dropout_add_layer_norm", eager.LayerNorm(), native.LayerNorm(), triton.LayerNorm())
RMS_NORM = Operation("rms_norm", eager.LayerNorm(), native.LayerNorm(), triton.LayerNorm())
DROPOUT_ADD_RMS_NORM = Operation("dropout_add_rms_norm", eager.LayerNorm(), native.LayerNorm(), triton.LayerNorm())
GELU_LAYER_NORM = Operation("gelu_layer_norm", eager.GeluLayerNorm(), native.GeluLayerNorm(), triton.GeluLayerNorm())


@retried
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-12) -> Tensor:
    """Compute LayerNorm over the last axis (Ba et al. 2016): (x - mean) / sqrt(variance + eps) * weight + bias.

    x (..., width), weight and bias (width,), any floating dtypes; without a bias none is added. Returns shape and dtype
    of x; mean, variance, weight and bias are used in fp32 whatever the dtypes, or in float64 if one of them is.

    The `triton` backend supports bf16, fp16 and fp32 up to 8192 columns, the `native` one bf16 and fp32 of any width.
    Both save x and two fp32 numbers per row for backward, and sum the gradients of weight and bias in fp32 and in the
    same order on every run. Raises UserError, a ValueError, that names the wrong argument.

    Example:
        >>> import torch
        >>> from fastbert import ops
        >>> ops.layer_norm(torch.tensor([[1.0, 3.0]]), torch.ones(2), torch.tensor([0.0, 1.0]))
        tensor([[-1.,  2.]])
    """
    return _norm(LAYER_NORM, LayerNormArguments(x, None, None, weight, bias, eps, None))


@retried
def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Compute RMSNorm over the last axis (Zhang and Sennrich 2019, equation 4): x / sqrt(mean(x^2) + eps) * weight.

    x (..., width), weight (width,), any floating dtypes. Returns shape and dtype of x; the mean of squares and the
    weight are used in fp32 whatever the dtypes, or in float64 if one of them is; nothing is rounded before the result.

    Backends are those of `layer_norm`; one fp32 number per row is saved for backward. Raises UserError, a ValueError,
    that names the wrong argument.

    Example:
        >>> import torch
        >>> from fastbert import ops
        >>> ops.rms_norm(torch.tensor([[3.0, 3.0]]), torch.tensor([1.0, 2.0]))
        tensor([[1.0000, 2.0000]])
    """
    return _norm(RMS_NORM, LayerNormArguments(x, None, None, weight, None, eps, None, rms=True))


def _norm(operation: Operation[LayerNormArguments], arguments: LayerNormArguments) -> Tensor:
    """Return the norm of x (..., width) alone."""
    x, _, _, weight, bias, eps, _, rms = arguments
    backend, direct, trains = dispatch.choose(operation, arguments, x, weight, bias)
    if direct:
        y: Tensor = backend.forward(arguments, False)[0]
        return y
    rows = x.reshape(-1, x.shape[-1])
    return _layer_norm(rows, weight, bias, eps, rms, trains, backend.name)[0].view(x.shape)


@overload
def dropout_add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = ...,
    eps: float = ...,
    token_dropout: TokenDropout | None = ...,
    *,
    x_bias: Tensor | None = ...,
    return_sum: Literal[False] = ...,
) -> Tensor: ...


@overload
def dropout_add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = ...,
    eps: float = ...,
    token_dropout: TokenDropout | None = ...,
    *,
    x_bias: Tensor | None = ...,
    return_sum: Literal[True],
) -> tuple[Tensor, Tensor]: ...


@retried
def dropout_add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-12,
    token_dropout: TokenDropout | None = None,
    *,
    x_bias: Tensor | None = None,
    return_sum: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute LayerNorm(residual + dropout(x + x_bias)), the end of both halves of a layer (Vaswani et al. 2017, 3.1).

    x and residual (..., width), with `token_dropout` (tokens, width); x_bias, weight, bias (width,); any floating
    dtypes. Returns the norm in shape and dtype of x and, with `return_sum`, the sum, through which gradients flow too.
    The sum is rounded to the dtype of x before it is normed; statistics are fp32.

    The `triton` backend supports bf16, fp16 and fp32 up to 8192 columns, the `native` one bf16 and fp32 of any width.
    Both round nothing before the sum, save the sum and two fp32 numbers per row for backward, recompute the dropout
    mask, and sum the gradients of vectors in fp32 and in the same order on every run. Raises UserError, a ValueError,
    that names the wrong argument.

    Example:
        >>> import torch
        >>> from fastbert import ops
        >>> x, residual = torch.randn(2, 4, 16).unbind()
        >>> normed, total = ops.dropout_add_layer_norm(x, residual, torch.ones(16), torch.zeros(16), return_sum=True)
        >>> normed.shape, torch.equal(total, x + residual)
        (torch.Size([4, 16]), True)
    """
    arguments = LayerNormArguments(x, x_bias, residual, weight, bias, eps, token_dropout)
    y, total = _norm_of_sum(DROPOUT_ADD_LAYER_NORM, arguments, return_sum)
    return y if total is None else (y, total)


@overload
def dropout_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = ...,
    token_dropout: TokenDropout | None = ...,
    *,
    x_bias: Tensor | None = ...,
    return_sum: Literal[False] = ...,
) -> Tensor: ...


@overload
def dropout_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = ...,
    token_dropout: TokenDropout | None = ...,
    *,
    x_bias: Tensor | None = ...,
    return_sum: Literal[True],
) -> tuple[Tensor, Tensor]: ...


@retried
def dropout_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    token_dropout: TokenDropout | None = None,
    *,
    x_bias: Tensor | None = None,
    return_sum: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute RMSNorm(residual + dropout(x + x_bias)), the norm by `rms_norm`, the sum as in `dropout_add_layer_norm`.

    x and residual (..., width), with `token_dropout` (tokens, width); x_bias and weight (width,); any floating dtypes.
    Returns the norm in shape and dtype of x and, with `return_sum`, the sum. Raises UserError, a ValueError, that names
    the wrong argument.

    Example:
        >>> import torch
        >>> from fastbert import ops
        >>> x, residual = torch.randn(2, 4, 16).unbind()
        >>> ops.dropout_add_rms_norm(x, residual, torch.ones(16)).shape
        torch.Size([4, 16])
    """
    arguments = LayerNormArguments(x, x_bias, residual, weight, None, eps, token_dropout, rms=True)
    y, total = _norm_of_sum(DROPOUT_ADD_RMS_NORM, arguments, return_sum)
    return y if total is None else (y, total)


def _norm_of_sum(
    operation: Operation[LayerNormArguments], arguments: LayerNormArguments, return_sum: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the norm of a sum with a residual and, with `return_sum`, the sum, both in the shape of x."""
    if arguments.dropout is not None and arguments.dropout.p == 0.0:
        arguments = arguments._replace(dropout=None)
    x, x_bias, residual, weight, bias, eps, dropout, rms = arguments
    assert residual is not None
    backend, direct, trains = dispatch.choose(operation, arguments, x, residual, weight, bias, x_bias)
    if direct:
        y, total = backend.forward(arguments, return_sum)
        return y, total if return_sum else None
    rows, residual_rows = x.reshape(-1, x.shape[-1]), residual.reshape(-1, x.shape[-1])
    y, total, _, _ = _dropout_add_layer_norm(
        rows, x_bias, residual_rows, weight, bias, eps, *flatten(dropout), rms, return_sum or trains, backend.name
    )
    return y.view(x.shape), total.view(x.shape) if return_sum else None


@retried
def gelu_layer_norm(
    x: Tensor,
    bias: Tensor | None,
    weight: Tensor,
    norm_bias: Tensor | None = None,
    eps: float = 1e-12,
    approximate: str = "none",
) -> Tensor:
    """Compute LayerNorm(GELU(x + bias)), the transform of the masked-language-model head (Devlin et al. 2019).

    x (..., width); bias and norm_bias (width,) or None; weight (width,); any floating dtypes. `approximate` is `"none"`
    (by erf) or `"tanh"`. Returns shape and dtype of x.

    The `triton` backend supports bf16, fp16 and fp32 up to 8192 columns, the `native` one bf16 and fp32 of any width.
    Both compute in fp32 throughout, save x and two fp32 numbers per row for backward, and sum the gradients of vectors
    in fp32 and in the same order on every run. Raises UserError, a ValueError, that names the wrong argument.

    Example:
        >>> import torch
        >>> from fastbert import ops
        >>> x, bias = torch.randn(4, 16), torch.zeros(16)
        >>> ops.gelu_layer_norm(x, bias, torch.ones(16), torch.zeros(16)).shape
        torch.Size([4, 16])
    """
    arguments = GeluLayerNormArguments(x, bias, weight, norm_bias, eps, is_tanh(approximate))
    backend, direct, trains = dispatch.choose(GELU_LAYER_NORM, arguments, x, bias, weight, norm_bias)
    if direct:
        return backend.forward(arguments)
    rows = arguments._replace(x=x.reshape(-1, x.shape[-1]))
    return _gelu_layer_norm(*rows, trains, backend.name)[0].view(x.shape)


def _statistics(x: Tensor, save: bool, rms: bool = False) -> tuple[Tensor, Tensor]:
    """Return mean and rstd of the rows of x as fake tensors."""
    mean, rstd = (x.new_empty(x.shape[0] if kept else 0, dtype=torch.float32) for kept in (save and not rms, save))
    return mean, rstd


@custom_op.operator("fastbert::layer_norm")
def _layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, rms: bool, save: bool, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y (rows, width), and mean and rstd fp32 (rows,), which are empty without `save`; RMSNorm has no mean."""
    arguments = LayerNormArguments(x, None, None, weight, bias, eps, None, rms)
    y, _, mean, rstd = LAYER_NORM.backend(backend).forward_rows(arguments, save)
    return y, mean, rstd


@_layer_norm.register_fake
def _(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    rms, save = arguments[-3:-1]
    return x.new_empty(x.shape), *_statistics(x, save, rms)


@custom_op.operator("fastbert::layer_norm_backward")
def _layer_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, has_bias: bool, rms: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """Return dx; dweight and, with a bias, dbias as rows of one fp32 tensor: results must not share memory."""
    gradients = LAYER_NORM.backend(backend).backward
    options = {"x_bias": False, "residual": False, "bias": has_bias, "rms": rms}
    return gradients(grad, None, x, mean, rstd, weight, None, **options)[::2]


@_layer_norm_backward.register_fake
def _(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, has_bias: bool, rms: bool, backend: str
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), rstd.new_empty(1 + has_bias, x.shape[1])


def _save_layer_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, _, rms, _, backend = inputs
    custom_op.save(ctx, x, *output[1:], weight, None if bias is None else bias.dtype, rms, backend)


@_layer_norm.register_autograd(setup_context=_save_layer_norm)
def _(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, mean, rstd, weight, bias_dtype, rms, backend = custom_op.saved(ctx)
    dx, sums = _layer_norm_backward(grad, x, mean, rstd, weight, bias_dtype is not None, rms, backend)
    dbias = None if bias_dtype is None else sums[1].to(bias_dtype)
    return dx, sums[0].to(weight.dtype), dbias, *[None] * 4


@custom_op.operator("fastbert::dropout_add_layer_norm")
def _dropout_add_layer_norm(
    x: Tensor,
    x_bias: Tensor | None,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    dropout: FlatDropout,
    rms: bool,
    save: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y and the rounded sum (rows, width), mean and rstd fp32 (rows,); all but y are empty without `save`."""
    arguments = LayerNormArguments(x, x_bias, residual, weight, bias, eps, dropout.rebuild(), rms)
    return DROPOUT_ADD_LAYER_NORM.backend(backend).forward_rows(arguments, save)


@_dropout_add_layer_norm.register_fake
def _(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rms, save = arguments[-3:-1]
    return x.new_empty(x.shape), x.new_empty(x.shape if save else 0), *_statistics(x, save, rms)


@custom_op.operator("fastbert::dropout_add_layer_norm_backward")
def _dropout_add_layer_norm_backward(
    grad: Tensor,
    grad_total: Tensor | None,
    total: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    dropout: FlatDropout,
    has_bias: bool,
    has_x_bias: bool,
    rms: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dx; dresidual, empty where it equals dx; dweight, dbias with a bias, dx_bias with x_bias as fp32 rows."""
    options = {"x_bias": has_x_bias, "residual": True, "bias": has_bias, "rms": rms}
    dx, dresidual, sums = DROPOUT_ADD_LAYER_NORM.backend(backend).backward(
        grad, grad_total, total, mean, rstd, weight, dropout.rebuild(), **options
    )
    return dx, dx.new_empty(0) if dresidual is None else dresidual, sums


@_dropout_add_layer_norm_backward.register_fake
def _(
    grad: Tensor,
    grad_total: Tensor | None,
    total: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    dropout: FlatDropout,
    has_bias: bool,
    has_x_bias: bool,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    dresidual = total.new_empty(0 if dropout.key is None else total.shape)
    return total.new_empty(total.shape), dresidual, rstd.new_empty(1 + has_bias + has_x_bias, total.shape[1])


def _save_sum(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, x_bias, residual, weight, bias, _, *dropout, rms, _, backend = inputs
    dtypes = (residual.dtype, *[None if vector is None else vector.dtype for vector in (bias, x_bias)])
    custom_op.save(ctx, *output[1:], weight, *dropout, dtypes, rms, backend)
    # The sum rarely has a gradient of its own: without one nothing is read.
    ctx.set_materialize_grads(False)


@_dropout_add_layer_norm.register_autograd(setup_context=_save_sum)
def _(ctx: Any, grad: Tensor | None, grad_total: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    total, mean, rstd, weight, p, key, sequence_ids, offsets, site, dtypes, rms, backend = custom_op.saved(ctx)
    (residual_dtype, bias_dtype, x_bias_dtype), dropout = dtypes, (p, key, sequence_ids, offsets, site)
    has_bias, has_x_bias = bias_dtype is not None, x_bias_dtype is not None
    dx, dresidual, sums = _dropout_add_layer_norm_backward(
        torch.zeros_like(total) if grad is None else grad, grad_total, total, mean, rstd, weight, *dropout,
        has_bias, has_x_bias, rms, backend,
    )  # fmt: skip
    dx_bias = sums[-1].to(x_bias_dtype) if has_x_bias else None
    dresidual = (dx if key is None else dresidual).to(residual_dtype)
    dweight = None if grad is None else sums[0].to(weight.dtype)
    dbias = None if grad is None or not has_bias else sums[1].to(bias_dtype)
    return dx, dx_bias, dresidual, dweight, dbias, *[None] * 9


@custom_op.operator("fastbert::gelu_layer_norm")
def _gelu_layer_norm(arguments: GeluLayerNormArguments, save: bool, backend: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return y (rows, width), and mean and rstd of the GELU, fp32 (rows,), which are empty without `save`."""
    return GELU_LAYER_NORM.backend(backend).forward_rows(arguments, save)


@_gelu_layer_norm.register_fake
def _(arguments: GeluLayerNormArguments, save: bool, backend: str) -> tuple[Tensor, Tensor, Tensor]:
    return arguments.x.new_empty(arguments.x.shape), *_statistics(arguments.x, save)


@custom_op.operator("fastbert::gelu_layer_norm_backward")
def _gelu_layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    x_bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    tanh: bool,
    has_bias: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Return dx; dweight, dbias with a bias, dx_bias with x_bias as rows of one fp32 tensor."""
    return GELU_LAYER_NORM.backend(backend).backward(grad, x, x_bias, mean, rstd, weight, tanh, has_bias)


@_gelu_layer_norm_backward.register_fake
def _(
    grad: Tensor, x: Tensor, x_bias: Tensor | None, mean: Tensor, rstd: Tensor, weight: Tensor, tanh: bool,
    has_bias: bool, backend: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return x.new_empty(x.shape), mean.new_empty(1 + has_bias + (x_bias is not None), x.shape[1])


def _save_gelu_layer_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, x_bias, weight, bias, _, tanh, _, backend = inputs
    custom_op.save(ctx, x, x_bias, *output[1:], weight, tanh, None if bias is None else bias.dtype, backend)


@_gelu_layer_norm.register_autograd(setup_context=_save_gelu_layer_norm)
def _(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, x_bias, mean, rstd, weight, tanh, bias_dtype, backend = custom_op.saved(ctx)
    has_bias = bias_dtype is not None
    dx, sums = _gelu_layer_norm_backward(grad, x, x_bias, mean, rstd, weight, tanh, has_bias, backend)
    dbias, dx_bias = sums[1].to(bias_dtype) if has_bias else None, None if x_bias is None else sums[-1].to(x_bias.dtype)
    return dx, dx_bias, sums[0].to(weight.dtype), dbias, *[None] * 4
