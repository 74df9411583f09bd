"""The vocabulary product with its loss, without the logits of all rows at once."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import UserError
from fastbert.ops import dispatch
from fastbert.ops.autocast import without_autocast
from fastbert.ops.cross_entropy import native as native_loss
from fastbert.ops.custom_op import operator
from fastbert.ops.native.rowwise_tensors import takes
from fastbert.packing import IGNORE_INDEX

SERVED = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class CrossEntropy:
    """Loss summed over the labelled rows (fp32 scalar), the number of labelled rows, and of those predicted right."""

    loss_sum: Tensor
    count: Tensor
    correct: Tensor


class Terms(NamedTuple):
    """What a loss is made of, as `linear_cross_entropy` takes it."""

    ignore_index: int
    label_smoothing: float
    z_loss: float


class Wanted(NamedTuple):
    """Which gradients are computed with the loss."""

    x: bool
    weight: bool
    bias: bool


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
    """Cross-entropy of softmax(x weight^T + bias) against `labels`: x (rows, width), weight (vocabulary, width), bias
    (vocabulary,), labels int64 (rows,).

    Rows labelled `ignore_index` count for nothing. `label_smoothing` mixes a uniform distribution into the target
    (Szegedy et al. 2016, section 7); `z_loss` adds z_loss * logsumexp(logits)^2 to the loss of each labelled row
    (Chowdhery et al. 2022, section 5). `correct` counts rows whose label is the first of the highest logits.

    Under autocast x, weight and bias are cast to its dtype, as by eager torch (the `native` backend adds the bias as it
    is). Logits are rounded to the dtype of x; maxima, exponentials, sums and the loss are fp32. Gradients have the
    dtypes of what they belong to; that of the weight is summed in fp32. The `triton` backend serves bf16, fp16 and
    fp32, the `native` one bf16 and fp32 where the table of products says so: they keep the logits of a chunk of rows
    only, compute the gradients with the loss where one is asked for, and have no second derivatives.

    A label that is neither in the vocabulary nor `ignore_index` is a UserError of the native backend that names its
    place; it makes the loss and the gradients NaN on the triton one (eager torch raises, or stops the GPU), where with
    FASTBERT_DEBUG=1 it is read on the host and raises UserError. Nothing asks a GPU otherwise. Raises UserError, a
    ValueError, that names the wrong argument.
    """
    _check(x, weight, bias, labels, label_smoothing, z_loss)
    chosen = dispatch.choose("linear_cross_entropy", x.device)
    if chosen == "triton":
        chosen = _check_triton(x, weight, bias)
    elif chosen == "native" and not native_loss.serves(x, weight, bias, _operands(x)):
        chosen = "eager"
    if not torch.compiler.is_compiling():
        _check_labels(labels, weight.shape[0], ignore_index)
    terms = Terms(ignore_index, label_smoothing, z_loss)
    if chosen == "eager":
        return _eager(x, weight, bias, labels, terms)
    dispatch.refuse_forward_mode("linear_cross_entropy")
    wanted = (torch.is_grad_enabled() and t is not None and t.requires_grad for t in (x, weight, bias))
    loss_sum, count, correct, _, _, _ = _forward(x.to(_operands(x)), weight, bias, labels, *terms, *wanted)
    return CrossEntropy(loss_sum, count, correct)


def _operands(x: Tensor) -> torch.dtype:
    """The dtype in which torch would multiply x now."""
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def _check(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float, z_loss: float
) -> None:
    """Refuse what no backend can compute, by what the host knows: shapes, dtypes, devices, numbers."""
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise UserError(
            "x must have shape (rows, width) and weight (vocabulary, width), not"
            f" {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if not x.dtype.is_floating_point:
        raise UserError(f"x must be floating, not {x.dtype}")
    if weight.shape[0] < 1:
        raise UserError("weight has no rows: a vocabulary has at least one label")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise UserError(f"bias must have shape ({weight.shape[0]},), one a label, not {tuple(bias.shape)}")
    if labels.dtype != torch.int64 or labels.shape != x.shape[:1]:
        raise UserError(
            f"labels must be int64 of shape ({x.shape[0]},), one a row, not {labels.dtype} {tuple(labels.shape)}"
        )
    named = {"weight": weight, "bias": bias, "labels": labels}
    for name, tensor in named.items():
        if tensor is not None and tensor.device != x.device:
            raise UserError(f"{name} is on {tensor.device}, x on {x.device}: move them to one device")
    if not torch.is_autocast_enabled(x.device.type):
        for name, tensor in (("weight", weight), ("bias", bias)):
            if tensor is not None and tensor.dtype != x.dtype:
                raise UserError(f"{name} has dtype {tensor.dtype}, x {x.dtype}: cast one, or use torch.autocast")
    if not 0.0 <= label_smoothing <= 1.0:
        raise UserError(f"label_smoothing={label_smoothing} must be between 0 and 1")
    if not 0.0 <= z_loss < math.inf:
        raise UserError(f"z_loss={z_loss} must be a finite number and not below 0")


def _check_triton(x: Tensor, weight: Tensor, bias: Tensor | None) -> dispatch.BackendName:
    """The backend of a call for which the Triton kernels were chosen: eager where they do not serve its kind."""
    dispatch.require_triton(x.device, "x")
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype not in SERVED:
            reason = f"{name} has dtype {tensor.dtype}: the triton backend serves bfloat16, float16 and float32"
            return dispatch.without_triton("linear_cross_entropy", reason)
    return "triton"


def _check_labels(labels: Tensor, vocabulary: int, ignore_index: int) -> None:
    """Refuse labels outside the vocabulary; reads them, and so only under FASTBERT_DEBUG=1."""
    if os.environ.get("FASTBERT_DEBUG", "0") not in ("", "0"):
        native_loss.check_labels(labels, vocabulary, ignore_index)


def _eager(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, terms: Terms) -> CrossEntropy:
    """The eager backend: torch's own operations, whose gradients torch knows."""
    logits = F.linear(x, weight, bias)
    counted = labels != terms.ignore_index
    with without_autocast(x.device):
        wide = logits.float()
        loss_sum = F.cross_entropy(
            wide, labels, ignore_index=terms.ignore_index, label_smoothing=terms.label_smoothing, reduction="sum"
        )
        if terms.z_loss:
            loss_sum = loss_sum + terms.z_loss * wide.logsumexp(-1).square().masked_fill(~counted, 0.0).sum()
    with torch.no_grad():
        correct = ((logits.argmax(-1) == labels) & counted).sum()
    return CrossEntropy(loss_sum, counted.sum(), correct)


