"""The noise of a row's median: its standard error from the spread and the number of its rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

UNKNOWN_SPREAD = 0.05  # standard deviation of a row of one round
CONFIDENCE = 0.99
MEDIAN_FACTOR = 1.2533  # the standard error of a median relative to a mean's

Row = Mapping[str, Any]


def log_ratio(before: Row, now: Row) -> tuple[float, float]:
    """Return the logarithm of a row's change, and its standard error."""
    return math.log(now["median_ms"] / before["median_ms"]), math.hypot(standard_error(before), standard_error(now))


def standard_error(row: Row) -> float:
    """Return the standard error of a row's median, relative to it."""
    count, low, high = rounds(row), row.get("p20"), row.get("p80")
    if count < 2 or not low or not high:
        return UNKNOWN_SPREAD
    # The 80th percentile of so few rounds, in standard deviations: interpolated between two of them.
    position = ((count - 1) * 0.8 + 1 - 0.375) / (count + 0.25)
    deviation = math.log(high / low) / (2 * NormalDist().inv_cdf(position))
    return MEDIAN_FACTOR * deviation / math.sqrt(count)


def rounds(row: Row) -> int:
    """Return the number of rounds of a row."""
    return int(row.get("details", {}).get("rounds") or 1)


def quantile(freedom: int) -> float:
    """Return the two-sided quantile of Student's t, expanded in 1 / freedom (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    if freedom < 1:  # the spread is assumed, not measured
        return z
    v = max(freedom, 3)
    return z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2) + (
        3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z
    ) / (384 * v**3)  # fmt: skip
