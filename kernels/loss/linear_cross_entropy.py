"""Cross-entropy of a vocabulary matmul: loss and gradients without the logits of all rows at once.

x (rows, width), weight (vocabulary, width), bias (vocabulary,), labels int64 (rows,). Rows go in chunks (`plan`):
PyTorch's matmul writes the logits of a chunk into a buffer, in the operands' dtype; one kernel reads a row twice, block
by block, and the second time overwrites the logits with their gradient; two more matmuls and a sum over rows add the
chunk to the gradients of x, weight and bias. With l = logsumexp(s) and smoothing e over V columns, a row's loss and the
gradient of its logits s with label y are

    l - (1 - e) s_y - e mean(s) + z l^2        p (1 + 2 z l) - e / V - (1 - e) [column = y].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from fastbert.kernels.common import LOG2_E, narrow
from fastbert.kernels.configs.loss import NARROWEST, WIDEST
from fastbert.kernels.launch import architecture, launch, multiprocessors
from fastbert.kernels.matmul import add_matmul
from fastbert.kernels.tuning import tables

# Rows of the buffer start at multiples of this many elements: at a cache line in every dtype.
UNIT = 64
# Rows of a chunk are a multiple of a matmul's tile.
TILE = 128
# Logits of fewer bytes are one chunk.
ONE_CHUNK = 128_000_000
# The largest buffer, in bytes.
BUDGET = 512_000_000
# What eager PyTorch holds per logit at its peak, in backward: the softmax, its gradient and that of the logits, fp32.
EAGER_BYTES = 12
# The largest buffer, as a share of that.
SHARE = 0.09
# The fewest bytes of a column in a chunk, 896 rows of bf16: each chunk reads and writes the whole fp32 gradient of the
# weight, which takes about as long as the three matmuls of 200 rows.
FEWEST = 1792
# Gradients of logits are multiplied by this in fp16, in which small probabilities would underflow; z_loss may then have
# a 2 z l of up to 250.
GAIN = 256.0
LOWEST = tl.constexpr(-1e38)
# Programs of the sum over rows per multiprocessor.
PROGRAMS = 4


class LossInputs(NamedTuple):
    """Inputs of `forward`: x (rows, width), weight (vocabulary, width), bias (vocabulary,), labels int64 (rows,)."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor
    ignore_index: int
    label_smoothing: float
    z_loss: float
    grad_x: bool
    grad_weight: bool
    grad_bias: bool


