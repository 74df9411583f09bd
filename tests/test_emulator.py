"""The emulated instructions against numpy, bit for bit; on a processor that has them, the hardware against the same.

Numbers are handled as their bits: bf16 as uint16, fp32 as uint32 or float32.
"""

import ctypes
import threading

import emulator
import numpy as np
import pytest
from amx_reference import KINDS, VECTORS, assert_same_floats, bf16, bf16_product, random_floats, vector_dot
from emulator_checks import checks, configuration, configure, load, pointer, stored
from sweeps import sweep

pytestmark = pytest.mark.skipif(bool(emulator.why_unavailable()), reason=emulator.why_unavailable())

BF16, INT8 = "tdpbf16ps", ("tdpbssd", "tdpbsud", "tdpbusd", "tdpbuud")


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


@sweep("high", [False, True], ids=["low-tiles", "high-tiles"])
@sweep(("m", "n", "k"), SHAPES)
@sweep("kind", KINDS)
def test_products_of_bf16_tiles(kind: str, m: int, n: int, k: int, high: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = bf16(random_floats(rng, kind, m, k, 2)), bf16(random_floats(rng, kind, k, n, 2))
    if kind == "small":  # denormal bf16 operands, which bf16() would have flushed
        a[rng.random(a.shape) < 0.1] = rng.integers(1, 0x80)
    c = random_floats(rng, kind, m, n)
    if kind in ("small", "large"):  # of the magnitude of the products
        c = c * np.float32(2.0 ** {"small": -62, "large": 60}[kind])
    assert_same_floats(tile_product(BF16, high, c, a, b), bf16_product(c, a, b))


@sweep("high", [False, True], ids=["low-tiles", "high-tiles"])
@sweep(("m", "n", "k"), SHAPES)
@sweep("name", INT8)
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


@sweep("tile", range(8))
@sweep("function", ["load", "load_streaming"])
def test_loads_and_stores_of_every_tile(function: str, tile: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 256, (16, 64), np.uint8)
    rows, row_bytes = 16 - tile, 64 - 4 * tile
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


@sweep("form", range(8))
def test_addresses_of_tile_loads(form: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 256, (16, 96), np.uint8)
    configure({3: (16, 64)})
    checks().load_addressed(form, pointer(values), ctypes.c_int64(96))
    expected = np.broadcast_to(values[0, :64], (16, 64)) if form == 6 else values[:, :64]
    np.testing.assert_array_equal(stored(3, 16, 64), expected)
    checks().release()


def test_configurations_come_back() -> None:
    content = configuration({0: (16, 64), 3: (1, 4), 7: (9, 63)})
    kept = np.full(128, 0xA5, np.uint8)
    checks().configure_elsewhere(content, pointer(kept))
    assert kept.tobytes() == content + content
    for leave in (checks().release, lambda: checks().load_config(bytes(64))):
        checks().load_config(content)
        leave()
        checks().store_config(pointer(kept))
        assert not kept[:64].any()


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


@sweep("kind", KINDS)
@sweep("form", range(10), ids=FORMS)
@sweep("bits", [128, 256, 512])
@sweep("name", VECTORS)
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
        kept = np.zeros_like(old) if form in (3, 8) else old
        values = np.where([mask >> i & 1 == 1 for i in range(len(values))], values, kept)
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


def test_what_was_executed_is_counted() -> None:
    configure({0: (16, 64), 1: (16, 64), 2: (16, 64)})
    before = emulator.executed()
    for _ in range(3):
        checks().dot(0, 0)
    assert emulator.executed() - before == (0 if emulator.native() else 3)
    checks().release()
