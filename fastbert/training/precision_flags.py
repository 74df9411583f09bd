"""The flags of a run's dtypes beside --dtype. Imports no torch: the command line is generated from this class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fastbert.errors import UserError
from fastbert.flags import MACHINE, rare


@dataclass(frozen=True, kw_only=True)
class PrecisionFlags:
    """The dtype of a run's weights, and of fp32 matmuls on GPUs."""

    GROUP: ClassVar = MACHINE

    param_dtype: Literal["fp32", "bf16"] = rare("fp32")
    """Dtype of weights and gradients; with bf16 the optimiser keeps fp32 masters of the weights, which are saved."""
    tf32: bool = rare(False)
    """Round the operands of fp32 matmuls to tf32 on a GPU: with --dtype fp32."""

    def check_flags(self) -> None:
        """Raise `UserError` for dtypes that exclude each other."""
        run: Any = self  # a RunConfig, of which this is a base
        run.require(("param_dtype", self.param_dtype in ("fp32", "bf16"), "fp32 or bf16"))
        if self.tf32 and run.dtype != "fp32":
            raise UserError(f"--tf32 is for matmuls in fp32, and --dtype is {run.dtype}; give --dtype fp32")
        if self.param_dtype == "bf16" and run.dtype not in ("auto", "bf16"):
            raise UserError(f"--param-dtype bf16 and --dtype {run.dtype} exclude each other; leave one out")

    @property
    def matmul_dtype(self) -> Literal["auto", "bf16", "fp16", "fp32"]:
        """Return --dtype, which bf16 weights leave no choice."""
        run: Any = self
        chosen: Literal["auto", "bf16", "fp16", "fp32"] = "bf16" if self.param_dtype == "bf16" else run.dtype
        return chosen
