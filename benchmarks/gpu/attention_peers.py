"""torch's implementations of attention on fastbert's inputs; and a set of such inputs, packed and padded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fastbert.benchmarks.gpu import moments
from fastbert.ops import reference
from fastbert.packing import pad

CHECKED_HEADS = 2  # compared with float64, of the first and the last sequence
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


class Inputs:
    """Random q, k, v of one batch: packed (tokens, heads, head_dim), and padded (sequences, heads, longest, head_dim)
    as views of (sequences, longest, heads, head_dim), the layout of a model's projections."""

    def __init__(self, lengths: list[int], longest: int, cu_seqlens: Tensor, causal: bool, dropout: float) -> None:
        self.lengths = lengths
        self.longest = longest
        self.cu_seqlens = cu_seqlens
        self.causal = causal
        self.dropout = dropout
        self.q: Tensor
        self.k: Tensor
        self.v: Tensor
        self.gradient: Tensor
        self.key: Tensor | None = None
        self.bias: Tensor | None = None

    @classmethod
    def draw(
        cls,
        device: torch.device,
        lengths: list[int],
        longest: int,
        *,
        heads: int,
        head_dim: int,
        dropout: float,
        causal: bool,
        with_bias: bool,
        seed: int,
    ) -> Inputs:
        """Draw bf16 inputs from a seed."""
        generator = torch.Generator(device).manual_seed(seed)
        cu_seqlens = torch.tensor([0, *lengths], device=device).cumsum(0).int()
        inputs = cls(lengths, longest, cu_seqlens, causal, dropout)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device=device, dtype=torch.bfloat16)

        shape = (sum(lengths), heads, head_dim)
        inputs.q, inputs.k, inputs.v = (normal(*shape).requires_grad_() for _ in range(3))
        inputs.gradient = normal(*shape)
        if dropout:
            inputs.key = torch.randint(0, 2**62, (len(lengths),), generator=generator, device=device)
        if with_bias:
            inputs.bias = normal(heads, longest, longest).requires_grad_()
        return inputs

    @cached_property
    def slots(self) -> Tensor:
        """Return the padded row of each packed token."""
        rows = [torch.arange(length) + i * self.longest for i, length in enumerate(self.lengths)]
        return torch.cat(rows).to(self.cu_seqlens.device)

    @cached_property
    def mask(self) -> Tensor | None:
        """Return the key mask (sequences, 1, 1, longest), True for real keys; None if nothing is padded."""
        if all(length == self.longest for length in self.lengths):
            return None
        columns = torch.arange(self.longest, device=self.cu_seqlens.device)
        return (columns < self.cu_seqlens.diff()[:, None])[:, None, None]

    @cached_property
    def visible(self) -> Tensor | None:
        """Return the mask combined with causality, for matmuls without a causal flag."""
        if not self.causal:
            return self.mask
        return reference.causal_mask(self.longest, self.longest, self.cu_seqlens.device)

    @cached_property
    def exact(self) -> dict[str, Tensor]:
        """Return the results of the checked sequences in float64."""
        return oracle(self, torch.float64)

    @cached_property
    def rounding(self) -> dict[str, float]:
        """Return the largest error of eager torch in the inputs' own dtype, by tensor."""
        results = oracle(self, self.q.dtype)
        return {name: largest(results[name], exact) for name, exact in self.exact.items()}

    @cached_property
    def expected(self) -> dict[str, moments.Moments]:
        """Return the moments over dropout masks of the checked sequences' output and dv, in float64."""
        q, k, v, gradient = (
            self.checked_rows(x.detach(), False).double() for x in (self.q, self.k, self.v, self.gradient)
        )
        lengths = [self.lengths[i] for i in self.checked]
        parts: dict[str, list[moments.Moments]] = {"output": [], "dv": []}
        for q_s, k_s, v_s, g_s in zip(*(x.transpose(0, 1).split(lengths, 1) for x in (q, k, v, gradient)), strict=True):
            probabilities = (q_s @ k_s.transpose(1, 2) / math.sqrt(q.shape[-1])).softmax(-1)
            parts["output"].append(moments.attention(probabilities, v_s, self.dropout))
            parts["dv"].append(moments.attention(probabilities.transpose(1, 2), g_s, self.dropout))
        return {name: moments.joined(each) for name, each in parts.items()}

    def _pad(self, x: Tensor) -> Tensor:
        return pad(x.detach(), self.slots, (len(self.lengths), self.longest)).transpose(1, 2)

    @cached_property
    def padded(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k, v as padded leaves."""
        q, k, v = (self._pad(x).requires_grad_() for x in (self.q, self.k, self.v))
        return q, k, v

    @cached_property
    def padded_gradient(self) -> Tensor:
        """Return the upstream gradient of a padded output; it is zero at padding."""
        return self._pad(self.gradient)

    def leaves(self, padded: bool) -> tuple[Tensor, ...]:
        """Return the tensors whose gradients are computed."""
        tensors = self.padded if padded else (self.q, self.k, self.v)
        return tensors if self.bias is None else (*tensors, self.bias)

    # The sequences that are compared with float64: the first and the last.

    @cached_property
    def checked(self) -> list[int]:
        return sorted({0, len(self.lengths) - 1})

    def rows_of(self, sequence: int) -> slice:
        begin = sum(self.lengths[:sequence])
        return slice(begin, begin + self.lengths[sequence])

    def only_checked(self, padded: bool) -> Tensor:
        """Return the upstream gradient of the checked sequences, zero for others: a bias gets its gradient from them
        alone."""
        gradient = torch.zeros_like(self.gradient)
        for sequence in self.checked:
            rows = self.rows_of(sequence)
            gradient[rows] = self.gradient[rows]
        return self._pad(gradient) if padded else gradient

    def checked_rows(self, x: Tensor, padded: bool) -> Tensor:
        """Return the checked part of a packed or padded tensor: (tokens, CHECKED_HEADS, head_dim)."""
        if padded:
            x = x.transpose(1, 2).flatten(0, 1)[self.slots]
        return torch.cat([x[self.rows_of(sequence)] for sequence in self.checked])[:, :CHECKED_HEADS]


def largest(actual: Tensor, exact: Tensor) -> float:
    """Return the largest absolute difference; NaN if there is one."""
    return float((actual.double() - exact).abs().max())


def oracle(inputs: Inputs, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return output and gradients of the checked sequences from the oracle, computed in `dtype`."""
    q, k, v = (
        inputs.checked_rows(x.detach(), False).to(dtype).requires_grad_() for x in (inputs.q, inputs.k, inputs.v)
    )
    bias = None
    if inputs.bias is not None:
        bias = inputs.bias.detach()[:CHECKED_HEADS].to(dtype).requires_grad_()
    cu_seqlens = torch.tensor([0, *(inputs.lengths[i] for i in inputs.checked)]).cumsum(0)
    out = reference.attention(
        q,
        k,
        v,
        cu_seqlens,
        cu_seqlens,
        causal=inputs.causal,
        dropout_p=inputs.dropout,
        dropout_key=None if inputs.key is None else inputs.key[inputs.checked],
        bias=bias,
    )
    gradient = inputs.checked_rows(inputs.gradient, False).to(out.dtype)
    leaves = [q, k, v] if bias is None else [q, k, v, bias]
    gradients = torch.autograd.grad(out, leaves, gradient)
    return dict(zip(("output", "dq", "dk", "dv", "dbias"), (out.detach(), *gradients)))


@dataclass(frozen=True)
class Peer:
    """An implementation of attention, on padded or packed tensors."""

    call: Callable[[Inputs], Tensor]
    padded: bool = True
    compares: bool = True
    """True if its result without dropout is compared."""


def eager_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, dropout: float
) -> Tensor:
    """Compute attention from explicit matmuls and softmax, without fused kernels."""
    scores = (q @ k.transpose(-1, -2)) * (1 / math.sqrt(q.shape[-1]))
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    probabilities = scores.softmax(-1)
    if dropout:
        probabilities = F.dropout(probabilities, dropout)
    return probabilities @ v


