"""The tensors of a fine-tuned model beside those of its base: which are the same, how the others are kept."""

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
from fastbert.checkpoints.key_mapping import RENAMED
from fastbert.checkpoints.source import Weights

Coding = Literal["same", "exact", "rounded", "whole"]
_EXACT = {torch.float32: "u4", torch.float16: "u2", torch.bfloat16: "u2"}
_AS_INTEGERS = {2: torch.int16, 4: torch.int32}


@dataclass(frozen=True, kw_only=True)
class Part:
    """A tensor of a model, and how a delta keeps it: it is the base's tensor `base` ("same"), differs from that
    ("exact", or "rounded" to a few bits), or is kept "whole"."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    coding: Coding
    base: str | None = None
    factor: float = 1.0
    """By which the base's numbers are multiplied first."""


def tensors_of(weights: Weights) -> dict[str, Tensor]:
    """All tensors of a checkpoint, mapped where that is possible."""
    mapped = map_tensors(weights.tensors)
    return {name: mapped[name] if name in mapped else stored.read() for name, stored in weights.tensors.items()}


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and bytes, in whatever files they lie."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        found.update(_bytes(tensor))
    return found.hexdigest()


def find_base(name: str, tensor: Tensor, base: Mapping[str, Tensor]) -> str | None:
    """The base's name of a model's tensor: the same, with or without "bert.", or an old one."""
    stem = name.removeprefix("bert.")
    own = [name, stem, f"bert.{stem}"]
    own += [one.replace(new, old) for one in own for old, new in RENAMED]
    for other in own:
        if other in base and base[other].shape == tensor.shape and base[other].dtype == tensor.dtype:
            return other
    return None


def encode(name: str, tensor: Tensor, base: Mapping[str, Tensor], bits: int | None) -> tuple[Part, bytes]:
    """How a tensor is kept, and the bytes for it."""
    other = find_base(name, tensor, base)
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if other is not None and _bytes(tensor) == _bytes(base[other]):
        return Part(name=name, dtype=dtype, shape=shape, coding="same", base=other), b""
    if other is None or tensor.dtype not in _EXACT or not tensor.numel():
        return Part(name=name, dtype=dtype, shape=shape, coding="whole"), squeeze(_bytes(tensor))
    wide = tensor.dtype == torch.float32 and _is_finite(tensor, base[other])
    factor = find_factor(_numbers(tensor), _numbers(base[other])) if wide else 1.0
    if bits is not None and tensor.dim() > 1 and _is_finite(tensor, base[other]):
        own, expected = (_rows(one, shape) for one in (tensor, base[other]))
        part = Part(name=name, dtype=dtype, shape=shape, coding="rounded", base=other, factor=factor)
        return part, encode_rounded(own, predict(expected, factor), bits)
    found = {one: encode_exact(_integers(tensor), _expected(base[other], one)) for one in {1.0, factor}}
    factor = min(found, key=lambda one: len(found[one]))
    part = Part(name=name, dtype=dtype, shape=shape, coding="exact", base=other, factor=factor)
    return part, found[factor]


def decode(part: Part, data: memoryview, base: Mapping[str, Tensor], bits: int | None) -> Tensor:
    """The tensor, which is the base's own where it is the same. Raises ValueError for data that nobody wrote."""
    dtype = getattr(torch, part.dtype)
    if part.coding == "whole":
        return _tensor(expand(data, int(np.prod(part.shape, dtype=np.int64)) * dtype.itemsize), dtype, part.shape)
    assert part.base is not None
    other = base[part.base]
    if part.coding == "same":
        return other
    if part.coding == "rounded":
        assert bits is not None
        values = decode_rounded(data, predict(_rows(other, part.shape), part.factor), bits)
        return torch.from_numpy(values).view(part.shape).to(dtype)
    codes = decode_exact(data, _expected(other, part.factor))
    return _tensor(codes.tobytes(), dtype, part.shape)


def _expected(base: Tensor, factor: float) -> np.ndarray:
    """The bits of what a tensor's numbers are expected to be, flat."""
    if factor == 1.0:
        return _integers(base)
    return predict(_numbers(base), factor).view("u4")


def _integers(tensor: Tensor) -> np.ndarray:
    """The bits of floating-point numbers, flat."""
    flat: np.ndarray = tensor.contiguous().view(-1).view(_AS_INTEGERS[tensor.dtype.itemsize]).numpy()
    return flat.view(_EXACT[tensor.dtype])


def _numbers(tensor: Tensor) -> np.ndarray:
    flat: np.ndarray = tensor.contiguous().view(-1).numpy()
    return flat


def _rows(tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """fp32 (rows, width): all but the last dimension in one."""
    rows: np.ndarray = tensor.float().contiguous().view(-1, shape[-1]).numpy()
    return rows


def _is_finite(*tensors: Tensor) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def _bytes(tensor: Tensor) -> bytes | memoryview:
    if not tensor.numel():
        return b""
    data: memoryview = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
    return data


def _tensor(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).view(shape)
