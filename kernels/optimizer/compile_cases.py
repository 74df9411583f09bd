"""The variants of the optimiser's kernels that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.optimizer import adamw, tensor_rates, vectors


@dataclass(frozen=True, kw_only=True)
class AdamWCase:
    """One variant of a step; `shadow` is the dtype of the copy that it writes, "" for none."""

    shadow: str = "bf16"
    clear: bool = True

    def __str__(self) -> str:
        return " ".join(["adamw", *([f"{self.shadow} shadow"] if self.shadow else []), *(["clear"] * self.clear)])

    def launch(self) -> None:
        """Launch the kernels of a step."""
        tensors = _step_tensors(DTYPES[self.shadow] if self.shadow else None)
        adamw.begin(tensors, 1.0)
        adamw.update(tensors, clear=self.clear)


@dataclass(frozen=True, kw_only=True)
class RateCase:
    """The rates per parameter of StableAdamW or LAMB."""

    lamb: bool

    def __str__(self) -> str:
        return f"rates {'lamb' if self.lamb else 'stableadamw'}"

    def launch(self) -> None:
        """Launch the kernels that scale the rates."""
        tensor_rates.scale(_step_tensors(None), lamb=self.lamb)


def _step_tensors(shadow: torch.dtype | None) -> adamw.StepTensors:
    elements, parameters, groups = 64 * adamw.UNIT, 3, 2
    return adamw.StepTensors(
        *[torch.zeros(elements) for _ in range(4)],
        None if shadow is None else torch.zeros(elements, dtype=shadow),
        torch.zeros(parameters),
        *[torch.zeros(parameters, dtype=torch.int32) for _ in range(2)],
        torch.zeros(groups, adamw.SETTINGS, dtype=torch.float64),
        torch.zeros(groups),
        torch.zeros(3, 4, dtype=torch.int32),
        torch.zeros(1),
        torch.zeros(adamw.FACTORS, parameters),
        torch.zeros(parameters, 2, dtype=torch.int32),
        torch.zeros(parameters, dtype=torch.int64),
    )


@dataclass(frozen=True, kw_only=True)
class VectorCase:
    """One variant of the sums for a layer's vectors."""

    dtype: str = "bf16"
    width: int = 768

    def __str__(self) -> str:
        return f"vectors {self.dtype} {self.width}"

    def launch(self) -> None:
        """Launch the sums over rows, and their addition to four gradients."""
        rows = vectors.partial_row_sums(torch.zeros(4096, 3 * self.width, dtype=DTYPES[self.dtype]))
        narrow, wide = torch.zeros(264, 3, self.width), torch.zeros(264, 4 * self.width)
        partials = (rows, narrow, wide, narrow)
        vectors.add_all([vectors.PartialSums(partial, torch.zeros(partial[0].numel())) for partial in partials])


Case = AdamWCase | RateCase | VectorCase


def demanding() -> list[Case]:
    """Return the variants that need most registers."""
    return [AdamWCase(), AdamWCase(shadow="", clear=False), *_rates(), VectorCase()]


def _rates() -> list[RateCase]:
    return [RateCase(lamb=lamb) for lamb in (False, True)]


def every() -> list[Case]:
    """Return all variants."""
    steps = itertools.product(("", "bf16", "fp16"), (False, True))
    sums = itertools.product(DTYPES, (32, 96, 768, 1024))
    return [
        *[AdamWCase(shadow=shadow, clear=clear) for shadow, clear in steps],
        *_rates(),
        *[VectorCase(dtype=dtype, width=width) for dtype, width in sums],
    ]


def brief() -> list[Case]:
    """Return few variants in which each kernel appears."""
    return [AdamWCase(), RateCase(lamb=True), VectorCase()]
