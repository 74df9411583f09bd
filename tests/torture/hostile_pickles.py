"""Damaged and hostile pytorch_model.bin files, by name."""

import io
import os
import pickle
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from checkpoints.toy import replaced

Damage = Callable[[Path], Any]
PICKLED = "pytorch_model.bin"


class Trap:
    """An object that runs code wherever a pickle is executed."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def pickled(change: Callable[[Any], Any], new: bool = True) -> Damage:
    """Another value in pytorch_model.bin."""

    def damage(folder: Path) -> None:
        state = torch.load(folder / PICKLED, weights_only=True)
        changed = change(state)
        value = state if changed is None else changed
        torch.save(value, folder / PICKLED, _use_new_zipfile_serialization=new)

    return damage


def program(
    change: Callable[[bytes], bytes], compression: int = zipfile.ZIP_STORED, extra: str | None = None
) -> Damage:
    """Another pickle in the zip; everything else as it was."""

    def damage(folder: Path) -> None:
        with zipfile.ZipFile(folder / PICKLED) as old:
            content = {name: old.read(name) for name in old.namelist()}
        with zipfile.ZipFile(folder / PICKLED, "w", compression) as new:
            for name, data in content.items():
                new.writestr(name, change(data) if name.endswith("data.pkl") else data)
            if extra:
                new.writestr(extra, b"\0" * 100_000_000)

    return damage


def viewed(storage: bytes, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> Damage:
    """A pickle of one tensor: a view like this of the zip's storage 0 with so many elements."""
    numbers = [pickle.dumps(value, 2)[2:-1] for value in (offset, shape, stride)]
    start = b"\x80\x02}X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n("
    place = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu" + storage + b"tQ"
    return program(lambda _: start + place + b"".join(numbers) + b"\x89}tRs.")


def harmful(text: bytes) -> Damage:
    return program(lambda _: text)


MARK = "FASTBERT_TEST_TRAP"
PICKLES: dict[str, Damage] = {
    "os.system": pickled(lambda state: Trap(os.system, f"touch ${MARK}")),
    "os.system-in-a-dictionary": pickled(lambda state: state.update(a=Trap(os.system, f"touch ${MARK}"))),
    "os.system-stream": pickled(lambda state: Trap(os.system, f"touch ${MARK}"), new=False),
    "exec": pickled(lambda state: state.update(a=Trap(exec, f"import os; open(os.environ['{MARK}'], 'w')"))),
    "eval-by-stack": harmful(b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R."),
    "instance": harmful(b"(S'touch x'\nios\nsystem\n."),
    "object": harmful(b"(cos\nsystem\nS'touch x'\no."),
    "new-object": harmful(b"\x80\x02ccollections\nOrderedDict\n)\x81."),
    "extension": harmful(b"\x82\x01."),
    "getattr": harmful(b"c__builtin__\ngetattr\n."),
    "load-from-bytes": harmful(b"ctorch.storage\n_load_from_bytes\n(C\x00tR."),
    "called-twice": harmful(b"ccollections\nOrderedDict\n)R)R."),
    "memo-missing": harmful(b"h\x07."),
    "no-end": harmful(b"]"),
    "empty-stack": harmful(b"\x80\x02."),
    "no-dictionary": harmful(b"K\x01."),
    "a-million-opcodes": harmful(b"]" + b"0]" * 1_000_000 + b"."),
    "doubled-lists": harmful(b"]q\x00" + b"".join(b"(h%ch%cl\x71%c" % (i, i, i + 1) for i in range(200)) + b"."),
    "nested-lists": harmful(b"(" * 100_000 + b"l" * 100_000 + b"."),
    "nested-tuples": harmful(b")" + b"\x85" * 300_000 + b"."),
    "a-key-of-tuples": harmful(b"})" + b"\x85" * 300_000 + b"K\x01s."),
    "long-number": harmful(b"\x8b" + struct.pack("<i", 1_000_000) + b"\xff" * 1_000_000 + b"."),
    "many-digits": harmful(b"I" + b"9" * 100_000 + b"\n."),
    "length-of-2^63": harmful(b"\x8e" + struct.pack("<Q", 1 << 63) + b"."),
    "storage-larger": viewed(b"J\x00\x00\x00\x70", 0, (8,), (1,)),
    "storage-absurd": viewed(b"\x8a\x0a" + b"\xff" * 9 + b"\x00", 0, (8,), (1,)),
    "offset-behind": viewed(b"M@\x01", 10**6, (8,), (1,)),
    "offset-negative": viewed(b"M@\x01", -8, (8,), (1,)),
    "strides-behind": viewed(b"M@\x01", 0, (40, 8), (80, 1)),
    "strides-negative": viewed(b"M@\x01", 0, (40, 8), (-8, 1)),
    "strides-of-zero": viewed(b"M@\x01", 0, (40, 8), (0, 0)),
    "strides-overlapping": viewed(b"M@\x01", 0, (30, 8), (7, 1)),
    "strides-too-few": viewed(b"M@\x01", 0, (40, 8), (8,)),
    "size-of-many-digits": viewed(b"M@\x01", 0, (1 << 40_000, 8), (8, 1)),
    "size-absurd": viewed(b"M@\x01", 0, (1 << 40, 1 << 40), (1, 1)),
    "expanded": viewed(b"M@\x01", 0, (1 << 39,), (0,)),
    "compressed": program(lambda data: data, zipfile.ZIP_DEFLATED),
    "zip-bomb": program(lambda data: data, zipfile.ZIP_DEFLATED, "archive/data/9999"),
    "two-pickles": program(lambda data: data, extra="other/data.pkl"),
    "half-of-it": replaced(PICKLED, lambda data: data[: len(data) // 2]),
    "end-missing": replaced(PICKLED, lambda data: data[:-30]),
    "empty": replaced(PICKLED, b""),
    "text": replaced(PICKLED, b"hello\n"),
    "no-tensors": pickled(lambda state: {"a": 1}),
    "a-tensor": pickled(lambda state: torch.zeros(3)),
    "a-module": pickled(lambda state: torch.nn.Linear(2, 2)),
    "stream-cut": replaced(PICKLED, lambda data: stream(data)[:-1]),
    "stream-longer": replaced(PICKLED, lambda data: stream(data) + b"\0"),
    "stream-big-endian": replaced(
        PICKLED,
        lambda data: re.sub(rb"(little_endianq.)\x88", lambda found: found[1] + b"\x89", stream(data), flags=re.DOTALL),
    ),
}


def stream(data: bytes) -> bytes:
    """A zip of torch.save as its old container."""
    file = io.BytesIO()
    torch.save(torch.load(io.BytesIO(data), weights_only=True), file, _use_new_zipfile_serialization=False)
    return file.getvalue()
