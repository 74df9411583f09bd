"""LSTM layers with projections (Sak et al. 2014), both directions at once, over packed sequences.

Step t holds token t of every sequence that has one, longest sequence first, so nothing is computed for padding. Matmuls
with the inputs, and those of the weights' gradients, cover all steps at once; only the recurrence runs step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastbert.models.initialisation import draw
from fastbert.ops.autocast import matmul_dtype, without_autocast
from fastbert.packing import PackedBatch


@dataclass(frozen=True, eq=False)
class Steps:
    """The order in which LSTMs read the tokens of packed sequences: a row per token, step after step."""

    sizes: list[int]
    """The number of sequences in each step, descending."""
    tokens: Tensor
    """int64 (2, tokens): the token of each row, of the direction from left to right and of the other one."""

    @classmethod
    def of(cls, batch: PackedBatch) -> Steps:
        """Return the steps of a batch. On a GPU this is a host-device sync."""
        lengths = batch.cu_seqlens.diff().long()
        lengths, order = lengths.sort(descending=True, stable=True)
        begins = batch.cu_seqlens[:-1].long()[order]
        longest = int(lengths[0]) if len(lengths) else 0
        # Step t has the sequences that are longer than t.
        sizes = len(lengths) - torch.bincount(lengths, minlength=longest).cumsum(0)[:longest]
        index = torch.arange(batch.num_tokens, device=lengths.device)
        steps = index[:longest].repeat_interleave(sizes, output_size=batch.num_tokens)
        rows = index - (sizes.cumsum(0) - sizes)[steps]
        tokens = torch.stack((begins[rows] + steps, begins[rows] + lengths[rows] - 1 - steps))
        return cls(sizes.tolist(), tokens)

    @property
    def starts(self) -> list[int]:
        """The first row of each step, and the number of rows."""
        starts = [0]
        for size in self.sizes:
            starts.append(starts[-1] + size)
        return starts


class BiLstmLayer(nn.Module):
    """A layer of two LSTMs with projections, one per direction, which share nothing.

    Gates have torch's order, input, forget, cell, output; index 0 of a parameter is the direction from left to right.
    """

    def __init__(self, input_size: int, units: int, output_size: int) -> None:
        super().__init__()
        self.weight_ih: nn.Parameter = nn.Parameter(torch.empty(2, 4 * units, input_size))
        self.weight_hh: nn.Parameter = nn.Parameter(torch.empty(2, 4 * units, output_size))
        self.weight_hr: nn.Parameter = nn.Parameter(torch.empty(2, output_size, units))
        self.bias: nn.Parameter = nn.Parameter(torch.empty(2, 4 * units))

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None) -> None:
        """Draw new weights by the rule of Glorot and Bengio (2010); forget gates begin open."""
        units = self.weight_hr.shape[2]
        for weight in (self.weight_ih, self.weight_hh, self.weight_hr):
            if weight.is_meta:
                return
            rows = weight.shape[1] if weight is self.weight_hr else units
            for direction in range(2):
                for begin in range(0, weight.shape[1], rows):
                    draw(nn.init.xavier_uniform_, weight[direction, begin : begin + rows], generator=generator)
        self.bias.zero_()
        self.bias[:, units : 2 * units] = 1.0

    def forward(self, x: Tensor, steps: Steps) -> Tensor:
        """Return the outputs (2, rows, output_size) of x (2, rows, input_size), whose rows are those of `steps`."""
        if x.is_cuda:
            return self._by_library(x, steps)
        weights = (self.weight_ih, self.weight_hh, self.weight_hr, self.bias)
        dtype = matmul_dtype(x)
        with without_autocast(x.device):  # the recurrence keeps its dtype
            outputs: Tensor = _Recurrence.apply(x, *weights, steps, dtype)
        return outputs

    def _by_library(self, x: Tensor, steps: Steps) -> Tensor:
        """Compute both directions by the library's LSTM, cuDNN's on a GPU."""
        sizes = torch.tensor(steps.sizes)
        outputs = []
        for direction in range(2):
            weights = [weight[direction] for weight in (self.weight_ih, self.weight_hh, self.bias)]
            weights += [torch.zeros_like(weights[2]), self.weight_hr[direction]]
            rows = steps.sizes[0] if steps.sizes else 0
            output, units = self.weight_hr.shape[1:]
            state = (x.new_zeros(1, rows, output), x.new_zeros(1, rows, units))
            outputs.append(torch._VF.lstm(x[direction], sizes, state, weights, True, 1, 0.0, self.training, False)[0])
        return torch.stack(outputs)


class _Recurrence(torch.autograd.Function):
    """Both directions of a layer, with gradients that are summed over the steps by one matmul per weight.

    Matmuls that cover all steps are in `dtype`, that of autocast; the recurrence keeps the dtype of the weights.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        weight_hr: Tensor,
        bias: Tensor,
        steps: Steps,
        dtype: torch.dtype,
    ) -> Tensor:
        """Return the outputs (2, rows, output_size), in the dtype of the weights."""
        units, rows = weight_hr.shape[2], x.shape[1]
        gates = torch.bmm(x.to(dtype), weight_ih.to(dtype).transpose(1, 2)).to(bias.dtype).add_(bias.unsqueeze(1))
        cells, tanh_cells = gates.new_empty(2, rows, units), gates.new_empty(2, rows, units)
        outputs = gates.new_empty(2, rows, weight_hr.shape[1])
        recurrent, projection = weight_hh.transpose(1, 2), weight_hr.transpose(1, 2)
        previous: slice | None = None
        start = 0
        for size in steps.sizes:
            now = slice(start, start + size)
            gate = gates[:, now]
            if previous is not None:
                gate.baddbmm_(outputs[:, previous][:, :size], recurrent)
            gate[..., : 2 * units].sigmoid_()
            gate[..., 2 * units : 3 * units].tanh_()
            gate[..., 3 * units :].sigmoid_()
            take, keep, cell, give = gate.split(units, dim=2)
            torch.mul(take, cell, out=cells[:, now])
            if previous is not None:
                cells[:, now].addcmul_(keep, cells[:, previous][:, :size])
            torch.tanh(cells[:, now], out=tanh_cells[:, now])
            outputs[:, now] = torch.bmm(give * tanh_cells[:, now], projection)
            previous, start = now, start + size
        ctx.save_for_backward(x, weight_ih, weight_hh, weight_hr, gates, cells, tanh_cells, outputs)
        ctx.steps, ctx.dtype = steps, dtype
        return outputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x and of the weights."""
        x, weight_ih, weight_hh, weight_hr, gates, cells, tanh_cells, outputs = ctx.saved_tensors
        steps: Steps = ctx.steps
        units, starts = weight_hr.shape[2], steps.starts
        d_gates, d_outputs = torch.empty_like(gates), grad.clone()
        d_cell: Tensor | None = None  # of the step behind
        for number in reversed(range(len(steps.sizes))):
            size, now = steps.sizes[number], slice(starts[number], starts[number + 1])
            take, keep, cell, give = gates[:, now].split(units, dim=2)
            d_take, d_keep, d_new, d_give = d_gates[:, now].split(units, dim=2)
            tanh = tanh_cells[:, now]
            d_inner = torch.bmm(d_outputs[:, now], weight_hr)
            torch.ops.aten.sigmoid_backward.grad_input(d_inner * tanh, give, grad_input=d_give)
            d_now = torch.ops.aten.tanh_backward(d_inner.mul_(give), tanh)
            if d_cell is not None:
                d_now[:, : d_cell.shape[1]] += d_cell
            torch.ops.aten.sigmoid_backward.grad_input(d_now * cell, take, grad_input=d_take)
            torch.ops.aten.tanh_backward.grad_input(d_now * take, cell, grad_input=d_new)
            if number:
                before = slice(starts[number - 1], starts[number - 1] + size)
                torch.ops.aten.sigmoid_backward.grad_input(d_now * cells[:, before], keep, grad_input=d_keep)
                d_outputs[:, before].baddbmm_(d_gates[:, now], weight_hh)
                d_cell = d_now.mul_(keep)
            else:
                d_keep.zero_()
        # The outputs that the rows of each step but the first have read: those of the step before.
        first = steps.sizes[0] if steps.sizes else 0
        later = [torch.arange(start, start + size) for start, size in zip(starts, steps.sizes[1:])]
        read = torch.zeros_like(outputs, dtype=ctx.dtype)
        read[:, first:] = outputs[:, torch.cat([torch.arange(0), *later])].to(ctx.dtype)
        dtype, inputs = ctx.dtype, gates[..., 3 * units :] * tanh_cells  # of the projections
        narrow = d_gates.to(dtype)
        d_rows = narrow.transpose(1, 2)
        d_hh = torch.bmm(d_rows, read).to(weight_hh.dtype)
        d_hr = torch.bmm(d_outputs.to(dtype).transpose(1, 2), inputs.to(dtype)).to(weight_hr.dtype)
        d_ih = torch.bmm(d_rows, x.to(dtype)).to(weight_ih.dtype)
        d_x = torch.bmm(narrow, weight_ih.to(dtype)).to(x.dtype) if ctx.needs_input_grad[0] else None
        return d_x, d_ih, d_hh, d_hr, d_gates.sum(1), None, None
