"""The functions that all parts of a model are made of, as operators of ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from fastbert.errors import UserError
from fastbert.integrations.onnx.graph import Graph
from fastbert.models.norm import Norm


def linear(graph: Graph, module: nn.Linear, x: str) -> str:
    """Return x W^T + b, (..., in) -> (..., out)."""
    product = graph.quantizable_op("MatMul", x, graph.transposed(module.weight))
    return product if module.bias is None else graph.op("Add", product, graph.parameter(module.bias))


def norm(graph: Graph, module: Norm, x: str) -> str:
    """Return the LayerNorm or RMSNorm of x (..., width)."""
    weight = graph.parameter(module.weight)
    if module.kind == "layer_norm":
        bias = () if module.bias is None else (graph.parameter(module.bias),)
        return graph.op("LayerNormalization", x, weight, *bias, axis=-1, epsilon=module.eps)
    mean = graph.op("ReduceMean", graph.op("Pow", x, graph.number(2.0)), axes=[-1], keepdims=1)
    root = graph.op("Sqrt", graph.op("Add", mean, graph.number(module.eps)))
    return graph.op("Mul", graph.op("Div", x, root), weight)


def _gelu(graph: Graph, x: str) -> str:
    """Return x * (1 + erf(x / sqrt(2))) / 2."""
    erf = graph.op("Erf", graph.op("Div", x, graph.number(math.sqrt(2))))
    return graph.op("Mul", graph.op("Mul", x, graph.op("Add", erf, graph.number(1.0))), graph.number(0.5))


def _gelu_tanh(graph: Graph, x: str) -> str:
    """Return x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2."""
    cube = graph.op("Mul", graph.op("Pow", x, graph.number(3.0)), graph.number(0.044715))
    inner = graph.op("Mul", graph.op("Add", x, cube), graph.number(math.sqrt(2 / math.pi)))
    factor = graph.op("Add", graph.op("Tanh", inner), graph.number(1.0))
    return graph.op("Mul", graph.op("Mul", x, graph.number(0.5)), factor)


# By the names of specs, of heads and of the dense layers of sentence-transformers, in lower case.
_ACTIVATIONS: dict[str, Callable[[Graph, str], str]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda graph, x: graph.op("Mul", x, graph.op("Sigmoid", x)),
    "relu": lambda graph, x: graph.op("Relu", x),
    "tanh": lambda graph, x: graph.op("Tanh", x),
    "sigmoid": lambda graph, x: graph.op("Sigmoid", x),
    "identity": lambda graph, x: x,
}


def activate(graph: Graph, name: str, x: str) -> str:
    """Return an activation of x. Raises `UserError` for one that is unknown here."""
    if name.lower() not in _ACTIVATIONS:
        raise UserError(f"the activation {name!r} has no form in ONNX here")
    return _ACTIVATIONS[name.lower()](graph, x)
