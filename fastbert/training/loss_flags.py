"""The flags of the training loss. Imports no torch: the command line is generated from this class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from fastbert.flags import TRAINING, rare


@dataclass(frozen=True, kw_only=True)
class LossFlags:
    """Terms that pre-training adds to its loss."""

    GROUP: ClassVar = TRAINING

    z_loss: float = rare(0.0)
    """Weight of the squared log normaliser of each prediction's softmax in the training loss, such as 1e-4; it keeps
    logits small."""

    def check_flags(self) -> None:
        """Raise `UserError` for values out of range."""
        run: Any = self  # a RunConfig, of which this is a base
        run.require(("z_loss", 0 <= self.z_loss < math.inf, "at least 0 and finite, such as 1e-4"))
