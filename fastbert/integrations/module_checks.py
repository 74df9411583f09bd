"""What of a model is as its library wrote it: only of that may an operation of ours take the place.

Looked at on every call, since hooks, adapters and patches come and go; so each question costs a microsecond at most.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn
from torch.nn import functional as F

from fastbert.models.fusibility import holds_both, runs_as_written

# What transformers leaves on layers once hidden states or attentions were asked for: idle in every other call.
CAPTURING = "transformers.utils.output_capturing"
TANH_GELUS = ("NewGELUActivation", "GELUTanh", "FastGELUActivation")
# Methods of layers that somebody may have put others in the place of, on one object.
METHODS = frozenset(("feed_forward_chunk", "ff_chunk", "_sa_block", "_ff_block"))
# Where a module keeps what stands in for its forward, also while another library has wrapped that once more.
KEPT = "_fastbert_forward"
# As torch wrote them; compared with what stands there now, since patches of whole classes exist.
_FORWARDS = {kind: kind.forward for kind in (nn.Linear, nn.LayerNorm, nn.Embedding, nn.Dropout, nn.GELU)}
_GELU = F.gelu
# Libraries whose linear layers look at one token at a time.
LINEAR_HOMES = ("torch", "peft", "torchao", "bitsandbytes", "optimum", "transformers")
POINTWISE = ("torch.nn.modules.activation", "transformers.activations", "torch.nn.functional", "torch._C._nn")
MIXING = (nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin, nn.GLU, nn.MultiheadAttention)


def torch_is_patched() -> bool:
    """Whether somebody changed what torch's own modules compute."""
    return F.gelu is not _GELU or any(kind.forward is not forward for kind, forward in _FORWARDS.items())


def is_own(module: nn.Module, home: str) -> bool:
    """Whether a module's class and its forward are those of a library's module `home`, on the object too."""
    kind: Any = type(module)
    if kind.__module__ != home or kind.forward.__module__ != home or not METHODS.isdisjoint(module.__dict__):
        return False
    return module.__dict__.get("forward") is module.__dict__.get(KEPT)


def home_of_forward(kind: Any) -> str:
    """Where the forward of a class was written, behind its decorators."""
    return str(inspect.unwrap(kind.forward).__module__)


def has_hooks(module: nn.Module) -> bool:
    """Whether something wants to see the module run, apart from transformers' idle recorders."""
    seeing = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    if not any(seeing):
        return False
    return any(getattr(hook, "__module__", None) != CAPTURING for hooks in seeing for hook in hooks.values())


def is_touched(module: nn.Module) -> bool:
    """Whether a module or one inside it has hooks: what they see then must be what they always saw."""
    # By hand: `modules()` remembers what it has seen, which costs a small batch several times as much as looking.
    waiting: list[nn.Module | None] = [module]
    while waiting:
        part = waiting.pop()
        if part is None:
            continue
        if has_hooks(part):
            return True
        waiting.extend(part._modules.values())
    return False


def dropped(module: Any) -> float | None:
    """With which probability a dropout module drops now; None: it is another kind, or drops all."""
    if type(module) is nn.Identity:
        return 0.0
    if type(module) is not nn.Dropout or "forward" in module.__dict__:
        return None
    p = float(module.p) if module.training else 0.0
    return p if p < 1.0 else None


def gelu_of(activation: Any) -> str | None:
    """How an activation computes GELU, "none" (by erf) or "tanh"; None: it is another function."""
    if activation is _GELU:
        return "none"
    if not isinstance(activation, nn.Module) or "forward" in activation.__dict__ or has_hooks(activation):
        return None
    if type(activation) is nn.GELU:
        return activation.approximate
    home, name = type(activation).__module__, type(activation).__name__
    if home != "transformers.activations" or type(activation).forward.__module__ != home:
        return None
    return "none" if name == "GELUActivation" else "tanh" if name in TANH_GELUS else None


def is_pointwise(activation: Any) -> bool:
    """Whether an activation is known to look at each number alone."""
    if isinstance(activation, nn.Module):
        known = type(activation).__module__ in POINTWISE and not isinstance(activation, MIXING)
        return known and "forward" not in activation.__dict__
    return getattr(activation, "__module__", None) in POINTWISE and getattr(activation, "__name__", "") in (
        "gelu", "relu", "silu", "selu", "elu", "mish", "tanh", "sigmoid", "leaky_relu", "softplus", "hardswish",
    )  # fmt: skip


def is_by_token(linear: Any) -> bool:
    """Whether a linear layer, plain, adapted or quantised, is known to look at each token alone."""
    if type(linear) is nn.Linear:
        return "forward" not in linear.__dict__
    return type(linear).__module__.partition(".")[0] in LINEAR_HOMES and "forward" not in linear.__dict__


def is_plain_norm(module: nn.Module) -> bool:
    """Whether a LayerNorm is nothing but its weight, bias and epsilon, over one dimension."""
    return runs_as_written(module, nn.LayerNorm) and holds_both(module) and len(module.normalized_shape) == 1  # type: ignore[arg-type]


def is_norm_by_token(module: Any) -> bool:
    """Whether a norm is known to look at each token alone."""
    return type(module) in (nn.LayerNorm, nn.RMSNorm) and "forward" not in module.__dict__