def eager(inputs: Inputs) -> Tensor:
    return eager_attention(*inputs.padded, inputs.visible, inputs.bias, inputs.dropout)


def compiled() -> Peer:
    """Compile the eager form for each shape; backward keeps its buffers, since it runs many times."""
    from torch._functorch import config

    config.donated_buffer = False
    function = torch.compile(eager_attention, dynamic=False)

    def call(inputs: Inputs) -> Tensor:
        return function(*inputs.padded, inputs.visible, inputs.bias, inputs.dropout)  # type: ignore[no-any-return]

    return Peer(call)


def _sdpa(backend: SDPBackend, with_dropout: bool, inputs: Inputs) -> Tensor:
    mask = inputs.mask
    if inputs.bias is not None:
        mask = inputs.bias.expand(len(inputs.lengths), *inputs.bias.shape)
    dropout = inputs.dropout if with_dropout else 0.0
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(
            *inputs.padded, attn_mask=mask, dropout_p=dropout, is_causal=inputs.causal
        )


def sdpa(name: str, *, dropout: bool = True) -> Peer:
    """Return scaled_dot_product_attention by one of its implementations, on padded tensors."""
    return Peer(partial(_sdpa, BACKENDS[name], dropout), compares=dropout)


def dense(*, bias: bool = False) -> dict[str, Peer]:
    """Return the peers on padded tensors. Only one implementation of torch's supports the gradient of a bias."""
    names = ("efficient",) if bias else tuple(BACKENDS)
    return {"eager": Peer(eager), **{f"sdpa {name}": sdpa(name) for name in names}}


