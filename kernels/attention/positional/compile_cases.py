"""The variants of positional attention that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fastbert.kernels.attention import launchers
from fastbert.kernels.attention.inputs import AttentionInputs, TableGradients
from fastbert.kernels.configs.configuration import DTYPES

ARITHMETICS = [("bf16", False), ("fp32", True), ("fp32", False)]
FLAGS = ("window", "rotary", "bias", "relative", "grouped", "causal", "dropout")


@dataclass(frozen=True, kw_only=True)
class PositionalCase:
    """One variant of positional attention."""

    dtype: str = "bf16"
    tf32: bool = False
    head_dim: int = 64
    window: bool = False
    rotary: bool = False
    bias: bool = False
    """A bias by distance."""
    relative: bool = False
    """Position keys and position queries."""
    grouped: bool = False
    causal: bool = False
    dropout: bool = False

    def __str__(self) -> str:
        arithmetic = "tf32" if self.tf32 else self.dtype
        return " ".join([arithmetic, str(self.head_dim), *(name for name in FLAGS if getattr(self, name))])

    def launch(self) -> None:
        """Launch the kernels of forward and backward."""
        dtype = DTYPES[self.dtype]
        q, k, v = torch.zeros(4, 3, 12, self.head_dim, dtype=dtype).unbind(1)
        if self.grouped:
            k, v = torch.zeros(4, 2, 4, self.head_dim, dtype=dtype).unbind(1)
        offsets = torch.tensor([0, 4], dtype=torch.int32)
        table = torch.zeros(512, 12, self.head_dim, dtype=dtype) if self.relative else None
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
            bias=None,
            scale=0.125,
            tf32=self.tf32,
            window=64 if self.window else None,
            rotary=torch.zeros(1024, self.head_dim) if self.rotary else None,
            distance_bias=torch.zeros(12, 2047) if self.bias else None,
            position_keys=table,
            position_queries=table,
            buckets=torch.zeros(2047, dtype=torch.int32) if self.relative else None,
        )
        out, lse, rest = launchers.forward(inputs)
        launchers.backward(inputs, out, lse, rest, out, False, TableGradients(True, True, True))


def demanding() -> list[PositionalCase]:
    """Return the variants of released encoders: in half precision with heads of 64 local layers with rotary embeddings,
    biases by distance and relative positions; rotary embeddings with wide heads, and fp32 with and without tf32."""
    return [
        PositionalCase(window=True, rotary=True),
        PositionalCase(bias=True, dropout=True),
        PositionalCase(relative=True, dropout=True),
        PositionalCase(head_dim=128, rotary=True),
        PositionalCase(head_dim=128, rotary=True, grouped=True),
        PositionalCase(dtype="fp32", tf32=True, head_dim=128, rotary=True, grouped=True, dropout=True),
        PositionalCase(dtype="fp32", tf32=True, window=True, rotary=True),
        PositionalCase(dtype="fp32", tf32=True, relative=True, dropout=True),
        PositionalCase(dtype="fp32", relative=True, dropout=True),
        PositionalCase(dtype="fp32", rotary=True),
        PositionalCase(dtype="fp32", window=True, rotary=True),
        PositionalCase(dtype="fp32", head_dim=32, rotary=True),
        PositionalCase(dtype="fp32", tf32=True, head_dim=32, relative=True, dropout=True),
    ]


def every() -> list[PositionalCase]:
    """Return all variants of these that have kernels."""
    combinations: list[tuple[str, ...]] = [
        ("window",), ("rotary",), ("window", "rotary", "grouped"), ("rotary", "bias"), ("bias",),
        ("relative",), ("bias", "relative"),
    ]  # fmt: skip
    return [
        PositionalCase(
            dtype=dtype, tf32=tf32, head_dim=width, dropout=dropout, causal=causal, **dict.fromkeys(names, True)
        )
        for (dtype, tf32), width, dropout, causal, names in itertools.product(
            [*ARITHMETICS, ("fp16", False)], (32, 64, 96, 128), (False, True), (False, True), combinations
        )
        if width <= 64 or not ("relative" in names or (dtype == "fp32" and _unsupported_in_fp32(names, tf32)))
    ]


def _unsupported_in_fp32(names: tuple[str, ...], tf32: bool) -> bool:
    """Return whether wide heads in fp32 have no kernel."""
    return "bias" in names or ("rotary" in names and not tf32)


def brief() -> list[PositionalCase]:
    """Return few variants in which each kernel appears."""
    return [PositionalCase(window=True, rotary=True), PositionalCase(relative=True, dropout=True)]
