"""The vocabulary product with its loss on CPUs: the logits of some rows at a time, whose gradients take their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastbert import _C
from fastbert.errors import UserError
from fastbert.ops.native import buffers, caching_allocator, matmul, matmul_table, prepacked_weights
from fastbert.ops.native.buffers import DTYPES

if TYPE_CHECKING:
    from fastbert.ops.cross_entropy.op import Terms, Wanted

# Logits that exist at a time: fewer would write the weight's gradient more often.
LOGITS_BYTES = 64 << 20
FEWEST_ROWS = 128


def serves(x: Tensor, weight: Tensor, bias: Tensor | None, operands: torch.dtype) -> bool:
    """Whether the native kernels take the call; `operands` is what torch would multiply, autocast's dtype or x's."""
    operation = "linear_cross_entropy"
    if torch.compiler.is_compiling() or buffers.is_transformed():
        return buffers.declines(operation, "torch traces or transforms the call")
    if not buffers.serves(operation, x, weight, bias, trains=True):
        return False
    if operands not in DTYPES:
        return buffers.declines(operation, f"autocast multiplies {operands}, and the native backend bfloat16, float32")
    return matmul_table.prefers_own(DTYPES[operands], x.shape[0], *weight.shape)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, terms: Terms, wanted: Wanted
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """loss_sum, count, correct, and the gradients of loss_sum by x (in its dtype), weight and bias (fp32).

    x (rows, width) is bf16 or fp32, and so are the products; weight (vocabulary, width) and bias (vocabulary,) may be
    either; labels int64 (rows,), contiguous. The gradients that are not wanted are empty. Raises UserError for a label
    that is neither in the vocabulary nor `ignore_index`.
    """
    check_labels(labels, len(weight), terms.ignore_index)
    rows, element = len(x), DTYPES[x.dtype]
    x = x.contiguous()
    losses = torch.zeros(rows, dtype=torch.float32, device="cpu")
    correct = torch.zeros(rows, dtype=torch.uint8, device="cpu")
    dx = caching_allocator.empty(x.shape if wanted.x else (0,), x.dtype)
    dweight = caching_allocator.empty(weight.shape if wanted.weight else (0,), torch.float32)
    dbias = torch.zeros(len(weight) if wanted.bias else 0, dtype=torch.float32, device="cpu")
    if not rows and wanted.weight:
        dweight.zero_()
    packed = prepacked_weights.packed(weight, element)
    at_a_time = max(FEWEST_ROWS, LOGITS_BYTES // max(1, len(weight) * x.element_size()))
    for first in range(0, rows, at_a_time):
        part = slice(first, min(rows, first + at_a_time))
        logits = caching_allocator.empty((part.stop - first, len(weight)), x.dtype)
        matmul.product(x[part], packed, bias, out=logits)
        _C.cross_entropy(
            (logits.data_ptr(), element, len(weight)), len(logits), len(weight), labels[part].data_ptr(), *terms,
            any(wanted), losses[part].data_ptr(), correct[part].data_ptr(),
        )  # fmt: skip
        if wanted.x:
            backwards = prepacked_weights.packed(weight, element, transposed=True)
            matmul.product(logits, backwards, out=dx[part])
        sums = None
        if wanted.weight:
            again = first > 0
            sums = matmul.gradient_product(logits, x[part], sums=wanted.bias, out=dweight, accumulate=again)[1]
        if wanted.bias:
            dbias += logits.sum(0, dtype=torch.float32) if sums is None else sums
    count = (labels != terms.ignore_index).sum()
    return losses.sum(dtype=torch.float64).float(), count, correct.sum(), dx, dweight, dbias


def backward(
    grad: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor, of_weight: torch.dtype, of_bias: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients times grad, fp32 scalar, in the dtypes of what they belong to."""
    return (dx * grad).to(dx.dtype), (dweight * grad).to(of_weight), (dbias * grad).to(of_bias)


def check_labels(labels: Tensor, vocabulary: int, ignore_index: int) -> None:
    """Refuse labels that are neither in the vocabulary nor `ignore_index`; reads them."""
    wrong = ((labels < 0) | (labels >= vocabulary)) & (labels != ignore_index)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise UserError(
            f"labels[{row}]={int(labels[row])} is not in the vocabulary of {vocabulary} labels:"
            f" rows without a label have ignore_index={ignore_index}"
        )
