"""Modules that are nothing but what their class says: only of these may an operation of ours take the place.

Hooks, adapters, quantised or parametrised weights and other classes run their own forward.
"""

from __future__ import annotations

from typing import TypeGuard

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from fastbert import ops

PLAIN_TENSORS = (nn.Parameter, Tensor)


def has_hooks(module: nn.Module) -> bool:
    """Whether something wants to see the module run, or all modules."""
    return (
        bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)
        or _has_any_global_hook()
    )


def runs_as_written(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling the module does what its class says: no subclass, no hooks, no forward of its own."""
    return type(module) is kind and not has_hooks(module) and "forward" not in module.__dict__


def is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a linear layer is nothing but its weight and bias: no hooks, adapters, quantisation, parametrisation."""
    return runs_as_written(module, nn.Linear) and holds_both(module)


def is_plain_table(module: nn.Module) -> TypeGuard[nn.Embedding]:
    """Whether an embedding is nothing but the rows of its weight: no hooks, adapters, parametrisation, limits."""
    if not runs_as_written(module, nn.Embedding) or type(module._parameters.get("weight")) not in PLAIN_TENSORS:
        return False
    limited = module.max_norm is not None or module.padding_idx is not None
    return not (limited or module.scale_grad_by_freq or module.sparse)


def holds_both(module: nn.Module) -> bool:
    """Whether a module's weight and bias are parameters of its own, neither left out nor computed from others."""
    # Looked up where modules keep them: `module.weight` costs ten times as much, and a small batch has many layers.
    held = module._parameters
    return type(held.get("weight")) in PLAIN_TENSORS and type(held.get("bias")) in PLAIN_TENSORS


def project_apart(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """A linear layer's product, and the bias still to be added by what follows; None if it has been added."""
    if is_plain(module):
        return ops.linear(x, module.weight), module.bias
    return module(x), None


def project(module: nn.Module, x: Tensor) -> Tensor:
    """A linear layer, by our own operation if it is plain."""
    if is_plain(module):
        return ops.linear(x, module.weight, module.bias)
    product: Tensor = module(x)
    return product
