"""The activations of feed-forward networks by transformers' names."""

from __future__ import annotations

from fastbert.errors import UserError
from fastbert.io.untrusted_input import shown
from fastbert.ops.encoder_layer.spec import Activation

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
}


def activation_of(name: str) -> Activation:
    """Return the activation of a spec by its name in transformers. Raises `UserError` for others."""
    if name not in ACTIVATIONS:
        raise UserError(f"hidden_act={shown(name)} is not one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
