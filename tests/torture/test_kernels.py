"""Kernels against float64, in random cases of every operation, dtype, backend and CPU capability (row 14), inside
memory that ends at pages that nothing may touch (row 16); `test_kernel_stability` holds row 15."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cpu_kernels
import pytest
import torch
from fences import Fenced
from torch import Tensor
from torture.campaign import Campaign
from torture.children import in_child
from torture.kernel_draws import Draw, FencedDraw
from torture.kernel_operations import OPERATIONS, Case, Leaves, as_leaf
from torture.kernel_verdicts import judge
from torture.ledger import Figures, merged
from torture.scorecard import scored

from fastbert import ops, use_backend
from fastbert.errors import UserError
from fastbert.ops import dispatch
from fastbert.ops.native import caching_allocator
from fastbert.ops.operation import operations

# One case in so many runs a Triton kernel in the interpreter, which is slow; where there is a GPU, the tests that are
# marked `gpu` run them.
TRITON_SHARE = 25
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture
def one_thread(threads: None) -> None:
    """Cases are small: threads would wait for each other."""
    torch.set_num_threads(1)


def test_every_operation_has_cases() -> None:
    assert OPERATIONS.keys() >= operations().keys()


@contextmanager
def backend_of(number: int, name: str, draw: Draw) -> Iterator[tuple[str, torch.dtype]]:
    """The backend of a case, its dtype and the CPU capability, which is forced meanwhile."""
    interpreted = dispatch.HAS_TRITON and not torch.cuda.is_available() and name != "matmul"
    if interpreted and number // len(OPERATIONS) % TRITON_SHARE == TRITON_SHARE - 1:
        yield "triton", draw.random.choice((*DTYPES, torch.float16))
        return
    with cpu_kernels.running(cpu_kernels.HERE[number // len(OPERATIONS) % len(cpu_kernels.HERE)]):
        yield "native", draw.random.choice(DTYPES)


def results_of(case: Case, tensors: Leaves, function: str, wanted: list[str]) -> Leaves:
    """Return results and gradients by name: of `function`, which is a backend, or "exact".

    `tensors` are the case's leaves and the upstream gradients, "upstream 0" and so on.
    """
    leaves = {name: as_leaf(name, tensors[name], case, name in wanted) for name in case.leaves}
    if function == "exact":
        results = case.oracle(leaves)
    elif function == "eager" and case.eager is not None:
        results = case.eager(leaves)
    else:
        results = _called(case, leaves, function)
    named = {f"result {i}": x.detach() for i, x in enumerate(results)}
    if wanted:
        inputs = [leaves[name] for name in wanted]
        reached = [(x, tensors[f"upstream {i}"].to(x.dtype)) for i, x in enumerate(results) if x.requires_grad]
        found = torch.autograd.grad([x for x, _ in reached], inputs, [g for _, g in reached], allow_unused=True)
        for name, x, gradient in zip(wanted, inputs, found, strict=True):
            named[f"gradient of {name}"] = torch.zeros_like(x) if gradient is None else gradient
    return named


def _called(case: Case, tensors: Leaves, backend: str) -> tuple[Tensor, ...]:
    """Call an operation on a backend, or as a user's call is computed that the backend does not support."""
    try:
        with use_backend(backend):
            return case.call(tensors)
    except UserError as error:
        if "does not support" not in str(error):
            raise
    return case.call(tensors)


def fuzz(number: int) -> Figures:
    """Draw, compute and judge one case."""
    draw = Draw(number)
    name = list(OPERATIONS)[number % len(OPERATIONS)]
    with backend_of(number, name, draw) as (backend, dtype):
        case = OPERATIONS[name](draw, dtype)
        wanted = [leaf for leaf in case.leaves if draw.chance(0.85)] if case.trains and draw.chance(0.8) else []
        shapes = [x.shape for x in case.oracle({key: x.double() for key, x in case.leaves.items()})]
        upstream = {f"upstream {i}": draw.normal(*shape, dtype=dtype) for i, shape in enumerate(shapes)}
        tensors = case.leaves | (upstream if wanted else {})

        def terms() -> dict[str, float]:
            wide = {key: x.double() for key, x in case.leaves.items()}
            if case.terms is None:
                return {}
            return case.terms(wide, [x.double() for x in upstream.values()] if wanted else [])

        shown = ", ".join(f"{key} {tuple(x.shape)}" for key, x in case.leaves.items())
        figures = judge(
            results_of(case, tensors, backend, wanted),
            tensors,
            lambda moved: results_of(case, moved, "eager", wanted),
            lambda moved: results_of(case, moved, "exact", wanted),
            draw.generator,
            f"case {number}, {name} on {backend} in {dtype} ({draw.magnitude}; {shown}; {case.options})",
            terms,
        )
    return {**figures, "with_gradients": bool(wanted), f"on_{backend}": 1}


@scored(
    row=14,
    unit="random cases of all operations",
    short=300,
    full=50_000,
    chunk=1000,
    goal="errors within twice eager PyTorch's, or shown to be ill-conditioned",
)
@pytest.mark.usefixtures("one_thread")
def test_kernel_fuzz(campaign: Campaign) -> None:
    """Results and gradients of every operation are as accurate as eager PyTorch's, beside float64."""
    campaign.run(lambda numbers: merged(map(fuzz, numbers)))


