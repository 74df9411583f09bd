"""Cross-entropy of a vocabulary product: loss and gradients without the logits of all rows at once.

x (rows, width), weight (vocabulary, width), bias (vocabulary,), labels int64 (rows,). Rows go in chunks (`plan`): a
library product writes the logits of a chunk into a buffer, in the operands' dtype; one kernel reads a row twice, block
by block, and in the second reading writes the gradient of the logits over them; two more products and a sum over rows
add the chunk to the gradients of x, weight and bias. With l = logsumexp(s) and smoothing e over V columns, a row's loss
and the gradient of its logits s with label y are

    l - (1 - e) s_y - e mean(s) + z l^2        p (1 + 2 z l) - e / V - (1 - e) [column = y].
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from fastbert.kernels.common import LOG2_E, narrow
from fastbert.kernels.configs.loss import NARROWEST, WIDEST
from fastbert.kernels.launch import architecture, launch, multiprocessors
from fastbert.kernels.tuning import tables
from fastbert.ops.autocast import without_autocast

# A row of the buffer starts at a multiple of this many elements: at a cache line's begin, whatever the dtype.
UNIT = 64
# Rows of a chunk are a multiple of a matrix product's tile.
TILE = 128
# Logits of fewer bytes are one chunk.
ONE_CHUNK = 256_000_000
# Of the bytes that fp32 logits of all rows would take, the largest part that goes to the buffer.
SHARE = 0.045
# The fewest bytes of a column in a chunk, 896 rows of bf16: each chunk reads and writes the whole fp32 gradient of the
# weight, which takes about as long as the three products of 200 rows.
FEWEST = 1792
# Gradients of logits are stored in fp16 times this, or the smaller probabilities would be zeros; for z_loss it leaves
# room up to 2 z l of 250.
GAIN = 256.0
LOWEST = tl.constexpr(-1e38)
# Programs of the sum over rows that fill a multiprocessor.
PROGRAMS = 4


def padded(vocabulary: int) -> int:
    """Elements between the rows of the logits' buffer."""
    return -(-vocabulary // UNIT) * UNIT


def plan(rows: int, vocabulary: int, element_size: int) -> int:
    """Rows of a chunk, for operands of `element_size` bytes; the last chunk may have fewer.

    All rows up to ONE_CHUNK bytes of logits. Above, the buffer takes at most SHARE of what fp32 logits of all rows
    would, unless that were fewer rows than FEWEST allows; the chunks are then about equal.
    """
    row_bytes = padded(vocabulary) * element_size
    if rows * row_bytes <= ONE_CHUNK:
        return max(rows, 1)
    budget = int(SHARE * rows * vocabulary * 4)
    most = max(budget // row_bytes // TILE * TILE, FEWEST // element_size // TILE * TILE)
    chunks = -(-rows // most)
    return -(-rows // (chunks * TILE)) * TILE


@triton.jit
def _logits(logits_ptr, bias_ptr, offset, column, width, vocabulary, wanted, HAS_BIAS: tl.constexpr):
    """Logits with their bias, fp32 (ROWS, COLUMNS): -inf behind the vocabulary, the bias alone in unwanted rows."""
    # Up to the padded width and not up to the vocabulary, or a thread could not read 16 bytes at once.
    s = tl.load(logits_ptr + offset, mask=wanted & (column < width), other=0.0).to(tl.float32)
    if HAS_BIAS:
        s += tl.load(bias_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    return tl.where(column < vocabulary, s, float("-inf"))


@triton.jit(do_not_specialize=["rows", "units", "vocabulary", "ignore_index"])
def cross_entropy(
    logits_ptr, bias_ptr, label_ptr, loss_ptr, hit_ptr,
    rows, units, vocabulary, ignore_index, smoothing, z_loss, gain,
    GRADIENT: tl.constexpr, SMOOTHING: tl.constexpr, HAS_BIAS: tl.constexpr, UNIT: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of ROWS rows; a row of the buffer has `units` x UNIT elements.

    loss (rows,) fp32, hit (rows,) uint8: whether the label is the first of the highest logits. The GROUP columns that a
    thread reads at once share a running maximum and sum, so that no thread waits for another within the first reading.
    """
    first = tl.program_id(0).to(tl.int64) * ROWS
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    width = units * UNIT
    exists = row < rows - first
    label = tl.load(label_ptr + first + row, mask=exists, other=0)
    counted = exists & (label != ignore_index)
    known = counted & (label >= 0) & (label < vocabulary)
    label = tl.where(known, label, -1).to(tl.int32)
    logits_ptr += first * width
    place = row * width
    # NaN for a label that is not in the vocabulary, and so the row's loss.
    target = tl.load(logits_ptr + (place + label), mask=known, other=float("nan")).to(tl.float32)
    if HAS_BIAS:
        target += tl.load(bias_ptr + label, mask=known, other=0.0).to(tl.float32)

    GROUPS: tl.constexpr = COLUMNS // GROUP
    highest = tl.full((ROWS, GROUPS), LOWEST, tl.float32)
    total = tl.zeros((ROWS, GROUPS), tl.float32)
    tied = tl.zeros((ROWS, GROUPS), tl.int32)
    above = tl.zeros((ROWS, GROUPS), tl.float32)
    for begin in range(0, width, COLUMNS):
        now = begin + column
        s = _logits(logits_ptr, bias_ptr, place + now, now, width, vocabulary, counted, HAS_BIAS)
        tie = ((s == target) & (now < label)).to(tl.int32)
        tied = tl.maximum(tied, tl.max(tl.reshape(tie, (ROWS, GROUPS, GROUP)), 2))
        if SMOOTHING:
            difference = tl.where(now < vocabulary, s - target, 0.0)
            above += tl.sum(tl.reshape(difference, (ROWS, GROUPS, GROUP)), 2)
        s = tl.reshape(s, (ROWS, GROUPS, GROUP))
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
    tl.store(loss_ptr + first + row, tl.where(counted, loss, 0.0), mask=exists)
    tl.store(hit_ptr + first + row, hit.to(tl.uint8), mask=exists)

    if GRADIENT:
        factor = gain * (1.0 + 2.0 * z_loss * lse) / total
        factor = tl.where(counted, tl.where(known, factor, float("nan")), 0.0)
        at_label = (1.0 - smoothing) * gain
        uniform = tl.where(counted, smoothing / vocabulary * gain, 0.0)
        for begin in range(0, width, COLUMNS):
            now = begin + column
            s = _logits(logits_ptr, bias_ptr, place + now, now, width, vocabulary, counted, HAS_BIAS)
            ds = tl.exp2((s - peak) * LOG2_E) * factor
            if SMOOTHING:
                ds -= uniform
            ds = tl.where(now == label, ds - at_label, ds)
            ds = narrow(ds, logits_ptr.dtype.element_ty)
            tl.store(logits_ptr + (place + now), ds, mask=exists & (now < width))


@triton.jit(do_not_specialize=["rows", "rows_of_part", "units"])
def add_rows(x_ptr, sums_ptr, rows, rows_of_part, units, UNIT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """sums (parts, width) fp32 += the sums of x (rows, width) over each part's rows. Grid: blocks of columns, parts."""
    width = units * UNIT
    part = tl.program_id(1)
    begin = part * rows_of_part
    end = tl.minimum(begin + rows_of_part, rows)
    row = tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    x_ptr += begin.to(tl.int64) * width
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for now in range(begin, end, ROWS):
        inside = (row < end - now) & (column < width)
        total += tl.load(x_ptr + (row * width + column), mask=inside, other=0.0).to(tl.float32)
        x_ptr += width.to(tl.int64) * ROWS
    sums_ptr += part.to(tl.int64) * width
    total = tl.sum(total, 0, keep_dims=True)
    total += tl.load(sums_ptr + column, mask=column < width, other=0.0)
    tl.store(sums_ptr + column, total, mask=column < width)


@triton.jit(do_not_specialize=["elements"])
def scale(x_ptr, factor_ptr, out_ptr, elements, COLUMNS: tl.constexpr):
    """out = factor * x, rounded once; factor fp32 scalar. Grid: blocks of COLUMNS elements."""
    first = tl.program_id(0).to(tl.int64) * COLUMNS
    place = tl.arange(0, COLUMNS)
    inside = place < elements - first
    x = tl.load(x_ptr + first + place, mask=inside, other=0.0).to(tl.float32) * tl.load(factor_ptr)
    tl.store(out_ptr + first + place, narrow(x, out_ptr.dtype.element_ty), mask=inside)


# Before torch 2.10 a product with a result wider than its operands could not be added to one.
ADDS_WIDE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)


def add_product(out: Tensor, a: Tensor, b: Tensor, *, fresh: bool, alpha: float = 1.0) -> None:
    """out += alpha * a @ b, or = where `fresh`, whatever `out` held. `out` may be fp32 where a and b are half.

    The product is then fp32 too; on AMD GPUs it is rounded to the operands' dtype before it is added.
    """
    wide = out.dtype != a.dtype
    kind = {"out_dtype": out.dtype} if wide else {}
    beta = 0.0 if fresh else 1.0
    if wide and torch.version.hip:
        product = torch.empty(out.shape, dtype=a.dtype, device=a.device)
        torch.addmm(product, a, b, beta=0.0, alpha=alpha, out=product)
        if fresh:
            out.copy_(product)
        else:
            out.add_(product)
    elif wide and not out.is_cuda:
        torch.addmm(out, a.float(), b.float(), beta=beta, alpha=alpha, out=out)
    elif fresh and alpha == 1.0:
        torch.mm(a, b, out=out, **kind)
    elif not wide or ADDS_WIDE:
        torch.addmm(out, a, b, beta=beta, alpha=alpha, out=out, **kind)
    else:
        if fresh:
            out.zero_()
        out.add_(torch.mm(a, b, **kind), alpha=alpha)


def _config(kernel: Any, dtype: torch.dtype, vocabulary: int, device: torch.device) -> tables.Config:
    shape = tables.shape_class(dtype, False, min(max(vocabulary, NARROWEST), WIDEST))
    return tables.lookup(kernel.__name__, shape, architecture(device))


class _Gradients:
    """The wanted gradients, to which chunks of rows are added; the others have no elements.

    Sums over rows are shared by so many programs as fill the device, each of which adds to a partial row of its own.
    """

    def __init__(self, x: Tensor, weight: Tensor, chunk: int, wanted: tuple[bool, bool, bool]) -> None:
        want_dx, want_dweight, want_dbias = wanted
        rows, vocabulary = x.shape[0], weight.shape[0]
        self.wanted = wanted
        self.gain = GAIN if x.dtype == torch.float16 else 1.0
        self.dx = torch.empty(x.shape if want_dx else (0,), dtype=x.dtype, device=x.device)
        # In fp32 whatever the weight's dtype: rounded once, when the upstream gradient is known.
        self.dweight = torch.empty(weight.shape if want_dweight else (0,), dtype=torch.float32, device=x.device)
        self.width = padded(vocabulary)
        self.config = _config(add_rows, x.dtype, vocabulary, x.device)
        self.blocks = triton.cdiv(self.width, self.config.constants["COLUMNS"])
        parts = triton.cdiv(PROGRAMS * multiprocessors(x.device), self.blocks)
        parts = max(1, min(parts, triton.cdiv(min(rows, chunk), self.config.constants["ROWS"])))
        shape = (parts, self.width) if want_dbias else (0, 0)
        self.column_sums = torch.zeros(shape, dtype=torch.float32, device=x.device)

    def add(self, begin: int, x: Tensor, w: Tensor, logits: Tensor) -> None:
        """Add a chunk: x and the gradients of its logits (rows, padded vocabulary) from row `begin` on."""
        want_dx, want_dweight, want_dbias = self.wanted
        ds = logits[:, : w.shape[0]]
        if want_dx:
            add_product(self.dx[begin : begin + len(x)], ds, w, fresh=True, alpha=1.0 / self.gain)
        if want_dweight:
            add_product(self.dweight, ds.t(), x, fresh=begin == 0, alpha=1.0 / self.gain)
        if want_dbias:
            parts, rows = self.column_sums.shape[0], len(x)
            arguments = (logits, self.column_sums, rows, triton.cdiv(rows, parts), self.width // UNIT)
            launch(add_rows, (self.blocks, parts), *arguments, UNIT=UNIT, config=self.config)


def _add_chunk(
    x: Tensor,
    w: Tensor,
    logits: Tensor,
    tensors: tuple[Tensor | None, ...],
    numbers: tuple[int, float, float],
    gradients: _Gradients,
    begin: int,
) -> None:
    """The rows of a chunk: `tensors` padded bias, labels, losses, hits; `logits` is what the buffer has for them."""
    vocabulary = w.shape[0]
    torch.mm(x, w.t(), out=logits[:, :vocabulary])
    config = _config(cross_entropy, x.dtype, vocabulary, x.device)
    launch(
        cross_entropy,
        (triton.cdiv(len(x), config.constants["ROWS"]),),
        *(logits, *tensors),
        *(len(x), gradients.width // UNIT, vocabulary),
        *(*numbers, gradients.gain),
        GRADIENT=any(gradients.wanted),
        SMOOTHING=numbers[1] != 0.0,
        HAS_BIAS=tensors[0] is not None,
        UNIT=UNIT,
        GROUP=16 // x.element_size(),
        config=config,
    )
    gradients.add(begin, x, w, logits)


def forward(
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
    """loss_sum fp32, count int64, correct int64, and the wanted gradients of loss_sum; the others have no elements.

    Products are in the dtype of x, to which weight and bias are cast. dx has the dtype of x; dweight and dbias are
    fp32.
    """
    with torch.no_grad(), without_autocast(x.device):
        rows, vocabulary = x.shape[0], weight.shape[0]
        chunk = plan(rows, vocabulary, x.element_size())
        gradients = _Gradients(x, weight, chunk, (want_dx, want_dweight, want_dbias))
        losses = torch.empty(rows, dtype=torch.float32, device=x.device)
        hits = torch.empty(rows, dtype=torch.uint8, device=x.device)
        w = weight.to(x.dtype)
        # As wide as the buffer and of its dtype, so that each thread reads it as it reads logits.
        b = None if bias is None else F.pad(bias.to(x.dtype), (0, gradients.width - vocabulary))
        buffer = torch.empty(min(chunk, rows), gradients.width, dtype=x.dtype, device=x.device)
        for begin in range(0, rows, chunk):
            here = slice(begin, min(begin + chunk, rows))
            tensors = (b, labels[here], losses[here], hits[here])
            numbers = (ignore_index, label_smoothing, z_loss)
            _add_chunk(x[here], w, buffer[: here.stop - begin], tensors, numbers, gradients, begin)
        if rows == 0:
            gradients.dweight.zero_()
        dbias = gradients.column_sums.sum(0)[:vocabulary] / gradients.gain
        loss_sum = losses.sum(dtype=torch.float64).float()
        counted = (labels != ignore_index).sum()
        return loss_sum, counted, hits.sum(), gradients.dx, gradients.dweight, dbias


def scaled(x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """factor * x in `dtype`: x contiguous, factor an fp32 scalar on the device."""
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if out.numel():
        config = tables.lookup("scale", "any", architecture(x.device))
        grid = (triton.cdiv(out.numel(), config.constants["COLUMNS"]),)
        launch(scale, grid, x, factor, out, out.numel(), config=config)
    return out
