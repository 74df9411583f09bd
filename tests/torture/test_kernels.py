"""Kernels against float64, in random cases of every operation, dtype, backend and CPU capability (row 14), inside
memory that ends at pages that nothing may touch (row 16), and bit for bit in every batch (row 15)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import cpu_kernels
import pytest
import torch
from torch import Tensor
from torture.campaign import Campaign
from torture.kernel_draws import Draw
from torture.kernel_operations import OPERATIONS, Case, Leaves, as_leaf
from torture.kernel_verdicts import judge
from torture.ledger import Figures, merged
from torture.scorecard import scored

from fastbert import use_backend
from fastbert.errors import UserError
from fastbert.ops.operation import operations

# One case in so many runs a Triton kernel, which is slow in the interpreter, where there is no GPU.
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
    if number // len(OPERATIONS) % TRITON_SHARE == TRITON_SHARE - 1 and name != "matmul":
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
