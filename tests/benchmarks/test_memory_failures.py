"""How the benchmarks say that a contender ran out of memory: with the bytes that it asked for where they are known."""

import numpy as np
import pytest
import torch

from fastbert.benchmarks.harness.memory_failures import describe, refusal

HUGE = 1 << 57  # bytes that no machine gives


def test_the_messages_of_the_libraries_themselves_hold_the_size() -> None:
    for library, allocate in (
        ("torch", lambda: torch.empty(HUGE, dtype=torch.uint8)),
        ("numpy", lambda: np.empty(HUGE, np.uint8)),
    ):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            allocate()
        shown = describe(caught.value)
        # numpy rounds to three digits
        assert shown.startswith("not enough memory for 144,115,188,076 MB ("), library
        assert "\n" not in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Failed to allocate memory for requested buffer of size 12884901888", (True, 12884901888)),
        ("ggml: failed to allocate CPU buffer of size 4096", (True, 4096)),
        ("std::bad_alloc", (True, None)),
        ("mmap failed: Cannot allocate memory", (True, None)),
        ("Unable to allocate 512 bytes for an array", (True, 512)),
        ("Unable to allocate 1.50 KiB for an array", (True, 1536)),
        ("a shape is wrong", (False, None)),
    ],
)
def test_other_messages(text: str, expected: tuple[bool, int | None]) -> None:
    assert refusal(text) == expected


def test_only_a_lack_of_memory_is_called_one() -> None:
    assert describe(MemoryError()) == "not enough memory (MemoryError)"
    assert describe(RuntimeError("std::bad_alloc")) == "not enough memory (RuntimeError: std::bad_alloc)"
    assert describe(ValueError("first line\nsecond")) == "ValueError: first line"
