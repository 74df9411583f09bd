"""The variants of the optimiser's kernels that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.optimizer import adamw, vectors


@dataclass(frozen=True, kw_only=True)
class AdamWCase:
    """One variant of a step; `shadow` is the dtype of the copy that it writes, "" for none."""

    shadow: str = "bf16"
    clear: bool = True

    def __str__(self) -> str:
        return " ".join(["adamw", *([f"{self.shadow} shadow"] if self.shadow else []), *(["clear"] * self.clear)])

    def launch(self) -> None:
        """Launch the kernels of a step."""
        elements, parameters, groups = 64 * adamw.UNIT, 3, 2
        flat = [torch.zeros(elements) for _ in range(4)]
        integers = [torch.zeros(parameters, dtype=torch.int32) for _ in range(2)]
        tensors = adamw.StepTensors(
            *flat,
            torch.zeros(elements, dtype=DTYPES[self.shadow]) if self.shadow else None,
            torch.zeros(parameters),
            *integers,
            torch.zeros(groups, adamw.SETTINGS, dtype=torch.float64),
            torch.zeros(groups),
            torch.zeros(3, 4, dtype=torch.int32),
            torch.zeros(1),
            torch.zeros(adamw.FACTORS, parameters),
        )
        adamw.begin(tensors, 1.0)
        adamw.update(tensors, clear=self.clear)


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


def demanding() -> list[AdamWCase | VectorCase]:
    """Return the variants that need most registers."""
    return [AdamWCase(), AdamWCase(shadow="", clear=False), VectorCase()]


def every() -> list[AdamWCase | VectorCase]:
    """Return all variants."""
    steps = itertools.product(("", "bf16", "fp16"), (False, True))
    sums = itertools.product(DTYPES, (32, 96, 768, 1024))
    return [
        *[AdamWCase(shadow=shadow, clear=clear) for shadow, clear in steps],
        *[VectorCase(dtype=dtype, width=width) for dtype, width in sums],
    ]


def brief() -> list[AdamWCase | VectorCase]:
    """Return few variants in which each kernel appears."""
    return [AdamWCase(), VectorCase()]
