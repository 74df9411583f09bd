"""A throw-away operation with every backend: `twice`, in packages called `doubling`."""

from additions import Addition, Edit

OPERATION = Addition(
    new={
        "fastbert/ops/doubling/__init__.py": '"""Twice a tensor."""\n',
        "fastbert/ops/doubling/arguments.py": '''
"""The arguments of `twice`, as every backend receives them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fastbert.ops.checks import check_tensor


class TwiceArguments(NamedTuple):
    """x (...,) of any floating dtype."""

    x: Tensor

    def check(self) -> None:
        """Raise UserError for a dtype that no backend supports."""
        check_tensor("x", self.x, "floating", ("...",))
''',
        "fastbert/ops/doubling/eager.py": '''
"""`twice` by PyTorch's operations."""

from __future__ import annotations

from torch import Tensor

from fastbert.ops.doubling.arguments import TwiceArguments
from fastbert.ops.operation import EagerBackend


class Eager(EagerBackend[TwiceArguments]):
    """Any floating dtype."""

    def forward(self, arguments: TwiceArguments) -> Tensor:
        """Return 2 x."""
        return arguments.x * 2
''',
        "fastbert/ops/doubling/native.py": '''
"""`twice` by a C++ kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert import _C
from fastbert.ops.doubling.arguments import TwiceArguments
from fastbert.ops.operation import NativeBackend, Reason


class Native(NativeBackend[TwiceArguments]):
    """fp32 on CPUs."""

    def supports(self, arguments: TwiceArguments) -> Reason | None:
        """Support fp32."""
        dtype = arguments.x.dtype
        return None if dtype == torch.float32 else Reason(f"x has dtype {dtype}, not float32")

    def forward(self, arguments: TwiceArguments) -> Tensor:
        """Return 2 x, contiguous."""
        x = arguments.x.contiguous()
        y = torch.empty_like(x)
        _C.twice(x.data_ptr(), y.data_ptr(), x.numel())
        return y

    def backward(self, arguments: TwiceArguments, grad: Tensor) -> Tensor:
        """Return the gradient of x."""
        return self.forward(TwiceArguments(grad))
''',
        "fastbert/ops/doubling/triton.py": '''
"""`twice` by a Triton kernel, which is imported when it first runs."""

from __future__ import annotations

from torch import Tensor

from fastbert.ops.doubling.arguments import TwiceArguments
from fastbert.ops.operation import Reason
from fastbert.ops.triton_backend import TritonBackend, unsupported_dtype


class Triton(TritonBackend[TwiceArguments]):
    """bf16, fp16 and fp32."""

    def supports(self, arguments: TwiceArguments) -> Reason | None:
        """Support half precision and fp32 on GPUs, and in Triton's interpreter."""
        self.require_device(arguments.x.device, "x")
        return unsupported_dtype("x", arguments.x)

    def forward(self, arguments: TwiceArguments) -> Tensor:
        """Return 2 x, contiguous."""
        from fastbert.kernels.doubling import twice as kernels

        return kernels.forward(arguments.x)

    def backward(self, arguments: TwiceArguments, grad: Tensor) -> Tensor:
        """Return the gradient of x."""
        return self.forward(TwiceArguments(grad))
''',
        "fastbert/ops/doubling/op.py": '''
"""Twice a tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastbert.ops import custom_op, dispatch
from fastbert.ops.doubling import eager, native, triton
from fastbert.ops.doubling.arguments import TwiceArguments
from fastbert.ops.operation import Operation

TWICE = Operation("twice", eager.Eager(), native.Native(), triton.Triton())


def twice(x: Tensor) -> Tensor:
    """Compute 2 x, in the shape (...,) and dtype of x. Raises UserError, a ValueError, for dtypes of integers."""
    arguments = TwiceArguments(x)
    arguments.check()
    backend = dispatch.select_backend(TWICE, x.device, arguments)
    return backend.forward(arguments) if backend.composite else _forward(*arguments, backend.name)


@custom_op.operator("fastbert::twice")
def _forward(arguments: TwiceArguments, backend: str) -> Tensor:
    return TWICE.backend(backend).forward(arguments)


@_forward.register_fake
def _(arguments: TwiceArguments, backend: str) -> Tensor:
    return torch.empty_like(arguments.x, memory_format=torch.contiguous_format)


@custom_op.operator("fastbert::twice_backward")
def _backward(grad: Tensor, arguments: TwiceArguments, backend: str) -> Tensor:
    return TWICE.backend(backend).backward(arguments, grad)


@_backward.register_fake
def _(grad: Tensor, arguments: TwiceArguments, backend: str) -> Tensor:
    return torch.empty_like(arguments.x, memory_format=torch.contiguous_format)


@_forward.register_autograd(setup_context=custom_op.save_inputs)
def _(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, backend = custom_op.saved(ctx)
    return _backward(grad, x, backend), None
''',
        "kernels/doubling/__init__.py": '"""Twice a tensor."""\n',
        "kernels/doubling/twice.py": '''
"""Twice the elements of a tensor."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.launch import architecture, launch
from fastbert.kernels.tuning import tables


@triton.jit
def twice_forward(x_ptr, y_ptr, elements, BLOCK_N: tl.constexpr):
    """Grid: blocks of BLOCK_N elements."""
    index = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_tensor = index < elements
    tl.store(y_ptr + index, 2 * tl.load(x_ptr + index, mask=in_tensor), mask=in_tensor)


def forward(x: Tensor) -> Tensor:
    """Return 2 x, contiguous, shape (...,) and dtype of x."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    config = tables.lookup("twice_forward", "any", architecture(x.device))
    blocks = triton.cdiv(x.numel(), config.constants["BLOCK_N"])
    launch(twice_forward, (blocks,), x.contiguous(), y, x.numel(), config=config)
    return y
''',
        "kernels/doubling/compile_cases.py": '''
"""The variants of `twice` that are compiled ahead of time."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.doubling import twice


@dataclass(frozen=True, kw_only=True)
class TwiceCase:
    """One dtype."""

    dtype: str = "bf16"

    def __str__(self) -> str:
        return f"twice {self.dtype}"

    def launch(self) -> None:
        """Launch the kernel."""
        twice.forward(torch.zeros(64, dtype=DTYPES[self.dtype]))


def demanding() -> list[TwiceCase]:
    """Return the variants that the default configurations tell apart."""
    return [TwiceCase()]


def every() -> list[TwiceCase]:
    """Return all variants."""
    return [TwiceCase(dtype=dtype) for dtype in DTYPES]


brief = demanding
''',
        "kernels/configs/doubling.py": '''
"""The default configuration of `twice`."""

from __future__ import annotations

from fastbert.kernels.configs.configuration import Config, Table

_TARGETS = ("sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "gfx942", "interpreter")
TABLES: dict[str, Table] = {name: {"twice_forward": {"any": Config(constants={"BLOCK_N": 64})}} for name in _TARGETS}
SIZES = {"BLOCK_N": (64, 128)}
''',
        "csrc/cpu/doubling/doubling.h": """
// Twice the elements of an array.
#pragma once
#include <cstddef>

namespace fastbert {

void twice(const float* x, float* y, std::size_t count);

}  // namespace fastbert
""",
        "csrc/cpu/doubling/doubling.cpp": """
#include "cpu/doubling/doubling.h"

namespace fastbert {

void twice(const float* x, float* y, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) y[i] = 2 * x[i];
}

}  // namespace fastbert
""",
        "csrc/bindings/doubling.cpp": """
// Bindings of csrc/cpu/doubling. Shapes are validated in Python.
#include <pybind11/pybind11.h>

#include <cstddef>

#include "bindings/registration.h"
#include "bindings/tensors.h"
#include "cpu/doubling/doubling.h"

namespace py = pybind11;

namespace fastbert::doubling_bindings {
namespace {

void call_twice(Address x, Address y, std::size_t count) {
    py::gil_scoped_release release;
    twice(pointer<const float>(x), pointer<float>(y), count);
}

const Registration registration{"doubling", [](py::module_& module) {
    module.def("twice", &call_twice, py::arg("x"), py::arg("y"), py::arg("count"), "Double the elements of an array.");
}};

}  // namespace
}  // namespace fastbert::doubling_bindings
""",
        "tests/test_twice.py": '''
"""The operation is found, chosen, explained, differentiated, compiled and tuned, and equals the oracle."""

import ctypes

import pytest
import torch

from fastbert import _C, doctor, ops, use_backend
from fastbert.errors import UserError
from fastbert.ops import dispatch, operation, reference

CALLS = []


def stand_in(x: int, y: int, count: int) -> None:
    """Do in Python what `_C.twice` does: the extension here was built without it."""
    CALLS.append(count)
    memory = ctypes.c_float * count
    memory.from_address(y)[:] = [2 * value for value in memory.from_address(x)]


@pytest.fixture(autouse=True)
def extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_C, "twice", stand_in, raising=False)
    CALLS.clear()


def test_it_is_found_chosen_and_explained() -> None:
    assert "twice" in operation.operations()
    assert ops.twice is operation.operations()["twice"].function
    (choice,) = [choice for choice in dispatch.report(torch.device("cpu")) if choice.operation == "twice"]
    assert choice.backend == "native"
    assert any(choice.operation == "twice" for choice in doctor.examine().operations)
    x, grad = torch.randn(5, requires_grad=True), torch.randn(5)
    y = ops.twice(x)
    y.backward(grad)
    assert torch.equal(y, reference.twice(x))
    assert torch.equal(x.grad, 2 * grad)
    assert CALLS == [5, 5]
    assert torch.equal(ops.twice(torch.ones(3, dtype=torch.float64)), torch.full((3,), 2.0, dtype=torch.float64))
    with use_backend("native"), pytest.raises(UserError, match="does not support 'twice' here: x has dtype"):
        ops.twice(torch.ones(3, dtype=torch.float64))
    with pytest.raises(UserError, match="x must"):
        ops.twice(torch.ones(3, dtype=torch.int64))


def test_it_compiles_and_is_compiled_again_for_another_backend() -> None:
    function = ops.twice
    compiled = torch.compile(lambda x: function(x) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
    assert CALLS == [3]
    with use_backend("eager"):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
    assert CALLS == [3], "the compiled call kept its backend"


def test_its_kernel_has_a_configuration_and_cases_to_compile() -> None:
    pytest.importorskip("triton", reason="needs triton")
    from fastbert.kernels.configs.defaults import DEFAULTS, SIZES
    from fastbert.kernels.tuning.ahead_of_time import brief_cases

    assert "twice_forward" in DEFAULTS["sm_90"]
    assert SIZES["twice_forward"] == {"BLOCK_N": (64, 128)}
    assert "twice bf16" in map(str, brief_cases())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(100, device=device, requires_grad=True)
    with use_backend("triton"):
        y = ops.twice(x)
    y.backward(torch.ones_like(y))
    assert torch.equal(y, reference.twice(x))
    assert torch.equal(x.grad, torch.full_like(x, 2))
''',
    },
    edits={
        "fastbert/ops/reference.py": (
            Edit("", '\n\ndef twice(x: Tensor) -> Tensor:\n    """Compute 2 x."""\n    return x + x\n'),
        ),
        "fastbert/_C.pyi": (
            Edit("", "\n# bindings/doubling.cpp\n\ndef twice(x: int, y: int, count: int) -> None: ...\n"),
        ),
    },
)
