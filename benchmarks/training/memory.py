"""Account for the memory of a training step: the process's high-water mark, part by part.

The parts are those at the moment of a step when most memory is in use: after the forward pass, or after a gradient was
produced. Tensors are counted by their storages, each once. `scratch` is the remainder of the high-water mark:
temporaries, buffers of libraries, and allocator reserves, so the parts add up to the peak.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fastbert import _C

PARTS = ("weights", "weight_copies", "gradients", "optimizer", "activations", "scratch", "other")
ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}
# Autograd nodes between a weight and its copy in a different dtype, made by autocast.
COPYING = re.compile(r"(ToCopy|T|View|Transpose|Permute)Backward\d*")


class _Alive:
    """Storages in use, each counted once however many tensors refer to it."""

    def __init__(self) -> None:
        self.holders: dict[tuple[int, int], int] = {}
        self.nbytes = 0

    def add(self, key: tuple[int, int]) -> None:
        self.holders[key] = self.holders.get(key, 0) + 1
        self.nbytes += key[1] * (self.holders[key] == 1)

    def drop(self, key: tuple[int, int]) -> None:
        self.holders[key] -= 1
        self.nbytes -= key[1] * (self.holders[key] == 0)


class _Saved:
    """A tensor saved by autograd for the backward pass."""

    def __init__(self, tensor: Tensor, alive: _Alive) -> None:
        self.tensor, self.alive, self.key = tensor, alive, _storage(tensor)
        alive.add(self.key)

    def __del__(self) -> None:
        self.alive.drop(self.key)


def parts_of_a_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, phases: dict[str, Callable[[], Any]]
) -> dict[str, int]:
    """Take a step and return the bytes of weights, copies of them made by autocast, gradients, optimizer state and
    activations at the moment when their sum is largest."""
    weights = {_storage(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    activations, casts = _Alive(), _Alive()
    gradients = {id(p): p.grad for p in model.parameters() if p.grad is not None}
    best: dict[str, int] = {}

    def look(*_: Any) -> None:
        now = {
            "weight_copies": casts.nbytes,
            "gradients": nbytes(gradients.values()),
            "activations": activations.nbytes,
        }
        if sum(now.values()) >= sum(best.values()):
            best.update(now)

    def arrived(parameter: Tensor) -> None:
        assert parameter.grad is not None
        gradients[id(parameter)] = parameter.grad
        look()

    def keep(tensor: Tensor) -> Tensor | _Saved:
        if tensor.layout != torch.strided or _storage(tensor) in weights:
            return tensor
        return _Saved(tensor, casts if _is_copy(tensor, weights) else activations)

    hooks = [p.register_post_accumulate_grad_hook(arrived) for p in model.parameters() if p.requires_grad]
    try:
        for name, phase in phases.items():
            if name == "forward":
                with torch.autograd.graph.saved_tensors_hooks(keep, _unwrap):
                    phase()
            else:
                phase()
            look()
            if name == "backward":
                gradients.clear()  # the optimizer releases them
    finally:
        for hook in hooks:
            hook.remove()
    best["weights"] = nbytes(weights.values())
    best["optimizer"] = nbytes(tensors_in(optimizer.state.values()))
    return best


def _unwrap(saved: Tensor | _Saved) -> Tensor:
    return saved.tensor if isinstance(saved, _Saved) else saved


def _is_copy(tensor: Tensor, weights: Container[tuple[int, int]]) -> bool:
    """Return whether autograd recorded the tensor as a copy of a weight."""
    node: Any = tensor.grad_fn
    copied = False
    while node is not None and COPYING.fullmatch(node.name()):
        copied = copied or node.name().startswith("ToCopy")
        node = node.next_functions[0][0]
    return copied and hasattr(node, "variable") and _storage(node.variable) in weights


def _storage(tensor: Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the tensors' storages, each counted once."""
    return sum(size for _, size in {_storage(tensor) for tensor in tensors})


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested dictionaries, lists and tuples."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        yield from tensors_in(values.values())
    elif isinstance(values, Iterable) and not isinstance(values, str | bytes):
        for value in values:
            yield from tensors_in(value)


def packed_bytes() -> int:
    """Return the bytes of all prepacked weights, wherever they are referenced."""
    objects = gc.get_referents(*gc.get_objects())
    # The collector does not track tuples of untracked objects.
    objects += gc.get_referents(*(value for value in objects if type(value) is tuple))
    weights = {id(weight): weight for weight in objects if type(weight) is _C.PrepackedWeight}
    return sum(weight.columns * weight.depth * ELEMENT_BYTES[weight.element] for weight in weights.values())


def account(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: Iterable[dict[str, Callable[[], Any]]],
    before: int,
    peak: int,
) -> dict[str, int]:
    """Return `PARTS` in bytes, which add up to `peak`, for the largest of some steps; `before` was in use before there
    was a model."""
    best = max((parts_of_a_step(model, optimizer, phases) for phases in steps), key=lambda parts: sum(parts.values()))
    best["weight_copies"] += packed_bytes()  # kept for the next step
    known = sum(best.values())
    return {**best, "scratch": peak - known - before, "other": before}
