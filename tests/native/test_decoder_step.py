"""The C++ step of generation: every kernel against composed layers in float64, the bits of a row in any batch, memory
beyond the visible slots, wrong arguments; the most probable tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import cpu_kernels
import pytest
import torch
from accuracy import assert_as_accurate
from fences import Fenced
from matmuls import BF16, FP32, drawn, same_bits
from torch import Tensor
from torch.nn import functional as F

import fastbert
from fastbert import _C
from fastbert.ops.native.best_tokens import best_tokens
from fastbert.ops.native.buffers import DTYPES
from fastbert.ops.native.matmul import matmul, prepack

EPS = 1e-5
ROWS = (1, 2, 17)


@pytest.fixture(params=cpu_kernels.KERNELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every kernel, in software where this processor lacks it."""
    with cpu_kernels.running(request.param):
        yield request.param


@dataclass(frozen=True)
class Problem:
    """A stack, its caches with NaN in every slot that is not visible, and new tokens."""

    heads: int
    pre_norm: bool
    weights: list[list[Tensor]]
    vectors: list[list[Tensor]]
    final: tuple[Tensor, Tensor] | None
    keys: list[Tensor]
    values: list[Tensor]
    starts: Tensor
    slot: int
    x: Tensor

    @property
    def activation(self) -> str:
        return "tanh" if self.pre_norm else "none"

    def rows(self, first: int, last: int) -> Problem:
        """The same stack with some of the rows, in memory of their own."""
        caches = {name: [cache[first:last].clone() for cache in getattr(self, name)] for name in ("keys", "values")}
        return replace(self, **caches, starts=self.starts[first:last].clone(), x=self.x[first:last].clone())


