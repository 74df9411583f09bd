"""Numbers as callers hold them: a search over parameters, or an array, gives NumPy's."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

ValueT = TypeVar("ValueT")


def plain_number(value: ValueT) -> ValueT:
    """Return a scalar of NumPy as the number, bool or string of Python, and any other value as it is."""
    return value.item() if isinstance(value, np.generic) else value
