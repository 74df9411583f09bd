"""The weights in the files of GPT and GPT-2: projections are joined, and matrices are transposed (in, out)."""

from __future__ import annotations

import re
from dataclasses import replace

import torch
from torch import Tensor

from fastbert.checkpoints.file_tensors import FileTensor
from fastbert.checkpoints.weights import Weights
from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import shown

PROJECTIONS = ("query", "key", "value")
_JOINED = re.compile(r"(.*\.attn\.)c_attn\.(weight|bias)")
_SINGLE = re.compile(r".*\.attn\.(query|key|value)\.(weight|bias)")
_TRANSPOSED = re.compile(r"(?:.*\.)?h\.\d+\.(?:attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight")
_BUFFER = re.compile(r".*\.attn\.(?:bias|masked_bias)")  # causal masks in files of old versions


def split_projections(weights: Weights) -> Weights:
    """Return a file's weights with query, key and value apart, and matrices as (out, in).

    Raises `CheckpointError` for joined projections that cannot be split.
    """
    tensors: dict[str, FileTensor] = {}
    for name, tensor in weights.tensors.items():
        if _BUFFER.fullmatch(name):
            continue
        joined = _JOINED.fullmatch(name)
        if joined is not None:
            for index, projection in enumerate(PROJECTIONS):
                tensors[f"{joined[1]}{projection}.{joined[2]}"] = _third(
                    tensor, index, f"{weights.path}: {shown(name)}"
                )
        elif _TRANSPOSED.fullmatch(name) and len(tensor.shape) == 2:
            tensors[name] = tensor.transposed()
        else:
            tensors[name] = tensor
    return replace(weights, tensors=tensors)


def _third(tensor: FileTensor, index: int, source: str) -> FileTensor:
    """Return one projection of a joined tensor (in, 3 x out) or (3 x out,), a matrix as (out, in)."""
    width = tensor.shape[-1] // 3 if tensor.shape else 0
    if not 1 <= len(tensor.shape) <= 2 or not width or tensor.shape[-1] % 3 or tensor.stride is not None:
        raise CheckpointError(f"{source} has shape {tensor.shape}: joined projections must be (width, 3 x width)")
    offset = tensor.offset + index * width * tensor.dtype.itemsize
    if len(tensor.shape) == 1:
        return replace(tensor, offset=offset, shape=(width,))
    columns = tensor.shape[1]
    return replace(tensor, offset=offset, shape=(width, tensor.shape[0]), stride=(1, columns))


def join_projections(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as files hold them: the inverse of `split_projections`."""
    joined: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        single = _SINGLE.fullmatch(name)
        if single is None:
            joined[name] = tensor.t().contiguous() if _TRANSPOSED.fullmatch(name) else tensor
        elif single[1] == "query":
            parts = [tensors[name.replace(".query.", f".{projection}.")] for projection in PROJECTIONS]
            whole = torch.cat(parts)
            joined[name.replace(".query.", ".c_attn.")] = whole.t().contiguous() if whole.dim() == 2 else whole
    return joined
