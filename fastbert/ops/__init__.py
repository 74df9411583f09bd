"""The operations of a BERT encoder on packed tokens: one name each, served by the backend that suits the device."""

from fastbert.ops.attention import attention
from fastbert.ops.dropout import Site, TokenDropout, dropout
from fastbert.ops.embedding import embedding_layer_norm
from fastbert.ops.gelu import bias_gelu, gelu_layer_norm
from fastbert.ops.linear import linear
from fastbert.ops.linear_cross_entropy import linear_cross_entropy
from fastbert.ops.normalization import dropout_add_layer_norm, layer_norm
from fastbert.ops.softmax import softmax

__all__ = [
    "Site",
    "TokenDropout",
    "attention",
    "bias_gelu",
    "dropout",
    "dropout_add_layer_norm",
    "embedding_layer_norm",
    "gelu_layer_norm",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "softmax",
]
