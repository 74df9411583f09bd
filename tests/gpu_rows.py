"""Rows as the GPU benchmark's sections report them."""

from typing import Any


def row(contender: str, milliseconds: float, **others: Any) -> dict[str, Any]:
    return {
        "workload": "attention forward 128 full dropout 0.1",
        "contender": contender,
        "median_ms": milliseconds,
        "outputs": "close",
        "tflops": 100.0,
        "host_bound": False,
        **others,
    }
