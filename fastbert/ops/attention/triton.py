"""Packed attention by the Triton kernels, which are imported when they first run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.attention.arguments import AttentionArguments, AttentionGradients, WantedGradients
from fastbert.ops.attention.rotary import positions_of
from fastbert.ops.dropout.arguments import quantized_attention
from fastbert.ops.operation import Reason
from fastbert.ops.triton_backend import TritonBackend, unsupported_dtype

if TYPE_CHECKING:
    from fastbert.kernels.attention.inputs import AttentionInputs

HEAD_DIMS = (32, 64, 96, 128)
# With wider heads, and together with rotary embeddings, kernels of relative positions would spill registers.
RELATIVE_HEAD_DIMS = (32, 64)


class Triton(TritonBackend[AttentionArguments]):
    """bf16, fp16 and fp32, with head_dim 32, 64, 96 or 128 (relative positions: 32 or 64, without rotary embeddings);
    positions and grouped heads, but not with a dense bias."""

    def supports(self, arguments: AttentionArguments) -> Reason | None:
        """Support the head dimensions of HEAD_DIMS, contiguous heads and positive scales."""
        self.require_device(arguments.q.device, "q")
        if arguments.q.shape[2] not in HEAD_DIMS:
            return Reason(f"head_dim={arguments.q.shape[2]} is not 32, 64, 96 or 128")
        if not 1e-30 <= arguments.scale <= 1e30:
            return Reason(f"scale={arguments.scale} is not between 1e-30 and 1e30")
        if arguments.features and arguments.bias is not None:
            return Reason(f"bias together with {arguments.features[0]} has no kernel: pass a distance_bias")
        return (
            unsupported_dtype("q", arguments.q)
            or _unsupported_relative(arguments)
            or _unsupported_wide(arguments)
            or _unsupported_strides(arguments)
        )

    def rest_rows(self, arguments: AttentionArguments) -> int:
        """Return the tokens of the third output of `forward`."""
        from fastbert.kernels.attention import launchers

        return launchers.rest_rows(kernel_inputs(arguments))

    def forward(self, arguments: AttentionArguments, with_rest: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output, lse (heads, tokens_q) fp32 in units of log2, and what rounding removed from the output.

        The last has no rows without `with_rest`, or where backward does not need it. Raises UserError for wrong strides
        and offsets.
        """
        from fastbert.kernels.attention import launchers

        arguments.check_offsets()
        arguments.check_positions()
        # A compiled graph may lay tensors out in another way than the call that it was traced with.
        reason = _unsupported_strides(arguments)
        if reason is not None:
            raise UserError(reason.text)
        return launchers.forward(kernel_inputs(arguments), with_rest)

    def backward(
        self,
        arguments: AttentionArguments,
        out: Tensor,
        lse: Tensor,
        rest: Tensor,
        grad: Tensor,
        wanted: WantedGradients,
    ) -> AttentionGradients:
        """Return the gradients of q, k, v, contiguous, and those that are wanted."""
        from fastbert.kernels.attention import launchers
        from fastbert.kernels.attention.inputs import TableGradients

        inputs, tables = kernel_inputs(arguments), TableGradients(*wanted[1:])
        return AttentionGradients(*launchers.backward(inputs, out, lse, rest, grad, wanted.bias, tables))


def _unsupported_relative(arguments: AttentionArguments) -> Reason | None:
    for name in ("position_keys", "position_queries"):
        if getattr(arguments, name) is None:
            continue
        if arguments.q.shape[2] not in RELATIVE_HEAD_DIMS:
            return Reason(f"{name} with head_dim={arguments.q.shape[2]} have no kernel: 32 and 64 do")
        if arguments.rotary is not None:
            return Reason(f"{name} together with rotary have no kernel: use one of them")
    return None


def _unsupported_wide(arguments: AttentionArguments) -> Reason | None:
    """Refuse what would spill registers in fp32 with wide heads: rotary embeddings without TF32, biases by distance."""
    q = arguments.q
    if q.shape[2] <= 64 or q.dtype != torch.float32:
        return None
    if arguments.distance_bias is not None:
        return Reason(f"distance_bias with head_dim={q.shape[2]} in fp32 has no kernel: use bf16")
    if arguments.rotary is not None and not arguments.tf32:
        return Reason(
            f"rotary with head_dim={q.shape[2]} in fp32 has no kernel without TF32: use bf16, or allow it by"
            " torch.set_float32_matmul_precision('high')"
        )
    return None


def _unsupported_strides(arguments: AttentionArguments) -> Reason | None:
    for name in ("q", "k", "v"):
        x = getattr(arguments, name)
        if x.stride(2) != 1 or x.stride(1) != x.shape[2]:
            return Reason(
                f"{name} is not contiguous: strides {tuple(x.stride())} of shape {tuple(x.shape)}, but the heads of a"
                f" token must be contiguous; call {name}.contiguous()"
            )
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        if not getattr(arguments, name).is_contiguous():
            return Reason(f"{name} is not contiguous: call {name}.contiguous()")
    return None


def kernel_inputs(arguments: AttentionArguments) -> AttentionInputs:
    """Return the arguments as the launchers of `fastbert.kernels.attention` take them."""
    from fastbert.kernels.attention.inputs import AttentionInputs

    threshold, dropout_scale = quantized_attention(arguments.dropout_p)
    return AttentionInputs(
        q=arguments.q,
        k=arguments.k,
        v=arguments.v,
        cu_seqlens_q=arguments.cu_seqlens_q,
        cu_seqlens_k=arguments.cu_seqlens_k,
        max_seqlen_q=arguments.max_seqlen_q,
        max_seqlen_k=arguments.max_seqlen_k,
        causal=arguments.causal,
        dropout_key=arguments.dropout_key,
        dropout_threshold=threshold,
        dropout_scale=dropout_scale,
        dropout_site=arguments.dropout_site,
        bias=arguments.bias,
        scale=arguments.scale,
        tf32=arguments.tf32,
        window=arguments.window,
        rotary=arguments.rotary,
        rotary_positions=_rotary_positions(arguments),
        distance_bias=arguments.distance_bias,
        position_keys=arguments.position_keys,
        position_queries=arguments.position_queries,
        buckets=None if arguments.position_keys is arguments.position_queries is None else arguments.buckets,
    )


def _rotary_positions(arguments: AttentionArguments) -> Tensor | None:
    """Return the tokens' positions where kernels cannot tell them: offsets of keys may differ from those of queries."""
    same = arguments.cu_seqlens_k is arguments.cu_seqlens_q
    if arguments.rotary is None or arguments.rotary_positions is not None or same:
        return arguments.rotary_positions
    return positions_of(arguments.cu_seqlens_q, arguments.q.shape[0])
