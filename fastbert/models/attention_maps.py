"""Attention probabilities of a layer, for people to look at: no kernel writes them to memory.

Attention is linear in its values, so that the probabilities of a layer are its outputs for values that are rows of the
identity matrix. This holds for every architecture: rotary and relative positions, windows and shared keys included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

Attend = Callable[[Tensor], Tensor]
"""Attention of a layer as a function of its values, (tokens, heads, head_dim)."""


class Recorder:
    """Computes the probabilities of one layer, (heads, tokens, tokens) fp32, when that layer attends."""

    def __init__(self, layer: int) -> None:
        self.layer = layer
        self.probabilities: Tensor | None = None

    def record(self, attend: Attend, values: Tensor) -> None:
        """Attend to rows of the identity matrix in place of `values` (tokens, key_value_heads, head_dim)."""
        tokens, _, width = values.shape
        columns = []
        for first in range(0, tokens, width):
            end = min(first + width, tokens)
            basis = torch.zeros_like(values)
            basis[torch.arange(first, end), :, torch.arange(end - first)] = 1
            columns.append(attend(basis)[..., : end - first])
        self.probabilities = torch.cat(columns, dim=-1).transpose(0, 1).float()


_recorder: ContextVar[Recorder | None] = ContextVar("fastbert_attention_recorder", default=None)
_recording = 0  # threads that record; read first, since compilers trace it better than the variable


def current() -> Recorder | None:
    """Return the recorder of this thread, which layers report to, None by default; with one, no layer is fused."""
    return _recorder.get() if _recording else None


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Record within the block, on this thread."""
    global _recording
    token = _recorder.set(recorder)
    _recording += 1
    try:
        yield
    finally:
        _recording -= 1
        _recorder.reset(token)
