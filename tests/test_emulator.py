"""The emulated instructions against numpy, bit for bit; on a processor that has them, the hardware against the same.

Numbers are handled as their bits: bf16 as uint16, fp32 as uint32 or float32.
"""

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import emulator
import numpy as np
import pytest
from amx_reference import KINDS, VECTORS, assert_same_floats, bf16, bf16_product, random_floats, vector_dot

pytestmark = pytest.mark.skipif(bool(emulator.why_unavailable()), reason=emulator.why_unavailable())

BF16, INT8 = "tdpbf16ps", ("tdpbssd", "tdpbsud", "tdpbusd", "tdpbuud")
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
    expected = np.zeros(64, np.uint8)
    expected[0] = 1
    for tile, (rows, row_bytes) in shapes.items():
        expected[16 + 2 * tile] = row_bytes
        expected[48 + tile] = rows
    for name, value in fields.items():
        expected[int(name.removeprefix("byte"))] = value
    return expected.tobytes()


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


SHAPES = [
    pytest.param(16, 16, 16, id="full"),
    pytest.param(5, 3, 7, id="partial"),
    pytest.param(1, 1, 1, id="one-element"),
    pytest.param(16, 1, 16, id="one-column"),
    pytest.param(1, 16, 2, id="one-row"),
]


