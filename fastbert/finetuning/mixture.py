"""Several training files in one run, each of them as often as its weight says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastbert.errors import UserError
from fastbert.finetuning import order
from fastbert.tasks.examples import Dataset


def mixed(datasets: Sequence[Dataset[Any]], weights: Sequence[float], seed: int = 0) -> Dataset[Any]:
    """Return the examples of several files in the order of the files.

    An epoch holds each example of a file as often as its weight says, by default once: 2 gives each example twice, 0.5
    half of the examples, drawn by `seed`, and 1.5 all of them and half of them again. Locations name the file. Raises
    `UserError` for a number of weights that is not that of the files, weights that are not positive and finite, and a
    weight that leaves a file without examples.
    """
    if weights and len(weights) != len(datasets):
        raise UserError(f"--mix has {len(weights)} weights for {len(datasets)} training files; give one for each")
    examples: list[Any] = []
    for dataset, weight in zip(datasets, weights or [1.0] * len(datasets), strict=True):
        if not 0 < weight < math.inf:
            raise UserError(f"--mix {weight:g} must be above 0 and finite")
        located = [replace(example, location=f"{dataset.path}, {example.location}") for example in dataset]
        whole = math.floor(weight)
        part = round((weight - whole) * len(located))
        if not whole and not part:
            raise UserError(f"--mix {weight:g}: leaves none of the {len(located)} examples of {dataset.path}; raise it")
        drawn = sorted(order.permutation(len(located), seed, 0)[:part].tolist())
        examples += located * whole + [located[index] for index in drawn]
    return _Mixture(" + ".join(dataset.path for dataset in datasets), tuple(examples))


class _Mixture(Dataset[Any]):
    """Examples of several files, whose locations name their file."""

    def where(self, index: int) -> str:
        location: str = self.examples[index].location
        return location
