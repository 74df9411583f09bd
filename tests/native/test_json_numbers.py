"""Arrays of fp32 as JSON: every reader gets the same bits back, and floats as floats."""

import json

import numpy as np
import pytest

from fastbert import _C

EDGES = [0.0, -0.0, 1.0, -2.0, 1e-7, 1e-45, -1.1754944e-38, 3.4028235e38, 16777216.0, 0.1, 1 / 3, 1e10, 123456.789]


def test_numbers_are_read_back(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 32, 20_000, dtype=np.uint32).view(np.float32)
    values = np.concatenate((np.array(EDGES, dtype=np.float32), bits[np.isfinite(bits)]))
    read = np.array(json.loads(_C.json_row(values)), dtype=np.float32)
    assert np.array_equal(read.view(np.uint32), values.view(np.uint32))
    assert all(isinstance(number, float) for number in json.loads(_C.json_row(values[:9])))
    table = values[: len(values) // 5 * 5].reshape(-1, 5)
    assert np.array_equal(np.array(json.loads(_C.json_rows(table)), dtype=np.float32), table)
    assert _C.json_rows(table[:0]) == b"[]"
    assert _C.json_row(values[:0]) == b"[]"
    ids = np.arange(len(EDGES), dtype=np.int32)
    entries = json.loads(_C.json_entries(ids, values[: len(EDGES)]))
    assert [entry["index"] for entry in entries] == ids.tolist()
    assert np.array_equal(np.array([entry["value"] for entry in entries], dtype=np.float32), values[: len(EDGES)])
    assert json.loads(_C.json_rows(table[::2, ::2]))[1] == json.loads(_C.json_rows(table))[2][::2]  # strided


def test_what_json_cannot_hold_is_refused() -> None:
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="no NaN"):
            _C.json_row(np.array([1.0, value], dtype=np.float32))
    with pytest.raises(ValueError, match="two axes"):
        _C.json_rows(np.zeros(3, dtype=np.float32))
    with pytest.raises(ValueError, match="one index per value"):
        _C.json_entries(np.zeros(2, dtype=np.int32), np.zeros(3, dtype=np.float32))