def tile_product(name: str, high: bool, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`c` [m, n] of 4 bytes += `a` [m, 4k] x `b` [k, 4n], bytes, by the instruction; the result as c's dtype."""
    tiles = (5, 7, 6) if high else (0, 1, 2)
    operands = [np.ascontiguousarray(x).view(np.uint8).reshape(len(x), -1) for x in (c, a, b)]
    configure({tile: operand.shape for tile, operand in zip(tiles, operands)})
    for tile, operand in zip(tiles, operands):
        load(tile, operand)
    checks().dot((BF16, *INT8).index(name), int(high))
    for tile, operand in list(zip(tiles, operands))[1:]:
        np.testing.assert_array_equal(stored(tile, *operand.shape), operand)
    result = stored(tiles[0], *operands[0].shape).view(c.dtype)
    checks().release()
    return result


@pytest.mark.parametrize("high", [False, True], ids=["low-tiles", "high-tiles"])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_products_of_bf16_tiles(kind: str, m: int, n: int, k: int, high: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = bf16(random_floats(rng, kind, m, k, 2)), bf16(random_floats(rng, kind, k, n, 2))
    if kind == "small":  # denormal bf16 operands, which bf16() would have flushed
        a[rng.random(a.shape) < 0.1] = rng.integers(1, 0x80)
    c = random_floats(rng, kind, m, n)
    if kind in ("small", "large"):  # of the magnitude of the products
        c = c * np.float32(2.0 ** {"small": -62, "large": 60}[kind])
    assert_same_floats(tile_product(BF16, high, c, a, b), bf16_product(c, a, b))


@pytest.mark.parametrize("high", [False, True], ids=["low-tiles", "high-tiles"])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("name", INT8)
def test_products_of_int8_tiles_wrap_round(name: str, m: int, n: int, k: int, high: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 256, (m, 4 * k), np.uint8), rng.integers(0, 256, (k, 4 * n), np.uint8)
    c = rng.integers(-(2**31), 2**31, (m, n)).astype(np.int32)
    c[0, 0] = 2**31 - 1
    dtypes = {"s": np.int8, "u": np.uint8}
    factors_a = a.view(dtypes[name[4]]).astype(np.int64).reshape(m, k, 4)
    factors_b = b.view(dtypes[name[5]]).astype(np.int64).reshape(k, n, 4)
    expected = (c + np.einsum("mkj,knj->mn", factors_a, factors_b)).astype(np.int32)
    np.testing.assert_array_equal(tile_product(name, high, c, a, b), expected)


@pytest.mark.parametrize("tile", range(8))
@pytest.mark.parametrize("function", ["load", "load_streaming"])
def test_loads_and_stores_of_every_tile(function: str, tile: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 256, (16, 64), np.uint8)
    rows, row_bytes = 16 - tile, 64 - 3 * tile
    configure({tile: (rows, row_bytes)})
    for rows_at in (values, values[::-1], np.broadcast_to(values[3], (16, 64))):  # strides 64, -64 and 0
        load(tile, rows_at, function=function)
        np.testing.assert_array_equal(stored(tile, rows, row_bytes), rows_at[:rows, :row_bytes])
    checks().zero(tile)
    assert not stored(tile, rows, row_bytes).any()
    checks().release()


def test_tiles_are_zero_after_a_configuration() -> None:
    shapes = dict.fromkeys(range(8), (16, 64))
    for tile in shapes:
        configure(shapes)
        load(tile, np.full((16, 64), 7, np.uint8))
        configure(shapes)
        assert not stored(tile, 16, 64).any()
    checks().release()


def test_a_start_row_keeps_the_rows_before_it() -> None:
    configure({3: (6, 8)}, byte1=4)
    load(3, np.full((6, 8), 7, np.uint8))
    np.testing.assert_array_equal(stored(3, 6, 8).any(axis=1), [False] * 4 + [True] * 2)
    checks().release()


@pytest.mark.parametrize("form", range(8))
def test_addresses_of_tile_loads(form: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 256, (16, 96), np.uint8)
    configure({3: (16, 64)})
    checks().load_addressed(form, pointer(values), ctypes.c_int64(96))
    expected = np.broadcast_to(values[0, :64], (16, 64)) if form == 6 else values[:, :64]
    np.testing.assert_array_equal(stored(3, 16, 64), expected)
    checks().release()


def test_configurations_come_back() -> None:
    expected = configuration({0: (16, 64), 3: (1, 4), 7: (9, 63)})
    unchanged = np.full(128, 0xA5, np.uint8)
    checks().configure_elsewhere(expected, pointer(unchanged))
    assert unchanged.tobytes() == expected + expected
    for leave in (checks().release, lambda: checks().load_config(bytes(64))):
        checks().load_config(expected)
        leave()
        checks().store_config(pointer(unchanged))
        assert not unchanged[:64].any()


def test_threads_have_tiles_of_their_own() -> None:
    meet = threading.Barrier(2, timeout=60)
    seen: dict[int, np.ndarray] = {}

    def use(number: int) -> None:
        rows = 16 - number
        configure({0: (rows, 64)})
        load(0, np.full((16, 64), number + 1, np.uint8))
        meet.wait()
        seen[number] = stored(0, rows, 64)
        meet.wait()
        if number == 0:
            checks().release()
        meet.wait()
        assert (stored(0, rows, 64) == 2).all() if number else True
        checks().release()

    threads = [threading.Thread(target=use, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (seen[0] == 1).all()
    assert (seen[1] == 2).all()


FORMS = ["low", "high", "merge", "zero", "memory", "indexed", "memory-merge", "broadcast", "broadcast-zero", "relative"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", range(10), ids=FORMS)
@pytest.mark.parametrize("bits", [128, 256, 512])
@pytest.mark.parametrize("name", VECTORS)
def test_vector_instructions(name: str, bits: int, form: int, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    registers = random_floats(rng, kind, 2, 16)  # the destination's value below and above 16
    first, second = random_floats(rng, kind, 16), random_floats(rng, kind, 16)
    memory = random_floats(rng, kind, 48)
    mask = int(rng.integers(2**32))
    size, count = bits // 8, bits // 32

    shift = {4: -size, 5: -0x1234 - 20, 6: size, 7: -12, 8: 8}.get(form, 0)
    operand = memory[16 : 16 + count] if 4 <= form <= 8 else second[:count]
    if form in (7, 8):
        operand = np.full(count, memory[16])
    high = form in (1, 3, 5, 8)
    before = registers[int(high)]
    values = VECTORS[name](before[:count], first[:count], operand)
    old = before.view(values.dtype)[: len(values)]
    if form in (2, 3, 6, 8):
        unchanged = np.zeros_like(old) if form in (3, 8) else old
        values = np.where([mask >> i & 1 == 1 for i in range(len(values))], values, unchanged)
    expected = np.zeros(64 // values.itemsize, values.dtype)
    expected[: len(values)] = values

    result = registers.copy()
    address = pointer(memory, 64 + shift)
    getattr(checks(), f"{name}_{bits}")(form, pointer(result), pointer(first), pointer(second), address, mask)
    if name == "dot":
        assert_same_floats(result[int(high)], expected)
    else:
        np.testing.assert_array_equal(result[int(high)].view(np.uint16), expected)
    np.testing.assert_array_equal(result[1 - int(high)].view(np.uint32), registers[1 - int(high)].view(np.uint32))


def test_intrinsics(seed: int) -> None:
    rng = np.random.default_rng(seed)
    total, first, second = (random_floats(rng, "ordinary", 16) for _ in range(3))
    result, converted = total.copy(), np.zeros(16, np.uint16)
    checks().intrinsic_dot(pointer(result), pointer(first), pointer(second))
    assert_same_floats(result, vector_dot(total, first, second))
    checks().intrinsic_convert(pointer(converted), pointer(first))
    np.testing.assert_array_equal(converted, bf16(first))


def test_the_first_nan_of_a_vector_product_wins() -> None:
    """The manual's table: first lower, second lower, first upper, second upper, destination; signalling ones quiet."""
    nans = np.array([0x7F81, 0x7F82, 0x7F83, 0x7F84, 0x7F85], np.uint16)
    for winner in range(5):
        bits = np.where(np.arange(5) >= winner, nans, 0x3F80)
        first, second = np.tile(bits[[0, 2]], 16), np.tile(bits[[1, 3]], 16)
        result = np.full(16, int(bits[4]) << 16, np.uint32)
        checks().intrinsic_dot(pointer(result), pointer(first), pointer(second))
        np.testing.assert_array_equal(result, int(nans[winner]) << 16 | 1 << 22)


def test_registers_in_their_initial_state(seed: int) -> None:
    values = random_floats(np.random.default_rng(seed), "ordinary", 16)
    result = np.full((3, 32), 0xA5A5, np.uint16)
    checks().convert_into_initial_state(pointer(result), pointer(values))
    np.testing.assert_array_equal(result[0, :16], bf16(values))
    assert not result[0, 16:].any()
    assert not result[1:].any()


def test_the_rounding_mode_of_the_program_is_not_consulted(seed: int) -> None:
    rng = np.random.default_rng(seed)
    libm, toward_zero = ctypes.CDLL("libm.so.6"), 0xC00
    first, second, total = (random_floats(rng, "ordinary", 16) for _ in range(3))
    c, (a, b) = random_floats(rng, "ordinary", 16, 16), bf16(random_floats(rng, "ordinary", 2, 16, 16, 2))
    expected, result = vector_dot(total, first, second), total.copy()
    libm.fesetround(toward_zero)
    try:
        checks().intrinsic_dot(pointer(result), pointer(first), pointer(second))
        tiles = tile_product(BF16, False, c, a, b)
        assert libm.fegetround() == toward_zero
    finally:
        libm.fesetround(0)
    assert_same_floats(result, expected)
    assert_same_floats(tiles, bf16_product(c, a, b))


def ending(code: str) -> tuple[int, str]:
    """The exit status and the errors of `code` in another process, where `t` is this module."""
    start = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_emulator as t; t.checks()\n"
    result = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, timeout=120)
    return result.returncode, result.stderr


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


def touch(function: str, side: str, beyond: int) -> None:
    """One access of 5 rows of 12 bytes, 100 bytes apart, or of a vector, at an end of a page and `beyond` it."""
    library, page = checks(), guarded_page()
    if function in ("load", "load_streaming", "store"):
        configure({0: (5, 12)})
        at = page + PAGE - (4 * 100 + 12) + beyond if side == "last" else page - beyond
        getattr(library, function)(0, ctypes.c_void_p(at), ctypes.c_int64(100))
        return
    size = {"load_config": 64, "store_config": 64}.get(function, 32)
    at = page + PAGE - size + beyond if side == "last" else page - beyond
    if function in ("load_config", "store_config"):
        getattr(library, function)(ctypes.c_void_p(at))
        return
    registers = np.zeros(32, np.float32)
    where = ctypes.c_void_p(at - 32)  # form 4 adds the vector's length
    getattr(library, function)(4, pointer(registers), pointer(registers), pointer(registers), where, 0)


TILE_ACCESSES = ["load", "load_streaming", "store", "load_config", "store_config"]
ACCESSES = [*TILE_ACCESSES, "dot_256", "convert_two_256", "convert_256"]


@pytest.mark.parametrize("side", ["first", "last"])
@pytest.mark.parametrize("function", ACCESSES)
def test_no_byte_beside_the_operand_is_touched(function: str, side: str) -> None:
    touch(function, side, 0)
    checks().release()


@pytest.mark.parametrize("side", ["first", "last"])
@pytest.mark.parametrize("function", ACCESSES)
def test_a_byte_beyond_the_page_is_a_segmentation_fault(function: str, side: str) -> None:
    status, errors = ending(f"t.touch({function!r}, {side!r}, 1)")
    assert status == -signal.SIGSEGV, errors


def touch_masked(function: str, mask: int) -> None:
    """A vector of which only the dwords under the mask lie in the page: form 6, which subtracts the vector's length."""
    registers, page = np.zeros(32, np.float32), guarded_page()
    where = ctypes.c_void_p(page + PAGE - 4 * 3 + 32)
    getattr(checks(), function)(6, pointer(registers), pointer(registers), pointer(registers), where, mask)


@pytest.mark.parametrize("function", ["dot_256", "convert_256"])
def test_masked_elements_of_vectors_are_not_read(function: str) -> None:
    touch_masked(function, 0b111)


@pytest.mark.parametrize(("function", "mask"), [("dot_256", 0b1111), ("convert_256", 0b1000), ("convert_two_256", 0)])
def test_what_vectors_read_beyond_the_page_faults(function: str, mask: int) -> None:
    """VCVTNE2PS2BF16 reads all of its operand whatever the mask."""
    status, errors = ending(f"t.touch_masked({function!r}, {mask})")
    assert status == -signal.SIGSEGV, errors


WRONG = {
    "t.checks().zero(0)": "TILEZERO: no tile configuration is loaded",
    "t.configure({0: (1, 4)}); t.checks().zero(3)": "TILEZERO: tile 3 is not configured",
    "t.checks().load_config(bytes([2]) + bytes(63))": "LDTILECFG: palette 2",
    "t.configure({0: (1, 4)}, byte2=1)": "LDTILECFG: a reserved byte is 1",
    "t.configure({0: (17, 64)})": "LDTILECFG: tile 0 has 17 rows",
    "t.configure({0: (16, 65)})": "LDTILECFG: tile 0 has rows of 65 bytes",
    "t.configure({0: (16, 0)})": "LDTILECFG: tile 0 has 16 rows of 0 bytes",
    "t.configure({8: (16, 64)})": "LDTILECFG: tile 8 is configured",
    "t.configure({0: (5, 12), 1: (5, 8), 2: (3, 12)}); t.checks().dot(0, 0)": "tile 0 (5 rows of 12 bytes) is no",
    "t.configure({0: (5, 12), 1: (4, 8), 2: (2, 12)}); t.checks().dot(1, 0)": "tile 1 (4 of 8)",
    "t.configure({0: (5, 12), 1: (5, 8), 2: (2, 16)}); t.checks().dot(1, 0)": "tile 2 (2 of 16)",
    "t.configure({0: (5, 10), 1: (5, 8), 2: (2, 10)}); t.checks().dot(0, 0)": "rows of tile 0 have 10 bytes",
    "t.configure({0: (16, 64), 1: (16, 64)}); t.checks().dot_with_itself()": "tiles 0, 1, 1 must differ",
}


@pytest.mark.parametrize("code", WRONG)
def test_wrong_use_ends_the_process_and_says_why(code: str) -> None:
    status, errors = ending(code)
    if emulator.native():
        assert status in (-signal.SIGILL, -signal.SIGSEGV), errors
    else:
        assert status == -signal.SIGABRT, errors
        assert WRONG[code] in errors


@pytest.mark.parametrize("handler", ["none", "before", "after"])
@pytest.mark.parametrize("cause", ["t.checks().undefined()", "os.kill(os.getpid(), 4); time.sleep(60)"])
def test_other_illegal_instructions_end_the_process(cause: str, handler: str) -> None:
    """Python's faulthandler, which stands where pytest runs, may have come before or after the emulator."""
    enable = "faulthandler.enable()\n"
    lines = "import faulthandler, os, signal, time\n"
    if handler == "before":
        lines += f"signal.signal(signal.SIGILL, signal.SIG_DFL); {enable}t.emulator.install()\n"
    if handler == "after":
        lines += f"{enable}assert not t.emulator.installed(); t.emulator.install()\n"
    status, errors = ending(f"{lines}assert t.emulator.installed()\n{cause}")
    assert status == -signal.SIGILL, errors
    assert errors.count("Fatal Python error: Illegal instruction") == (handler != "none"), errors


def test_what_was_executed_is_counted() -> None:
    configure({0: (16, 64), 1: (16, 64), 2: (16, 64)})
    before = emulator.executed()
    for _ in range(3):
        checks().dot(0, 0)
    assert emulator.executed() - before == (0 if emulator.native() else 3)
    checks().release()


def test_processes_may_compile_at_once(tmp_path: Path) -> None:
    code = "import emulator; emulator.install(); print(emulator.installed())"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent)}
    running = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=120)[0] for process in running] == ["True\n"] * 2
    assert len(list(tmp_path.glob("fastbert-emulator-*/*"))) == 1
