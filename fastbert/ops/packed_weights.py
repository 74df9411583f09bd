"""Weights as native products read them: laid out once, and anew as soon as they change.

A copy must never be stale, and torch counts only some of the ways in which a weight changes: fused optimizers and
writes through `.data` leave `Tensor._version` alone, and tensors made in inference mode have no such counter. So a copy
is used while all of these are as they were: the tensor itself, where its memory lies, its version if it has one, and a
fingerprint of 64 places of its memory. On top of that each step of any torch optimizer, and `forget`, drop the copies.
What this does not see is a write past torch (through `.data` or a NumPy view) to a few elements of a weight, between
the places that are looked at: call `forget(weight)` behind one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakIdKeyDictionary

from fastbert import _C
from fastbert.ops import native_product


class _Copy(NamedTuple):
    others: tuple[int, ...]
    state: tuple[Any, ...]
    packed: _C.PackedWeight


# By the first of the weights that are packed together, then by element and the others' identities.
_copies: WeakIdKeyDictionary = WeakIdKeyDictionary()
_watching = False


def packed(weights: Sequence[Tensor], element: str) -> _C.PackedWeight:
    """The weights (out, in) one below the other, as a product of `element` reads them.

    Weights are fp32 or bf16 on the CPU, with the same `in`. Made on the first call and whenever a weight has changed.
    """
    first, others = weights[0], tuple(map(id, weights[1:]))
    found = _copies.get(first)
    if found is None:
        found = _copies[first] = {}
        _watch()
    state = _state(weights)
    copy = found.get(element)
    if copy is not None and copy.others == others and copy.state == state:
        return copy.packed
    with torch.no_grad():
        whole = weights[0].detach() if len(weights) == 1 else torch.cat([weight.detach() for weight in weights])
        made = native_product.pack(whole.contiguous(), element)
    found[element] = _Copy(others, state, made)
    return made


def _state(weights: Sequence[Tensor]) -> tuple[Any, ...]:
    """What must be as it was for a copy to hold."""
    spans = [(weight.data_ptr(), _span(weight)) for weight in weights]
    versions = [-1 if weight.is_inference() else weight._version for weight in weights]
    return (_C.fingerprint(spans), *spans, *versions, *[weight.dtype for weight in weights])


def _span(weight: Tensor) -> int:
    """Bytes from the first element to behind the last one."""
    if weight.is_contiguous():
        return weight.nbytes
    if weight.numel() == 0:
        return 0
    steps = zip(weight.shape, weight.stride(), strict=True)
    return (sum((size - 1) * stride for size, stride in steps) + 1) * weight.element_size()


def forget(weights: Iterable[Tensor]) -> None:
    """Drop the copies of these weights: the next product packs them again."""
    changed = {id(weight) for weight in weights}
    for first, found in list(_copies.items()):
        for element, copy in list(found.items()):
            if id(first) in changed or changed.intersection(copy.others):
                del found[element]


def _watch() -> None:
    """See every step of every torch optimizer, from the first copy on."""
    global _watching
    if not _watching:
        register_optimizer_step_post_hook(_after_step)
        _watching = True


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if _copies:
        forget(parameter for group in optimizer.param_groups for parameter in group["params"])