@operator("fastbert::linear_cross_entropy")
def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    want_dx: bool,
    want_dweight: bool,
    want_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """loss_sum, count, correct, and the gradients of loss_sum by x (in its dtype), weight and bias (fp32).

    The gradients that are not wanted are empty.
    """
    terms, wanted = Terms(ignore_index, label_smoothing, z_loss), Wanted(want_dx, want_dweight, want_dbias)
    return _kernels(x).forward(x, weight, bias, labels.contiguous(), terms, wanted)


def _kernels(x: Tensor) -> Any:
    """What serves the operators on the device of x. Asked inside of them, by which time the call is served: backward
    may run outside of the `use_backend` of its forward."""
    return dispatch.implementation("linear_cross_entropy", "native" if takes(x) else "triton")


@_forward.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *numbers: Any) -> tuple[Tensor, ...]:
    want_dx, want_dweight, want_dbias = numbers[-3:]
    return (
        x.new_empty((), dtype=torch.float32),
        labels.new_empty(()),
        labels.new_empty(()),
        x.new_empty(x.shape if want_dx else (0,)),
        x.new_empty(weight.shape if want_dweight else (0,), dtype=torch.float32),
        x.new_empty(weight.shape[:1] if want_dbias else (0,), dtype=torch.float32),
    )


@operator("fastbert::linear_cross_entropy_backward")
def _backward(
    grad: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients times grad, fp32 scalar. x, weight and bias are here so that a second derivative is refused."""
    return _kernels(x).backward(grad, dx, dweight, dbias, weight.dtype, weight.dtype if bias is None else bias.dtype)


@_backward.register_fake
def _(
    grad: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, ...]:
    kind = weight.dtype if bias is None else bias.dtype
    return torch.empty_like(dx), torch.empty_like(dweight, dtype=weight.dtype), torch.empty_like(dbias, dtype=kind)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, *_ = inputs
    _, _, _, dx, dweight, dbias = output
    ctx.mark_non_differentiable(dx, dweight, dbias)
    # Or torch would make zeros as large as the weight for them.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(dx, dweight, dbias, x, weight, bias)


def _ends_here() -> bool:
    """Whether the backward pass that runs now frees its graph: without retain_graph and create_graph."""
    keeps = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return keeps is not None and not keeps()


def _gradients(ctx: Any, grad: Tensor | None, *others: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 10
    dx, dweight, dbias, x, weight, bias = ctx.saved_tensors
    if _ends_here() and dweight.dtype == weight.dtype and type(dweight) is Tensor:  # and not one that is traced
        # Nobody will ask for them again, so the weight's gradient need not lie in memory twice.
        scaled = (dx.mul_(grad), dweight.mul_(grad), dbias.mul_(grad).to(weight.dtype if bias is None else bias.dtype))
    else:
        scaled = _backward(grad, dx, dweight, dbias, x, weight, bias)
    needed = ctx.needs_input_grad
    dx, dweight, dbias = (tensor if need else None for tensor, need in zip(scaled, needed))
    return dx, dweight, dbias, None, None, None, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_setup_context)


class _Triton:
    """The kernels of `fastbert.kernels.loss.linear_cross_entropy`, imported when they first run."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, terms: Terms, wanted: Wanted
    ) -> tuple[Tensor, ...]:
        from fastbert.kernels.loss import linear_cross_entropy as kernels

        return kernels.forward(x, weight, bias, labels, *terms, *wanted)

    @staticmethod
    def backward(
        grad: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor, of_weight: torch.dtype, of_bias: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        from fastbert.kernels.loss import linear_cross_entropy as kernels

        scaled = kernels.scaled
        return scaled(dx, grad, dx.dtype), scaled(dweight, grad, of_weight), scaled(dbias, grad, of_bias)


dispatch.register("linear_cross_entropy", "eager", _eager)
dispatch.register("linear_cross_entropy", "triton", _Triton)
dispatch.register("linear_cross_entropy", "native", native_loss)
