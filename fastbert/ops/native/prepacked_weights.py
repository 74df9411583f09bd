"""Prepacked copies of weights: made on first use, and repacked when the weights change.

A copy must not be stale, and torch counts only some of the ways in which a weight changes: fused optimizers and writes
through `.data` leave `Tensor._version` alone, and tensors made in inference mode have no such counter. So a copy is
used while all of these are unchanged: the tensor itself, its address and layout (shape, strides, sign), its version if
it has one, and a fingerprint of 65 samples of its memory. In addition, a step of any torch optimizer makes the copies
of its weights stale, and `load_state_dict` and `eval` of our models, moving them, and `forget` drop the copies. Our own
AdamW repacks copies in its pass over the weights. A copy that has no other reference is repacked in place.

The samples miss a write to a few elements that torch does not count: through `.data`, NumPy or other views of the
memory, by another process, or in place to a tensor made in inference mode. So all bytes of a weight are hashed where
that is cheap, in inference for matmuls of `HASHED_ROWS` rows and more; and for every matmul with
FASTBERT_CHECK_WEIGHTS=1, for debugging. A copy that was made without a hash is then repacked. Below that, and in
training, such a write takes effect at the next large matmul at the latest; call `forget(weight)`, or `model.eval()`,
after it. Copies hold weak references, with which torch refuses to swap a weight (`torch.utils.swap_tensors`,
conversions of submodules under `set_swap_module_params_on_conversion`): call `forget` first.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from fastbert import _C
from fastbert.errors import UserError
from fastbert.ops.native import buffers, matmul


@dataclass(eq=False)
class _Copies:
    """Prepacked copies of some weights: the first `counts[0]` weights are concatenated in the first, and so on."""

    weights: tuple[TensorWeakRef, ...]
    counts: tuple[int, ...]
    transposed: bool
    packed: tuple[_C.PrepackedWeight, ...]
    state: tuple[Any, ...] | None
    """State of the weights when they were packed; None: stale."""
    used: bool = True
    """True if the copies were used since the weights last changed."""
    content_hash: int | None = None
    """Hash of all bytes of the weights when they were packed; None if it was not computed."""
    identities: frozenset[int] = frozenset()
    """The weights by `id`."""


# By the first of the weights, then by element, layout, the identities of the others, counts, and which are gated.
_copies: WeakIdKeyDictionary = WeakIdKeyDictionary()
_lock = threading.RLock()
_changes = [0]  # see `changes`
_listeners: list[Callable[[], None]] = []
# Of one weight: elements, layouts, and the weights that it is packed with.
MAX_COPIES = 8
CHECK_ALL = os.environ.get("FASTBERT_CHECK_WEIGHTS", "").strip() not in ("", "0")
"""Hash all bytes of a weight at every matmul."""
HASHED_ROWS = {"fp32": 2048, "bf16": 4096, "int8": 8192}
"""Rows of a matmul, by its element, from which hashing the weights takes at most a few per cent of its time."""


def prepacked(
    weight: Tensor, element: str, transposed: bool = False, *, rows: int = 0, gated: bool = False
) -> _C.PrepackedWeight:
    """Return a weight (out, in), fp32 or bf16 on the CPU, prepacked for matmuls of `element`.

    `transposed` packs the operand of dx = dy weight; `rows` is as in `prepacked_group`, and `gated` as in `prepack`.
    """
    return prepacked_group((weight,), (1,), element, transposed, rows=rows, gated=(0,) if gated else ())[0]


def prepacked_group(
    weights: Sequence[Tensor],
    counts: tuple[int, ...],
    element: str,
    transposed: bool = False,
    *,
    rows: int = 0,
    gated: tuple[int, ...] = (),
) -> tuple[_C.PrepackedWeight, ...]:
    """Return the weights of several matmuls, prepacked: the first `counts[0]` concatenated by rows, and so on.

    `transposed` transposes each concatenation. Copies are made on the first call and when a weight has changed, which
    one check finds out for all weights. `rows` is the number of rows of a matmul in inference: large ones hash all
    bytes. `gated` holds the positions, among the copies, of gated weights (gates before values); transposed copies of
    them are plain.
    """
    gated = () if transposed else gated
    first, key = weights[0], (element, transposed, tuple(map(id, weights[1:])), counts, gated)
    state = state_of(weights)
    content_hash = _content_hash(weights) if CHECK_ALL or rows >= HASHED_ROWS[element] else None
    copies = _copies.get(first, {}).get(key)
    if copies is not None and copies.state == state and content_hash in (None, copies.content_hash):
        copies.used = True
        return copies.packed
    with _lock:
        # Again under the lock: another thread may have repacked or replaced the copy, and be using it.
        copies = _copies.get(first, {}).get(key)
        if copies is not None:
            fresh = copies.state == state and content_hash in (None, copies.content_hash)
            if fresh or _repack(copies, weights):
                copies.weights, copies.state, copies.used = tuple(map(TensorWeakRef, weights)), state, True
                copies.content_hash = copies.content_hash if fresh else content_hash
                return copies.packed
            del _copies[first][key]
        del copies  # frees its memory before the new copies are allocated
    packed = _pack_in_place(weights, counts, element, transposed, gated)
    if packed is None:
        groups = _groups([weight.detach() for weight in weights], counts)
        joined = (torch.cat(group) if len(group) > 1 else group[0] for group in groups)
        packed = [
            matmul.prepack(weight.contiguous(), element, transposed, gated=i in gated)
            for i, weight in enumerate(joined)
        ]
    references, identities = tuple(map(TensorWeakRef, weights)), frozenset(map(id, weights))
    copies = _Copies(references, counts, transposed, tuple(packed), state, True, content_hash, identities)
    with _lock:
        _hook_optimizers()
        by_key = _copies.setdefault(first, {})
        by_key.pop(key, None)
        while len(by_key) >= MAX_COPIES:
            del by_key[next(iter(by_key))]
        by_key[key] = copies
    return copies.packed


def _groups(weights: Sequence[Tensor], counts: tuple[int, ...]) -> list[list[Tensor]]:
    """Return the weights of each copy."""
    remaining = iter(weights)
    return [list(islice(remaining, count)) for count in counts]


def _pack_in_place(
    weights: Sequence[Tensor], counts: tuple[int, ...], element: str, transposed: bool, gated: tuple[int, ...]
) -> list[_C.PrepackedWeight] | None:
    """Return new copies without concatenating weights first; None for weights that this does not support."""
    if element not in ("bf16", "fp32") or any(weight.dim() != 2 for weight in weights):
        return None
    packed = []
    for i, group in enumerate(_groups(weights, counts)):
        rows, width = sum(weight.shape[0] for weight in group), group[0].shape[1]
        if i in gated:
            matmul.check_gated(rows)
        packed.append(_C.PrepackedWeight.empty(*((width, rows) if transposed else (rows, width)), element, i in gated))
    parts = _parts(packed, counts, transposed, weights)
    if parts is None:
        return None
    _C.repack_all(parts)
    return packed


def _reference_counts(packed: tuple[_C.PrepackedWeight, ...]) -> tuple[int, ...]:
    return (sys.getrefcount(packed), *[sys.getrefcount(copy) for copy in packed])


_unshared = _Copies((), (1,), False, (object(),), None)  # type: ignore[arg-type]


def _is_unshared(copies: _Copies) -> bool:
    """Return whether only this module refers to the copies: a pass of autograd may still multiply by shared ones."""
    # Measured on each call: torch.compile may leave Python in a mode in which calls hold more references.
    unshared_group, unshared_copy = _reference_counts(_unshared.packed)
    group, *each = _reference_counts(copies.packed)
    return group == unshared_group and all(count == unshared_copy for count in each)


def _repack(copies: _Copies, weights: Sequence[Tensor]) -> bool:
    """Repack stale copies in place; return False if they are shared, or the weights have other shapes now."""
    parts = _parts(copies.packed, copies.counts, copies.transposed, weights) if _is_unshared(copies) else None
    if parts is None:
        return False
    copies.state = None
    _C.repack_all(parts)
    return True


def _parts(
    copies: Sequence[_C.PrepackedWeight], counts: tuple[int, ...], transposed: bool, weights: Sequence[Tensor]
) -> list[tuple[_C.PrepackedWeight, bool, int, tuple[int, str, int], int]] | None:
    """Return the rows of each copy that each weight fills; None if a weight does not fit."""
    parts = []
    for packed, group in zip(copies, _groups(weights, counts), strict=True):
        offset, (rows, width) = 0, (matmul.input_columns(packed), packed.depth)
        if transposed:
            rows, width = width, rows
        for weight in group:
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
    return parts


class Refresh:
    """The copies of weights that are about to change, for an optimizer that repacks them in its own pass."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        """Collect the copies of `weights` (out, in), contiguous and fp32.

        Copies that are stale, shared, or were not used since the last change are dropped instead.
        """
        self.parts: list[tuple[_C.PrepackedWeight, bool, int, int]] = []
        """Prepacked weight, whether transposed, index of the weight, and the row of its first row in the copy."""
        self._refreshed: list[tuple[_Copies, list[Tensor]]] = []
        index = {id(weight): i for i, weight in enumerate(weights)}

        _retain(lambda copies: copies.identities.isdisjoint(index) or self._collect(copies, index))

    def _collect(self, copies: _Copies, index: dict[int, int]) -> bool:
        alive = [weight for reference in copies.weights if (weight := reference()) is not None]
        if (
            len(alive) < len(copies.weights)
            or not copies.used
            or copies.packed[0].element == "int8"
            or not _is_unshared(copies)
            or copies.state != state_of(alive)
            or (CHECK_ALL and copies.content_hash != _content_hash(alive))
        ):
            return False
        for packed, group in zip(copies.packed, _groups(alive, copies.counts), strict=True):
            offset = 0
            for weight in group:
                if id(weight) in index:
                    self.parts.append((packed, copies.transposed, index[id(weight)], offset))
                offset += weight.shape[0]
        self._refreshed.append((copies, alive))
        return True

    def done(self) -> None:
        """Mark the copies as fresh, after the weights and all `parts` have been written."""
        for copies, weights in self._refreshed:
            copies.state, copies.used = state_of(weights), False
            copies.content_hash = _content_hash(weights) if CHECK_ALL else None
        self.parts.clear()
        self._refreshed.clear()


def spans(weights: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return the address and bytes of each weight."""
    return [(0 if buffers.was_freed(weight) else weight.data_ptr(), _span(weight)) for weight in weights]


