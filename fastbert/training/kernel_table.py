"""The kernel configurations of a run: recorded when it starts and used again when it is resumed, so that bits stay."""

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
    """Within the block, kernels are configured as RUN/kernels.json says, which is written if it is not there.

    Nothing happens on a device without Triton kernels. `architecture` is asked of the device unless it is given.
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
                f"{path} is damaged or belongs to other kernels than these: the run goes on with the present"
                " configurations, and may differ in its last bits"
            )
    if name not in tables:
        tables = {name: tuning.effective(name)}
        tuning.save(path, tables)
    with tuning.pinned(tables):
        yield
