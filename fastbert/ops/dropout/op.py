"""Dropout whose mask is a function of (key of the sequence, layer and site, place), so that it can be replayed.

The counter of an element's Philox block is (block, position within the sequence or query, head, layer and site), and
the element owns 16 of the block's bits; `fastbert.ops.reference` says which. A mask is therefore the same on every
device, for every batch that the sequence appears in, and when a checkpointed layer is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from fastbert import _C
from fastbert.errors import UserError
from fastbert.ops import dispatch, reference
from fastbert.ops.custom_op import operator
from fastbert.ops.native import buffers

# The bits of 1 / (1 - p) are handed to the native generator in the mask's own dtype.
_BITS = {torch.float32: torch.uint32, torch.bfloat16: torch.uint16, torch.float16: torch.uint16}


class Site(IntEnum):
    """Where dropout is applied; with the layer's number it makes the last word of the counter."""

    EMBEDDING = 0
    ATTENTION = 1
    ATTENTION_OUTPUT = 2
    FEED_FORWARD_OUTPUT = 3
    HEAD = 4
    CROSS_ATTENTION = 5
    CROSS_ATTENTION_OUTPUT = 6

    def of_layer(self, layer: int) -> int:
        """The counter word of this site in one layer."""
        return layer << 8 | int(self)


@dataclass(frozen=True)
class TokenDropout:
    """Dropout on token vectors: probability, keys int64 (sequences,), each token's sequence and offset, the site."""

    p: float
    key: Tensor
    sequence_ids: Tensor
    offsets: Tensor
    site: int

    def of(self, rows: Tensor) -> TokenDropout:
        """The dropout that is of these tokens, int64 (rows,), alone."""
        sequences, offsets = (ids.index_select(0, rows) for ids in (self.sequence_ids, self.offsets))
        return replace(self, sequence_ids=sequences, offsets=offsets)


def check_token_dropout(dropout: TokenDropout, x: Tensor) -> None:
    """Refuse a dropout that is not one of the rows of x (tokens, ...), by what the host knows."""
    if not 0.0 <= dropout.p < 1.0:
        raise UserError(f"token_dropout.p={dropout.p} must be at least 0 and below 1")
    if not 0 <= dropout.site < 2**31:
        raise UserError(f"token_dropout.site={dropout.site} must be at least 0 and below 2**31")
    key, tokens = dropout.key, x.shape[0]
    if key.dtype != torch.int64 or key.dim() != 1:
        raise UserError(
            f"token_dropout.key must be int64 (sequences,), one a sequence, not {key.dtype} {tuple(key.shape)}"
        )
    for name, ids in (("sequence_ids", dropout.sequence_ids), ("offsets", dropout.offsets)):
        if ids.shape != (tokens,) or ids.dtype not in (torch.int64, torch.int32):
            raise UserError(
                f"token_dropout.{name} must be int64 or int32 of shape ({tokens},), one a token, not"
                f" {ids.dtype} {tuple(ids.shape)}"
            )
    for name in ("key", "sequence_ids", "offsets"):
        device = getattr(dropout, name).device
        if device != x.device:
            raise UserError(f"token_dropout.{name} is on {device}, its rows on {x.device}: move them to one device")


def quantized(p: float) -> tuple[int, float]:
    """The 16-bit threshold of a dropout probability, and the factor 1 / (1 - p) that belongs to it."""
    threshold = min(round(p * 65536), 65535)
    return threshold, 65536 / (65536 - threshold)


def _keep_bits(scale: float, dtype: torch.dtype) -> int:
    return int(torch.tensor(scale, dtype=dtype, device="cpu").view(_BITS[dtype]).item())


def draw_keys(sequences: int, device: torch.device) -> Tensor:
    """Fresh dropout keys, int64 (sequences,), from torch's generator of the device."""
    return torch.randint(-(2**63), 2**63 - 1, (sequences,), dtype=torch.int64, device=device)


def token_mask(dropout: TokenDropout, width: int, dtype: torch.dtype) -> Tensor:
    """The mask to multiply token vectors with: (tokens, width) in `dtype`, 0 or 1 / (1 - p)."""
    arguments = (dropout.key, dropout.sequence_ids, dropout.offsets, dropout.p, dropout.site, width, dtype)
    # The generators are not torch's: a compiled graph sees them as one operation.
    mask: Tensor = (_opaque_token_mask if torch.compiler.is_compiling() else _token_mask)(*arguments)
    return mask


def _token_mask(
    key: Tensor, sequence_ids: Tensor, offsets: Tensor, p: float, site: int, width: int, dtype: torch.dtype
) -> Tensor:
    threshold, scale = quantized(p)
    if key.device.type == "cpu" and _generates(dtype, key.device):
        mask = torch.empty(len(sequence_ids), width, dtype=dtype, device="cpu")
        _C.token_dropout_mask(
            mask.view(_BITS[dtype]).numpy(),
            key.contiguous().numpy(),
            sequence_ids.contiguous().numpy(),
            offsets.contiguous().numpy(),
            site,
            threshold,
            _keep_bits(scale, dtype),
        )
        return mask
    return reference.token_dropout_mask(width, p, key, sequence_ids, offsets, site).to(dtype)


