"""Muon for the matrices of the layers, AdamW for all other parameters.

Muon (Jordan et al. 2024) takes the direction of Nesterov's momentum with all its singular values moved to about 1, by
five Newton-Schulz iterations. Its step is scaled to the root mean square that AdamW's steps have (Liu et al. 2025,
section 2.2), so that both share learning rate and weight decay.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fastbert import cpu_capability
from fastbert.errors import UserError
from fastbert.ops import gpu
from fastbert.training.optimizer import AdamW
from fastbert.training.optimizer_entries import Entry, local

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration: the singular values of a matrix of norm 1 end between 0.7 and 1.2 (Jordan et al. 2024)."""
RMS = 0.2  # of AdamW's steps, per unit of the learning rate
SMALLEST_NORM = 1e-7
ORTHOGONAL = "orthogonal"  # in a parameter group: True for Muon's
_MATRIX = re.compile(r"(?:^|\.)layer\.\d+\..*weight$")

Sum = Callable[[Tensor], object]
"""Sums a tensor over all processes, in place."""


def is_layer_matrix(name: str, parameter: Tensor) -> bool:
    """Return True for the weight matrices of Transformer layers, by the names of their parameters."""
    return parameter.dim() == 2 and _MATRIX.search(name) is not None


def split_groups(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Split groups of named parameters into those of Muon and those of AdamW. Raises `UserError` without a matrix."""
    split = []
    for group in groups:
        named = list(group["params"])
        for orthogonal in (True, False):
            chosen = [(name, parameter) for name, parameter in named if is_layer_matrix(name, parameter) == orthogonal]
            if chosen:
                split.append({**group, "params": chosen, ORTHOGONAL: orthogonal})
    if not any(group[ORTHOGONAL] for group in split):
        raise UserError(
            "--optimizer muon is for the matrices of Transformer layers, and this model has none: use adamw"
        )
    return split


def orthogonalised(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a matrix, or a batch (matrices, rows, columns) of them, with singular values moved to about 1; `dtype` is
    that of matmuls."""
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = (matrix.mT if tall else matrix).float()
    x = (x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=SMALLEST_NORM)).to(dtype)
    a, b, c = COEFFICIENTS
    add_product = torch.addmm if x.dim() == 2 else torch.baddbmm
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = add_product(x, add_product(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(AdamW):
    """AdamW, but Muon for the parameter groups with "orthogonal": True, whose parameters are matrices.

    The state of a matrix is its fp32 `momentum_buffer`, as of `torch.optim.Muon`, and a `master` where AdamW has one.
    Other arguments, states and errors are AdamW's; there are no flat buffers.
    """

    _rank, _size = 0, 1
    _sum: Sum | None = None

    def share(self, rank: int, size: int, sum_over_processes: Sum) -> None:
        """Let each process orthogonalise a part of the matrices, and get the others' from `sum_over_processes`."""
        self._rank, self._size, self._sum = rank, size, sum_over_processes

    def flatten_if_faster(self, model: Any, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return the reason why the parameters stay ordinary."""
        return "Muon has no step over flat buffers"

    def _special_step(self, used: Sequence[Entry], factor: float, clear: bool) -> list[Entry]:
        """Take Muon's step; return the entries that are left to AdamW."""
        chosen = [entry for entry in used if self.param_groups[entry.group].get(ORTHOGONAL)]
        if not chosen:
            return list(used)
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        skip: Tensor | None = None  # True for a step that changes nothing
        counted: Tensor | float = 1.0
        if found_inf is not None:
            skip = found_inf.to(chosen[0].weight.device) != 0
            counted = 1.0 - skip.float()
        directions = []
        for entry in chosen:
            if entry.weight is not entry.parameter:
                raise UserError("Muon needs whole matrices: use --parallel ddp")
            gradient = entry.gradient.float() * factor
            if scale is not None:
                gradient = gradient / scale.to(gradient.device)
            if skip is not None:
                gradient = gradient.masked_fill(skip, 0.0)
            momentum = self._momentum(entry)
            momentum.add_((gradient - momentum) * ((1.0 - MOMENTUM) * counted))
            directions.append(gradient.lerp(momentum, MOMENTUM))
        for entry, update in zip(chosen, self._orthogonalised(directions), strict=True):
            group, state = self.param_groups[entry.group], self.state[entry.parameter]
            rate = group["lr"] * counted
            master = local(state["master"]) if "master" in state else entry.parameter
            master.mul_(1.0 - rate * group["weight_decay"])
            master.sub_(update.float() * (rate * RMS * math.sqrt(max(update.shape))))
            if master is not entry.parameter:
                entry.parameter.copy_(master)
            if clear:
                entry.gradient.zero_()
        taken = {id(entry.parameter) for entry in chosen}
        return [entry for entry in used if id(entry.parameter) not in taken]

    def _momentum(self, entry: Entry) -> Tensor:
        """Return the momentum of a matrix, zeros at first."""
        state = self.state[entry.parameter]
        if "momentum_buffer" not in state:
            if self.masters and entry.parameter.dtype in (torch.bfloat16, torch.float16):
                state["master"] = entry.parameter.detach().float()
            state["momentum_buffer"] = torch.zeros_like(entry.parameter, dtype=torch.float32)
        momentum: Tensor = state["momentum_buffer"]
        return momentum

    def _orthogonalised(self, directions: list[Tensor]) -> list[Tensor]:
        """Return all directions orthogonalised, each computed by one of the processes."""
        dtype = _matmul_dtype(directions[0].device)
        if self._sum is None or self._size == 1:
            return _each(directions, dtype)
        mine = _assigned([direction.shape for direction in directions], self._size)[self._rank]
        flat = torch.zeros(sum(map(Tensor.numel, directions)), dtype=dtype, device=directions[0].device)
        parts = flat.split([direction.numel() for direction in directions])
        for index, update in zip(mine, _each([directions[index] for index in mine], dtype), strict=True):
            parts[index].copy_(update.reshape(-1))
        self._sum(flat)  # with zeros: exact
        return [part.view(direction.shape) for part, direction in zip(parts, directions, strict=True)]


def _matmul_dtype(device: torch.device) -> torch.dtype:
    """Return bf16 where the device multiplies in it, else fp32."""
    if device.type != "cpu":
        return torch.float32 if gpu.lacks_bf16(device) else torch.bfloat16
    cpu_capability.apply()
    from fastbert import _C

    return torch.bfloat16 if _C.cpu_capability_features().get("avx512_bf16") else torch.float32


def _each(directions: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Orthogonalise each matrix: on a GPU those of equal shape in one batch."""
    if not directions or directions[0].device.type == "cpu":
        return [orthogonalised(direction, dtype) for direction in directions]
    results: list[Tensor] = list(directions)
    shapes: dict[torch.Size, list[int]] = {}
    for index, direction in enumerate(directions):
        shapes.setdefault(direction.shape, []).append(index)
    for indices in shapes.values():
        batch = orthogonalised(torch.stack([directions[index] for index in indices]), dtype)
        for index, update in zip(indices, batch.unbind(), strict=True):
            results[index] = update
    return results


def _assigned(shapes: Sequence[torch.Size], processes: int) -> list[list[int]]:
    """Return the matrices of each process, of about equal work: the largest first, each to the one with the least."""
    costs = [min(shape) ** 2 * (2 * max(shape) + min(shape)) for shape in shapes]
    shares: list[list[int]] = [[] for _ in range(processes)]
    work = [0] * processes
    for index in sorted(range(len(shapes)), key=lambda index: (-costs[index], index)):
        process = work.index(min(work))
        shares[process].append(index)
        work[process] += costs[index]
    return shares
