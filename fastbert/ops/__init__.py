"""The operations of a BERT encoder on packed tokens, each on the backend that suits the device.

The functions below are operations; other registered ones are found by name, unless a package is. They hide packages of
the same name: write `from fastbert.ops.attention import op`, not `import fastbert.ops.attention.op as op`.
"""

from collections.abc import Callable as _Callable
from typing import Any as _Any

from fastbert.ops.attention.op import attention
from fastbert.ops.cross_entropy.op import linear_cross_entropy
from fastbert.ops.dropout.arguments import Site, TokenDropout
from fastbert.ops.dropout.op import dropout
from fastbert.ops.embedding.op import embedding_layer_norm
from fastbert.ops.gated.op import gated_activation
from fastbert.ops.gelu.op import bias_gelu
from fastbert.ops.linear.op import linear
from fastbert.ops.norm.op import dropout_add_layer_norm, dropout_add_rms_norm, gelu_layer_norm, layer_norm, rms_norm
from fastbert.ops.softmax.op import softmax

__all__ = [
    "Site",
    "TokenDropout",
    "attention",
    "bias_gelu",
    "dropout",
    "dropout_add_layer_norm",
    "dropout_add_rms_norm",
    "embedding_layer_norm",
    "gated_activation",
    "gelu_layer_norm",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "rms_norm",
    "softmax",
]


def __getattr__(name: str) -> _Callable[..., _Any]:
    from fastbert.ops.operation import operations

    if name.startswith("_") or name not in operations():
        raise AttributeError(f"module 'fastbert.ops' has no attribute {name!r}")
    return operations()[name].function
