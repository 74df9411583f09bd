"""Weights as native products read them: laid out once, and anew as soon as they change.

A copy must not be stale, and torch counts only some of the ways in which a weight changes: fused optimizers and writes
through `.data` leave `Tensor._version` alone, and tensors made in inference mode have no such counter. So a copy is
used while all of these are as they were: the tensor itself, where its memory lies and how it is read (shape, strides,
sign), its version if it has one, and a fingerprint of 65 places of its memory. On top of that each step of any torch
optimizer makes the copies of its weights stale, and `load_state_dict` and `eval` of our models, moves of them, and
`forget` drop them. Our own AdamW writes copies anew in its pass over the weights. A copy that nobody else holds is
written anew where it lies.

The 65 places miss a write to a few elements that torch does not count: through `.data`, NumPy or other views of the
memory, by another process, or in place to a tensor that was made in inference mode. So every byte of a weight is hashed
where that is cheap, which is in inference, for products of `WHOLE_ROWS` rows and more; and for every product with
FASTBERT_CHECK_WEIGHTS=1, for debugging. A copy that was made without a hash is then made anew. Below that, and in
training, such a write is seen by the next large product at the latest; call `forget(weight)`, or `model.eval()`, behind
it. Copies hold weak references, for which torch refuses to swap a weight (`torch.utils.swap_tensors`, conversions of
submodules under `set_swap_module_params_on_conversion`): call `forget` before that.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from fastbert import _C
from fastbert.errors import UserError
from fastbert.ops.native import buffers, mapped_weights, matmul


@dataclass(eq=False)
class _Copies:
    """Packed copies of some weights: `counts[0]` of them in the first, and so on."""

    weights: tuple[TensorWeakRef, ...]
    counts: tuple[int, ...]
    transposed: bool
    packed: tuple[_C.PackedWeight, ...]
    state: tuple[Any, ...] | None
    """Of the weights when they were packed; None: stale."""
    wanted: bool = True
    """Whether anybody asked since the weights last changed."""
    whole: int | None = None
    """Hash of all bytes of the weights when they were packed; None where nothing asked for it."""


# By the first of the weights, then by element, layout, the others' identities and how many belong to each product.
_copies: WeakIdKeyDictionary = WeakIdKeyDictionary()
_lock = threading.RLock()
_watching = False
# Of one weight: elements, layouts, and what it was packed together with.
MOST_COPIES = 8
CHECKS_ALL = os.environ.get("FASTBERT_CHECK_WEIGHTS", "").strip() not in ("", "0")
"""Hash every byte of a weight at every product."""
WHOLE_ROWS = {"fp32": 2048, "bf16": 4096, "int8": 8192}
"""Rows of a product, by what it multiplies, from which reading the weights takes at most a few per cent of its time."""


def packed(weight: Tensor, element: str, transposed: bool = False, *, rows: int = 0) -> _C.PackedWeight:
    """A weight (out, in), fp32 or bf16 on the CPU, as a product of `element` reads it; `transposed`: as the operand of
    dx = dy weight; `rows` as in `packed_together`."""
    return packed_together((weight,), (1,), element, transposed, rows=rows)[0]


def packed_together(
    weights: Sequence[Tensor], counts: tuple[int, ...], element: str, transposed: bool = False, *, rows: int = 0
) -> tuple[_C.PackedWeight, ...]:
    """Weights of several products, each as a product of `element` reads it: the first `counts[0]` of them one below the
    other, then the next `counts[1]`, and so on; `transposed` after that.

    Made on the first call and whenever one of the weights has changed; looked at once for all, which is what a call
    costs. `rows` are those of a product in inference: large ones look at every byte.
    """
    first, key = weights[0], (element, transposed, tuple(map(id, weights[1:])), counts)
    state = _state(weights)
    whole = _whole(weights) if CHECKS_ALL or rows >= WHOLE_ROWS[element] else None
    found = _copies.get(first)
    copies = None if found is None else found.get(key)
    if copies is not None and copies.state == state and whole in (None, copies.whole):
        copies.wanted = True
        return copies.packed
    with _lock:
        # Once more: another thread may have written or replaced it, and multiply by it now.
        found = _copies.get(first)
        copies = None if found is None else found.get(key)
        fresh = copies is not None and copies.state == state and whole in (None, copies.whole)
        if copies is not None and (fresh or _refill(copies, weights)):
            copies.weights, copies.state, copies.wanted = tuple(map(TensorWeakRef, weights)), state, True
            if not fresh:
                copies.whole = whole
            return copies.packed
        if copies is not None and found is not None:
            del found[key]
        del copies  # its memory goes before that of the new ones comes
    made = _joined(weights, counts, element, transposed)
    if made is None:
        made, rest = [], [weight.detach() for weight in weights]
        for count in counts:
            own, rest = rest[:count], rest[count:]
            joined = (torch.cat(own) if count > 1 else own[0]).contiguous()
            made.append(matmul.pack(joined, element, transposed))
    mapped_weights.give_back(weights)
    copies = _Copies(tuple(map(TensorWeakRef, weights)), counts, transposed, tuple(made), state, whole=whole)
    with _lock:
        _watch()
        found = _copies.setdefault(first, {})
        found.pop(key, None)
        while len(found) >= MOST_COPIES:
            del found[next(iter(found))]
        found[key] = copies
    return copies.packed


def _joined(
    weights: Sequence[Tensor], counts: tuple[int, ...], element: str, transposed: bool
) -> list[_C.PackedWeight] | None:
    """New copies, each weight written to its place in them: none is laid beside others first. None where some are not
    of the kind that can be, or do not fit each other."""
    if element not in ("bf16", "fp32") or any(weight.dim() != 2 for weight in weights):
        return None
    made, at = [], 0
    for count in counts:
        rows, width = sum(weight.shape[0] for weight in weights[at : at + count]), weights[at].shape[1]
        made.append(_C.PackedWeight.room(*((width, rows) if transposed else (rows, width)), element))
        at += count
    parts = _parts(made, counts, transposed, weights)
    if parts is None:
        return None
    _C.refill_copies(parts)
    return made


def _references(packed: tuple[_C.PackedWeight, ...]) -> tuple[int, ...]:
    return (sys.getrefcount(packed), *[sys.getrefcount(one) for one in packed])


_unused = _Copies((), (1,), False, (object(),), None)  # type: ignore[arg-type]
_UNUSED = _references(_unused.packed)


def _alone(copies: _Copies) -> bool:
    """Whether nobody holds the copies but this module: a pass of autograd would still multiply by them."""
    all_of_them, *each = _references(copies.packed)
    return all_of_them == _UNUSED[0] and all(count == _UNUSED[1] for count in each)


def _refill(copies: _Copies, weights: Sequence[Tensor]) -> bool:
    """Write stale copies anew where they lie; False where that cannot be: somebody holds them, or the weights have
    other shapes by now."""
    parts = _parts(copies.packed, copies.counts, copies.transposed, weights) if _alone(copies) else None
    if parts is None:
        return False
    copies.state = None
    _C.refill_copies(parts)
    return True


def _parts(
    copies: Sequence[_C.PackedWeight], counts: tuple[int, ...], transposed: bool, weights: Sequence[Tensor]
) -> list[tuple[_C.PackedWeight, bool, int, tuple[int, str, int], int]] | None:
    """Which rows of which copy each weight is; None where one has another shape or kind than copies take."""
    parts, at = [], 0
    for packed, count in zip(copies, counts, strict=True):
        offset, (rows, width) = 0, (packed.columns, packed.depth)
        if transposed:
            rows, width = width, rows
        for weight in weights[at : at + count]:
            plain = weight.dim() == 2 and weight.is_contiguous() and weight.dtype in buffers.DTYPES
            if packed.element == "int8" or not plain or weight.is_neg() or weight.shape[1] != width:
                return None
            if weight.device.type != "cpu" or buffers.was_freed(weight):
                return None
            matrix = (weight.data_ptr(), buffers.DTYPES[weight.dtype], width)
            parts.append((packed, transposed, offset, matrix, weight.shape[0]))
            offset += weight.shape[0]
        if offset != rows:
            return None
        at += count
    return parts


class Refresh:
    """The copies of weights that are about to change, for whoever changes them and writes the copies in one pass."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        """`weights` (out, in) are contiguous and fp32. Copies that nobody asked for since the last change, that
        somebody holds, or that are stale already are dropped instead."""
        self.parts: list[tuple[_C.PackedWeight, bool, int, int]] = []
        """Packed weight, whether transposed, which of the weights, and the row that its first row is there."""
        self._kept: list[tuple[_Copies, list[Tensor]]] = []
        index = {id(weight): i for i, weight in enumerate(weights)}
        with _lock:
            for first, found in list(_copies.items()):
                for key, copies in list(found.items()):
                    own = [reference() for reference in copies.weights]
                    if not any(id(weight) in index for weight in own):
                        continue
                    if not self._take(copies, own, index):
                        del found[key]
                if not found:
                    del _copies[first]

    def _take(self, copies: _Copies, own: list[Tensor | None], index: dict[int, int]) -> bool:
        alive = [weight for weight in own if weight is not None]
        if len(alive) < len(own) or not copies.wanted or copies.packed[0].element == "int8" or not _alone(copies):
            return False
        if copies.state != _state(alive) or (CHECKS_ALL and copies.whole != _whole(alive)):
            return False
        weights = iter(alive)
        for packed, count in zip(copies.packed, copies.counts, strict=True):
            offset = 0
            for _ in range(count):
                weight = next(weights)
                if id(weight) in index:
                    self.parts.append((packed, copies.transposed, index[id(weight)], offset))
                offset += weight.shape[0]
        self._kept.append((copies, alive))
        return True

    def done(self) -> None:
        """The weights and all `parts` have been written: the copies are fresh."""
        for copies, weights in self._kept:
            copies.state, copies.wanted = _state(weights), False
            copies.whole = _whole(weights) if CHECKS_ALL else None
        self.parts.clear()
        self._kept.clear()


def _spans(weights: Sequence[Tensor]) -> list[tuple[int, int]]:
    """The address and bytes of each weight."""
    return [(0 if buffers.was_freed(weight) else weight.data_ptr(), _span(weight)) for weight in weights]


def _whole(weights: Sequence[Tensor]) -> int:
    """Return a hash of all bytes of some weights, whose storage `_state` has checked."""
    return _C.whole_fingerprint(_spans(weights))


def _state(weights: Sequence[Tensor]) -> tuple[Any, ...]:
    """What must be as it was for a copy to hold."""
    spans = _spans(weights)
    versions = [-1 if weight.is_inference() else weight._version for weight in weights]
    # `weight.data = weight.data.t()` leaves all else as it was where the weight is square.
    layouts = [(weight.shape, weight.stride(), weight.is_neg(), weight.dtype) for weight in weights]
    try:
        fingerprint = _C.fingerprint(spans)
    except ValueError as error:
        raise UserError(
            f"{error}: a weight of shape {tuple(weights[0].shape)} or one beside it has no storage"
        ) from None
    return (fingerprint, *spans, *versions, *layouts)


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
            for key in [key for key in found if id(first) in changed or changed.intersection(key[2])]:
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
    if not _copies:
        return
    # Ours says which weights it left to torch; the others' copies are fresh.
    changed = getattr(optimizer, "changed_by_torch", None)
    if changed is None:
        changed = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if changed:
        _make_stale({id(parameter) for parameter in changed})


def _make_stale(changed: set[int]) -> None:
    """Copies of these weights are written anew when somebody asks; those that nobody asked for are dropped."""
    with _lock:
        for first, found in list(_copies.items()):
            for key, copies in list(found.items()):
                if id(first) in changed or changed.intersection(key[2]):
                    if copies.wanted:
                        copies.state, copies.wanted = None, False
                    else:
                        del found[key]
            if not found:
                del _copies[first]
