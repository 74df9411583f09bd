"""Weights that files join, where our models have them apart, or have apart, where ours join them: along the outputs of
linear layers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fastbert.checkpoints.file_tensors import FileTensor, JoinedTensor
from fastbert.checkpoints.weights import Weights
from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import shown


def renamed(weights: Weights, renames: tuple[tuple[str, str], ...]) -> Weights:
    """Return a file's weights with parts of their names replaced, in order."""
    tensors = {}
    for name, tensor in weights.tensors.items():
        for part, replacement in renames:
            name = name.replace(part, replacement)
        tensors[name] = tensor
    return replace(weights, tensors=tensors)


@dataclass(frozen=True)
class JoinedRows:
    """A linear layer `joined`, whose outputs are those of `parts` in their order, as many of each."""

    joined: str
    """The last part of its name, "attn.Wqkv"."""
    parts: tuple[str, ...]

    def split(self, weights: Weights) -> Weights:
        """Return a file's weights with the parts in place of the joined layer. Raises `CheckpointError` for rows that
        cannot be divided."""
        tensors: dict[str, FileTensor] = {}
        for name, tensor in weights.tensors.items():
            match = self._match(self.joined, name)
            if match is None:
                tensors[name] = tensor
                continue
            rows, count = tensor.shape[0] if tensor.shape else 0, len(self.parts)
            if not rows or rows % count or tensor.stride is not None:
                raise CheckpointError(
                    f"{weights.path}: {shown(name)} has shape {tensor.shape}: its rows must be those of {count} layers"
                )
            shape = (rows // count, *tensor.shape[1:])
            size = math.prod(shape) * tensor.dtype.itemsize
            for index, part in enumerate(self.parts):
                offset = tensor.offset + index * size
                tensors[f"{match[1]}{part}.{match[2]}"] = replace(tensor, offset=offset, shape=shape)
        return replace(weights, tensors=tensors)

    def join(self, weights: Weights) -> Weights:
        """Return a file's weights with the joined layer in place of its parts; parts without the others stay."""
        tensors = dict(weights.tensors)
        for name in weights.tensors:
            match = self._match(self.parts[0], name)
            names = [f"{match[1]}{part}.{match[2]}" for part in self.parts] if match else []
            parts = [weights.tensors[part] for part in names if part in weights.tensors]
            kinds = {(tensor.dtype, tensor.shape[1:], len(tensor.shape)) for tensor in parts}
            if match is None or len(parts) < len(self.parts) or len(kinds) > 1 or not parts[0].shape:
                continue
            for part in names:
                del tensors[part]
            tensors[f"{match[1]}{self.joined}.{match[2]}"] = JoinedTensor.of(tuple(parts))
        return replace(weights, tensors=tensors)

    def join_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors as files hold them: the inverse of `split`."""
        joined: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            matches = [self._match(part, name) for part in self.parts]
            index = next((index for index, match in enumerate(matches) if match is not None), None)
            if index is None:
                joined[name] = tensor
            elif index == 0:
                match = matches[0]
                assert match is not None
                parts = [tensors[f"{match[1]}{part}.{match[2]}"] for part in self.parts]
                joined[f"{match[1]}{self.joined}.{match[2]}"] = torch.cat(parts)
        return joined

    def split_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors as files hold them: the inverse of `join`."""
        apart: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            match = self._match(self.joined, name)
            if match is None:
                apart[name] = tensor
                continue
            for part, rows in zip(self.parts, tensor.chunk(len(self.parts)), strict=True):
                apart[f"{match[1]}{part}.{match[2]}"] = rows.clone()
        return apart

    @staticmethod
    def _match(layer: str, name: str) -> re.Match[str] | None:
        return re.fullmatch(rf"((?:.*\.)?){re.escape(layer)}\.(weight|bias)", name)