def problem(seed: int, width: int, heads: int, inner: int, pre_norm: bool, dtype: torch.dtype, slot: int) -> Problem:
    generator = torch.Generator().manual_seed(seed + width + inner)
    layers, rows, slots = 2, max(ROWS), slot + 9

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(dtype)

    shapes = ((3 * width, width), (width, width), (inner, width), (width, inner))
    weights = [[normal(*shape, scale=shape[1] ** -0.5) for shape in shapes] for _ in range(layers)]
    sizes = [width] * 6 + [inner] + [width] * 3
    vectors = [
        [normal(size, scale=0.2) + (1.0 if index in (4, 8) else 0.0) for index, size in enumerate(sizes)]
        for _ in range(layers)
    ]
    starts = torch.randint(0, slot + 1, (rows,), generator=generator)
    starts[0], starts[-1] = 0, slot
    caches = [normal(rows, slots, heads, width // heads) for _ in range(2 * layers)]
    for cache in caches:
        cache[:, slot:] = math.nan
        for row, start in enumerate(starts.tolist()):
            cache[row, :start] = math.nan
    final = (normal(width), normal(width)) if pre_norm else None
    x = normal(rows, width)
    return Problem(heads, pre_norm, weights, vectors, final, caches[:layers], caches[layers:], starts, slot, x)


def quantised(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return matmul(x, prepack(weight, "int8"), bias)


def composed(
    given: Problem, dtype: torch.dtype, linear: Callable[[Tensor, Tensor, Tensor], Tensor] = F.linear
) -> tuple[Tensor, list[Tensor]]:
    """The step by PyTorch's operations in `dtype`, and each layer's new keys."""
    x, heads, new_keys = given.x.to(dtype), given.heads, []
    width = x.shape[1]
    for index, tensors in enumerate(given.weights):
        joined, mixed, widened, narrowed = (weight.to(dtype) for weight in tensors)
        vectors = [vector.to(dtype) for vector in given.vectors[index]]

        def norm(x: Tensor, at: int, vectors: list[Tensor] = vectors) -> Tensor:
            return F.layer_norm(x, (width,), vectors[at], vectors[at + 1], EPS)

        q, k, v = linear(norm(x, 4) if given.pre_norm else x, joined, torch.cat(vectors[:3])).chunk(3, 1)
        attended = []
        for row, start in enumerate(given.starts.tolist()):
            past = [cache[index][row, start : given.slot].to(dtype) for cache in (given.keys, given.values)]
            keys, values = (
                torch.cat((old.flatten(1), new[row : row + 1])).unflatten(1, (heads, -1)).transpose(0, 1)
                for old, new in zip(past, (k, v), strict=True)
            )
            scores = q[row].view(heads, 1, -1) @ keys.transpose(1, 2) / math.sqrt(width // heads)
            attended.append((scores.softmax(-1) @ values).flatten())
        new_keys.append(k)
        x = x + linear(torch.stack(attended), mixed, vectors[3])
        x = x if given.pre_norm else norm(x, 4)
        inner = linear(norm(x, 8) if given.pre_norm else x, widened, vectors[6])
        x = x + linear(F.gelu(inner, approximate=given.activation), narrowed, vectors[7])
        x = x if given.pre_norm else norm(x, 8)
    if given.final is not None:
        x = F.layer_norm(x, (width,), *(vector.to(dtype) for vector in given.final), EPS)
    return x, new_keys


def vector(tensor: Tensor) -> tuple[int, int, str]:
    return tensor.data_ptr(), tensor.numel(), DTYPES[tensor.dtype]


def stack(given: Problem, element: str, **changes: Any) -> _C.DecoderStack:
    layers = [
        (tuple(prepack(weight, element) for weight in weights), [vector(tensor) for tensor in vectors], (EPS, EPS))
        for weights, vectors in zip(given.weights, given.vectors, strict=True)
    ]
    final = None if given.final is None else (vector(given.final[0]), vector(given.final[1]), EPS)
    arguments: dict[str, Any] = {"layers": layers, "heads": given.heads, "pre_norm": given.pre_norm}
    arguments |= {"tanh": given.activation == "tanh", "final_norm": final}
    return _C.DecoderStack(**(arguments | changes))


def step(native: _C.DecoderStack, given: Problem, **changes: Any) -> Tensor:
    """Compute the step in memory that is fenced off, and write to the problem's caches."""
    x, starts = Fenced(given.x), Fenced(given.starts)
    y = Fenced(torch.full_like(given.x, math.nan))
    arguments: dict[str, Any] = {
        "x": (x.address, DTYPES[given.x.dtype], given.x.shape[1]),
        "rows": len(given.x),
        "keys": [cache.data_ptr() for cache in given.keys],
        "values": [cache.data_ptr() for cache in given.values],
        "slots": given.keys[0].shape[1],
        "slot": given.slot,
        "starts": starts.address,
        "y": y.address,
    }
    native.step(**(arguments | changes))
    return y.tensor.clone()


CASES = {
    "one-head-of-64": (64, 1, 256, True, 70),
    "heads-of-32": (128, 4, 512, False, 5),
    "odd-inner-width": (96, 1, 101, True, 130),
    "narrow-heads": (60, 4, 90, False, 63),
    "first-token": (36, 1, 40, True, 0),
    "heads-of-64": (192, 3, 384, False, 64),
}


@pytest.mark.parametrize("element", ["fp32", "bf16", "int8"])
def test_steps_are_as_accurate_as_composed_layers(level, element, seed):
    dtype = BF16 if element == "bf16" else FP32
    for name, sizes in CASES.items():
        given = problem(seed, *sizes[:4], dtype, sizes[4])
        multiply = quantised if element == "int8" else F.linear
        exact, exact_keys = composed(given, torch.float64)
        eager, eager_keys = composed(given, dtype, multiply)
        before = [cache.clone() for cache in given.keys + given.values]
        result = step(stack(given, element), given)
        assert_as_accurate(result, eager, exact, name)
        for index, keys in enumerate(given.keys):
            written = keys[:, given.slot].flatten(1)
            assert_as_accurate(written, eager_keys[index], exact_keys[index], f"{name}, keys of layer {index}")
        for old, new in zip(before, given.keys + given.values, strict=True):
            assert new[:, given.slot].isfinite().all(), name
            old[:, given.slot] = new[:, given.slot]
            assert same_bits(old, new), f"{name}: wrote to another slot"


@pytest.mark.parametrize("element", ["fp32", "bf16", "int8"])
def test_a_rows_bits_depend_on_it_alone(level, element, seed, threads):
    # Wide enough that matmuls and attention are divided among threads.
    dtype = BF16 if element == "bf16" else FP32
    sizes = (256, 4, 1100, True, 300) if cpu_kernels.in_hardware(level) else (64, 2, 96, True, 70)
    given = problem(seed, *sizes[:4], dtype, sizes[4])
    results = {}
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        native = stack(given, element)
        results[count] = step(native, given.rows(0, 17))
        assert same_bits(results[count], results[1]), count
        for first, last in ((0, 1), (16, 17), (5, 7)):
            assert same_bits(step(native, given.rows(first, last)), results[1][first:last]), (count, first)


def test_wrong_arguments_are_errors(seed):
    given = problem(seed, 64, 2, 96, True, FP32, 7)
    other = problem(seed, 96, 2, 96, True, FP32, 7)
    layers = [
        (tuple(prepack(weight, "fp32") for weight in weights), [vector(tensor) for tensor in vectors], (EPS, EPS))
        for weights, vectors in zip(given.weights + other.weights, given.vectors + other.vectors, strict=True)
    ]
    packed, vectors, eps = layers[0]
    int8 = tuple(prepack(weight, "int8") for weight in given.weights[0])
    for changes, message in (
        ({"layers": []}, "at least one layer"),
        ({"layers": [layers[0], layers[2]]}, "one width and one element type"),
        ({"layers": [layers[0], (int8, vectors, eps)]}, "one width and one element type"),
        ({"layers": [(packed[:3], vectors, eps)]}, "a layer has four weights"),
        ({"layers": [((*packed[:3], None), vectors, eps)]}, "PrepackedWeights"),
        ({"layers": [(packed[::-1], vectors, eps)]}, "weight 0 of the layer is"),
        ({"layers": [(packed, vectors[:9], eps)]}, "a layer has ten vectors"),
        ({"layers": [(packed, [*vectors[:9], vectors[6]], eps)]}, "vector 9 of the layer has 96 elements"),
        ({"layers": [(packed, [(0, 64, "fp32"), *vectors[1:]], eps)]}, "memory of one of the layer's vectors"),
        ({"layers": [(packed, [(vectors[0][0], 64, "fp16"), *vectors[1:]], eps)]}, "dtype 'fp16'"),
        ({"heads": 0}, "cannot have 0 heads"),
        ({"heads": 3}, "cannot have 3 heads"),
        ({"final_norm": (vectors[6], vectors[6], EPS)}, "final norm must have weight and bias of 64"),
    ):
        with pytest.raises(ValueError, match=message):
            stack(given, "fp32", **changes)
    native = stack(given, "fp32")
    assert native.width == 64
    caches, negative = [cache.data_ptr() for cache in given.keys], torch.full((17,), -1)
    for changes, message in (
        ({"keys": caches[:1]}, "one cache for each of the 2 layers"),
        ({"values": [*caches, caches[0]]}, "one cache for each of the 2 layers"),
        ({"values": [caches[0], 0]}, "memory was given back"),
        ({"slot": 16}, "slot 16 is outside of the 16 slots"),
        ({"slot": 5}, "starts holds [67]: it must be from 0 to slot 5"),
        ({"x": (given.x.data_ptr(), "fp32", 63)}, "x has rows that overlap"),
        ({"x": (given.x.data_ptr(), "fp64", 64)}, "dtype 'fp64'"),
        ({"x": (0, "fp32", 64)}, "memory was given back"),
        ({"y": 0}, "memory was given back"),
        ({"starts": 0}, "memory was given back"),
        ({"rows": 2**60}, "larger than the memory"),
        ({"slots": 2**62}, "larger than the memory"),
        ({"starts": negative.data_ptr()}, "starts holds -1"),
    ):
        with pytest.raises(ValueError, match=message):
            step(native, given, **changes)
    assert step(native, given, rows=0).isnan().all()


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_the_most_probable_tokens_are_those_of_torch(level, dtype, seed, threads):
    for width in (1, 5, 31, 4096, 4097, 70001):
        logits = drawn(seed, 5, width, dtype=dtype, scale=3.0)
        logits[1] = 2.0  # ties: the first
        logits[2, width // 2 :] = -math.inf
        logits[2, 0] = 1.0
        logits[3, : width - 1] = -math.inf
        fenced = Fenced(logits).tensor
        exact = logits.double().log_softmax(-1).amax(-1)
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            tokens, logs = best_tokens(fenced)
            assert torch.equal(tokens, logits.float().argmax(-1)), width
            assert_as_accurate(logs, logits.float().log_softmax(-1).amax(-1), exact, f"{width} tokens")
            results.append(logs)
        assert same_bits(*results)
        alone = best_tokens(logits[4:].clone())
        assert same_bits(alone[1], results[0][4:])
    wide = drawn(seed, 4, 100, dtype=dtype)
    wide[1, 70], wide[2, 3], wide[2, 9] = math.nan, math.nan, math.inf
    wide[3] = -math.inf
    tokens, logs = best_tokens(wide[:, ::1])
    assert torch.equal(tokens, wide.float().argmax(-1))
    assert logs.isnan().tolist() == [False, True, True, True]
    with fastbert.use_backend("eager"):
        assert torch.equal(best_tokens(wide)[0], tokens)
    strided = torch.full((4, 150), math.nan, dtype=dtype)
    strided[:, :100] = wide
    assert torch.equal(best_tokens(strided[:, :100])[0], tokens)
    assert best_tokens(wide[:0])[0].shape == (0,)


def test_wrong_logits_are_errors():
    for arguments, message in (
        (((8, "fp32", 3), 2, 4, 8, 8), "logits have rows that overlap"),
        (((8, "fp32", 4), 2, 0, 8, 8), "logits have no columns"),
        (((0, "fp32", 4), 2, 4, 8, 8), "memory was given back"),
        (((8, "fp16", 4), 2, 4, 8, 8), "dtype 'fp16'"),
        (((8, "fp32", 2**60), 2**10, 4, 8, 8), "larger than the memory"),
    ):
        with pytest.raises(ValueError, match=message):
            _C.best_tokens(*arguments)