def _content_hash(weights: Sequence[Tensor]) -> int:
    """Return a hash of all bytes of some weights, whose storage `state_of` has checked."""
    return _C.full_fingerprint(spans(weights))


def state_of(weights: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return the state of weights that must be unchanged for what was computed of them to be valid."""
    memory = spans(weights)
    versions = [-1 if weight.is_inference() else weight._version for weight in weights]
    # `weight.data = weight.data.t()` changes nothing else of a square weight.
    layouts = [(weight.shape, weight.stride(), weight.is_neg(), weight.dtype) for weight in weights]
    try:
        fingerprint = _C.fingerprint(memory)
    except ValueError as error:
        raise UserError(
            f"{error}: a weight of shape {tuple(weights[0].shape)}, or one packed with it, has no storage"
        ) from None
    return (fingerprint, *memory, *versions, *layouts)


def _span(weight: Tensor) -> int:
    """Return the bytes from the first element to the end of the last one."""
    if weight.is_contiguous():
        return weight.nbytes
    if weight.numel() == 0:
        return 0
    axes = zip(weight.shape, weight.stride(), strict=True)
    return (sum((size - 1) * stride for size, stride in axes) + 1) * weight.element_size()


def forget(weights: Tensor | Iterable[Tensor]) -> None:
    """Drop the copies of one or several weights, which the next matmul packs again."""
    _count_change()
    changed = {id(weights)} if isinstance(weights, Tensor) else {id(weight) for weight in weights}
    _retain(lambda copies: copies.identities.isdisjoint(changed))


def _retain(keep: Callable[[_Copies], bool]) -> None:
    """Drop the copies that are not to be kept."""
    with _lock:
        for first, by_key in list(_copies.items()):
            for key in [key for key, copies in by_key.items() if not keep(copies)]:
                del by_key[key]
            # The dictionary's weak reference would keep torch from swapping the tensor.
            if not by_key:
                del _copies[first]


def changes() -> int:
    """Return a number that grows with every step of a torch optimizer and every `forget`, which end what others keep
    that was computed of weights."""
    _hook_optimizers()
    return _changes[0]


def on_change(listener: Callable[[], None]) -> None:
    """Call `listener` whenever `changes` grows, to give up what refers to copies."""
    _listeners.append(listener)


def _count_change() -> None:
    _changes[0] += 1
    for listener in _listeners:
        listener()


@functools.cache
def _hook_optimizers() -> None:
    """Register a hook on the steps of all torch optimizers, from the first copy on."""
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    _count_change()
    if not _copies:
        return
    # Our own optimizer names the weights that it left to torch; the copies of the others are fresh.
    changed = getattr(optimizer, "changed_by_torch", None)
    if changed is None:
        changed = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    identities = {id(parameter) for parameter in changed}

    def keep(copies: _Copies) -> bool:
        """Mark the copies of changed weights as stale; keep those that were used since the last change."""
        if copies.identities.isdisjoint(identities):
            return True
        used = copies.used
        copies.state, copies.used = None, False
        return used

    _retain(keep)
