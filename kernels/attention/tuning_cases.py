"""The candidate configurations of the attention kernels, and the passes that are timed.

Each kernel is timed on sequences of the length that it is for, with dropout where its shape class has it. Dropout takes
registers and instructions, so both classes are tuned apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from fastbert.kernels.attention import launchers, library
from fastbert.kernels.attention.inputs import AttentionInputs
from fastbert.kernels.configs.configuration import Config, shape_class

WIDTHS = (64, 32, 128)
# Of the sequences that a kernel is timed on.
LENGTHS = {
    "forward_heads": 32,
    "forward_short": 128,
    "forward_long": 512,
    "backward_heads": 32,
    "backward_short": 128,
    "backward_medium": 512,
    "backward_queries": 1024,
    "backward_keys": 1024,
}
# Likewise, where the kernels of this project and those of the library are compared.
LIBRARY_LENGTHS = {"128": 128, "512": 512, "any": 1024}
THRESHOLD = 26  # of dropout with p = 0.1


def _configs(constants: dict[str, int], warps: tuple[int, ...], stages: tuple[int, ...] = (1,)) -> list[Config]:
    return [
        Config(constants=constants, num_warps=count, num_stages=depth)
        for count, depth in itertools.product(warps, stages)
    ]


def _tiles(sizes: tuple[tuple[int, int, int], ...], stages: tuple[int, ...], **constants: int) -> list[Config]:
    """Return configurations by queries, keys and warps."""
    return [
        config
        for queries, keys, warps in sizes
        for config in _configs({**constants, "BLOCK_M": queries, "BLOCK_N": keys}, (warps,), stages)
    ]


# 64 registers per thread hold scores of 64 x 128 on four warps, or of 128 x 128 on eight.
_SIZES = ((64, 64, 4), (64, 128, 4), (128, 64, 8), (128, 128, 8))
_THREE_PROGRAMS = Config(constants={"BLOCK_M": 64, "BLOCK_N": 128}, num_warps=4, max_registers=168)
_THREE_PROGRAMS_OF_QUERIES = Config(
    constants={"BLOCK_M": 64, "BLOCK_N": 64}, num_warps=4, num_stages=3, max_registers=168
)
CANDIDATES = {
    "forward_heads": [config for rows in (64, 128) for config in _configs({"BLOCK_ROWS": rows}, (2, 4))],
    "forward_short": _configs({"MAX_SEQLEN": 128}, (4, 8)),
    "forward_long": [*_tiles(_SIZES, (1, 2, 3)), _THREE_PROGRAMS],
    "backward_heads": [config for rows in (64, 128) for config in _configs({"BLOCK_ROWS": rows}, (2, 4))],
    "backward_short": [*_configs({"MAX_SEQLEN": 128}, (4, 8)), *_configs({"MAX_SEQLEN": 64}, (4,))],
    "backward_medium": [
        *_tiles(((64, 64, 4), (128, 64, 8), (128, 128, 8)), (1, 2), MAX_MEDIUM=512),
        Config(constants={"MAX_MEDIUM": 256, "BLOCK_M": 64, "BLOCK_N": 64}, num_warps=4),
        Config(constants={"MAX_MEDIUM": 0, "BLOCK_M": 64, "BLOCK_N": 64}),
    ],
    "backward_queries": [*_tiles(((64, 64, 4), (128, 64, 8), (128, 128, 8)), (1, 2, 3)), _THREE_PROGRAMS_OF_QUERIES],
    "backward_keys": _tiles(((64, 64, 4), (128, 64, 8), (128, 128, 8)), (1, 2, 3)),
}


def candidates(target: str, widths: tuple[int, ...] | None = None) -> list[tuple[str, str, int, list[Config]]]:
    """Return kernel, shape class, head_dim and candidates of what is tuned; `widths` restricts the head dimensions."""
    kernels = [
        (kernel, shape_class(torch.bfloat16, False, width, dropout=dropout), width, configs)
        for width, dropout, (kernel, configs) in itertools.product(widths or WIDTHS, (True, False), CANDIDATES.items())
    ]
    if not target.startswith("sm_"):
        return kernels
    # Last, beside the winners among the kernels of this project.
    return kernels + [
        (
            library.entry(use, length),
            shape_class(torch.bfloat16, False, width),
            width,
            [Config(constants={"LIBRARY": chosen}) for chosen in (library.OWN, library.FLASH)],
        )
        for width, use, length in itertools.product(widths or WIDTHS, library.USES, library.LENGTHS)
    ]


def _inputs(head_dim: int, length: int, dropout: bool, device: torch.device, tokens: int) -> AttentionInputs:
    """Return sequences of one length."""
    generator = torch.Generator(device).manual_seed(head_dim)
    heads = 768 // head_dim
    shape = (max(tokens // length, 1) * length, 3, heads, head_dim)
    q, k, v = torch.randn(shape, dtype=torch.bfloat16, device=device, generator=generator).unbind(1)
    offsets = torch.arange(0, shape[0] + 1, length, dtype=torch.int32, device=device)
    return AttentionInputs(
        q=q,
        k=k,
        v=v,
        cu_seqlens_q=offsets,
        cu_seqlens_k=offsets,
        max_seqlen_q=length,
        max_seqlen_k=length,
        causal=False,
        dropout_key=torch.arange(len(offsets) - 1, device=device) if dropout else None,
        dropout_threshold=THRESHOLD if dropout else 0,
        dropout_scale=256 / (256 - THRESHOLD) if dropout else 1.0,
        dropout_site=1,
        bias=None,
        scale=head_dim**-0.5,
        tf32=False,
    )


def milliseconds(
    kernel: str,
    shape: str,
    width: int,
    device: torch.device,
    tokens: int,
    time: Callable[[Callable[[], object]], float],
) -> float:
    """Return what `time` measures of forward, or of backward, with the present configurations."""
    if kernel.startswith("attention_"):
        _, use, length = kernel.split("_")
        inputs = _inputs(width, LIBRARY_LENGTHS[length], False, device, tokens)
        if use == "inference":
            return time(lambda: launchers.forward(inputs, with_rest=False))
        return time(lambda: _step(inputs))
    inputs = _inputs(width, LENGTHS[kernel], shape.endswith("-dropout"), device, tokens)
    if kernel.startswith("forward"):
        return time(lambda: launchers.forward(inputs))
    out, lse, rest = launchers.forward(inputs)
    grad = torch.randn_like(out)
    return time(lambda: launchers.backward_joined(inputs, out, lse, rest, grad))


def _step(inputs: AttentionInputs) -> torch.Tensor:
    out, lse, rest = launchers.forward(inputs)
    return launchers.backward_joined(inputs, out, lse, rest, out)
