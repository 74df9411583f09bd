"""Checks that modules of another library are as it wrote them, so that an operation may replace their forward.

They run on every call, since hooks, adapters and patches come and go; each costs a microsecond at most.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn
from torch.nn import functional as F

from fastbert.models.fusibility import has_hooks, owns_weight, owns_weight_and_bias, runs_as_written
from fastbert.ops.encoder_layer.spec import Activation

# The module of the hooks that transformers leaves on layers after hidden states or attentions were requested: they do
# nothing in other calls.
CAPTURING = "transformers.utils.output_capturing"
TANH_GELUS = ("NewGELUActivation", "GELUTanh", "FastGELUActivation")
# Methods of layers that may be patched on one object.
METHODS = frozenset(("feed_forward_chunk", "ff_chunk", "_sa_block", "_ff_block", "disentangled_attention_bias"))
# The attribute that holds a module's `ForwardPatch`, also while another library has wrapped it once more.
PATCH = "_fastbert_forward"
# torch's own functions, to detect patches of whole classes.
_FORWARDS = {kind: kind.forward for kind in (nn.Linear, nn.LayerNorm, nn.Embedding, nn.Dropout, nn.GELU)}
_GELU = F.gelu
# Libraries whose linear layers compute each token independently.
LINEAR_HOMES = ("torch", "peft", "torchao", "bitsandbytes", "optimum", "transformers")
POINTWISE = ("torch.nn.modules.activation", "transformers.activations", "torch.nn.functional", "torch._C._nn")
MIXING = (nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin, nn.GLU, nn.MultiheadAttention)


def torch_is_patched() -> bool:
    """Return whether a forward of torch's own modules is patched."""
    return F.gelu is not _GELU or any(kind.forward is not forward for kind, forward in _FORWARDS.items())


def is_library_module(module: nn.Module, home: str) -> bool:
    """Return whether a module's class and forward are those of the Python module `home`, and not patched."""
    kind: Any = type(module)
    if kind.__module__ != home or kind.forward.__module__ != home or not METHODS.isdisjoint(module.__dict__):
        return False
    return module.__dict__.get("forward") is module.__dict__.get(PATCH)


def forward_module(kind: Any) -> str:
    """Return the Python module that defines the forward of a class, without its decorators."""
    return str(inspect.unwrap(kind.forward).__module__)


def has_hooks_inside(module: nn.Module) -> bool:
    """Return whether a module or one inside it has hooks, which must receive what they always received."""
    # Not by `modules()`, whose set of visited modules costs several times as much.
    stack: list[nn.Module | None] = [module]
    while stack:
        child = stack.pop()
        if child is None:
            continue
        if has_hooks(child, CAPTURING):
            return True
        stack.extend(child._modules.values())
    return False


def dropout_probability(module: Any) -> float | None:
    """Return the current probability of a dropout module, 0 in inference; None for other modules and for p = 1."""
    if type(module) is nn.Identity:
        return 0.0
    if type(module) is not nn.Dropout or "forward" in module.__dict__:
        return None
    p = float(module.p) if module.training else 0.0
    return p if p < 1.0 else None


def gelu_approximation(activation: Any) -> str | None:
    """Return how an activation computes GELU, "none" (by erf) or "tanh"; None for other functions."""
    if activation is _GELU:
        return "none"
    if not isinstance(activation, nn.Module) or "forward" in activation.__dict__ or has_hooks(activation, CAPTURING):
        return None
    if type(activation) is nn.GELU:
        return activation.approximate
    home, name = type(activation).__module__, type(activation).__name__
    if home != "transformers.activations" or type(activation).forward.__module__ != home:
        return None
    return "none" if name == "GELUActivation" else "tanh" if name in TANH_GELUS else None


def activation_name(activation: Any) -> Activation | None:
    """Return the name in specs of an activation that computes nothing else; None for other functions."""
    approximation = gelu_approximation(activation)
    if approximation is not None:
        return "gelu_tanh" if approximation == "tanh" else "gelu"
    if not isinstance(activation, nn.Module) or "forward" in activation.__dict__ or has_hooks(activation, CAPTURING):
        return None
    kind: Any = type(activation)
    if kind is nn.ReLU:
        return "relu"
    if kind is nn.SiLU:
        return "silu"
    home = "transformers.activations"
    is_silu = (kind.__module__, kind.__name__) == (home, "SiLUActivation") and kind.forward.__module__ == home
    return "silu" if is_silu else None


def is_pointwise(activation: Any) -> bool:
    """Return whether an activation is known to be elementwise."""
    if isinstance(activation, nn.Module):
        known = type(activation).__module__ in POINTWISE and not isinstance(activation, MIXING)
        return known and "forward" not in activation.__dict__
    return getattr(activation, "__module__", None) in POINTWISE and getattr(activation, "__name__", "") in (
        "gelu", "relu", "silu", "selu", "elu", "mish", "tanh", "sigmoid", "leaky_relu", "softplus", "hardswish",
    )  # fmt: skip


def is_tokenwise_linear(linear: Any) -> bool:
    """Return whether a linear layer, plain, adapted or quantised, is known to compute each token independently."""
    if type(linear) is nn.Linear:
        return "forward" not in linear.__dict__
    return type(linear).__module__.partition(".")[0] in LINEAR_HOMES and "forward" not in linear.__dict__


def is_plain_norm(module: nn.Module) -> bool:
    """Return whether a LayerNorm is nothing but its weight, bias and epsilon, over one dimension."""
    return runs_as_written(module, nn.LayerNorm) and owns_weight_and_bias(module) and len(module.normalized_shape) == 1  # type: ignore[arg-type]


def norm_eps(module: Any, home: str) -> float | None:
    """Return the epsilon of a norm that is nothing but its weight, the epsilon and, if it has one, its bias: a
    LayerNorm, or an RMSNorm of the Python module `home`; None for other modules."""
    if has_hooks(module, CAPTURING) or "forward" in module.__dict__ or not owns_weight(module):
        return None
    kind: Any = type(module)
    if kind is nn.LayerNorm:
        return float(module.eps) if len(module.normalized_shape) == 1 else None
    if is_rms_norm(module, home):
        return float(module.variance_epsilon)
    return None


def is_rms_norm(module: Any, home: str) -> bool:
    """Return whether a module is an RMSNorm of the Python module `home`, with its own forward."""
    kind: Any = type(module)
    return kind.__module__ == home == kind.forward.__module__ and kind.__name__.endswith("RMSNorm")


def is_tokenwise_norm(module: Any) -> bool:
    """Return whether a norm is known to compute each token independently."""
    return type(module) in (nn.LayerNorm, nn.RMSNorm) and "forward" not in module.__dict__
