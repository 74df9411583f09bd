"""What one packed attention is given, checked: the form in which every backend receives it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from fastbert.errors import UserError


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionProblem:
    """Shapes and dtypes as in `fastbert.ops.attention`; `dropout_key` is None exactly when nothing is dropped."""

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
    """Whether fp32 products may round their operands to tf32."""

    @property
    def sequences(self) -> int:
        return self.cu_seqlens_q.shape[0] - 1

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def longest(self) -> int:
        return max(self.max_seqlen_q, self.max_seqlen_k)


def check(problem: AttentionProblem) -> None:
    """Refuse what no backend can compute, by what the host knows: shapes, dtypes, devices, numbers."""
    q, k, v = problem.q, problem.k, problem.v
    if q.dim() != 3 or k.shape != v.shape or k.dim() != 3 or q.shape[1:] != k.shape[1:]:
        raise UserError(
            "q, k, v must have shape (tokens, heads, head_dim) with equal heads and head_dim, not"
            f" {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if not q.dtype.is_floating_point or k.dtype != q.dtype or v.dtype != q.dtype:
        raise UserError(f"q, k, v must have one floating dtype, not {q.dtype}, {k.dtype}, {v.dtype}")
    offsets = {"cu_seqlens_q": problem.cu_seqlens_q, "cu_seqlens_k": problem.cu_seqlens_k}
    for name, cu_seqlens in offsets.items():
        if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1 or cu_seqlens.dtype != torch.int32:
            raise UserError(
                f"{name} must be int32 of shape (sequences + 1,), not {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
            )
    if problem.cu_seqlens_k.shape[0] != problem.cu_seqlens_q.shape[0]:
        raise UserError(
            "cu_seqlens_q and cu_seqlens_k must speak of the same sequences, not of"
            f" {problem.sequences} and {problem.cu_seqlens_k.shape[0] - 1}"
        )
    for name, longest in (("max_seqlen_q", problem.max_seqlen_q), ("max_seqlen_k", problem.max_seqlen_k)):
        if isinstance(longest, Tensor):
            raise UserError(
                f"{name} is a tensor: it must be a number of the host, or the host would wait for the device"
            )
        if not torch.compiler.is_compiling() and not isinstance(longest, Integral | torch.SymInt):
            raise UserError(f"{name}={longest!r} must be an integer")
        if longest < 0 or longest >= 2**31:
            raise UserError(f"{name}={longest} must be the length of the longest sequence, or more, and below 2**31")
    if not 0.0 <= problem.dropout_p < 1.0:
        raise UserError(f"dropout_p={problem.dropout_p} must be at least 0 and below 1")
    if not 0 <= problem.dropout_site < 2**31:
        raise UserError(f"dropout_site={problem.dropout_site} must be at least 0 and below 2**31")
    if not -math.inf < problem.scale < math.inf:
        raise UserError(f"scale={problem.scale} must be a finite number")
    key, bias = problem.dropout_key, problem.bias
    if key is not None and (key.dtype != torch.int64 or key.dim() != 1 or key.shape[0] != problem.sequences):
        raise UserError(
            f"dropout_key must be int64 of shape ({problem.sequences},), one a sequence, not"
            f" {key.dtype} {tuple(key.shape)}"
        )
    if bias is not None and (bias.dim() != 3 or bias.shape[0] != problem.heads or not bias.dtype.is_floating_point):
        raise UserError(
            f"bias must be floating of shape ({problem.heads}, queries, keys), one a head, not"
            f" {bias.dtype} {tuple(bias.shape)}"
        )
    others = {"k": k, "v": v, **offsets, "dropout_key": key, "bias": bias}
    for name, tensor in others.items():
        if tensor is not None and tensor.device != q.device:
            raise UserError(f"{name} is on {tensor.device}, q on {q.device}: move them to one device")


def check_offsets(problem: AttentionProblem) -> None:
    """Refuse offsets that do not describe the tokens; reads them on a CPU, and on a GPU under FASTBERT_DEBUG=1."""
    if problem.q.device.type != "cpu" and os.environ.get("FASTBERT_DEBUG", "0") in ("", "0"):
        return
    for side, cu_seqlens, tokens, longest in (
        ("q", problem.cu_seqlens_q, problem.q.shape[0], problem.max_seqlen_q),
        ("k", problem.cu_seqlens_k, problem.k.shape[0], problem.max_seqlen_k),
    ):
        name = f"cu_seqlens_{side}"
        offsets = cu_seqlens.tolist()
        if offsets[0] != 0:
            raise UserError(f"{name} starts at {offsets[0]}: it must start at 0")
        for i in range(len(offsets) - 1):
            if offsets[i + 1] < offsets[i]:
                raise UserError(f"{name} decreases from {offsets[i]} to {offsets[i + 1]} at sequence {i}")
            if offsets[i + 1] - offsets[i] > longest:
                raise UserError(
                    f"sequence {i} has {offsets[i + 1] - offsets[i]} tokens, more than max_seqlen_{side}={longest}"
                )
        if offsets[-1] != tokens:
            raise UserError(f"{name} ends at {offsets[-1]}, but {side} has {tokens} tokens: it must end there")
