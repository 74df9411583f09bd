"""Projections of relative positions, which do not depend on a batch: kept in inference while their parameters are
unchanged.

A layer of DeBERTa projects 512 positions, as much work as 512 tokens. What counts as unchanged is what counts for
prepacked weights (`fastbert.ops.native.prepacked_weights`): a step of any optimizer, and `forget`, end it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from fastbert.models.fusibility import is_plain, is_plain_without_bias, project
from fastbert.ops.dispatch import needs_backward
from fastbert.ops.native import buffers, prepacked_weights

MOST = 4  # kept per weight: dtypes, and encoders that share a layer


@dataclass(frozen=True)
class _Kept:
    state: tuple[Any, ...]
    table: Tensor


# By the projection's weight, then by the identities of the other parameters, and the dtype of the matmul.
_kept: WeakIdKeyDictionary = WeakIdKeyDictionary()
_lock = threading.Lock()


def project_table(module: nn.Module, embeddings: Tensor, sources: tuple[Tensor, ...]) -> Tensor:
    """Return a linear layer of embeddings of positions (rows, in), which were computed from `sources` alone; without
    sources it is computed anew."""
    parameters = [parameter for parameter in module._parameters.values() if parameter is not None]
    plain = is_plain(module) or is_plain_without_bias(module)
    tensors = [*parameters, *sources]
    if not sources or not plain or embeddings.device.type != "cpu" or torch.compiler.is_compiling():
        return project(module, embeddings)
    if needs_backward(*tensors) or not buffers.direct(*tensors):
        return project(module, embeddings)
    autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    key = (tuple(map(id, tensors[1:])), autocast, torch.is_inference_mode_enabled())
    state = (prepacked_weights.changes(), *prepacked_weights.state_of(tensors))
    kept: _Kept | None = _kept.get(tensors[0], {}).get(key)
    if kept is not None and kept.state == state:
        return kept.table
    kept = _Kept(state, project(module, embeddings).detach())
    with _lock:
        by_key: dict[Any, _Kept] = _kept.setdefault(tensors[0], {})
        by_key.pop(key, None)
        while len(by_key) >= MOST:
            del by_key[next(iter(by_key))]
        by_key[key] = kept
    return kept.table
