"""Single operations as contenders: fastbert's beside PyTorch's, forward alone or forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import fastbert
from fastbert import ops
from fastbert.benchmarks.peers import Arrays
from fastbert.training.optimizer import AdamW

SEED = 20
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
EPS = 1e-12
OPTIMIZER: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01, "fused": True}
POSITIONS, SEGMENTS = 128, 2
MOST_ROWS = 4096  # of a tensor that are compared


class Operations:
    """One operation on random data with a fixed seed, in the form of one library."""

    def __init__(self, folder: None, *, dtype: str, threads: int, scratch: Path) -> None:
        torch.set_num_threads(threads)
        self.dtype: torch.dtype = DTYPES[dtype]

    def open(self, arrays: Arrays) -> dict[str, Any]:
        self.random: torch.Generator = torch.Generator().manual_seed(SEED)
        self.lengths: list[int] = arrays["lengths"].tolist()
        self.shape: list[int] = arrays["shape"].tolist()
        self.backward: bool = bool(arrays["backward"])
        name = str(arrays["operation"])
        self.leaves: list[Tensor] = []
        self.call: Callable[[], Tensor] = getattr(self, name.replace("-", "_"))(*self.shape)
        if name == "adamw":
            return {}
        with torch.no_grad(), self.backend():
            result = self.call()
        # A loss has the gradient of a step; for other outputs it is random, as a constant's may vanish.
        self.upstream: Tensor = torch.ones_like(result) if result.dim() == 0 else self.gradient(result)
        for leaf in self.leaves:
            leaf.requires_grad_(self.backward)
        return {}

    def run(self) -> list[Tensor]:
        with self.backend():
            if not self.backward:
                with torch.no_grad():
                    return [self.call()]
            result = self.call()
            return [result.detach(), *torch.autograd.grad(result, self.leaves, self.upstream)]

    def values(self, result: Sequence[Tensor]) -> np.ndarray:
        """Return the rows of the result and of the gradients, each padded with zeros to one width."""
        flat = [self.rows(tensor).float() for tensor in result]
        sampled = [rows[:: -(-len(rows) // MOST_ROWS)] for rows in flat]
        width = max(rows.shape[1] for rows in sampled)
        values: np.ndarray = torch.cat([functional.pad(rows, (0, width - rows.shape[1])) for rows in sampled]).numpy()
        return values

    def backend(self) -> AbstractContextManager[None]:
        """Return a context in which the library computes."""
        return nullcontext()

    def gradient(self, result: Tensor) -> Tensor:
        """Return a random gradient of the result, of its shape and dtype."""
        return self.normal(*result.shape).to(result.dtype)

    def rows(self, tensor: Tensor) -> Tensor:
        """Return a tensor as rows (rows, width)."""
        return tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() else tensor.reshape(1, 1)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Return random numbers, the same for every library and dtype apart from rounding."""
        return torch.randn(shape, generator=self.random).mul_(scale).to(self.dtype)

    def leaf(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Return random numbers that get a gradient: a parameter, of which a prepacked copy is kept."""
        self.leaves.append(nn.Parameter(self.normal(*shape, scale=scale), requires_grad=False))
        return self.leaves[-1]

    def integers(self, high: int, count: int) -> Tensor:
        """Return random int64 (count,) below `high`."""
        return torch.randint(high, (count,), generator=self.random)

    def parameters(self, count: int) -> list[nn.Parameter]:
        """Return parameters with gradients: matrices of a thousand columns, and a rest."""
        sizes = [1024 * 1024] * (count // 1024**2) + [count % 1024**2]
        made = [nn.Parameter(self.normal(size, scale=0.02)) for size in sizes if size]
        for parameter in made:
            parameter.grad = self.normal(len(parameter), scale=1e-4)
        return made


class Fastbert(Operations):
    """fastbert's native operations on packed tokens, also where another backend would be chosen."""

    def backend(self) -> AbstractContextManager[None]:
        return fastbert.use_backend("native")

    def linear(self, tokens: int, width: int, columns: int) -> Callable[[], Tensor]:
        x, weight, bias = self.leaf(tokens, width), self.leaf(columns, width, scale=0.02), self.leaf(columns)
        return lambda: ops.linear(x, weight, bias)

    def attention(self, heads: int, size: int) -> Callable[[], Tensor]:
        q, k, v = (self.leaf(sum(self.lengths), heads, size) for _ in range(3))
        offsets = functional.pad(torch.tensor(self.lengths).cumsum(0), (1, 0)).int()
        longest = max(self.lengths)
        return lambda: ops.attention(q, k, v, offsets, offsets, longest, longest)

    def layer_norm(self, tokens: int, width: int) -> Callable[[], Tensor]:
        x, weight, bias = self.leaf(tokens, width), self.leaf(width), self.leaf(width)
        return lambda: ops.layer_norm(x, weight, bias, EPS)

    def gelu(self, tokens: int, width: int) -> Callable[[], Tensor]:
        x, bias = self.leaf(tokens, width), self.leaf(width)
        return lambda: ops.bias_gelu(x, bias)

    def softmax(self, sequences: int, heads: int, length: int) -> Callable[[], Tensor]:
        scores = self.leaf(sequences, heads, length, length)
        return lambda: ops.softmax(scores, scale=0.125)

    def embedding(self, tokens: int, width: int, vocabulary: int) -> Callable[[], Tensor]:
        ids, tables, weight, bias = self.embedded(tokens, width, vocabulary)
        return lambda: ops.embedding_layer_norm(ids, tables, weight, bias, EPS)

    def embedded(self, tokens: int, width: int, vocabulary: int) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
        """Return token, position and segment ids, their tables, and LayerNorm's weight and bias."""
        ids = [self.integers(vocabulary, tokens), torch.arange(tokens) % POSITIONS, self.integers(SEGMENTS, tokens)]
        tables = [self.leaf(rows, width) for rows in (vocabulary, POSITIONS, SEGMENTS)]
        return ids, tables, self.leaf(width), self.leaf(width)

    def cross_entropy(self, labels: int, width: int, vocabulary: int) -> Callable[[], Tensor]:
        x, weight, bias = self.leaf(labels, width), self.leaf(vocabulary, width, scale=0.02), self.leaf(vocabulary)
        targets = self.integers(vocabulary, labels)
        return lambda: ops.linear_cross_entropy(x, weight, bias, targets).loss_sum

    def adamw(self, count: int) -> Callable[[], Tensor]:
        return self.stepping(AdamW(self.parameters(count), **OPTIMIZER))

    def stepping(self, optimizer: torch.optim.Optimizer) -> Callable[[], Tensor]:
        """Return a step of an optimizer, which returns the first parameter."""

        def step() -> Tensor:
            optimizer.step()
            parameter: Tensor = optimizer.param_groups[0]["params"][0]
            return parameter.detach().view(-1, 1024) if len(parameter) % 1024 == 0 else parameter.detach()[None]

        return step


class Torch(Fastbert):
    """The operations of PyTorch on the same data; attention on padded tensors."""

    def backend(self) -> AbstractContextManager[None]:
        return nullcontext()

    def linear(self, tokens: int, width: int, columns: int) -> Callable[[], Tensor]:
        x, weight, bias = self.leaf(tokens, width), self.leaf(columns, width, scale=0.02), self.leaf(columns)
        return lambda: functional.linear(x, weight, bias)

    def attention(self, heads: int, size: int) -> Callable[[], Tensor]:
        self.real: Tensor = torch.arange(max(self.lengths)) < torch.tensor(self.lengths)[:, None]
        self.leaves: list[Tensor] = [self.padded(heads, size) for _ in range(3)]
        mask = None if bool(self.real.all()) else self.real[:, None, None, :]
        q, k, v = self.leaves
        return lambda: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def padded(self, heads: int, size: int) -> Tensor:
        """Return random numbers (sequences, heads, longest, size), which are zeros behind a sequence."""
        padded = torch.zeros(*self.real.shape, heads, size, dtype=self.dtype)
        padded[self.real] = self.normal(sum(self.lengths), heads, size)
        return padded.transpose(1, 2).contiguous()

    def gradient(self, result: Tensor) -> Tensor:
        return self.padded(*self.shape) if self.lengths else super().gradient(result)

    def rows(self, tensor: Tensor) -> Tensor:
        if self.lengths:
            tensor = tensor.transpose(1, 2)[self.real]
        return super().rows(tensor)

    def layer_norm(self, tokens: int, width: int) -> Callable[[], Tensor]:
        x, weight, bias = self.leaf(tokens, width), self.leaf(width), self.leaf(width)
        return lambda: functional.layer_norm(x, (width,), weight, bias, EPS)

    def gelu(self, tokens: int, width: int) -> Callable[[], Tensor]:
        x, bias = self.leaf(tokens, width), self.leaf(width)
        return lambda: functional.gelu(x + bias)

    def softmax(self, sequences: int, heads: int, length: int) -> Callable[[], Tensor]:
        scores = self.leaf(sequences, heads, length, length)
        return lambda: torch.softmax(scores * 0.125, -1)

    def embedding(self, tokens: int, width: int, vocabulary: int) -> Callable[[], Tensor]:
        ids, tables, weight, bias = self.embedded(tokens, width, vocabulary)

        def call() -> Tensor:
            token, position, segment = map(functional.embedding, ids, tables)
            return functional.layer_norm(token + position + segment, (width,), weight, bias, EPS)

        return call

    def cross_entropy(self, labels: int, width: int, vocabulary: int) -> Callable[[], Tensor]:
        x, weight, bias = self.leaf(labels, width), self.leaf(vocabulary, width, scale=0.02), self.leaf(vocabulary)
        targets = self.integers(vocabulary, labels)
        return lambda: functional.cross_entropy(functional.linear(x, weight, bias).float(), targets, reduction="sum")

    def adamw(self, count: int) -> Callable[[], Tensor]:
        return self.stepping(torch.optim.AdamW(self.parameters(count), **OPTIMIZER))
