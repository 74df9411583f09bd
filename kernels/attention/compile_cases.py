"""The variants of attention that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fastbert.kernels.attention import launchers
from fastbert.kernels.attention.inputs import AttentionInputs
from fastbert.kernels.attention.positional import compile_cases as positional
from fastbert.kernels.attention.positional.compile_cases import PositionalCase
from fastbert.kernels.configs.configuration import DTYPES

ARITHMETICS = [("bf16", False), ("fp32", True), ("fp32", False)]


@dataclass(frozen=True, kw_only=True)
class AttentionCase:
    """One variant of attention."""

    dtype: str = "bf16"
    tf32: bool = False
    head_dim: int = 64
    causal: bool = False
    bias: bool = False
    dropout: bool = False

    def __str__(self) -> str:
        arithmetic = "tf32" if self.tf32 else self.dtype
        flags = [name for name in ("causal", "bias", "dropout") if getattr(self, name)]
        return " ".join([arithmetic, str(self.head_dim), *flags])

    def launch(self) -> None:
        """Launch the kernels of all length classes. Without a bias, gradients are joined as in an encoder layer."""
        dtype = DTYPES[self.dtype]
        q, k, v = torch.zeros(4, 3, 12, self.head_dim, dtype=dtype).unbind(1)
        offsets = torch.tensor([0, 4], dtype=torch.int32)
        inputs = AttentionInputs(
            q=q,
            k=k,
            v=v,
            cu_seqlens_q=offsets,
            cu_seqlens_k=offsets,
            max_seqlen_q=1024,
            max_seqlen_k=1024,
            causal=self.causal,
            dropout_key=torch.zeros(1, dtype=torch.int64) if self.dropout else None,
            dropout_threshold=26 if self.dropout else 0,
            dropout_scale=256 / (256 - 26) if self.dropout else 1.0,
            dropout_site=1,
            bias=torch.zeros(12, 512, 512) if self.bias else None,
            scale=0.125,
            tf32=self.tf32,
        )
        out, lse, rest = launchers.forward(inputs)
        if self.bias:
            launchers.backward(inputs, out, lse, rest, out, True)
        else:
            launchers.backward_joined(inputs, out, lse, rest, out)


def demanding() -> list[AttentionCase | PositionalCase]:
    """Return the variants that the default configurations tell apart, with the flags that need most registers."""
    half = [
        AttentionCase(head_dim=width, causal=bias, bias=bias, dropout=dropout)
        for width, (bias, dropout) in itertools.product((32, 64, 128), ((False, False), (False, True), (True, True)))
    ]
    single = [
        AttentionCase(dtype=dtype, tf32=tf32, head_dim=width, causal=True, bias=True, dropout=True)
        for (dtype, tf32), width in itertools.product(ARITHMETICS[1:], (32, 64, 128))
    ]
    return [*half, *single, *positional.demanding()]


def every() -> list[AttentionCase | PositionalCase]:
    """Return all variants."""
    flags = itertools.product((False, True), repeat=3)
    cases = [
        AttentionCase(dtype=dtype, tf32=tf32, head_dim=width, causal=causal, bias=bias, dropout=dropout)
        for (causal, bias, dropout), (dtype, tf32), width in itertools.product(
            flags, [*ARITHMETICS, ("fp16", False)], (32, 64, 96, 128)
        )
    ]
    return [*cases, *positional.every()]


def brief() -> list[AttentionCase | PositionalCase]:
    """Return few variants in which each kernel appears: with most flags, one is left to the others on some GPUs."""
    cases = [AttentionCase(causal=True, bias=True, dropout=True), AttentionCase(dropout=True)]
    return [*cases, *positional.brief()]
