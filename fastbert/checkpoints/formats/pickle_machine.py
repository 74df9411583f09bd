"""Pickles read without executing them: an interpreter of the few opcodes that a dictionary of tensors is written in.

A pickle is a program for a stack machine that may call anything that can be imported. This machine imports and calls
nothing: the names it knows stand for the plain values below, and every other name is an error that says which.
"""

from __future__ import annotations

import io
import pickletools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import shown

MOST_BYTES = 16 << 20
MOST_OPCODES = 400_000  # of one tensor it takes forty

STORAGES: dict[str, torch.dtype] = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}
# Types without a storage of their own: their tensors name the type.
NEW_DTYPES = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64")


@dataclass(frozen=True, eq=False)
class Name:
    """A global that the machine knows; nothing of that name is imported."""

    text: str


@dataclass(frozen=True, eq=False)
class StorageType:
    """What a storage holds; None: bytes, whose tensors name their dtype."""

    dtype: torch.dtype | None


@dataclass(frozen=True, eq=False)
class Storage:
    """So many elements somewhere in the file, under a key; without a dtype, so many bytes."""

    key: str
    dtype: torch.dtype | None
    count: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.count * (self.dtype.itemsize if self.dtype else 1)


@dataclass(frozen=True, eq=False)
class View:
    """A tensor: a part of a storage, with strides in elements."""

    storage: Storage
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


_KNOWN: dict[str, Any] = {
    **{f"torch {name}": StorageType(dtype) for name, dtype in STORAGES.items()},
    "torch.storage UntypedStorage": StorageType(None),
    **{f"torch {name}": getattr(torch, name) for name in NEW_DTYPES},
    **{
        name: Name(name)
        for name in (
            "collections OrderedDict",
            "torch._utils _rebuild_tensor",
            "torch._utils _rebuild_tensor_v2",
            "torch._utils _rebuild_tensor_v3",
            "torch._utils _rebuild_parameter",
        )
    },
}
_MARK = object()


class Refused(Exception):
    """The pickle does something that no dictionary of tensors needs; the message says what."""


def run(data: bytes, place: str, start: int = 0) -> tuple[Any, int]:
    """The value of the pickle that begins at byte `start`, and where the bytes behind it begin.

    Values are None, bools, numbers, strings, bytes, lists, tuples and dictionaries of such, and the classes above.
    Raises `CheckpointError`.
    """
    stream = io.BytesIO(data)
    stream.seek(start)
    try:
        return _Machine().run(pickletools.genops(stream)), stream.tell()
    except Refused as error:
        raise CheckpointError(f"{place}: refused without executing anything: {error}") from None
    except (ValueError, IndexError, KeyError, OverflowError, struct.error) as error:
        raise CheckpointError(f"{place}: not a whole pickle ({type(error).__name__}: {error})") from None


