"""The vocabulary matmul with its cross-entropy, without the logits of all rows at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastbert.ops import custom_op, dispatch
from fastbert.ops.autocast import matmul_dtype
from fastbert.ops.checks import is_debugging
from fastbert.ops.cross_entropy import eager, native, triton
from fastbert.ops.cross_entropy.arguments import CrossEntropyArguments, LossOptions
from fastbert.ops.kernel_failures import retried
from fastbert.ops.linear.arguments import GradMask
from fastbert.ops.operation import Operation
from fastbert.packing import IGNORE_INDEX

LINEAR_CROSS_ENTROPY = Operation("linear_cross_entropy", eager.Eager(), native.Native(), triton.Triton())


@dataclass(frozen=True)
class CrossEntropy:
    """The result of `linear_cross_entropy`, from which means over several batches can be formed."""

    loss_sum: Tensor
    """Sum of the losses of the labelled rows, an fp32 scalar."""
    count: Tensor
    """Number of labelled rows, an int64 scalar."""
    correct: Tensor
    """Number of correct predictions, an int64 scalar."""


@retried
def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    *,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> CrossEntropy:
    """Compute the cross-entropy of softmax(x weight^T + bias) against `labels`.

    x (rows, width), weight (vocabulary, width) and bias (vocabulary,) have one floating dtype, labels are int64
    (rows,). Rows labelled `ignore_index` do not count. `label_smoothing` mixes a uniform distribution into the target
    (Szegedy et al. 2016, section 7); `z_loss` adds z_loss * logsumexp(logits)^2 to the loss of each labelled row
    (Chowdhery et al. 2022, section 5). `correct` counts the rows whose label is the first of the highest logits.

    Under autocast x, weight and bias are cast to its dtype, as by PyTorch (the `native` backend adds the bias uncast).
    Logits are rounded to the dtype of x; maxima, exponentials, sums and the loss are fp32. Gradients have the dtypes of
    their tensors; the gradient of the weight is summed in fp32. The `triton` backend supports bf16, fp16 and fp32, the
    `native` backend bf16 and fp32 where the table of matmuls prefers it. Both hold the logits of a chunk of rows only,
    compute the gradients together with the loss, and have no second derivatives.

    For a label that is neither in the vocabulary nor `ignore_index`, the `native` backend raises UserError with its
    row, the `triton` backend makes the loss and the gradients NaN, and PyTorch raises or stops the GPU; under
    FASTBERT_DEBUG=1 labels are read on the host and UserError is raised. There is no host-device sync otherwise. Raises
    UserError, a ValueError, that names the wrong argument.

    Example:
        >>> import torch
        >>> from fastbert import ops
        >>> x, vocabulary = torch.randn(3, 16, requires_grad=True), torch.randn(100, 16)
        >>> result = ops.linear_cross_entropy(x, vocabulary, None, torch.tensor([4, -100, 7]))
        >>> result.count, result.loss_sum.dtype
        (tensor(2), torch.float32)
        >>> (result.loss_sum / result.count).backward()
        >>> x.grad.shape
        torch.Size([3, 16])
    """
    options = LossOptions(ignore_index, label_smoothing, z_loss)
    arguments = CrossEntropyArguments(x, weight, bias, labels, options)
    arguments.check()
    backend = dispatch.select_backend(LINEAR_CROSS_ENTROPY, x.device, arguments)
    if is_debugging():
        arguments.check_labels()
    if backend.composite:
        return CrossEntropy(*backend.forward(arguments))
    dispatch.refuse_forward_mode("linear_cross_entropy")
    mask = (dispatch.needs_backward(tensor) for tensor in (x, weight, bias))
    results = _forward(x.to(matmul_dtype(x)), weight, bias, labels, *options, *mask, backend.name)
    return CrossEntropy(*results[:3])


@custom_op.operator("fastbert::linear_cross_entropy")
def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    options: LossOptions,
    want_dx: bool,
    want_dweight: bool,
    want_dbias: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return loss_sum, count, correct, and the gradients of loss_sum by x (in its dtype), weight and bias (fp32).

    Gradients without their flag are empty.
    """
    arguments = CrossEntropyArguments(x, weight, bias, labels, options)
    return LINEAR_CROSS_ENTROPY.backend(backend).forward(arguments, GradMask(want_dx, want_dweight, want_dbias))


@_forward.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *numbers: Any) -> tuple[Tensor, ...]:
    mask = GradMask(*numbers[-4:-1])
    return (
        x.new_empty((), dtype=torch.float32),
        labels.new_empty(()),
        labels.new_empty(()),
        x.new_empty(x.shape if mask.x else (0,)),
        x.new_empty(weight.shape if mask.weight else (0,), dtype=torch.float32),
        x.new_empty(weight.shape[:1] if mask.bias else (0,), dtype=torch.float32),
    )


@custom_op.operator("fastbert::linear_cross_entropy_backward")
def _backward(
    grad: Tensor,
    dx: Tensor,
    dweight: Tensor,
    dbias: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients times grad, an fp32 scalar. With x, weight and bias a second derivative is refused."""
    dtypes = (dx.dtype, weight.dtype, weight.dtype if bias is None else bias.dtype)
    return tuple(LINEAR_CROSS_ENTROPY.backend(backend).backward(grad, (dx, dweight, dbias), dtypes))


@_backward.register_fake
def _(grad: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor, x: Tensor, *others: Any) -> tuple[Tensor, ...]:
    weight, bias, _ = others
    dtype = weight.dtype if bias is None else bias.dtype
    return torch.empty_like(dx), torch.empty_like(dweight, dtype=weight.dtype), torch.empty_like(dbias, dtype=dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    custom_op.save(ctx, *output[3:], *inputs[:3], inputs[-1])
    ctx.mark_non_differentiable(*output[3:])
    # Otherwise torch would allocate zeros as large as the weight for them.
    ctx.set_materialize_grads(False)


def _frees_graph() -> bool:
    """Return whether the running backward pass frees its graph: without retain_graph and create_graph."""
    keeps = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return keeps is not None and not keeps()


@_forward.register_autograd(setup_context=_setup_context)
def _(ctx: Any, grad: Tensor | None, *others: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 11
    dx, dweight, dbias, x, weight, bias, backend = custom_op.saved(ctx)
    if _frees_graph() and dweight.dtype == weight.dtype and type(dweight) is Tensor:  # not a traced one
        # They are not read again, so the weight's gradient can be scaled in place.
        scaled = (dx.mul_(grad), dweight.mul_(grad), dbias.mul_(grad).to(weight.dtype if bias is None else bias.dtype))
    else:
        scaled = _backward(grad, dx, dweight, dbias, x, weight, bias, backend)
    return *[tensor if needed else None for tensor, needed in zip(scaled, ctx.needs_input_grad)], *[None] * 8
