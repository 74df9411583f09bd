"""GloVe (Pennington et al. 2014): factorise the logarithms of co-occurrence counts, weighted, by AdaGrad.

The loss is the sum over non-zero counts X_ij of f(X_ij) (w_i . v_j + a_i + b_j - log X_ij)^2 / 2, with the weight
f(x) = min(x / x_max, 1)^alpha. A word's vector is w + v, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastbert.vectors.cooccurrences import Cooccurrences

ALPHA = 0.75
LEARNING_RATE = 0.05
BATCH = 8192  # records per step
# The purposes of random numbers, beside others of the same seed.
_START, _BUCKETS, _RECORDS = 2, 3, 4


@dataclass(eq=False)
class _Table:
    """Vectors with a bias in the last column, fp32 (words, size + 1), and AdaGrad's sums of squares of that shape."""

    values: Tensor
    squares: Tensor

    @classmethod
    def start(cls, words: int, size: int, seed: int, which: int) -> _Table:
        """Return numbers from -0.5/size to 0.5/size, as the authors' program begins with; the sums begin with one."""
        draw = np.random.default_rng((seed, _START, which)).random((words, size + 1), dtype=np.float32)
        values = torch.from_numpy((draw - 0.5) / size)
        return cls(values, torch.ones_like(values))

    def update(self, rows: Tensor, gradients: Tensor) -> None:
        """Take a step of AdaGrad: gradients fp32 (records, size + 1) of int64 rows (records,), added up per row."""
        touched, place = rows.unique(return_inverse=True)
        sums = gradients.new_zeros(len(touched), gradients.shape[1]).index_add_(0, place, gradients)
        squares = self.squares.index_select(0, touched).addcmul_(sums, sums)
        self.squares.index_copy_(0, touched, squares)
        self.values.index_add_(0, touched, sums.div_(squares.sqrt_()), alpha=-LEARNING_RATE)


def train_glove(
    counts: Cooccurrences,
    words: int,
    *,
    size: int,
    epochs: int,
    x_max: float = 100.0,
    seed: int = 0,
    batch: int = BATCH,
    progress: Callable[[int, float], None] | None = None,
) -> NDArray[np.float32]:
    """Return the vectors of `words` words, fp32 (words, size), the sums of the two that are trained.

    The order of records is a function of seed and epoch. `progress` is called with the number of records visited and
    the mean loss of the epoch so far.
    """
    main, context = _Table.start(words, size, seed, 0), _Table.start(words, size, seed, 1)
    visited = 0
    for epoch in range(epochs):
        loss, seen = 0.0, 0
        for bucket in np.random.default_rng((seed, _BUCKETS, epoch)).permutation(len(counts.buckets)):
            records = counts.bucket(bucket)
            records = records[np.random.default_rng((seed, _RECORDS, epoch, bucket)).permutation(len(records))]
            rows, columns = (torch.from_numpy(records[name].astype(np.int64)) for name in ("row", "column"))
            x = torch.from_numpy(records["count"].copy())
            logs, weights = x.log(), (x / x_max).clamp_(max=1.0).pow_(ALPHA)
            for chosen in torch.arange(len(records)).split(batch):
                part = slice(int(chosen[0]), int(chosen[-1]) + 1)
                loss += _step(main, context, rows[part], columns[part], logs[part], weights[part])
                seen += len(chosen)
                if progress is not None:
                    progress(visited + seen, loss / seen)
        visited += seen
    return (main.values + context.values)[:, :size].contiguous().numpy()


def _step(main: _Table, context: _Table, rows: Tensor, columns: Tensor, logs: Tensor, weights: Tensor) -> float:
    """Take a step on some records, and return the sum of their losses."""
    # Whole rows: index_select copies them several times as fast as an index in brackets.
    w, v = main.values.index_select(0, rows), context.values.index_select(0, columns)
    biases = w[:, -1] + v[:, -1]
    # With a one in place of the other's bias, the gradient of w, bias included, is the error times v.
    w[:, -1], v[:, -1] = 1.0, 1.0
    errors = torch.linalg.vecdot(w[:, :-1], v[:, :-1]).add_(biases).sub_(logs)
    gradients = (weights * errors)[:, None]
    main.update(rows, v.mul_(gradients))
    context.update(columns, w.mul_(gradients))
    return 0.5 * float(weights @ errors.square())
