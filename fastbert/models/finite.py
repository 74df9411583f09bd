"""Detection of NaNs and infinities in outputs, and of the weights that cause them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor, nn

from fastbert.errors import UserError


def first_non_finite(model: nn.Module) -> str | None:
    """Return the name of the first parameter or buffer that holds a NaN or an infinity, or None.

    The scan reads every tensor once; call it only after a non-finite output or loss has been seen.
    """
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_floating_point() and not tensor.is_meta and not bool(torch.isfinite(tensor.detach()).all()):
            return name
    return None


def check_finite(model: nn.Module, outputs: Tensor, source: Callable[[int], str]) -> None:
    """Raise `UserError` if a row of `outputs` (rows, ...) is not finite.

    The message names the first non-finite tensor of the model; if all of them are finite, it names the input of the
    first bad row, which `source` describes by the row's index.
    """
    if bool(torch.isfinite(outputs).all()):
        return
    name = first_non_finite(model)
    if name is not None:
        raise UserError(
            f"{name}: this weight of the model holds NaN or infinity, so its outputs are not numbers; restore the"
            " model's files, or train it again"
        )
    finite = torch.isfinite(outputs).reshape(len(outputs), -1).all(dim=1)
    row = int((~finite).nonzero()[0])
    raise UserError(
        f"{source(row)}: the model's output is NaN or infinite, though its weights are finite; compute in fp32"
        " (--dtype fp32), which overflows later"
    )
