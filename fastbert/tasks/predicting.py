"""Predict: run a model over rows in packed batches of about equal length, longest first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fastbert.distributed.shares import Share, in_order
from fastbert.distributed.world import World
from fastbert.models.finite import refuse_non_finite
from fastbert.tasks.base import Task
from fastbert.tasks.examples import Dataset, Prediction
from fastbert.tasks.rows import Rows, TaskBatch, tokens_per_batch
from fastbert.tokenizers.fit import check_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer


def autocast(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager[Any]:
    """Return a context that multiplies in `dtype`; it does nothing for fp32."""
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def outputs_of(
    task: Task[Any],
    model: Any,
    rows: Rows,
    *,
    batch_tokens: int | None = None,
    progress: Callable[[int, float], None] = lambda rows, finished: None,
    source: Callable[[int], str] = "example {} (counted from 0)".format,
    world: World | None = None,
) -> list[np.ndarray]:
    """Return the outputs of each row, in the order of the rows; leaves the model in eval mode.

    Several processes, `world`, compute a share of the batches each; the first one returns the outputs, the others
    nothing. `progress` is called with the number of rows done and the finished fraction of all tokens. Raises
    `UserError` for NaN or infinite outputs, naming a tensor of the model or, by `source`, the example.
    """
    model.eval()
    device, done, tokens = model.device, 0, 0
    lengths = rows.lengths
    total_tokens = int(lengths.sum())
    most = tokens_per_batch(device.type, batch_tokens)
    world = world or World()
    outputs: list[Any] = [None] * len(rows) if world.is_main else []
    batches, share = list(rows.by_length(most)), Share(world.rank, world.size)

    def computed(indices: np.ndarray) -> list[np.ndarray]:
        batch_outputs = task.outputs(model, TaskBatch(inputs=task.packed(rows, indices).to(device), targets={}))
        if not np.isfinite(np.concatenate([values.ravel() for values in batch_outputs])).all():
            pairs = zip(indices.tolist(), batch_outputs, strict=True)
            bad = next(row for row, values in pairs if not np.isfinite(values).all())
            refuse_non_finite(model, source(int(rows.examples[bad])))
        return batch_outputs

    mine = (computed(indices) for number, indices in enumerate(batches) if share.has(number))
    with torch.no_grad():
        for number, batch_outputs in enumerate(in_order(world, mine, _as_tensors, _as_arrays)):
            indices = batches[number]
            for row, values in zip(indices.tolist(), batch_outputs, strict=True):
                outputs[row] = values
            done += len(indices)
            tokens += int(lengths[indices].sum())
            progress(done, tokens / max(total_tokens, 1))
    return outputs


def _as_tensors(arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
    """Return fp32 arrays of the same number of dimensions as two tensors: their shapes, and all numbers."""
    shapes = torch.tensor([values.shape for values in arrays], dtype=torch.int64)
    return [shapes, torch.from_numpy(np.concatenate([values.ravel() for values in arrays]).astype(np.float32))]


def _as_arrays(tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Return the arrays that `_as_tensors` was given."""
    shapes, numbers = (tensor.numpy() for tensor in tensors)
    ends = np.cumsum(shapes.prod(axis=1))
    return [values.reshape(shape) for values, shape in zip(np.split(numbers, ends[:-1]), shapes, strict=True)]


def predict(
    task: Task[Any],
    model: Any,
    tokenizer: Tokenizer,
    dataset: Dataset[Any],
    *,
    batch_tokens: int | None = None,
    progress: Callable[[int, float], None] = lambda rows, finished: None,
) -> list[Prediction]:
    """Return a prediction for each example of a dataset, without reading labels."""
    check_tokenizer(tokenizer, model.config.vocab_size)
    rows = task.encode(dataset, tokenizer, labelled=False)
    outputs = outputs_of(task, model, rows, batch_tokens=batch_tokens, progress=progress, source=dataset.where)
    return task.decode(dataset, rows, outputs)
