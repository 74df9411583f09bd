"""Predict: run a model over rows in packed batches of about equal length, longest first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

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
) -> list[np.ndarray]:
    """Return the outputs of each row, in the order of the rows; leaves the model in eval mode.

    `progress` is called with the number of rows done and the finished fraction of all tokens. Raises `UserError` for
    NaN or infinite outputs, naming a tensor of the model or, by `source`, the example.
    """
    model.eval()
    device, done, tokens = model.device, 0, 0
    lengths = rows.lengths
    total_tokens = int(lengths.sum())
    most = tokens_per_batch(device.type, batch_tokens)
    outputs: list[Any] = [None] * len(rows)
    with torch.no_grad():
        for indices in rows.by_length(most):
            batch_outputs = task.outputs(model, TaskBatch(inputs=rows.packed(indices).to(device), targets={}))
            for row, values in zip(indices.tolist(), batch_outputs, strict=True):
                outputs[row] = values
            if not np.isfinite(np.concatenate([values.ravel() for values in batch_outputs])).all():
                bad = next(row for row in indices.tolist() if not np.isfinite(outputs[row]).all())
                refuse_non_finite(model, source(int(rows.examples[bad])))
            done += len(indices)
            tokens += int(lengths[indices].sum())
            progress(done, tokens / max(total_tokens, 1))
    return outputs


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
