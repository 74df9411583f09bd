"""The most probable tokens of greedy generation, in one pass over the logits on CPUs."""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert import _C, cpu_capability
from fastbert.ops.dispatch import forced
from fastbert.ops.native import buffers


def best_tokens(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's most probable token, int64 (rows,), and its log probability, fp32 (rows,), of logits
    (rows, vocab_size).

    The first of equal logits is returned, of NaNs the first. Exponentials and sums are fp32; on CPUs a row's bits do
    not depend on the other rows.
    """
    if not _is_native(logits):
        wide = logits.float()
        tokens = wide.argmax(-1)
        return tokens, wide.gather(1, tokens[:, None])[:, 0] - wide.logsumexp(-1)
    cpu_capability.apply()
    rows = len(logits)
    tokens, logs = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.float32)
    address = buffers.address("logits", logits)
    stride = logits.stride(0) if rows > 1 else logits.shape[1]
    _C.best_tokens(
        (address, buffers.DTYPES[logits.dtype], stride), rows, logits.shape[1], tokens.data_ptr(), logs.data_ptr()
    )
    return tokens, logs


def _is_native(logits: Tensor) -> bool:
    return (
        logits.is_cpu
        and logits.dtype in buffers.DTYPES
        and logits.numel() > 0
        and logits.stride(1) == 1
        and (len(logits) == 1 or logits.stride(0) >= logits.shape[1])
        and forced() in (None, "native")
        and buffers.direct(logits)
    )
