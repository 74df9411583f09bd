"""Tensors as the C++ kernels of the `native` backend read them: supported dtypes, addresses, direct calls."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fastbert.errors import UserError
from fastbert.ops.operation import Reason

# The dtypes of the kernels, and their names in the extension.
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


def unsupported(*tensors: Tensor | None) -> Reason | None:
    """Return why the native kernels do not support tensors: they read strided bf16 and fp32 in the CPU's memory."""
    for x in tensors:
        if x is None:
            continue
        if not x.is_cpu:
            return Reason(f"a tensor is on {x.device}, not on a CPU")
        if x.layout != torch.strided:
            return Reason(f"a tensor has layout {x.layout}, not torch.strided")
        if x.dtype not in DTYPES:
            return Reason(f"a tensor has dtype {x.dtype}, not bfloat16 or float32")
    return None


def address(name: str, tensor: Tensor | None) -> int:
    """Return the address of a tensor, 0 for None. Raises UserError for freed storage, which has address 0 too."""
    if tensor is None:
        return 0
    pointer = tensor.data_ptr()
    if tensor.numel() and (not pointer or was_freed(tensor)):
        raise UserError(f"{name} of shape {tuple(tensor.shape)} has no storage: its memory was given back")
    return pointer


def was_freed(view: Tensor) -> bool:
    """Return whether a view with an offset has freed storage: its address is not 0 then."""
    return view.storage_offset() != 0 and not view.untyped_storage().data_ptr()


def direct(*tensors: Tensor | None) -> bool:
    """Return whether a kernel may be called past torch's dispatcher: plain tensors, no modes, tracers or transforms.

    Other calls need an operator, which takes about ten microseconds longer.
    """
    if (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack()
        or forward_ad._current_level >= 0
    ):
        return False
    for x in tensors:
        if x is not None and (type(x) not in (Tensor, torch.nn.Parameter) or x.is_neg() or x._is_zerotensor()):
            return False
    return True


def is_transformed() -> bool:
    """Return whether a call is inside vmap, grad or another transform of torch.func, which kernels do not support."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None
