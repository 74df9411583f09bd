"""Searching for garbage among new objects only.

A process of the whole suite holds over a million objects, and `gc.collect` takes a second to look at them.
"""

from __future__ import annotations

import gc


def leave_out_old_objects() -> None:
    """Collect what is garbage now, and leave what exists, modules nearly all of it, out of `gc.collect` and
    `gc.get_objects` from here on. What becomes garbage of it later, and has cycles, stays."""
    gc.collect()
    gc.freeze()
