"""Describe a lack of GPU memory in one line, with the command's flags that need less."""

from __future__ import annotations

import sys
from typing import Any

from fastbert.errors import UserError

# Flags with a default of their own, in tokens, on a GPU, of commands that use a model.
DEFAULTS = {"batch_tokens": 65536}
NUMBERS = ("micro_batch", "batch_tokens", "batch_size")


def describe(error: RuntimeError, config: Any) -> UserError | None:
    """Return the error for torch.OutOfMemoryError, None for any other."""
    torch = sys.modules.get("torch")  # not imported: nothing has run on a GPU
    if torch is None or not isinstance(error, torch.OutOfMemoryError):
        return None
    from fastbert.flags import flag
    from fastbert.ops import gpu

    cures, trains = [], hasattr(config, "micro_batch")
    for name in NUMBERS:
        default = DEFAULTS.get(name) if hasattr(config, name) and not trains else None
        value = getattr(config, name, None) or default
        if isinstance(value, int):
            cures += gpu.smaller(flag(name), value)
    if getattr(config, "checkpoint_activations", True) is False:
        cures.append("--checkpoint-activations")
    return gpu.shortage(error, cures)
