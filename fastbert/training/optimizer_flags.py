"""The flags of optimisers. Imports no torch: the command line is generated from this class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fastbert.errors import UserError
from fastbert.flags import TRAINING, rare

OptimizerName = Literal["adamw", "stableadamw", "lamb", "muon"]
BETAS: dict[OptimizerName, tuple[float, float]] = {
    "adamw": (0.9, 0.999),
    "stableadamw": (0.9, 0.98),
    "lamb": (0.9, 0.999),
    "muon": (0.9, 0.98),
}
"""Devlin et al. 2019 (appendix A.2), the recipe of ModernBERT (Warner et al. 2024, appendix A), You et al. 2020, and
ours; those of muon are of the parameters that AdamW updates."""
EPS = 1e-6
"""That of BERT's, ModernBERT's and LAMB's code."""


@dataclass(frozen=True, kw_only=True)
class OptimizerFlags:
    """The optimiser of all runs."""

    GROUP: ClassVar = TRAINING

    optimizer: OptimizerName = rare("adamw")
    """Optimiser: AdamW; StableAdamW, whose steps are clipped per parameter, so that gradients need not be
    (--max-grad-norm 1e9); LAMB, for batches of thousands of sequences; or Muon for the matrices of the layers and AdamW
    for the rest, which needs fewer steps."""
    betas: tuple[float, ...] | None = rare(None)
    """Decay of the first and the second moment (default: 0.9 0.999; 0.9 0.98 for stableadamw and muon)."""
    eps: float | None = rare(None)
    """Added to the root of the second moment (default: 1e-6)."""
    weight_decay: float = rare(0.01)
    """Decoupled weight decay; not applied to biases and LayerNorm."""
    max_grad_norm: float = rare(1.0)
    """Norm that gradients are clipped to."""

    def check_flags(self) -> None:
        """Raise `UserError` for values out of range."""
        run: Any = self  # a RunConfig, of which this is a base
        run.require(
            ("optimizer", self.optimizer in BETAS, "adamw, stableadamw, lamb or muon"),
            ("eps", self.eps is None or 0 < self.eps < math.inf, "above 0 and finite"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "at least 0 and finite"),
            ("max_grad_norm", self.max_grad_norm > 0, "above 0"),
        )
        if self.optimizer == "muon" and getattr(self, "parallel", None) == "fsdp":
            raise UserError("--optimizer muon needs whole matrices in every process: use --parallel ddp")
        if self.betas is not None and (len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas)):
            shown = " ".join(f"{beta:g}" for beta in self.betas)
            raise UserError(f"--betas {shown} must be two numbers from 0 to below 1, such as 0.9 0.98")
