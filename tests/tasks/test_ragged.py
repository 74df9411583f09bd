"""Runs of tokens against Python's own ranges."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastbert.tasks.rows import bounds, runs


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=20))
def test_runs_are_ranges_end_to_end(pairs: list[tuple[int, int]]) -> None:
    begins = np.array([begin for begin, _ in pairs], dtype=np.int64)
    sizes = np.array([size for _, size in pairs], dtype=np.int64)
    assert runs(begins, sizes).tolist() == [
        position for begin, size in pairs for position in range(begin, begin + size)
    ]
    offsets = bounds(sizes)
    assert offsets.dtype == np.int64
    assert offsets.tolist() == [sum(sizes[:index].tolist()) for index in range(len(pairs) + 1)]
