"""Attention by the flash kernels of PyTorch, where a table says that they are faster: in half precision without masks,
biases and dropout.

They run on packed tokens as they are. Their log-sum-exp is in their own units, so backward belongs to the same kernels:
the choice follows from the inputs and the table of configurations.
"""

from __future__ import annotations

import functools
import threading

import torch
from torch import Tensor
from torch.utils import deterministic

from fastbert.kernels.attention.inputs import AttentionInputs
from fastbert.kernels.launch import architecture
from fastbert.kernels.tuning import tables

OWN, FLASH = 0, 1
USES = ("inference", "training")
LENGTHS = {"128": 128, "512": 512, "any": 2**31}
"""The classes of length that choose apart, by the longest sequence of a batch."""
MOST_SEQUENCES = 65535  # of a grid's second axis
ALIGNED = 8  # elements: flash loads 16 bytes at a time


def entry(use: str, length: str) -> str:
    """Return the name in the table of configurations whose LIBRARY holds for a use and a class of length."""
    return f"attention_{use}_{length}"


def is_chosen(inputs: AttentionInputs, training: bool) -> bool:
    """Return whether flash computes attention. With `training`, backward follows."""
    if inputs.dropout_key is not None or inputs.bias is not None or inputs.causal or inputs.q.dtype == torch.float32:
        return False
    chosen = _choices(training, inputs.q.dtype, inputs.q.shape[2], inputs.q.device, tables.revision())
    if chosen is None:  # before sizes are compared, which would be guards of a compiled graph
        return False
    if 0 in (inputs.max_seqlen_q, inputs.max_seqlen_k, inputs.q.shape[0], inputs.k.shape[0]):
        return False
    if inputs.sequences > MOST_SEQUENCES or not all(map(_is_aligned, (inputs.q, inputs.k, inputs.v))):
        return False
    kernels = next(one for one, longest in zip(chosen, LENGTHS.values(), strict=True) if inputs.max_seqlen <= longest)
    return kernels == FLASH


@functools.lru_cache(maxsize=64)
def _choices(
    training: bool, dtype: torch.dtype, head_dim: int, device: torch.device, revision: int
) -> tuple[int, ...] | None:
    """Return LIBRARY by class of length; None if it is OWN for all of them."""
    del revision  # of the tables, of which a cached result may be older
    target, shape = architecture(device), tables.shape_class(dtype, False, head_dim)
    if head_dim & (head_dim - 1) or not target.startswith("sm_") or not is_present(device):
        return None  # such classes are never measured
    names = [entry(USES[training], length) for length in LENGTHS]
    chosen = tuple(tables.lookup(name, shape, target).constants["LIBRARY"] for name in names)
    return chosen if any(chosen) else None


def is_present(device: torch.device) -> bool:
    """Return whether this build of PyTorch has the kernels."""
    return device.type == "cuda" and torch.backends.cuda.is_flash_attention_available()


def _is_aligned(x: Tensor) -> bool:
    return x.stride(0) % ALIGNED == 0 and x.storage_offset() % ALIGNED == 0


def forward(inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
    """Return out, contiguous, shape and dtype of q, and the log-sum-exp (heads, tokens_q) fp32 in natural units."""
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        *(inputs.q, inputs.k, inputs.v),
        *(inputs.cu_seqlens_q, inputs.cu_seqlens_k, inputs.max_seqlen_q, inputs.max_seqlen_k),
        *(0.0, False, False),
        scale=inputs.scale,
    )
    return out.contiguous(), lse


def backward(inputs: AttentionInputs, out: Tensor, lse: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v. Flash adds them in one order in its deterministic mode."""
    unused = torch.empty(0, dtype=torch.int64, device=out.device)  # the state of dropout's generator
    with _DETERMINISTIC:
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            *(grad, inputs.q, inputs.k, inputs.v, out, lse),
            *(inputs.cu_seqlens_q, inputs.cu_seqlens_k, inputs.max_seqlen_q, inputs.max_seqlen_k),
            *(0.0, False, unused, unused),
            scale=inputs.scale,
        )
    return dq, dk, dv


class _Deterministic:
    """The global mode that flash reads, within blocks that may overlap in several threads."""

    def __init__(self) -> None:
        self.lock, self.blocks = threading.Lock(), 0
        self.before = (False, False, False)

    def __enter__(self) -> None:
        with self.lock:
            if self.blocks == 0:
                self.before = (
                    torch._C._get_deterministic_algorithms(),
                    torch._C._get_deterministic_algorithms_warn_only(),
                    deterministic.fill_uninitialized_memory,
                )
                # Flash heeds the mode only without `warn_only`; the mode would fill gradients with NaN before.
                torch._C._set_deterministic_algorithms(True, warn_only=False)
                deterministic.fill_uninitialized_memory = False
            self.blocks += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.blocks -= 1
            if self.blocks == 0:
                enabled, warns, fills = self.before
                torch._C._set_deterministic_algorithms(enabled, warn_only=warns)
                deterministic.fill_uninitialized_memory = fills


_DETERMINISTIC = _Deterministic()