def padded(vocabulary: int) -> int:
    """Return the elements between the rows of the logits' buffer."""
    return -(-vocabulary // UNIT) * UNIT


def _padded_rows(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weight (vocabulary, width) in `dtype`, with rows of zeros up to the buffer's width.

    The matmuls then compute the buffer's unused columns too. Where their number is no multiple of 8, cuBLAS has no
    kernel for Hopper and takes twice the time (30,522 columns beside 30,528, measured on an H100).
    """
    vocabulary = weight.shape[0]
    if padded(vocabulary) == vocabulary:
        return weight.to(dtype)
    rows = torch.empty(padded(vocabulary), weight.shape[1], dtype=dtype, device=weight.device)
    rows[:vocabulary].copy_(weight)
    rows[vocabulary:].zero_()
    return rows


def plan(rows: int, vocabulary: int, element_size: int, copied_bytes: int = 0) -> int:
    """Return the rows per chunk, for operands of `element_size` bytes; the last chunk may have fewer.

    `copied_bytes` are those of a copy of the weight that is held beside the chunk.

    Up to ONE_CHUNK bytes of logits, one chunk has all rows. Above, the buffer takes at most SHARE of eager PyTorch's
    memory, or as many rows as FEWEST demands, and never more than BUDGET bytes; the chunks are about equal.
    """
    row_bytes = padded(vocabulary) * element_size
    if rows * row_bytes <= ONE_CHUNK:
        return max(rows, 1)
    share = (int(SHARE * EAGER_BYTES * rows * vocabulary) - copied_bytes) // row_bytes // TILE
    most = min(max(share, FEWEST // element_size // TILE), BUDGET // row_bytes // TILE)
    tiles = -(-rows // TILE)
    chunks = -(-tiles // max(most, 1))
    return -(-tiles // chunks) * TILE


@triton.jit
def _logits(logits_ptr, bias_ptr, offset, column, width, vocabulary, labelled, HAS_BIAS: tl.constexpr):
    """Load logits plus bias, fp32 (BLOCK_M, BLOCK_N): -inf beyond the vocabulary, the bias alone without a label."""
    # Up to the padded width, not the vocabulary, so that a thread reads 16 bytes at once.
    s = tl.load(logits_ptr + offset, mask=labelled & (column < width), other=0.0).to(tl.float32)
    if HAS_BIAS:
        s += tl.load(bias_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    return tl.where(column < vocabulary, s, float("-inf"))


@triton.jit(do_not_specialize=["rows", "units", "vocabulary", "ignore_index"])
def cross_entropy(
    logits_ptr, bias_ptr, label_ptr, loss_ptr, hit_ptr,
    rows, units, vocabulary, ignore_index, smoothing, z_loss, gain,
    GRADIENT: tl.constexpr, SMOOTHING: tl.constexpr, HAS_BIAS: tl.constexpr, UNIT: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of BLOCK_M rows; a row of the buffer has `units` x UNIT elements.

    loss (rows,) fp32, hit (rows,) uint8: whether the label is the first of the highest logits. The GROUP columns that a
    thread reads at once share a running maximum and sum, so that threads are not synchronised in the first reading.
    """
    first = tl.program_id(0).to(tl.int64) * BLOCK_M
    row, column = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
    width = units * UNIT
    exists = row < rows - first
    label = tl.load(label_ptr + first + row, mask=exists, other=0)
    labelled = exists & (label != ignore_index)
    known = labelled & (label >= 0) & (label < vocabulary)
    label = tl.where(known, label, -1).to(tl.int32)
    logits_ptr += first * width
    row_offset = row * width
    # NaN for a label outside of the vocabulary, and so is the row's loss.
    target = tl.load(logits_ptr + (row_offset + label), mask=known, other=float("nan")).to(tl.float32)
    if HAS_BIAS:
        target += tl.load(bias_ptr + label, mask=known, other=0.0).to(tl.float32)

    GROUPS: tl.constexpr = BLOCK_N // GROUP
    highest = tl.full((BLOCK_M, GROUPS), LOWEST, tl.float32)
    total = tl.zeros((BLOCK_M, GROUPS), tl.float32)
    tied = tl.zeros((BLOCK_M, GROUPS), tl.int32)
    above = tl.zeros((BLOCK_M, GROUPS), tl.float32)
    for begin in range(0, width, BLOCK_N):
        now = begin + column
        s = _logits(logits_ptr, bias_ptr, row_offset + now, now, width, vocabulary, labelled, HAS_BIAS)
        tie = ((s == target) & (now < label)).to(tl.int32)
        tied = tl.maximum(tied, tl.max(tl.reshape(tie, (BLOCK_M, GROUPS, GROUP)), 2))
        if SMOOTHING:
            difference = tl.where(now < vocabulary, s - target, 0.0)
            above += tl.sum(tl.reshape(difference, (BLOCK_M, GROUPS, GROUP)), 2)
        s = tl.reshape(s, (BLOCK_M, GROUPS, GROUP))
        higher = tl.maximum(highest, tl.max(s, 2))
        powers = tl.exp2((s - tl.expand_dims(higher, 2)) * LOG2_E)
        total = total * tl.exp2((highest - higher) * LOG2_E) + tl.sum(powers, 2)
        highest = higher
    peak = tl.max(highest, 1, keep_dims=True)
    total = tl.sum(total * tl.exp2((highest - peak) * LOG2_E), 1, keep_dims=True)
    log_total = tl.log(total)
    lse = log_total + peak
    loss = log_total + (peak - target)
    if SMOOTHING:
        loss -= smoothing / vocabulary * tl.sum(above, 1, keep_dims=True)
    loss += z_loss * lse * lse
    hit = (peak == target) & (tl.max(tied, 1, keep_dims=True) == 0) & (loss == loss)
    tl.store(loss_ptr + first + row, tl.where(labelled, loss, 0.0), mask=exists)
    tl.store(hit_ptr + first + row, hit.to(tl.uint8), mask=exists)

    if GRADIENT:
        factor = gain * (1.0 + 2.0 * z_loss * lse) / total
        factor = tl.where(labelled, tl.where(known, factor, float("nan")), 0.0)
        at_label = (1.0 - smoothing) * gain
        uniform = tl.where(labelled, smoothing / vocabulary * gain, 0.0)
        for begin in range(0, width, BLOCK_N):
            now = begin + column
            s = _logits(logits_ptr, bias_ptr, row_offset + now, now, width, vocabulary, labelled, HAS_BIAS)
            ds = tl.exp2((s - peak) * LOG2_E) * factor
            if SMOOTHING:
                ds -= uniform
            ds = tl.where(now == label, ds - at_label, ds)
            ds = narrow(ds, logits_ptr.dtype.element_ty)
            tl.store(logits_ptr + (row_offset + now), ds, mask=exists & (now < width))


@triton.jit(do_not_specialize=["rows", "rows_per_part", "units"])
def add_rows(
    x_ptr, sums_ptr, rows, rows_per_part, units, UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Add the sums of x (rows, width) over each part's rows to sums (parts, width) fp32. Grid: column blocks, parts."""
    width = units * UNIT
    part = tl.program_id(1)
    begin = part * rows_per_part
    end = tl.minimum(begin + rows_per_part, rows)
    row = tl.arange(0, BLOCK_M)[:, None]
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    x_ptr += begin.to(tl.int64) * width
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for now in range(begin, end, BLOCK_M):
        inside = (row < end - now) & (column < width)
        total += tl.load(x_ptr + (row * width + column), mask=inside, other=0.0).to(tl.float32)
        x_ptr += width.to(tl.int64) * BLOCK_M
    sums_ptr += part.to(tl.int64) * width
    total = tl.sum(total, 0, keep_dims=True)
    total += tl.load(sums_ptr + column, mask=column < width, other=0.0)
    tl.store(sums_ptr + column, total, mask=column < width)


@triton.jit(do_not_specialize=["elements"])
def scale(x_ptr, factor_ptr, out_ptr, elements, BLOCK_N: tl.constexpr):
    """Compute out = factor * x, rounded once; factor fp32 scalar. Grid: blocks of BLOCK_N elements."""
    first = tl.program_id(0).to(tl.int64) * BLOCK_N
    offset = tl.arange(0, BLOCK_N)
    inside = offset < elements - first
    x = tl.load(x_ptr + first + offset, mask=inside, other=0.0).to(tl.float32) * tl.load(factor_ptr)
    tl.store(out_ptr + first + offset, narrow(x, out_ptr.dtype.element_ty), mask=inside)


def _config(kernel: Any, dtype: torch.dtype, vocabulary: int, device: torch.device) -> tables.Config:
    shape = tables.shape_class(dtype, False, min(max(vocabulary, NARROWEST), WIDEST))
    return tables.lookup(kernel.__name__, shape, architecture(device))


class _Gradients:
    """The gradients that are computed, to which chunks of rows are added; the others have no elements.

    As many programs as fill the device share a sum over rows, each adding to a partial row of its own.
    """

    def __init__(self, inputs: LossInputs, chunk: int) -> None:
        x, (rows, vocabulary) = inputs.x, (inputs.x.shape[0], inputs.weight.shape[0])
        self.inputs = inputs
        self.gain = GAIN if x.dtype == torch.float16 else 1.0
        self.dx = torch.empty(x.shape if inputs.grad_x else (0,), dtype=x.dtype, device=x.device)
        self.width = padded(vocabulary)
        # In fp32 whatever the weight's dtype: rounded once, when the upstream gradient is known. As wide as the buffer.
        self.dweight_rows = torch.empty(
            self.width if inputs.grad_weight else 0, x.shape[1], dtype=torch.float32, device=x.device
        )
        self.config = _config(add_rows, x.dtype, vocabulary, x.device)
        self.blocks = triton.cdiv(self.width, self.config.constants["BLOCK_N"])
        parts = triton.cdiv(PROGRAMS * multiprocessors(x.device), self.blocks)
        parts = max(1, min(parts, triton.cdiv(min(rows, chunk), self.config.constants["BLOCK_M"])))
        shape = (parts, self.width) if inputs.grad_bias else (0, 0)
        self.column_sums = torch.zeros(shape, dtype=torch.float32, device=x.device)

    def add(self, begin: int, x: Tensor, weight: Tensor, logits: Tensor) -> None:
        """Add a chunk: x and the gradients of its logits (rows, padded vocabulary) from row `begin` on."""
        if self.inputs.grad_x:
            add_matmul(self.dx[begin : begin + len(x)], logits, weight, fresh=True, alpha=1.0 / self.gain)
        if self.inputs.grad_weight:
            add_matmul(self.dweight_rows, logits.t(), x, fresh=begin == 0, alpha=1.0 / self.gain)
        if self.inputs.grad_bias:
            parts, rows = self.column_sums.shape[0], len(x)
            arguments = (logits, self.column_sums, rows, triton.cdiv(rows, parts), self.width // UNIT)
            launch(add_rows, (self.blocks, parts), *arguments, UNIT=UNIT, config=self.config)


def _add_chunk(
    x: Tensor, weight: Tensor, logits: Tensor, row_tensors: tuple[Tensor | None, ...], gradients: _Gradients, begin: int
) -> None:
    """Compute the rows of a chunk from `begin` on; `row_tensors` are the padded bias, labels, losses and hits."""
    inputs, vocabulary = gradients.inputs, gradients.inputs.weight.shape[0]
    torch.mm(x, weight.t(), out=logits)
    config = _config(cross_entropy, x.dtype, vocabulary, x.device)
    launch(
        cross_entropy,
        (triton.cdiv(len(x), config.constants["BLOCK_M"]),),
        *(logits, *row_tensors),
        *(len(x), gradients.width // UNIT, vocabulary),
        *(inputs.ignore_index, inputs.label_smoothing, inputs.z_loss, gradients.gain),
        GRADIENT=inputs.grad_x or inputs.grad_weight or inputs.grad_bias,
        SMOOTHING=inputs.label_smoothing != 0.0,
        HAS_BIAS=inputs.bias is not None,
        UNIT=UNIT,
        GROUP=16 // x.element_size(),
        config=config,
    )
    gradients.add(begin, x, weight, logits)


def forward(inputs: LossInputs) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return loss_sum fp32, count int64, correct int64, and the gradients of loss_sum by x, weight and bias.

    Matmuls are in the dtype of x, to which weight and bias are cast. dx has the dtype of x; dweight and dbias are fp32;
    gradients that are not computed have no elements. Runs without autograd and autocast.
    """
    x, labels = inputs.x, inputs.labels
    rows, vocabulary = x.shape[0], inputs.weight.shape[0]
    weight = _padded_rows(inputs.weight, x.dtype)
    # A cast would have copied it anyway.
    copied = weight.nbytes if weight is not inputs.weight and inputs.weight.dtype == x.dtype else 0
    chunk = plan(rows, vocabulary, x.element_size(), copied)
    gradients = _Gradients(inputs, chunk)
    losses = torch.empty(rows, dtype=torch.float32, device=x.device)
    hits = torch.empty(rows, dtype=torch.uint8, device=x.device)
    # As wide as the buffer and in its dtype, so that each thread reads it as it reads logits.
    bias = None if inputs.bias is None else F.pad(inputs.bias.to(x.dtype), (0, gradients.width - vocabulary))
    buffer = torch.empty(min(chunk, rows), gradients.width, dtype=x.dtype, device=x.device)
    for begin in range(0, rows, chunk):
        part = slice(begin, min(begin + chunk, rows))
        row_tensors = (bias, labels[part], losses[part], hits[part])
        _add_chunk(x[part], weight, buffer[: part.stop - begin], row_tensors, gradients, begin)
    if rows == 0:
        gradients.dweight_rows.zero_()
    dweight = gradients.dweight_rows[:vocabulary] if inputs.grad_weight else gradients.dweight_rows.flatten()
    dbias = gradients.column_sums.sum(0)[:vocabulary] / gradients.gain
    loss_sum = losses.sum(dtype=torch.float64).float()
    count = (labels != inputs.ignore_index).sum()
    return loss_sum, count, hits.sum(), gradients.dx, dweight, dbias


def scaled(x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return factor * x in `dtype`: x contiguous, factor an fp32 scalar on the device."""
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if out.numel():
        config = tables.lookup("scale", "any", architecture(x.device))
        grid = (triton.cdiv(out.numel(), config.constants["BLOCK_N"]),)
        launch(scale, grid, x, factor, out, out.numel(), config=config)
    return out
