"""Rows of the CPU benchmarks, on a toy workload."""

from fastbert.benchmarks.harness.measure import Row


def row(contender: str, milliseconds: float, dtype: str = "fp32", outputs: str = "close") -> Row:
    return Row(
        workload="toy",
        contender=contender,
        median_ms=milliseconds,
        p20=milliseconds,
        p80=milliseconds,
        tokens_per_second=1.0,
        ratio_to_fastbert=None,
        max_abs_difference=0.0,
        outputs=outputs,
        dtype=dtype,
        threads=1,
    )
