"""The counter-based generator that everything random is drawn from."""

import numpy as np
import pytest

from fastbert import _C


# The known answers that the authors of Philox publish with it (Random123, kat_vectors).
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        pytest.param([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], id="zeros"),
        pytest.param([2**32 - 1] * 4, [2**32 - 1] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD], id="ones"),
        pytest.param(
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
            id="pi",
        ),
    ],
)
def test_philox_gives_the_published_answers(counter, key, expected):
    assert list(_C.philox4x32(counter, key)) == expected


def test_split_ranks_depend_on_the_whole_seed():
    ranks = {seed: _C.split_ranks(1000, seed).tolist() for seed in (0, 1, 1 << 32, 1 << 63)}
    assert len({tuple(values) for values in ranks.values()}) == 4
    assert _C.split_ranks(10, 7).tolist() == _C.split_ranks(1000, 7)[:10].tolist()
    assert len(np.unique(_C.split_ranks(100_000, 3))) == 100_000
