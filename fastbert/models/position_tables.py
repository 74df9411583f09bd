"""Projections of relative positions, which do not depend on a batch: cached in inference while their parameters are
unchanged.

A layer of DeBERTa projects 512 positions, as much work as 512 tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastbert.models.fusibility import is_plain, is_plain_without_bias, project
from fastbert.models.parameter_cache import cached, is_cacheable


def project_table(module: nn.Module, embeddings: Tensor, sources: tuple[Tensor, ...]) -> Tensor:
    """Return a linear layer of embeddings of positions (rows, in), which were computed from `sources` alone; without
    sources it is computed anew."""
    parameters = [parameter for parameter in module._parameters.values() if parameter is not None]
    plain = is_plain(module) or is_plain_without_bias(module)
    tensors = [*parameters, *sources]
    if not sources or not plain or embeddings.device.type != "cpu" or not is_cacheable(*tensors):
        return project(module, embeddings)
    autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return cached(tensors, autocast, lambda: project(module, embeddings).detach())
