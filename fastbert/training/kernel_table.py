"""The kernel configurations of a run: recorded at its start and used again on --resume, for equal bits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from fastbert.errors import UserError
from fastbert.ops.dispatch import HAS_TRITON

FILE = "kernels.json"


@contextlib.contextmanager
def kernels_of_run(
    folder: Path, device: torch.device, on_message: Callable[[str], None], *, architecture: str | None = None
) -> Iterator[None]:
    """Use the kernel configurations of RUN/kernels.json within the block; write the file if it is missing.

    No effect on a device without Triton kernels. `architecture` defaults to the device's.
    """
    if architecture is None and (device.type != "cuda" or not HAS_TRITON):
        yield
        return
    from fastbert.kernels import launch
    from fastbert.kernels.tuning import tables as tuning

    name = architecture or launch.architecture(device)
    path = folder / FILE
    tables = {}
    if path.exists():
        try:
            tables = tuning.load(path)
        except UserError:
            on_message(
                f"{path} is damaged or belongs to different kernels: the run continues with the current"
                " configurations, and may differ in its last bits"
            )
    if name not in tables:
        tables = {name: tuning.effective(name)}
        tuning.save(path, tables)
    with tuning.pinned(tables):
        yield