def _fenced_empty(*shape: Any, dtype: torch.dtype | None = None, device: Any = None, **options: Any) -> Tensor:
    """`torch.empty` whose tensors are filled with NaN, or the largest integer, and end at a page of no access."""
    del device, options
    sizes = shape[0] if shape and not isinstance(shape[0], int) else shape
    dtype = torch.get_default_dtype() if dtype is None else dtype
    count = math.prod(sizes)
    filler = math.nan if dtype.is_floating_point else torch.iinfo(dtype).max if dtype != torch.bool else True
    return (
        Fenced(torch.zeros(count, dtype=dtype).fill_(filler)).tensor.view(tuple(sizes))
        if count
        else _empty(tuple(sizes), dtype=dtype)
    )


_empty = torch.empty


@contextmanager
def fenced_results() -> Iterator[None]:
    """Let the native backend allocate its results between fences, whatever their size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caching_allocator, "SMALL_BYTES", 1 << 60)
        patch.setattr(torch, "empty", _fenced_empty)
        yield


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal; NaN are, whatever their bits."""
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def fenced(number: int) -> Figures:
    """Compute one case in ordinary memory and inside fences."""
    name = list(OPERATIONS)[number % len(OPERATIONS)]
    results = []
    for kind in (Draw, FencedDraw):
        draw = kind(number, "fences")
        with backend_of(number, name, draw) as (backend, dtype):
            case = OPERATIONS[name](draw, dtype)
            wanted = [leaf for leaf in case.leaves if draw.chance(0.85)] if case.trains and draw.chance(0.8) else []
            shapes = [x.shape for x in results_of(case, case.leaves, backend, []).values()]
            upstream = {f"upstream {i}": draw.normal(*shape, dtype=dtype) for i, shape in enumerate(shapes)}
            if kind is FencedDraw and backend == "native":
                with fenced_results():
                    results.append(results_of(case, case.leaves | upstream, backend, wanted))
            else:
                results.append(results_of(case, case.leaves | upstream, backend, wanted))
    plain, inside = results
    for key, x in plain.items():
        assert same_bits(x, inside[key]), f"case {number}, {name} on {backend}: {key} has other bits inside fences"
    return {"tensors": len(plain), f"on_{backend}": 1}


@scored(
    row=16,
    unit="calls inside fences",
    short=150,
    full=20_000,
    chunk=1000,
    goal="nothing outside an argument is touched, no argument written",
)
@pytest.mark.usefixtures("one_thread")
def test_fenced_kernels(campaign: Campaign) -> None:
    """Arguments lie in read-only memory that ends at forbidden pages, results in NaN before such pages: no call ends
    the process, and all bits are those of ordinary memory."""
    campaign.run(lambda numbers: in_child(fenced, numbers))


def _far_rows(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Return zeros (rows, width) whose rows are more than 2^31 elements apart, in memory that is only reserved."""
    stride = (1 << 31) + 3
    size = ((rows - 1) * stride + width) * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
    return torch.frombuffer(memory, dtype=dtype).as_strided((rows, width), (stride, 1))


def _of_attention(x: Tensor, weight: Tensor) -> Tensor:
    heads, ends = x.unflatten(1, (2, -1)), torch.tensor([0, 1, len(x)]).int()
    return ops.attention(heads, heads, heads, ends, ends, len(x), len(x)).flatten(1)


FAR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "attention": _of_attention,
    "bias_gelu": lambda x, w: ops.bias_gelu(x, w[0]),
    "dropout_add_layer_norm": lambda x, w: ops.dropout_add_layer_norm(x, x, w[0], w[1], x_bias=w[2]),
    "gated_activation": lambda x, w: ops.gated_activation(x, w[0], "silu"),
    "gelu_layer_norm": lambda x, w: ops.gelu_layer_norm(x, w[0], w[1], w[2]),
    "layer_norm": lambda x, w: ops.layer_norm(x, w[0], w[1]),
    "linear": lambda x, w: ops.linear(x, w),
    "rms_norm": lambda x, w: ops.rms_norm(x, w[0]),
    "softmax": lambda x, w: ops.softmax(x[None, None]) + w[0],
}


def far_apart(number: int) -> Figures:
    """Compute a call of rows more than 2^31 elements apart, and of the same rows side by side."""
    name = list(FAR)[number % len(FAR)]
    dtype, rows = DTYPES[number // len(FAR) % 2], 2 + number % 2
    draw = Draw(number, "far")
    with cpu_kernels.running(cpu_kernels.HERE[number // (2 * len(FAR)) % len(cpu_kernels.HERE)]):
        near, weight = draw.normal(rows, 64, dtype=dtype), draw.normal(64, 64, dtype=dtype)
        far = _far_rows(rows, 64, dtype).copy_(near)
        for trains in (False, True):
            outcomes = []
            for x in (near, far):
                x = x.detach().requires_grad_(trains)
                with use_backend("native"):
                    y = FAR[name](x, weight)
                outcomes.append(
                    [
                        y.detach(),
                        *(torch.autograd.grad(y, x, draw.normal(*y.shape, dtype=dtype) * 0 + 1) if trains else ()),
                    ]
                )
            for a, b in zip(*outcomes, strict=True):
                assert same_bits(a, b), f"number {number}: {name} in {dtype} of rows that are far apart"
    return {"calls": 4}


@scored(
    row=16,
    unit="calls of rows more than 2^31 elements apart",
    short=len(FAR),
    full=12 * len(FAR),
    goal="no offset overflows",
)
@pytest.mark.usefixtures("one_thread")
def test_far_rows(campaign: Campaign) -> None:
    """Offsets are 64 bits wide: rows at any distance give the bits of rows side by side, with and without gradients."""
    campaign.run(lambda numbers: in_child(far_apart, numbers))
