"""Attention by the library's kernels, flash or cuDNN, where a table says that they are faster: only without dropout.

They run on packed tokens as they are. Their log-sum-exp is in their own units, so backward belongs to the same kernels:
the choice is a function of the inputs alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastbert.kernels.launch import architecture
from fastbert.kernels.tuning import tables

if TYPE_CHECKING:
    from fastbert.kernels.attention.launchers import AttentionInputs

OWN, FLASH, CUDNN = 0, 1, 2
CHOICES = {"inference": (OWN, FLASH, CUDNN), "training": (OWN, FLASH)}
"""cuDNN's backward adds in any order, and results here are the same on every run."""
LENGTHS = {"128": 128, "512": 512, "any": 2**31}
"""The classes of length that choose apart, by the longest sequence of a batch."""


def entry(use: str, length: str) -> str:
    """Return the name in the table of configurations whose LIBRARY holds for a use and a class of length."""
    return f"attention_{use}_{length}"


def choice(inputs: AttentionInputs, training: bool) -> int:
    """Return which kernels compute attention: OWN, FLASH or CUDNN. With `training`, backward follows."""
    if inputs.dropout_key is not None or inputs.bias is not None or inputs.q.dtype == torch.float32:
        return OWN
    shape = tables.shape_class(inputs.q.dtype, inputs.tf32, inputs.q.shape[2], masked=inputs.causal)
    target, use = architecture(inputs.q.device), "training" if training else "inference"
    chosen = [tables.lookup(entry(use, length), shape, target).constants["LIBRARY"] for length in LENGTHS]
    if not any(chosen):  # before sizes are compared, which would be guards of a compiled graph
        return OWN
    if 0 in (inputs.max_seqlen_q, inputs.max_seqlen_k, inputs.q.shape[0], inputs.k.shape[0]):
        return OWN
    kernels = next(one for one, longest in zip(chosen, LENGTHS.values(), strict=True) if inputs.max_seqlen <= longest)
    if kernels == CUDNN and inputs.causal:  # its last query does not see all keys where there are more of them
        return OWN
    return kernels if kernels != OWN and is_present(kernels, inputs.q.device) else OWN


def is_present(chosen: int, device: torch.device) -> bool:
    """Return whether this build of PyTorch has the kernels, and they run on the device."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    if chosen == CUDNN:
        # On packed tokens from Hopper on.
        return torch.backends.cudnn.is_available() and torch.cuda.get_device_capability(device) >= (9, 0)
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def forward(inputs: AttentionInputs, chosen: int) -> tuple[Tensor, Tensor]:
    """Return out, contiguous, shape and dtype of q, and the log-sum-exp (heads, tokens_q) fp32 in the library's
    units; that of cuDNN serves no backward and has no rows."""
    arguments = (
        *(inputs.q, inputs.k, inputs.v),
        *(inputs.cu_seqlens_q, inputs.cu_seqlens_k, inputs.max_seqlen_q, inputs.max_seqlen_k),
    )
    if chosen == CUDNN:
        q, k, v, *offsets = arguments
        out = torch.ops.aten._cudnn_attention_forward(
            q, k, v, None, *offsets, False, 0.0, inputs.causal, False, scale=inputs.scale
        )[0]
        return out.contiguous(), out.new_empty(0, dtype=torch.float32)
    out, lse, *_ = torch.ops.aten._flash_attention_forward(*arguments, 0.0, inputs.causal, False, scale=inputs.scale)
    return out.contiguous(), lse


def backward(inputs: AttentionInputs, out: Tensor, lse: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v from flash's backward, which adds in one order here."""
    unused = torch.empty(0, dtype=torch.int64, device=out.device)  # the state of dropout's generator
    with _Deterministic():
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            *(grad, inputs.q, inputs.k, inputs.v, out, lse),
            *(inputs.cu_seqlens_q, inputs.cu_seqlens_k, inputs.max_seqlen_q, inputs.max_seqlen_k),
            *(0.0, inputs.causal, unused, unused),
            scale=inputs.scale,
        )
    return dq, dk, dv


class _Deterministic:
    """Sums in one order: flash reads PyTorch's global setting."""

    def __enter__(self) -> None:
        self.before = torch._C._get_deterministic_algorithms()
        self.warns = torch._C._get_deterministic_algorithms_warn_only()
        torch._C._set_deterministic_algorithms(True, warn_only=self.warns)

    def __exit__(self, *error: object) -> None:
        torch._C._set_deterministic_algorithms(self.before, warn_only=self.warns)