class _Machine:
    """A stack, a memo, and a method for each opcode."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, operations: Iterator[tuple[Any, Any, int | None]]) -> Any:
        for count, (operation, argument, _) in enumerate(operations):
            if count >= MOST_OPCODES:
                raise Refused(f"it has over {MOST_OPCODES:,} opcodes")
            name = operation.name
            if name in _PUSHES:
                self.stack.append(argument)
            elif name in _OPCODES:
                _OPCODES[name](self, argument)
            elif name == "STOP":
                return self.pop()
            elif name not in ("PROTO", "FRAME"):
                raise Refused(f"the opcode {name}")
        raise Refused("it has no end")

    def pop(self, kind: type | tuple[type, ...] = object) -> Any:
        value = self.stack.pop()
        if value is _MARK or not isinstance(value, kind):
            raise Refused("a value of another kind than its opcode takes")
        return value

    def top(self, kind: type) -> Any:
        value = self.pop(kind)
        self.stack.append(value)
        return value

    def since_mark(self) -> list[Any]:
        """What lies above the last mark, which goes away with it."""
        items: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            items.append(value)
        return items[::-1]

    def drop_mark(self) -> None:
        self.since_mark()

    def put(self, index: int) -> None:
        self.memo[index] = self.top(object)

    def get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def tuple_of(self, count: int) -> None:
        items = [self.pop() for _ in range(count)]
        self.stack.append(tuple(items[::-1]))

    def append(self) -> None:
        value = self.pop()
        self.top(list).append(value)

    def extend(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.top(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int):
                raise Refused("a dictionary's key that is neither a string nor a number")
            target[key] = value

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def new_dict(self) -> None:
        items = self.since_mark()
        self.stack.append({})
        self.set_items(items)

    def name(self, text: str) -> None:
        """A global, given as module and name with a blank between them."""
        if text not in _KNOWN:
            raise Refused(f"it wants {shown(text.replace(' ', '.', 1))}, which no dictionary of tensors needs")
        self.stack.append(_KNOWN[text])

    def stack_name(self) -> None:
        name, module = self.pop(str), self.pop(str)
        self.name(f"{module} {name}")

    def persistent(self) -> None:
        """A storage: ("storage", type, key, device, number of elements[, view])."""
        given = self.pop(tuple)
        if len(given) not in (5, 6) or given[0] != "storage" or not isinstance(given[1], StorageType):
            raise Refused("a persistent id that is no storage")
        if len(given) == 6 and given[5] is not None:
            raise Refused("a storage that is a part of another")
        key, count = given[2], given[4]
        if not isinstance(key, str) or not _is_size(count):
            raise Refused("a storage without key and size")
        self.stack.append(Storage(key, given[1].dtype, count))

    def call(self) -> None:
        """A known name with its arguments, which stands for a value."""
        arguments, function = self.pop(tuple), self.pop(Name)
        if function.text == "collections OrderedDict":
            if arguments and not (len(arguments) == 1 and arguments[0] == []):
                raise Refused("an OrderedDict made of something")
            self.stack.append({})
        elif function.text == "torch._utils _rebuild_parameter":
            if len(arguments) != 3 or not isinstance(arguments[0], View):
                raise Refused("a parameter that is no tensor")
            self.stack.append(arguments[0])
        else:
            self.stack.append(_view(function.text, arguments))

    def build(self) -> None:
        """Attributes of an OrderedDict (its `_metadata`), which say nothing of tensors."""
        self.pop((dict, tuple))
        self.top(dict)


def _view(function: str, arguments: tuple[Any, ...]) -> View:
    """What `_rebuild_tensor*(storage, offset, size, stride, requires_grad, hooks, dtype, ...)` stands for."""
    with_dtype = function.endswith("v3")
    if len(arguments) < (7 if with_dtype else 4) or not isinstance(arguments[0], Storage):
        raise Refused("a tensor without storage, offset, size and stride")
    storage, offset, shape, stride = arguments[:4]
    dtype = arguments[6] if with_dtype else storage.dtype
    if not isinstance(dtype, torch.dtype) or not _is_size(offset):
        raise Refused("a tensor without dtype and offset")
    for sizes in (shape, stride):
        if not isinstance(sizes, tuple) or not all(map(_is_size, sizes)):
            raise Refused("a tensor whose size or stride is no tuple of numbers from 0 up")
    if len(shape) != len(stride):
        raise Refused("a tensor with more sizes than strides, or fewer")
    return View(storage, dtype, offset, shape, stride)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _constant(value: Any) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.stack.append(value)


# Opcodes whose argument is the value.
_PUSHES = frozenset(
    {
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    }
)
_OPCODES: dict[str, Callable[[_Machine, Any], None]] = {
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "MARK": _constant(_MARK),
    "EMPTY_TUPLE": _constant(()),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "POP": lambda machine, _: machine.stack.pop(),
    "POP_MARK": lambda machine, _: machine.drop_mark(),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.since_mark())),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "LIST": lambda machine, _: machine.stack.append(machine.since_mark()),
    "DICT": lambda machine, _: machine.new_dict(),
    "APPEND": lambda machine, _: machine.append(),
    "APPENDS": lambda machine, _: machine.extend(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.set_item(),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "PUT": lambda machine, index: machine.put(index),
    "BINPUT": lambda machine, index: machine.put(index),
    "LONG_BINPUT": lambda machine, index: machine.put(index),
    "MEMOIZE": lambda machine, _: machine.put(len(machine.memo)),
    "GET": lambda machine, index: machine.get(index),
    "BINGET": lambda machine, index: machine.get(index),
    "LONG_BINGET": lambda machine, index: machine.get(index),
    "GLOBAL": lambda machine, text: machine.name(text),
    "STACK_GLOBAL": lambda machine, _: machine.stack_name(),
    "BINPERSID": lambda machine, _: machine.persistent(),
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
}
