"""The candidate configurations of the attention kernels on long sequences, and the passes that are timed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch

from fastbert.kernels.attention import launchers
from fastbert.kernels.configs.configuration import Config, shape_class

WIDTHS = (64, 32, 128)


def _tiles(queries: tuple[int, ...], keys: tuple[int, ...], stages: tuple[int, ...]) -> list[Config]:
    return [
        Config(constants={"BLOCK_M": q, "BLOCK_N": k}, num_warps=warps, num_stages=depth)
        for q, k, warps, depth in itertools.product(queries, keys, (4, 8), stages)
        # Fewer than 1,024 scores per warp are too little work, more than 4,096 do not fit into its registers.
        if 1024 <= q * k // warps <= 4096
    ]


CANDIDATES = {
    "forward_long": _tiles((64, 128), (64, 128), (2, 3)),
    "backward_queries": _tiles((64, 128), (32, 64, 128), (1, 2)),
    "backward_keys": _tiles((32, 64), (64, 128), (1, 2)),
}


def candidates(target: str, widths: tuple[int, ...] | None = None) -> list[tuple[str, str, int, list[Config]]]:
    """Return kernel, shape class, head_dim and candidates of what is tuned; `widths` restricts the head dimensions."""
    return [
        (kernel, shape_class(torch.bfloat16, False, width), width, CANDIDATES[kernel])
        for width, kernel in itertools.product(widths or WIDTHS, CANDIDATES)
    ]


def _inputs(head_dim: int, device: torch.device, tokens: int) -> Iterator[launchers.AttentionInputs]:
    """Yield sequences of 512 tokens, without and with dropout, as in inference and in training."""
    generator = torch.Generator(device).manual_seed(head_dim)
    heads = 1024 // head_dim
    q, k, v = (
        torch.randn(tokens, heads, head_dim, dtype=torch.bfloat16, device=device, generator=generator) for _ in range(3)
    )
    offsets = torch.arange(0, tokens + 1, 512, dtype=torch.int32, device=device)
    for dropout in (False, True):
        yield launchers.AttentionInputs(
            q=q,
            k=k,
            v=v,
            cu_seqlens_q=offsets,
            cu_seqlens_k=offsets,
            max_seqlen_q=512,
            max_seqlen_k=512,
            causal=False,
            dropout_key=torch.arange(len(offsets) - 1, device=device) if dropout else None,
            dropout_threshold=6554 if dropout else 0,
            dropout_scale=65536 / (65536 - 6554) if dropout else 1.0,
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
    total = 0.0
    for inputs in _inputs(width, device, tokens):
        if kernel.startswith("forward"):
            total += time(lambda inputs=inputs: launchers.forward(inputs))  # type: ignore[misc]
        else:
            out, lse = launchers.forward(inputs)
            grad = torch.randn_like(out)
            total += time(
                lambda inputs=inputs, out=out, lse=lse, grad=grad: launchers.backward(  # type: ignore[misc]
                    inputs, out, lse, grad, False
                )
            )
    return total
