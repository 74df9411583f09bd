"""Interpret pickles without executing them: only the opcodes that a dictionary of tensors consists of.

A pickle is a program for a stack machine that may call anything that can be imported. This machine imports and calls
nothing: the supported names stand for the plain values below, and any other name is an error.
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
from fastbert.io.untrusted_input import shown, shown_error

MAX_BYTES = 16 << 20
MAX_OPCODES = 400_000  # one tensor takes forty

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
# Dtypes without a storage class: tensors name the dtype themselves.
NEW_DTYPES = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64")


@dataclass(frozen=True, eq=False)
class Name:
    """A supported global; nothing of that name is imported."""

    text: str


@dataclass(frozen=True, eq=False)
class StorageType:
    """The dtype of a storage; None: bytes, whose tensors name their dtype."""

    dtype: torch.dtype | None


@dataclass(frozen=True, eq=False)
class Storage:
    """A storage in the file: its key and number of elements; without a dtype, its number of bytes."""

    key: str
    dtype: torch.dtype | None
    numel: int

    @property
    def size(self) -> int:
        """Return its size in bytes."""
        return self.numel * (self.dtype.itemsize if self.dtype else 1)


@dataclass(frozen=True, eq=False)
class View:
    """A tensor: a view of a storage, with strides in elements."""

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
    """The pickle needs something that a dictionary of tensors does not; the message names it."""


def run(data: bytes, source: str, start: int = 0) -> tuple[Any, int]:
    """Return the value of the pickle that begins at byte `start`, and the position of its end.

    Values are None, bools, numbers, strings, bytes, lists, tuples and dictionaries of them, and the classes above.
    `source` names the pickle in messages. Raises `CheckpointError`.
    """
    stream = io.BytesIO(data)
    stream.seek(start)
    try:
        return _Machine().run(pickletools.genops(stream)), stream.tell()
    except Refused as error:
        raise CheckpointError(f"{source}: refused without executing anything: {error}") from None
    except (ValueError, IndexError, KeyError, OverflowError, struct.error) as error:
        raise CheckpointError(
            f"{source}: not a complete pickle ({type(error).__name__}: {shown_error(error)})"
        ) from None


class _Machine:
    """A stack, a memo, and one method per opcode."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, operations: Iterator[tuple[Any, Any, int | None]]) -> Any:
        for count, (operation, argument, _) in enumerate(operations):
            if count >= MAX_OPCODES:
                raise Refused(f"it has over {MAX_OPCODES:,} opcodes")
            name = operation.name
            if name in _PUSHES:
                self.stack.append(argument)
            elif name in _OPCODES:
                _OPCODES[name](self, argument)
            elif name == "STOP":
                return self.pop()
            elif name not in ("PROTO", "FRAME"):
                raise Refused(f"it uses the opcode {name}")
        raise Refused("it has no end")

    def pop(self, kind: type | tuple[type, ...] = object) -> Any:
        value = self.stack.pop()
        if value is _MARK or not isinstance(value, kind):
            raise Refused("an opcode has an operand of the wrong type")
        return value

    def top(self, kind: type) -> Any:
        value = self.pop(kind)
        self.stack.append(value)
        return value

    def since_mark(self) -> list[Any]:
        """Pop the values above the last mark, and the mark."""
        items: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            items.append(value)
        return items[::-1]

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
                raise Refused("a dictionary has a key that is neither a string nor a number")
            target[key] = value

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def new_dict(self) -> None:
        items = self.since_mark()
        self.stack.append({})
        self.set_items(items)

    def name(self, text: str) -> None:
        """Push a global, named by module and name with a space between them."""
        if text not in _KNOWN:
            raise Refused(f"it uses {shown(text.replace(' ', '.', 1))}, which a dictionary of tensors does not need")
        self.stack.append(_KNOWN[text])

    def stack_name(self) -> None:
        name, module = self.pop(str), self.pop(str)
        self.name(f"{module} {name}")

    def persistent(self) -> None:
        """Push a storage: ("storage", type, key, device, number of elements[, view])."""
        fields = self.pop(tuple)
        if len(fields) not in (5, 6) or fields[0] != "storage" or not isinstance(fields[1], StorageType):
            raise Refused("a persistent id is not a storage")
        if len(fields) == 6 and fields[5] is not None:
            raise Refused("a storage is a view of another")
        key, numel = fields[2], fields[4]
        if not isinstance(key, str) or not _is_size(numel):
            raise Refused("a storage has no key or size")
        self.stack.append(Storage(key, fields[1].dtype, numel))

    def call(self) -> None:
        """Replace a supported name and its arguments by the value that they stand for."""
        arguments, function = self.pop(tuple), self.pop(Name)
        if function.text == "collections OrderedDict":
            if arguments and not (len(arguments) == 1 and arguments[0] == []):
                raise Refused("an OrderedDict is created with content")
            self.stack.append({})
        elif function.text == "torch._utils _rebuild_parameter":
            if len(arguments) != 3 or not isinstance(arguments[0], View):
                raise Refused("a parameter is not a tensor")
            self.stack.append(arguments[0])
        else:
            self.stack.append(_view(function.text, arguments))

    def build(self) -> None:
        """Ignore the attributes of an OrderedDict (its `_metadata`), which do not concern tensors."""
        self.pop((dict, tuple))
        self.top(dict)


def _view(function: str, arguments: tuple[Any, ...]) -> View:
    """Return the view for `_rebuild_tensor*(storage, offset, size, stride, requires_grad, hooks, dtype, ...)`."""
    with_dtype = function.endswith("v3")
    if len(arguments) < (7 if with_dtype else 4) or not isinstance(arguments[0], Storage):
        raise Refused("a tensor has no storage, offset, size or stride")
    storage, offset, shape, stride = arguments[:4]
    dtype = arguments[6] if with_dtype else storage.dtype
    if not isinstance(dtype, torch.dtype) or not _is_size(offset):
        raise Refused("a tensor has no dtype or offset")
    for sizes in (shape, stride):
        if not isinstance(sizes, tuple) or not all(map(_is_size, sizes)):
            raise Refused("a tensor has a size or stride that is not a tuple of non-negative numbers")
    if len(shape) != len(stride):
        raise Refused("a tensor has different numbers of sizes and strides")
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
_OPCODES: dict[str, Callable[[_Machine, Any], object]] = {
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "MARK": _constant(_MARK),
    "EMPTY_TUPLE": _constant(()),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "POP": lambda machine, _: machine.stack.pop(),
    "POP_MARK": lambda machine, _: machine.since_mark(),
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
