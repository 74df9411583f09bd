"""Dropout masks in memory, and the keys that they are drawn from.

The C++ generator writes masks on a CPU in 16 and 32 bits; otherwise they are computed by PyTorch operations. Both
give the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert import _C
from fastbert.ops import dispatch, reference
from fastbert.ops.custom_op import operator
from fastbert.ops.dropout.arguments import TokenDropout, quantized, quantized_attention
from fastbert.ops.native import buffers

# The generator receives the bits of 1 / (1 - p) in the dtype of the mask.
_BITS = {torch.float32: torch.uint32, torch.bfloat16: torch.uint16, torch.float16: torch.uint16}


def draw_keys(sequences: int, device: torch.device) -> Tensor:
    """Return fresh dropout keys, int64 (sequences,), from torch's generator of the device."""
    return torch.randint(-(2**63), 2**63 - 1, (sequences,), dtype=torch.int64, device=device)


def token_mask(dropout: TokenDropout, width: int, dtype: torch.dtype) -> Tensor:
    """Return the mask to multiply token vectors with: (tokens, width) in `dtype`, each element 0 or 1 / (1 - p)."""
    arguments = (dropout.key, dropout.sequence_ids, dropout.offsets, dropout.p, dropout.site, width, dtype)
    # The generator is not torch's: it enters the graph of a compiler, or of a mode such as make_fx's, as one operation.
    opaque = torch.compiler.is_compiling() or _has_generator(dtype, dropout.key.device)
    return (_opaque_token_mask if opaque else _token_mask)(*arguments)


def attention_mask(shape: tuple[int, int, int, int], p: float, key: Tensor, site: int, dtype: torch.dtype) -> Tensor:
    """Return the mask of attention probabilities of sequences of one length, each element 0 or 1 / (1 - p).

    `shape` is (sequences, heads, queries, keys), `key` int64 (sequences,); p is rounded as in `quantized_attention`.
    """
    threshold, scale = quantized_attention(p)
    # A mode that records the call, or a fake tensor, has no memory to write to.
    if _has_generator(dtype, key.device) and buffers.direct(key):
        mask = torch.empty(shape, dtype=dtype, device="cpu")
        _C.attention_dropout_mask(
            mask.view(_BITS[dtype]).numpy(), key.numpy(), site, threshold, _scale_bits(scale, dtype)
        )
        return mask
    _, heads, queries, keys = shape
    masks = [reference.attention_dropout_mask(heads, queries, keys, p, sequence_key, site) for sequence_key in key]
    return torch.stack(masks).to(dtype)


def _token_mask(
    key: Tensor, sequence_ids: Tensor, offsets: Tensor, p: float, site: int, width: int, dtype: torch.dtype
) -> Tensor:
    if not _has_generator(dtype, key.device):
        return reference.token_dropout_mask(width, p, key, sequence_ids, offsets, site).to(dtype)
    threshold, scale = quantized(p)
    mask = torch.empty(len(sequence_ids), width, dtype=dtype, device="cpu")
    _C.token_dropout_mask(
        mask.view(_BITS[dtype]).numpy(),
        key.contiguous().numpy(),
        sequence_ids.long().contiguous().numpy(),
        offsets.long().contiguous().numpy(),
        site,
        threshold,
        _scale_bits(scale, dtype),
    )
    return mask


_opaque_token_mask = operator("fastbert::token_dropout_mask")(_token_mask)


@_opaque_token_mask.register_fake
def _(
    key: Tensor, sequence_ids: Tensor, offsets: Tensor, p: float, site: int, width: int, dtype: torch.dtype
) -> Tensor:
    return key.new_empty((sequence_ids.shape[0], width), dtype=dtype)


def _has_generator(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether the C++ generator writes a mask, unless another backend is forced.

    It writes to memory, which new tensors do not have inside transforms of torch.func, and whatever records a call may
    run where fastbert is not installed.
    """
    if device.type != "cpu" or dtype not in _BITS or buffers.is_transformed():
        return False
    return dispatch.forced() == "native" or (dispatch.forced() is None and not dispatch.is_recorded())


def _scale_bits(scale: float, dtype: torch.dtype) -> int:
    return int(torch.tensor(scale, dtype=dtype, device="cpu").view(_BITS[dtype]).item())
