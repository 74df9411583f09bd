"""Checks that a module computes nothing but what its class says, so that an operation may replace its forward.

Modules with hooks, adapters, quantised or parametrised weights, and subclasses run their own forward.
"""

from __future__ import annotations

from typing import TypeGuard

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from fastbert.ops.linear.op import linear

PLAIN_TENSORS = (nn.Parameter, Tensor)


def has_hooks(module: nn.Module, ignored: str | None = None) -> bool:
    """Return whether a module has hooks; those defined in the Python module `ignored` do not count."""
    # Read on every call: without hooks this costs a fraction of a microsecond.
    before, after = module._forward_pre_hooks, module._forward_hooks
    if not (after or before or module._backward_hooks or module._backward_pre_hooks):
        return False
    tables = (after, before, module._backward_hooks, module._backward_pre_hooks)
    return ignored is None or any(
        getattr(hook, "__module__", None) != ignored for table in tables for hook in table.values()
    )


def runs_as_written(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether calling a module runs `kind.forward` and nothing else: no subclass, no patched forward, no hooks
    on it or on all modules."""
    written = type(module) is kind and "forward" not in module.__dict__
    return written and not has_hooks(module) and not _has_any_global_hook()


def is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether a linear layer is nothing but its weight and bias: no hooks, adapters, quantisation."""
    return runs_as_written(module, nn.Linear) and owns_weight_and_bias(module)


def is_plain_table(module: nn.Module) -> TypeGuard[nn.Embedding]:
    """Return whether an embedding is nothing but the rows of its weight: no hooks, adapters, norm limits."""
    if not runs_as_written(module, nn.Embedding) or type(module._parameters.get("weight")) not in PLAIN_TENSORS:
        return False
    limited = module.max_norm is not None or module.padding_idx is not None
    return not (limited or module.scale_grad_by_freq or module.sparse)


def owns_weight_and_bias(module: nn.Module) -> bool:
    """Return whether a module owns its weight and its bias: neither is absent or computed from other tensors."""
    # Looked up where modules keep them: `module.weight` costs ten times as much, and a small batch has many layers.
    tensors = module._parameters
    return type(tensors.get("weight")) in PLAIN_TENSORS and type(tensors.get("bias")) in PLAIN_TENSORS


def owns_weight(module: nn.Module) -> bool:
    """Return whether a module owns its weight and, if it has one, its bias: neither is computed from other tensors."""
    tensors = module._parameters
    bias = tensors.get("bias")
    return type(tensors.get("weight")) in PLAIN_TENSORS and (bias is None or type(bias) in PLAIN_TENSORS)


def project_without_bias(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a linear layer's matmul of x (rows, in), and the bias that the caller must add; None if it is included."""
    if is_plain(module):
        return linear(x, module.weight), module.bias
    return (linear(x, module.weight) if is_plain_without_bias(module) else module(x)), None


def is_plain_without_bias(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether a linear layer is nothing but its weight."""
    tensors = module._parameters
    return (
        runs_as_written(module, nn.Linear)
        and type(tensors.get("weight")) in PLAIN_TENSORS
        and tensors.get("bias", tensors) is None
    )


def project(module: nn.Module, x: Tensor) -> Tensor:
    """Return a linear layer of x (rows, in): by our own operation if it is plain, else by its forward."""
    if is_plain(module):
        return linear(x, module.weight, module.bias)
    if is_plain_without_bias(module):
        return linear(x, module.weight)
    product: Tensor = module(x)
    return product