@operator("fastbert::token_dropout_mask")
def _opaque_token_mask(
    key: Tensor, sequence_ids: Tensor, offsets: Tensor, p: float, site: int, width: int, dtype: torch.dtype
) -> Tensor:
    return _token_mask(key, sequence_ids, offsets, p, site, width, dtype)


@_opaque_token_mask.register_fake
def _(key: Tensor, sequence_ids: Tensor, *others: Any) -> Tensor:
    width, dtype = others[-2:]
    return key.new_empty((sequence_ids.shape[0], width), dtype=dtype)


def _generates(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the native generator writes masks; new tensors have no memory inside of torch.func's transforms."""
    return dtype in _BITS and dispatch.choose("dropout", device) == "native" and not buffers.is_transformed()


def attention_mask(shape: tuple[int, int, int, int], p: float, key: Tensor, site: int, dtype: torch.dtype) -> Tensor:
    """The mask of attention probabilities of sequences of one length: `shape` (sequences, heads, queries, keys)."""
    threshold, scale = quantized(p)
    if _generates(dtype, key.device):
        mask = torch.empty(shape, dtype=dtype, device="cpu")
        _C.attention_dropout_mask(
            mask.view(_BITS[dtype]).numpy(), key.numpy(), site, threshold, _keep_bits(scale, dtype)
        )
        return mask
    _, heads, queries, keys = shape
    masks = [reference.attention_dropout_mask(heads, queries, keys, p, one, site) for one in key]
    return torch.stack(masks).to(dtype)


def dropout(x: Tensor, dropout: TokenDropout | None) -> Tensor:
    """Zero each element of `x` (tokens, width) with probability p and scale the rest by 1 / (1 - p).

    p counts in steps of 1/65536. `None` returns `x` as it is. The `triton` backend, and on bf16 and fp32 the `native`
    one, multiply in fp32 and in one pass, forward and backward; others write a mask in the dtype of `x` first. Raises
    UserError, a ValueError, that names the wrong argument.
    """
    if dropout is None or dropout.p == 0.0:
        return x
    if x.dim() != 2 or not x.dtype.is_floating_point:
        raise UserError(f"x must be floating of shape (tokens, width), not {x.dtype} {tuple(x.shape)}")
    check_token_dropout(dropout, x)
    chosen = dispatch.choose("dropout", x.device)
    if chosen == "triton":
        chosen = _check_triton(x)
    if chosen == "native" and _native_serves(x):
        from fastbert.ops.native import rowwise

        if not rowwise.recorded(x):
            return rowwise.drop(x, dropout)
    elif chosen != "triton":
        return x * token_mask(dropout, x.shape[-1], x.dtype)
    dispatch.refuse_forward_mode("dropout")
    arguments = (dropout.key, dropout.sequence_ids, dropout.offsets, dropout.p, dropout.site)
    result: Tensor = _forward(x, *arguments)
    return result


def _check_triton(x: Tensor) -> dispatch.BackendName:
    dispatch.require_triton(x.device, "x")
    if x.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        reason = f"x has dtype {x.dtype}: the triton backend serves bfloat16, float16 and float32"
        return dispatch.without_triton("dropout", reason)
    return "triton"


def _native_serves(x: Tensor) -> bool:
    """Whether a native kernel drops; where it does not, the native masks still do, so nothing is declined."""
    from fastbert.ops.native import rowwise_tensors as calls

    if torch.compiler.is_compiling() or x.layout != torch.strided:
        return False
    return calls.takes(x) and calls.plain(x) and calls.why_not(x) is None


@operator("fastbert::dropout")
def _forward(x: Tensor, key: Tensor, sequence_ids: Tensor, offsets: Tensor, p: float, site: int) -> Tensor:
    """Its own gradient: what is applied to x forward is applied to the gradient backward."""
    from fastbert.ops.native import rowwise

    token_dropout = TokenDropout(p, key, sequence_ids, offsets, site)
    if rowwise.takes(x):
        return rowwise.drop(x, token_dropout)
    from fastbert.kernels.dropout import launchers as kernels

    return kernels.apply(x, token_dropout)


@_forward.register_fake
def _(x: Tensor, *arguments: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, key, sequence_ids, offsets, *ctx.numbers = inputs
    ctx.save_for_backward(key, sequence_ids, offsets)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _forward(grad, *ctx.saved_tensors, *ctx.numbers), None, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_setup_context)


# Of what its kernels do not serve, "native" means that the C++ generator writes the masks for a product of torch's.
dispatch.register("dropout", "native", token_mask)
dispatch.register("dropout", "eager", token_mask)
dispatch.register("dropout", "triton", _forward)
