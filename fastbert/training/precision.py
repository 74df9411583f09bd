"""The dtypes of a run's weights and of fp32 matmuls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from fastbert.training.averaging import MASTER
from fastbert.training.precision_flags import PrecisionFlags


def narrow_weights(model: nn.Module, flags: PrecisionFlags) -> bool:
    """Convert the weights of a model to those of --param-dtype; return whether its optimiser needs masters."""
    if flags.param_dtype == "fp32":
        return False
    model.to(torch.bfloat16)
    return True


@torch.no_grad()
def restore_masters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace weights in half precision by their fp32 masters, for a model that is saved; drops the gradients."""
    for parameter in model.parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.grad = None
            master = optimizer.state.get(parameter, {}).get(MASTER)
            parameter.data = parameter.float() if master is None else master.clone()
    for buffer in model.buffers():
        if buffer.dtype in (torch.bfloat16, torch.float16):
            buffer.data = buffer.float()


@contextmanager
def tf32_matmuls(allowed: bool, device: torch.device, on_message: Callable[[str], None]) -> Iterator[None]:
    """Round the operands of fp32 matmuls on a GPU to tf32 within the block, if allowed."""
    if allowed and device.type != "cuda":
        on_message(f"--tf32 has no effect on a device of type {device.type}")
    if not allowed or device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
