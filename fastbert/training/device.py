"""The device of a run, and the dtype of its matmuls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fastbert.errors import UserError
from fastbert.ops.dispatch import fastest_dtype

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def choose_device(device: str, dtype: str, on_message: Callable[[str], None]) -> tuple[torch.device, torch.dtype]:
    """Return the device (auto, cpu or cuda) and the dtype of matmuls (auto or one of `DTYPES`); `auto` selects
    the fastest. Both are reported."""
    name = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "--device cuda: torch finds no CUDA device here; use --device cpu or install a CUDA build of torch"
        )
    selected = torch.device(name)
    if dtype == "auto":
        chosen, reason = fastest_dtype(selected, training=True)
    else:
        chosen, reason = DTYPES[dtype], "as asked"
    if chosen == torch.float16 and selected.type == "cpu":
        raise UserError("--dtype fp16 needs a GPU; on a CPU use bf16 or fp32")
    where = torch.cuda.get_device_name(selected) if name == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    short = next(key for key, value in DTYPES.items() if value == chosen)
    on_message(f"training on {where} in {short} ({reason})")
    return selected, chosen


@contextmanager
def deterministic_algorithms(required: bool) -> Iterator[None]:
    """Use only deterministic algorithms within the block, if required.

    torch's mode is set only if it changes: setting it, to any value, imports torch's compiler, which takes seconds.
    """
    before = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if not required or (before and not only_warns):
        yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=only_warns)
