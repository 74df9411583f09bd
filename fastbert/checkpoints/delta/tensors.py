"""Encode the tensors of a fine-tuned model relative to those of its base."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fastbert.checkpoints.delta.differences import (
    decode_exact,
    decode_rounded,
    encode_exact,
    encode_rounded,
    expand,
    find_factor,
    predict,
    squeeze,
)
from fastbert.checkpoints.file_tensors import map_tensors
from fastbert.checkpoints.weights import Weights
from fastbert.models.key_map import RENAMED

Coding = Literal["same", "exact", "rounded", "whole"]
_EXACT = {torch.float32: "u4", torch.float16: "u2", torch.bfloat16: "u2"}
_AS_INTEGERS = {2: torch.int16, 4: torch.int32}


@dataclass(frozen=True, kw_only=True)
class EncodedTensor:
    """The encoding of a tensor in a delta: the base's tensor `base` ("same"), differences from it ("exact", or
    "rounded" to a few bits), or "whole"."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    coding: Coding
    base: str | None = None
    factor: float = 1.0
    """The factor that the base's numbers are multiplied by first."""


def tensors_of(weights: Weights) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint, mapped if possible."""
    mapped = map_tensors(weights.tensors)
    return {name: mapped[name] if name in mapped else stored.read() for name, stored in weights.tensors.items()}


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, dtypes, shapes and bytes, independent of the files that hold them."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def find_base(name: str, tensor: Tensor, base: Mapping[str, Tensor]) -> str | None:
    """Return the base's name of a model's tensor: the same, with or without "bert.", or an old LayerNorm name."""
    stem = name.removeprefix("bert.")
    candidates = [name, stem, f"bert.{stem}"]
    candidates += [candidate.replace(new, old) for candidate in candidates for old, new in RENAMED]
    for candidate in candidates:
        if candidate in base and base[candidate].shape == tensor.shape and base[candidate].dtype == tensor.dtype:
            return candidate
    return None


def encode(name: str, tensor: Tensor, base: Mapping[str, Tensor], bits: int | None) -> tuple[EncodedTensor, bytes]:
    """Return how a tensor is stored, and its bytes."""
    other = find_base(name, tensor, base)
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if other is not None and _bytes(tensor) == _bytes(base[other]):
        return EncodedTensor(name=name, dtype=dtype, shape=shape, coding="same", base=other), b""
    if other is None or tensor.dtype not in _EXACT or not tensor.numel():
        return EncodedTensor(name=name, dtype=dtype, shape=shape, coding="whole"), squeeze(_bytes(tensor))
    wide = tensor.dtype == torch.float32 and _is_finite(tensor, base[other])
    factor = find_factor(_numbers(tensor), _numbers(base[other])) if wide else 1.0
    if bits is not None and tensor.dim() > 1 and _is_finite(tensor, base[other]):
        values, expected = (_rows(matrix, shape) for matrix in (tensor, base[other]))
        entry = EncodedTensor(name=name, dtype=dtype, shape=shape, coding="rounded", base=other, factor=factor)
        return entry, encode_rounded(values, predict(expected, factor), bits)
    encoded = {trial: encode_exact(_integers(tensor), _expected(base[other], trial)) for trial in {1.0, factor}}
    factor = min(encoded, key=lambda trial: len(encoded[trial]))
    entry = EncodedTensor(name=name, dtype=dtype, shape=shape, coding="exact", base=other, factor=factor)
    return entry, encoded[factor]


def decode(entry: EncodedTensor, data: memoryview, base: Mapping[str, Tensor], bits: int | None) -> Tensor:
    """Return the tensor: the base's object if it is the same. Raises ValueError for invalid data."""
    dtype = getattr(torch, entry.dtype)
    if entry.coding == "whole":
        return _tensor(expand(data, int(np.prod(entry.shape, dtype=np.int64)) * dtype.itemsize), dtype, entry.shape)
    assert entry.base is not None
    other = base[entry.base]
    if entry.coding == "same":
        return other
    if entry.coding == "rounded":
        assert bits is not None
        values = decode_rounded(data, predict(_rows(other, entry.shape), entry.factor), bits)
        return torch.from_numpy(values).view(entry.shape).to(dtype)
    return _tensor(decode_exact(data, _expected(other, entry.factor)).tobytes(), dtype, entry.shape)


def _expected(base: Tensor, factor: float) -> np.ndarray:
    """Return the bits of a tensor's predicted numbers, flat."""
    if factor == 1.0:
        return _integers(base)
    return predict(_numbers(base), factor).view("u4")


def _integers(tensor: Tensor) -> np.ndarray:
    """Return the bits of floating-point numbers, flat."""
    return np.asarray(tensor.contiguous().view(-1).view(_AS_INTEGERS[tensor.dtype.itemsize])).view(_EXACT[tensor.dtype])


def _numbers(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.contiguous().view(-1))


def _rows(tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """Return a tensor as fp32 (rows, width), all but the last dimension flattened."""
    return np.asarray(tensor.float().contiguous().view(-1, shape[-1]))


def _is_finite(*tensors: Tensor) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def _bytes(tensor: Tensor) -> bytes | memoryview:
    if not tensor.numel():
        return b""
    return np.asarray(tensor.contiguous().view(-1).view(torch.uint8)).data


def _tensor(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).view(shape)
