"""The encoder benchmark of other families than BERT: their shapes, their batches, and what a call costs."""

import pytest

from fastbert.benchmarks import bench_encoder
from fastbert.benchmarks.cpu import families
from fastbert.errors import UserError


def test_the_released_shapes_have_models() -> None:
    for name, family in families.FAMILIES.items():
        quick = families.batches(family, quick=True)
        assert [workload.name for workload in quick][:3] == ["lognormal", "full-128", "full-512"], name
        assert all(workload.operations > 0 for workload in quick), name


def test_operations_follow_the_window_and_the_gates() -> None:
    """ModernBERT's first layer sees all tokens, its second 64 on each side."""
    config = families.FAMILIES["modernbert-base"].config(quick=True)
    length, width, inner, seen = 300, 768, 1152, 129
    matmuls = 2 * length * (4 * width * width + 3 * width * inner)
    inside = sum(min(i + 65, length) - max(i - 64, 0) for i in range(length))
    assert inside < length * seen
    assert families.operations(config, [length]) == 2 * matmuls + 4 * width * (length * length + inside)


def test_a_sweep_goes_from_one_short_text_to_the_largest_batch() -> None:
    options = bench_encoder.Options(family="deberta-v3-base", sweep=True)
    swept = {workload.name: workload.tokens for workload in options.chosen()[4:]}
    assert next(iter(swept)) == "1x8"
    assert swept["8x512"] == swept["32x128"] == max(swept.values()) == families.MOST_SWEPT
    assert len(swept) == 16


def test_an_unknown_family_is_named() -> None:
    with pytest.raises(UserError, match="leave out --matmuls"):
        bench_encoder.Options(sweep=True, matmuls=True)
    with pytest.raises(UserError, match="--family bert-base is not one of mpnet-base"):
        bench_encoder.Options(family="bert-base")
    with pytest.raises(UserError, match="leave out --model"):
        bench_encoder.Options(family="mpnet-base", model="base")
