"""Weights as native products read them: laid out once, and anew as soon as they change.

A copy must not be stale, and torch counts only some of the ways in which a weight changes: fused optimizers and writes
through `.data` leave `Tensor._version` alone, and tensors made in inference mode have no such counter. So a copy is
used while all of these are as they were: the tensor itself, where its memory lies, its version if it has one, and a
fingerprint of 65 places of its memory. On top of that each step of any torch optimizer, `load_state_dict` and `eval` of
our models, moves of them, and `forget` drop the copies.

What this does not see are writes that torch does not count, and that also miss those places: a small part of a weight
(up to 1/64 of it in one piece), or so little that in half precision hardly an element changes, written through `.data`,
NumPy or other views of the memory, by another process, or in place to a tensor that was made in inference mode. Call
`forget(weight)`, or `model.eval()`, behind such a write. Copies hold weak references, for which torch refuses to swap a
weight (`torch.utils.swap_tensors`, conversions of submodules under `set_swap_module_params_on_conversion`): call
`forget` before that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakIdKeyDictionary

from fastbert import _C
from fastbert.errors import UserError
from fastbert.ops import native_product


class _Copies(NamedTuple):
    state: tuple[Any, ...]
    packed: tuple[_C.PackedWeight, ...]


# By the first of the weights, then by element, the others' identities and how many belong to each product.
_copies: WeakIdKeyDictionary = WeakIdKeyDictionary()
_lock = threading.RLock()
_watching = False
# Of one weight: elements, and what it was packed together with.
MOST_COPIES = 4


def packed(weight: Tensor, element: str) -> _C.PackedWeight:
    """A weight (out, in), fp32 or bf16 on the CPU, as a product of `element` reads it."""
    return packed_together((weight,), (1,), element)[0]


def packed_together(weights: Sequence[Tensor], counts: tuple[int, ...], element: str) -> tuple[_C.PackedWeight, ...]:
    """Weights of several products, each as a product of `element` reads it: the first `counts[0]` of them one below the
    other, then the next `counts[1]`, and so on.

    Made on the first call and whenever one of the weights has changed; looked at once for all, which is what a call
    costs.
    """
    first, key = weights[0], (element, tuple(map(id, weights[1:])), counts)
    state = _state(weights)
    found = _copies.get(first)
    copies = None if found is None else found.get(key)
    if copies is not None and copies.state == state:
        return copies.packed
    made, rest = [], [weight.detach() for weight in weights]
    for count in counts:
        own, rest = rest[:count], rest[count:]
        made.append(native_product.pack((torch.cat(own) if count > 1 else own[0]).contiguous(), element))
    copies = _Copies(state, tuple(made))
    with _lock:
        _watch()
        found = _copies.setdefault(first, {})
        found.pop(key, None)
        while len(found) >= MOST_COPIES:
            del found[next(iter(found))]
        found[key] = copies
    return copies.packed


def _state(weights: Sequence[Tensor]) -> tuple[Any, ...]:
    """What must be as it was for a copy to hold."""
    spans = [(weight.data_ptr(), _span(weight)) for weight in weights]
    versions = [-1 if weight.is_inference() else weight._version for weight in weights]
    try:
        fingerprint = _C.fingerprint(spans)
    except ValueError as error:
        raise UserError(
            f"{error}: a weight of shape {tuple(weights[0].shape)} or one beside it has no storage"
        ) from None
    return (fingerprint, *spans, *versions, *[weight.dtype for weight in weights])


def _span(weight: Tensor) -> int:
    """Bytes from the first element to behind the last one."""
    if weight.is_contiguous():
        return weight.nbytes
    if weight.numel() == 0:
        return 0
    steps = zip(weight.shape, weight.stride(), strict=True)
    return (sum((size - 1) * stride for size, stride in steps) + 1) * weight.element_size()


def forget(weights: Tensor | Iterable[Tensor]) -> None:
    """Drop the copies of a weight, or of several: the next product packs them again."""
    changed = {id(weights)} if isinstance(weights, Tensor) else {id(weight) for weight in weights}
    with _lock:
        for first, found in list(_copies.items()):
            for key in [key for key in found if id(first) in changed or changed.intersection(key[1])]:
                del found[key]
            # The dictionary's weak reference would keep torch from swapping the tensor.
            if not found:
                del _copies[first]


def _watch() -> None:
    """See every step of every torch optimizer, from the first copy on."""
    global _watching
    if not _watching:
        register_optimizer_step_post_hook(_after_step)
        _watching = True


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if _copies:
        forget(parameter for group in optimizer.param_groups for parameter in group["params"])
