"""Detection of NaNs and infinities in outputs, and of the weights that cause them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import chain
from typing import NoReturn

import torch
from torch import Tensor, nn

from fastbert.errors import UserError


def first_non_finite(model: nn.Module) -> str | None:
    """Return the name of the first parameter or buffer that holds a NaN or an infinity, or None.

    The scan reads every tensor once; call it only after a non-finite output or loss has been seen.
    """
    return first_non_finite_tensor(chain(model.named_parameters(), model.named_buffers()))


@torch.no_grad()
def first_non_finite_tensor(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first tensor that holds a NaN or an infinity, or None; each is read once."""
    for name, tensor in named:
        if not tensor.is_floating_point() or tensor.is_meta:
            continue
        # Of a sharded tensor the part of this process. A NaN is the largest element, and nothing large is allocated.
        plain = tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()
        if plain.numel() and not bool(torch.linalg.vector_norm(plain, math.inf).isfinite()):
            return name
    return None


def check_finite(model: nn.Module, outputs: Tensor, source: Callable[[int], str]) -> None:
    """Raise `UserError` if a row of `outputs` (rows, ...) is not finite.

    The message names the first non-finite tensor of the model; if all of them are finite, it names the input of the
    first bad row, which `source` describes by the row's index.
    """
    if bool(torch.isfinite(outputs).all()):
        return
    finite = torch.isfinite(outputs).reshape(len(outputs), -1).all(dim=1)
    refuse_non_finite(model, source(int((~finite).nonzero()[0])))


def refuse_non_finite(model: nn.Module, source: str) -> NoReturn:
    """Raise `UserError` for a non-finite output: name the tensor of the model that causes it, else its input."""
    name = first_non_finite(model)
    if name is not None:
        raise UserError(
            f"{name}: this weight of the model holds NaN or infinity, so its outputs are not numbers; restore the"
            " model's files, or train it again"
        )
    raise UserError(
        f"{source}: the model's output is NaN or infinite, though its weights are finite; compute in fp32"
        " (--dtype fp32), which overflows later"
    )
