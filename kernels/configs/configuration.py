"""The configuration that a kernel is compiled with, and the shape classes that it depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of a kernel: tile sizes and other constants, warps per program, stages of the load pipeline."""

    constants: Mapping[str, int] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 1
    max_registers: int = 0
    """Limit per thread on NVIDIA GPUs; 0 leaves it to ptxas, which sometimes spills a few bytes to run more warps."""

    @property
    def options(self) -> dict[str, Any]:
        """The compiler's options. Multiplications and additions may fuse: set explicitly, because it changes bits."""
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": True}
        return options | ({"maxnreg": self.max_registers} if self.max_registers else {})

    def as_json(self) -> dict[str, Any]:
        """Return the configuration as JSON values."""
        return {name: dict(value) if name == "constants" else value for name, value in vars(self).items()}


# Configurations by kernel and shape class.
Table = dict[str, dict[str, Config]]


def shape_class(dtype: torch.dtype, tf32: bool, width: int, *, masked: bool = False, dropout: bool = False) -> str:
    """Return what a configuration may depend on: the arithmetic of the matmuls, the padded width of a row, whether
    scores have a causal mask or a bias, and whether dropout is drawn.

    `half-64`: bf16 or fp16, head_dim 64; `half-64-dropout`; `tf32-128-masked-dropout`; `ieee-32`: fp32 without tensor
    cores.
    """
    arithmetic = "half" if dtype in (torch.bfloat16, torch.float16) else "tf32" if tf32 else "ieee"
    return f"{arithmetic}-{1 << (width - 1).bit_length()}" + "-masked" * masked + "-dropout" * dropout
