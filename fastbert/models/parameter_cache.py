"""Tensors that are computed of parameters alone: cached in inference while the parameters are unchanged.

What counts as unchanged is what counts for prepacked weights (`fastbert.ops.native.prepacked_weights`): a step of any
optimizer, and `forget`, end it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from fastbert.ops.dispatch import needs_backward
from fastbert.ops.native import buffers, prepacked_weights

MOST = 4  # entries per parameter: dtypes, and encoders that share a layer
Value = TypeVar("Value")


@dataclass(frozen=True)
class _Entry:
    state: tuple[Any, ...]
    value: Any


# By the first of the parameters, then by the identities of the others and the caller's key.
_entries: WeakIdKeyDictionary = WeakIdKeyDictionary()
_lock = threading.Lock()


def is_cacheable(*parameters: Tensor) -> bool:
    """Return whether what is computed of parameters may be cached: on a CPU, without a backward pass, tracers or
    transforms."""
    if parameters[0].device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return not needs_backward(*parameters) and buffers.direct(*parameters)


def cached(parameters: Sequence[Tensor], key: Hashable, compute: Callable[[], Value]) -> Value:
    """Return what `compute` returns, computed again where parameters for which `is_cacheable` holds have changed, for
    each `key`."""
    first, key = parameters[0], (tuple(map(id, parameters[1:])), key, torch.is_inference_mode_enabled())
    state = (prepacked_weights.changes(), *prepacked_weights.state_of(parameters))
    entry: _Entry | None = _entries.get(first, {}).get(key)
    if entry is None or entry.state != state:
        entry = _Entry(state, compute())
        with _lock:
            by_key: dict[Any, _Entry] = _entries.setdefault(first, {})
            by_key.pop(key, None)
            while len(by_key) >= MOST:
                del by_key[next(iter(by_key))]
            by_key[key] = entry
    value: Value = entry.value
    return value
