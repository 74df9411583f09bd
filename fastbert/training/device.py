"""The device of a run, the dtype of its matmuls, and its kernel configurations.

Configurations are recorded at the start of a run and used again on --resume, for equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fastbert import cpu_capability
from fastbert.errors import UserError
from fastbert.ops import dispatch, gpu
from fastbert.ops.dispatch import HAS_TRITON, fastest_dtype

KERNEL_TABLE = "kernels.json"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def choose_device(device: str, dtype: str, on_message: Callable[[str], None]) -> tuple[torch.device, torch.dtype]:
    """Return the device (auto, cpu or cuda) and the dtype of matmuls (auto or one of `DTYPES`); `auto` selects
    the fastest. Both are reported."""
    name = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    problem = "" if name == "cuda" and torch.cuda.is_available() else gpu.problem()
    if name == "cuda" and problem:
        cure = "update the driver" if gpu.has_old_driver(problem) else "install a CUDA build of torch"
        raise UserError(f"--device cuda: {problem}; use --device cpu, or {cure}")
    if device == "auto" and gpu.has_old_driver(problem):
        on_message(f"the GPU is not used: {problem}")
    selected = torch.device(name)
    if dtype == "auto":
        chosen, reason = fastest_dtype(selected, training=True)
    else:
        chosen, reason = DTYPES[dtype], "as asked"
    if chosen == torch.float16 and selected.type == "cpu":
        raise UserError("--dtype fp16 needs a GPU; on a CPU use bf16 or fp32")
    threads = "thread" if torch.get_num_threads() == 1 else "threads"
    where = torch.cuda.get_device_name(selected) if name == "cuda" else f"CPU, {torch.get_num_threads()} {threads}"
    short = next(key for key, value in DTYPES.items() if value == chosen)
    on_message(f"training on {where} in {short} ({reason})")
    if chosen == torch.bfloat16 and gpu.lacks_bf16(selected):
        on_message("this GPU emulates bf16 matmuls: --dtype fp16 is faster")
    return selected, chosen


def described_kernels(device: torch.device) -> str:
    """Return in one line which kernels compute on a CPU."""
    if not any(choice.backend == "native" for choice in dispatch.report(device)):
        return "kernels: PyTorch"
    return f"kernels: native ({cpu_capability.current()}), PyTorch for unsupported operations"


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


@contextmanager
def kernels_of_run(
    folder: Path,
    device: torch.device,
    on_message: Callable[[str], None],
    *,
    architecture: str | None = None,
    writes: bool = True,
) -> Iterator[None]:
    """Use the kernel configurations of RUN/kernels.json within the block; if it is missing, those of the device, which
    are written to it unless `writes` is off.

    No effect on a device without Triton kernels. `architecture` defaults to the device's.
    """
    if architecture is None and (device.type != "cuda" or not HAS_TRITON):
        yield
        return
    from fastbert.kernels import launch
    from fastbert.kernels.tuning import tables as tuning

    name = architecture or launch.architecture(device)
    path = folder / KERNEL_TABLE
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
        if writes:
            tuning.save(path, tables)
    with tuning.pinned(tables):
        yield
