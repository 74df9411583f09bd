"""The emulated instructions, called one by one through native/emulator_checks.cpp, at the ends of pages too."""

import ctypes
import mmap
from functools import cache

import emulator
import numpy as np

PAGE = mmap.PAGESIZE


@cache
def checks() -> ctypes.CDLL:
    """The functions of native/emulator_checks.cpp, with the emulator installed."""
    library = ctypes.CDLL(str(emulator.compiled("emulator_checks.cpp", "-O2")))
    emulator.install()
    if emulator.native():
        assert library.allow_amx() == 0
    return library


def configure(shapes: dict[int, tuple[int, int]], **fields: int) -> None:
    """Load a configuration of {tile: (rows, bytes per row)}; `fields` are bytes by their offset, as `byte5=1`."""
    checks().load_config(configuration(shapes, **fields))


def configuration(shapes: dict[int, tuple[int, int]], **fields: int) -> bytes:
    content = np.zeros(64, np.uint8)
    content[0] = 1
    for tile, (rows, row_bytes) in shapes.items():
        content[16 + 2 * tile] = row_bytes
        content[48 + tile] = rows
    for name, value in fields.items():
        content[int(name.removeprefix("byte"))] = value
    return content.tobytes()


def pointer(array: np.ndarray, offset: int = 0) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data + offset)


def load(tile: int, array: np.ndarray, *, function: str = "load") -> None:
    getattr(checks(), function)(tile, pointer(array), ctypes.c_int64(array.strides[0]))


def stored(tile: int, rows: int, row_bytes: int) -> np.ndarray:
    """The tile's bytes, after a check that nothing was written beside them."""
    memory = np.full((rows + 1, row_bytes + 5), 0xA5, np.uint8)
    checks().store(tile, pointer(memory), ctypes.c_int64(memory.strides[0]))
    assert (memory[rows] == 0xA5).all()
    assert (memory[:, row_bytes:] == 0xA5).all()
    return memory[:rows, :row_bytes].copy()


def guarded_page() -> int:
    """The address of a page of memory between two that must not be touched."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    address = libc.mmap(None, 3 * PAGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    middle = ctypes.c_void_p(address + PAGE)
    if libc.mprotect(middle, ctypes.c_size_t(PAGE), mmap.PROT_READ | mmap.PROT_WRITE) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    return address + PAGE


def touch(function: str, place: str, beyond: int) -> None:
    """One access of 5 rows of 12 bytes, 100 bytes apart, or of a vector, at an end of a page and `beyond` it."""
    library, page = checks(), guarded_page()
    if function in ("load", "load_streaming", "store"):
        configure({0: (5, 12)})
        at = page + PAGE - (4 * 100 + 12) + beyond if place == "last" else page - beyond
        getattr(library, function)(0, ctypes.c_void_p(at), ctypes.c_int64(100))
        return
    size = {"load_config": 64, "store_config": 64}.get(function, 32)
    at = page + PAGE - size + beyond if place == "last" else page - beyond
    if function in ("load_config", "store_config"):
        getattr(library, function)(ctypes.c_void_p(at))
        return
    registers = np.zeros(32, np.float32)
    where = ctypes.c_void_p(at - 32)  # form 4 adds the vector's length
    getattr(library, function)(4, pointer(registers), pointer(registers), pointer(registers), where, 0)


def touch_masked(function: str, mask: int) -> None:
    """A vector of which only the dwords under the mask lie in the page: form 6, which subtracts the vector's length."""
    registers, page = np.zeros(32, np.float32), guarded_page()
    where = ctypes.c_void_p(page + PAGE - 4 * 3 + 32)
    getattr(checks(), function)(6, pointer(registers), pointer(registers), pointer(registers), where, mask)
