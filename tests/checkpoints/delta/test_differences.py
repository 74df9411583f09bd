"""Differences: exact ones come back bit by bit whatever the numbers, rounded ones as near as their bits allow."""

import numpy as np
import pytest

from fastbert.checkpoints.delta.differences import (
    CHUNK_ELEMENTS,
    decode_exact,
    decode_rounded,
    encode_exact,
    encode_rounded,
    expand,
    find_factor,
    predict,
    squeeze,
)


def there_and_back(values: np.ndarray, base: np.ndarray) -> int:
    """Return the bytes of the encoded difference."""
    data = encode_exact(values, base)
    np.testing.assert_array_equal(decode_exact(memoryview(data), base), values)
    return len(data)


def bits(numbers: object) -> np.ndarray:
    return np.asarray(numbers, dtype=np.float32).view(np.uint32)


SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38, 1.0, -1.0]


@pytest.mark.parametrize("kind", ["u4", "u2"])
@pytest.mark.parametrize("count", [0, 1, 7, 1000, pytest.param(CHUNK_ELEMENTS + 3, id="more-than-a-piece")])
def test_any_bits_come_back(kind: str, count: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    most = np.iinfo(kind).max
    there_and_back(*(draw.integers(0, most, count, dtype=kind, endpoint=True) for _ in range(2)))


def test_special_numbers_come_back_from_each_other() -> None:
    values, base = np.meshgrid(bits(SPECIAL), bits(SPECIAL))
    there_and_back(values.ravel().copy(), base.ravel().copy())


def test_what_is_near_takes_few_bytes(seed: int) -> None:
    draw = np.random.default_rng(seed)
    base = draw.standard_normal(100_000).astype(np.float32)
    assert there_and_back(bits(base), bits(base)) < 1000
    # A change by up to four places in either direction has nine values, 3.2 bits each.
    near = bits(base) + draw.integers(-4, 5, len(base)).astype(np.uint32)
    assert there_and_back(near, bits(base)) < 100_000 * 4 / 8
    assert there_and_back(
        bits(base + np.float32(1e-3) * draw.standard_normal(100_000, dtype=np.float32)), bits(base)
    ) < (0.7 * 4 * 100_000)


def shrunk(base: np.ndarray, steps: int, decay: float) -> np.ndarray:
    """As AdamW shrinks what has no gradient, rounding at every step."""
    for step in range(steps):
        base = base * np.float32(1 - decay * (1 - step / steps))
    return base


def test_rows_that_only_decay_are_recognised(seed: int) -> None:
    draw = np.random.default_rng(seed)
    base = draw.standard_normal((500, 64)).astype(np.float32)
    values = shrunk(base, 300, 1e-6)
    values[:200] += np.float32(1e-3) * draw.standard_normal((200, 64), dtype=np.float32)
    factor = find_factor(values, base)
    exact = float(np.prod([1 - 1e-6 * (1 - step / 300) for step in range(300)]))
    assert factor == pytest.approx(exact, abs=2e-6)
    plain = there_and_back(values.view(np.uint32).ravel(), base.view(np.uint32).ravel())
    expected = predict(base, factor)
    helped = there_and_back(values.view(np.uint32).ravel(), expected.view(np.uint32).ravel())
    assert helped < 0.85 * plain
    # And where differences are rounded, rows that only decayed cost next to nothing.
    rounded = encode_rounded(values, expected, 4)
    assert len(rounded) < 200 * 64 * 4 / 8 + 500 * 4 + 200


def test_changes_without_decay_have_no_factor(seed: int) -> None:
    draw = np.random.default_rng(seed)
    base = draw.standard_normal(5000).astype(np.float32)
    assert find_factor(base + np.float32(1e-3) * draw.standard_normal(5000, dtype=np.float32), base) == 1.0
    assert find_factor(np.zeros(9, np.float32), np.zeros(9, np.float32)) == 1.0


@pytest.mark.parametrize(
    ("width", "share"), [(1, 0.63), (2, 0.37), (3, 0.21), (4, 0.12), (8, 0.02)], ids=lambda value: str(value)
)
def test_rounding_is_as_good_as_its_bits(width: int, share: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    base = draw.standard_normal((64, 257)).astype(np.float32)
    change = draw.standard_normal((64, 257), dtype=np.float32) * np.geomspace(1e-5, 1e-1, 64, dtype=np.float32)[:, None]
    values = base + change
    data = encode_rounded(values, base, width)
    result = decode_rounded(memoryview(data), base, width)
    assert len(data) < 64 * 257 * width / 8 * 1.01 + 64 * 4 + 64
    moved = (result != base).any(axis=1)
    assert moved[20:].all()
    wrong = np.sqrt(np.square(result - values).mean(axis=1) / np.square(values - base).mean(axis=1))
    assert wrong[moved].mean() < share
    assert wrong[moved].max() < 2 * share


@pytest.mark.parametrize("width", [1, 4])
def test_rows_that_are_the_same_stay_so(width: int, seed: int) -> None:
    base = np.random.default_rng(seed).standard_normal((5, 9)).astype(np.float32)
    values = base.copy()
    values[2] += np.float32(0.5)
    result = decode_rounded(memoryview(encode_rounded(values, base, width)), base, width)
    np.testing.assert_array_equal(np.delete(result, 2, 0), np.delete(base, 2, 0))
    assert (result[2] != base[2]).all()
    same = decode_rounded(memoryview(encode_rounded(base, base, width)), base, width)
    np.testing.assert_array_equal(same, base)


def test_random_damage_is_an_error_or_other_numbers(seed: int) -> None:
    """Checksums lie further out; here nothing but ValueError may happen, in bounded memory."""
    draw = np.random.default_rng(seed)
    base = draw.standard_normal((40, 50)).astype(np.float32)
    values = base + np.float32(1e-3) * draw.standard_normal((40, 50), dtype=np.float32)
    exact = encode_exact(values.view(np.uint32).ravel(), base.view(np.uint32).ravel())
    rounded = encode_rounded(values, base, 3)
    refused = 0
    for round_ in range(400):
        data = bytearray(exact if round_ % 2 else rounded)
        for _ in range(draw.integers(1, 4)):
            data[draw.integers(len(data))] ^= 1 << draw.integers(8)
        cut = memoryview(bytes(data))[: len(data) - (draw.integers(len(data)) if round_ % 3 == 0 else 0)]
        try:
            with np.errstate(all="ignore"):
                if round_ % 2:
                    assert decode_exact(cut, base.view(np.uint32).ravel()).shape == (2000,)
                else:
                    assert decode_rounded(cut, base, 3).shape == base.shape
        except ValueError:
            refused += 1
    assert refused > 100


def test_more_than_was_promised_is_not_unpacked() -> None:
    bomb = squeeze(bytes(50_000_000))
    with pytest.raises(ValueError, match="an unexpected number of bytes"):
        expand(memoryview(bomb), 1000)
    assert expand(memoryview(squeeze(b"abc")), 3) == b"abc"
    assert expand(memoryview(squeeze(b"")), 0) == b""
