"""Report what a GPU lacks, in one line each: a driver, hardware for bf16, features that Triton needs, free memory."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator

import torch

from fastbert.errors import UserError

# Older GPUs lack the instructions that Triton compiles matmuls and asynchronous copies to.
OLDEST_FOR_TRITON = (8, 0)
_SIZE = r"([\d.]+ [KMGT]iB)"


def problem() -> str:
    """Return why torch cannot use a GPU here, empty if it can."""
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch is a CPU build, without GPU support"
    if torch.cuda.is_available():
        return ""
    try:
        torch.cuda.init()
    except RuntimeError as error:  # names a driver that is too old, or missing
        return next(iter(re.split(r"(?<=[.)]) (?=[A-Z])|\n", str(error).strip())), "torch finds no GPU").rstrip(".")
    return "torch finds no GPU with a working driver"


def has_old_driver(reason: str) -> bool:
    """Return whether `problem` names a driver that an update would mend."""
    return "driver" in reason and "too old" in reason


@functools.cache
def lacks_triton(device: torch.device) -> str:
    """Return why Triton has no kernels for a GPU, empty if it has."""
    if torch.version.hip is not None:
        return ""
    capability = torch.cuda.get_device_capability(device)
    if capability >= OLDEST_FOR_TRITON:
        return ""
    least = ".".join(map(str, OLDEST_FOR_TRITON))
    return f"triton needs compute capability {least}, the GPU has {'.'.join(map(str, capability))}"


def lacks_bf16(device: torch.device) -> bool:
    """Return whether a GPU emulates bf16 matmuls."""
    return device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)


def smaller(name: str, value: int) -> list[str]:
    """Return the cure for a lack of memory by half of a flag's value; none if that is 1."""
    return [f"{name} {value // 2} (now {value})"] if value > 1 else []


def shortage(error: BaseException, cures: list[str]) -> UserError:
    """Return the error for torch.OutOfMemoryError in one line, with flags that need less memory."""
    text = str(error)
    sizes = [
        f"{match[1]} {word}"
        for pattern, word in (
            (rf"Tried to allocate {_SIZE}", "asked for"),
            (rf"of which {_SIZE} is free", "free"),
            (rf"total capacity of {_SIZE}", "in all"),
        )
        if (match := re.search(pattern, text))
    ]
    detail = f" ({', '.join(sizes)})" if sizes else ""
    advice = f"; use {' or '.join(cures)}" if cures else "; use a smaller model or shorter sequences"
    return UserError(f"the GPU is out of memory{detail}{advice}")


@contextlib.contextmanager
def out_of_memory(cures: list[str]) -> Iterator[None]:
    """Raise `shortage` in place of torch.OutOfMemoryError within the block."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise shortage(error, cures) from error
