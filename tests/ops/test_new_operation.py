"""An operation is added by files alone: a throw-away one, written here, is found, chosen, compiled and explained."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fastbert.ops as package
from fastbert import doctor, use_backend
from fastbert.errors import UserError
from fastbert.ops import dispatch, operation

FILES = {
    "__init__.py": '"""A throw-away operation."""\n',
    "arguments.py": """
from typing import NamedTuple

from torch import Tensor

from fastbert.errors import UserError


class TwiceArguments(NamedTuple):
    x: Tensor

    def check(self) -> None:
        if not self.x.dtype.is_floating_point:
            raise UserError(f"x must be floating, not {self.x.dtype}")
""",
    "eager.py": """
from fastbert.ops.operation import EagerBackend


class Eager(EagerBackend):
    def forward(self, arguments):
        return arguments.x * 2
""",
    "native.py": """
import torch

from fastbert.ops.operation import NativeBackend, Reason

calls = []


class Native(NativeBackend):
    def supports(self, arguments):
        return None if arguments.x.dtype == torch.float32 else Reason(f"x has dtype {arguments.x.dtype}, not float32")

    def forward(self, arguments):
        calls.append("forward")
        return arguments.x + arguments.x

    def backward(self, arguments, grad):
        calls.append("backward")
        return grad + grad
""",
    "op.py": """
import torch
from torch import Tensor

from fastbert.ops import dispatch
from fastbert.ops.custom_op import operator
from fastbert.ops.operation import Operation
from fastbert.ops.twice.arguments import TwiceArguments
from fastbert.ops.twice.eager import Eager
from fastbert.ops.twice.native import Native

TWICE = Operation("twice", Eager(), Native())


def twice(x: Tensor) -> Tensor:
    arguments = TwiceArguments(x)
    arguments.check()
    backend = dispatch.select_backend(TWICE, x.device, arguments)
    return backend.forward(arguments) if backend.composite else _forward(x, backend.name)


@operator("fastbert::twice")
def _forward(x: Tensor, backend: str) -> Tensor:
    return TWICE.backend(backend).forward(TwiceArguments(x))


@_forward.register_fake
def _(x: Tensor, backend: str) -> Tensor:
    return torch.empty_like(x)


@operator("fastbert::twice_backward")
def _backward(grad: Tensor, x: Tensor, backend: str) -> Tensor:
    return TWICE.backend(backend).backward(TwiceArguments(x), grad)


@_backward.register_fake
def _(grad: Tensor, x: Tensor, backend: str) -> Tensor:
    return torch.empty_like(grad)


def _setup_context(ctx, inputs, output):
    x, ctx.backend = inputs
    ctx.save_for_backward(x)


def _gradients(ctx, grad):
    return _backward(grad, *ctx.saved_tensors, ctx.backend), None


_forward.register_autograd(_gradients, setup_context=_setup_context)
""",
}


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The operation in a folder of its own, beside those of the package."""
    folder = tmp_path_factory.mktemp("ops")
    (folder / "twice").mkdir()
    for name, text in FILES.items():
        (folder / "twice" / name).write_text(text)
    package.__path__.append(str(folder))
    importlib.invalidate_caches()
    yield
    package.__path__.remove(str(folder))
    operation._operations.pop("twice", None)
    for name in [name for name in sys.modules if name.startswith("fastbert.ops.twice")]:
        del sys.modules[name]
    vars(package).pop("twice", None)


@pytest.mark.usefixtures("twice")
def test_it_is_found_chosen_and_explained() -> None:
    assert "twice" in operation.operations()
    function = operation.operations()["twice"].function
    x = torch.randn(5).requires_grad_()
    function(x).sum().backward()
    assert torch.equal(x.grad, torch.full((5,), 2.0))
    assert sys.modules["fastbert.ops.twice.native"].calls == ["forward", "backward"]
    (choice,) = [choice for choice in dispatch.report(torch.device("cpu")) if choice.operation == "twice"]
    assert choice.backend == "native"
    assert any(choice.operation == "twice" for choice in doctor.examine().operations)
    assert torch.equal(function(torch.ones(3, dtype=torch.float64)), torch.full((3,), 2.0, dtype=torch.float64))
    with use_backend("native"), pytest.raises(UserError, match="does not support 'twice' here: x has dtype"):
        function(torch.ones(3, dtype=torch.float64))
    with use_backend("triton"), pytest.raises(UserError, match="no kernel for 'twice'"):
        function(torch.ones(3))


@pytest.mark.usefixtures("twice")
def test_it_compiles_and_is_compiled_again_for_another_backend() -> None:
    function = operation.operations()["twice"].function
    calls = sys.modules["fastbert.ops.twice.native"].calls
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: function(x) + 1, backend="aot_eager", fullgraph=True)
    calls.clear()
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
    assert calls == ["forward"]
    with use_backend("eager"):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
    assert calls == ["forward"], "the compiled call kept its backend"


def test_no_file_of_the_package_names_operations_in_a_list() -> None:
    """Doctor, dispatch and the extension's module follow from what is registered."""
    root = Path(str(package.__file__)).parents[1]
    for file in (root / "doctor.py", root / "ops" / "dispatch.py", root / "ops" / "operation.py"):
        text = file.read_text(encoding="utf-8")
        assert "bias_gelu" not in text, file
        assert "dropout_add_layer_norm" not in text, file