def _nested(backend: SDPBackend, inputs: Inputs) -> Tensor:
    shortest, offsets = min(inputs.lengths), inputs.cu_seqlens.long()
    q, k, v = (
        torch.nested.nested_tensor_from_jagged(x, offsets, min_seqlen=shortest, max_seqlen=inputs.longest).transpose(
            1, 2
        )
        for x in (inputs.q, inputs.k, inputs.v)
    )
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=inputs.dropout, is_causal=inputs.causal)
    packed: Tensor = out.transpose(1, 2).values()
    return packed


def _varlen(inputs: Inputs) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    _refuse(inputs, "torch's varlen_attn")
    offsets, longest = inputs.cu_seqlens, inputs.longest
    out = varlen_attn(inputs.q, inputs.k, inputs.v, offsets, offsets, longest, longest)
    assert isinstance(out, Tensor)
    return out


def _refuse(inputs: Inputs, name: str, dropout: bool = True) -> None:
    if inputs.bias is not None or (dropout and inputs.dropout):
        raise NotImplementedError(f"{name} supports no {'bias' if inputs.bias is not None else 'dropout'}")
    if dropout and inputs.causal:
        raise NotImplementedError(f"{name} is measured without causal masks")


def _flash(inputs: Inputs) -> Tensor:
    """Call flash-attn 2 (`flash_attn_varlen_func`), where it is installed."""
    from flash_attn import flash_attn_varlen_func

    _refuse(inputs, "flash-attn", dropout=False)
    offsets, longest = inputs.cu_seqlens, inputs.longest
    out: Tensor = flash_attn_varlen_func(
        inputs.q, inputs.k, inputs.v, offsets, offsets, longest, longest, dropout_p=inputs.dropout, causal=inputs.causal
    )
    return out


def _flash3(inputs: Inputs) -> Tensor:
    """Call FlashAttention 3 (`flash_attn_interface`), where it is installed; it has no dropout."""
    from flash_attn_interface import flash_attn_varlen_func

    _refuse(inputs, "FlashAttention 3")
    offsets, longest = inputs.cu_seqlens, inputs.longest
    out = flash_attn_varlen_func(inputs.q, inputs.k, inputs.v, offsets, offsets, longest, longest)
    # Some versions also return the logarithm of the sums.
    result: Tensor = out[0] if isinstance(out, tuple) else out
    return result


def packed(padding: bool) -> dict[str, Peer]:
    """Return the peers on packed tokens; torch's nested tensors only where `padding` would be computed otherwise."""
    peers = {"varlen": _varlen, "flash-attn": _flash, "flash-attn 3": _flash3}
    if padding:
        peers |= {f"nested {name}": partial(_nested, backend) for name, backend in BACKENDS.items()}
    return {name: Peer(call, padded=False) for name, call in peers.items()}
