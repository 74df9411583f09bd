"""The arguments of packed attention, as every backend receives them."""

from __future__ import annotations

from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.checks import check_devices, check_dropout, check_scale, check_tensor, is_debugging


class AttentionArguments(NamedTuple):
    """The arguments of `fastbert.ops.attention`; `dropout_key` is None exactly when nothing is dropped."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    causal: bool
    dropout_p: float
    dropout_key: Tensor | None
    dropout_site: int
    bias: Tensor | None
    scale: float
    tf32: bool
    """True if fp32 matmuls may round their operands to tf32."""

    @property
    def sequences(self) -> int:
        """The number of sequences."""
        return self.cu_seqlens_q.shape[0] - 1

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.q.shape[1]

    def check(self) -> None:
        """Raise UserError for shapes, dtypes, devices and numbers that no backend supports."""
        q, k, v = self.q, self.k, self.v
        if q.dim() != 3 or k.shape != v.shape or k.dim() != 3 or q.shape[1:] != k.shape[1:]:
            raise UserError(
                "q, k, v must have shape (tokens, heads, head_dim) with equal heads and head_dim, not"
                f" {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
            )
        if not q.dtype.is_floating_point or k.dtype != q.dtype or v.dtype != q.dtype:
            raise UserError(f"q, k, v must have one floating dtype, not {q.dtype}, {k.dtype}, {v.dtype}")
        offsets = {"cu_seqlens_q": self.cu_seqlens_q, "cu_seqlens_k": self.cu_seqlens_k}
        for name, cu_seqlens in offsets.items():
            if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1 or cu_seqlens.dtype != torch.int32:
                raise UserError(
                    f"{name} must be int32 of shape (sequences + 1,), not {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
                )
        if self.cu_seqlens_k.shape[0] != self.cu_seqlens_q.shape[0]:
            raise UserError(
                "cu_seqlens_q and cu_seqlens_k must describe the same sequences, not"
                f" {self.sequences} and {self.cu_seqlens_k.shape[0] - 1}"
            )
        for name, length in (("max_seqlen_q", self.max_seqlen_q), ("max_seqlen_k", self.max_seqlen_k)):
            if isinstance(length, Tensor):
                raise UserError(f"{name} is a tensor: it must be an integer, which needs no host-device sync")
            if not torch.compiler.is_compiling() and not isinstance(length, Integral | torch.SymInt):
                raise UserError(f"{name}={length!r} must be an integer")
            if length < 0 or length >= 2**31:
                raise UserError(f"{name}={length} must be the length of the longest sequence, or more, and below 2**31")
        check_dropout("dropout_", self.dropout_p, self.dropout_site)
        check_scale(self.scale)
        if self.dropout_key is not None:
            check_tensor("dropout_key", self.dropout_key, "int64", (self.sequences,), ", one per sequence")
        if self.bias is not None:
            check_tensor("bias", self.bias, "floating", (self.heads, "queries", "keys"), ", one per head")
        others = {"k": k, "v": v, **offsets, "dropout_key": self.dropout_key, "bias": self.bias}
        check_devices(others, "q", q.device)

    def check_offsets(self) -> None:
        """Raise UserError for offsets that do not describe the tokens.

        Reads them on a CPU; on a GPU, where reading is a host-device sync, only under FASTBERT_DEBUG=1.
        """
        if self.q.device.type != "cpu" and not is_debugging():
            return
        for side, cu_seqlens, tokens, max_seqlen in (
            ("q", self.cu_seqlens_q, self.q.shape[0], self.max_seqlen_q),
            ("k", self.cu_seqlens_k, self.k.shape[0], self.max_seqlen_k),
        ):
            name = f"cu_seqlens_{side}"
            offsets = cu_seqlens.tolist()
            if offsets[0] != 0:
                raise UserError(f"{name} starts at {offsets[0]}: it must start at 0")
            for i in range(len(offsets) - 1):
                length = offsets[i + 1] - offsets[i]
                if length < 0:
                    raise UserError(f"{name} decreases from {offsets[i]} to {offsets[i + 1]} at sequence {i}")
                if length > max_seqlen:
                    raise UserError(f"sequence {i} has {length} tokens, more than max_seqlen_{side}={max_seqlen}")
            if offsets[-1] != tokens:
                raise UserError(f"{name} ends at {offsets[-1]}, but {side} has {tokens} tokens: it must end there")
