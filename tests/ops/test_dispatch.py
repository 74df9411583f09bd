"""The choice of a backend: once per call, logged where it falls back, and the same for backward as for forward."""

import os
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import fastbert
from fastbert import ops, use_backend
from fastbert.errors import UserError
from fastbert.ops import dispatch
from fastbert.ops.norm.op import LAYER_NORM
from fastbert.ops.operation import operations
from fastbert.ops.softmax.op import SOFTMAX

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def scores(seed: int) -> Tensor:
    return torch.randn(2, 2, 5, 33, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.fixture
def backward_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The backends on which the backward pass of softmax ran, in order."""
    runs: list[str] = []
    for name, backend in SOFTMAX.backends.items():

        def counted(*arguments: Any, name: str = name, original: Any = backend.backward) -> Tensor:
            runs.append(name)
            return original(*arguments)

        monkeypatch.setattr(backend, "backward", counted, raising=False)
    return runs


def operator_backends(counter: CompileCounterWithBackend) -> list[str]:
    """The backends that the operators of the graph compiled last received."""
    nodes = counter.graphs[-1].graph.nodes
    return [node.args[-1] for node in nodes if node.op == "call_function" and "fastbert" in str(node.target)]


def test_use_backend_after_a_compile_recompiles(seed: int) -> None:
    x, counter = scores(seed), CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(ops.softmax, backend=counter, fullgraph=True)
    expected = torch.softmax(x, -1)
    torch.testing.assert_close(compiled(x), expected)
    assert operator_backends(counter) == ["eager"]
    # The native backend supports no compiled call: the graph from before would return a result instead of an error.
    refusal = "'native' does not support 'softmax' here: the call is being compiled"
    with use_backend("native"), pytest.raises(torch._dynamo.exc.Unsupported, match=refusal):
        compiled(x)
    torch.testing.assert_close(compiled(x), expected)
    assert counter.frame_count == 1


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_compiled_call_follows_use_backend_forward_and_backward(backward_runs: list[str], seed: int) -> None:
    pytest.importorskip("triton", reason="needs triton")
    x, counter = scores(seed), CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(ops.softmax, backend=counter, fullgraph=True)
    for backend in ("eager", "triton", "eager"):
        with use_backend(backend):
            y = compiled(x)
        (grad,) = torch.autograd.grad(y, x, torch.ones_like(y).cumsum(-1))
        (expected,) = torch.autograd.grad(torch.softmax(x, -1), x, torch.ones_like(y).cumsum(-1))
        torch.testing.assert_close(grad, expected)
    assert counter.frame_count == 2
    assert backward_runs == ["eager", "triton", "eager"]


def test_backward_runs_on_the_backend_of_its_forward(backward_runs: list[str], seed: int) -> None:
    x = scores(seed)
    with use_backend("native"):
        y = ops.softmax(x)
    grad = torch.ones_like(y).cumsum(-1)
    results = []
    for backend in ("native", "eager", "triton", None):
        with use_backend(backend):
            results.append(torch.autograd.grad(y, x, grad, retain_graph=True)[0])
    assert backward_runs == ["native"] * 4
    assert all(torch.equal(dx, results[0]) for dx in results)


def test_a_fallback_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)
    monkeypatch.setattr(dispatch, "_logged", set())
    monkeypatch.setitem(dispatch.PREFERENCE, "cpu", ("triton", "eager"))
    x = torch.randn(3, 8, dtype=torch.float64)
    with caplog.at_level("WARNING", logger="fastbert"):
        for _ in range(2):
            y = ops.layer_norm(x, torch.ones(8).double(), torch.zeros(8).double())
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (8,), eps=1e-12))
    assert [record.getMessage() for record in caplog.records] == [
        "layer_norm falls back to PyTorch: a tensor has dtype torch.float64, not bfloat16, float16 or float32"
    ]


def test_a_native_fallback_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="fastbert"):
        ops.layer_norm(torch.randn(3, 8).double(), torch.ones(8), torch.zeros(8))
    assert not caplog.records


def test_a_forced_backend_that_does_not_support_a_call_raises() -> None:
    x, weight, bias = torch.randn(3, 8).double(), torch.ones(8), torch.zeros(8)
    message = (
        "backend 'native' does not support 'layer_norm' here: a tensor has dtype torch.float64, not bfloat16 or"
        " float32; use_backend('eager') does"
    )
    with use_backend("native"), pytest.raises(UserError) as error:
        ops.layer_norm(x, weight, bias)
    assert str(error.value) == message
    with use_backend("eager"):
        ops.layer_norm(x, weight, bias)


def test_the_choice_is_made_once_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    for name, backend in LAYER_NORM.backends.items():

        def counted(arguments: Any, name: str = name, original: Any = backend.supports) -> Any:
            asked.append(name)
            return original(arguments)

        monkeypatch.setattr(backend, "supports", counted)
    x = torch.randn(3, 8, requires_grad=True)
    ops.layer_norm(x, torch.ones(8), torch.zeros(8)).sum().backward()
    assert asked == ["native"]


def test_use_backend_holds_inside_its_block_and_names_what_it_cannot_serve() -> None:
    x = torch.randn(2, 8)
    with (
        fastbert.use_backend("native"),
        pytest.raises(UserError, match=r"'native' does not support 'layer_norm' here: a tensor has .*float64"),
    ):
        ops.layer_norm(x.double(), torch.ones(8), torch.zeros(8))
    ops.layer_norm(x, torch.ones(8), torch.zeros(8))
    fastbert.use_backend("triton")
    fastbert.use_backend(None)
    ops.layer_norm(x, torch.ones(8), torch.zeros(8))
    with pytest.raises(UserError, match="unknown backend 'cuda'"):
        fastbert.use_backend("cuda")  # type: ignore[arg-type]


def test_report_names_every_operation_with_a_reason() -> None:
    choices = dispatch.report(torch.device("cpu"))
    assert [choice.operation for choice in choices] == list(operations())
    assert all(choice.backend in dispatch.BACKENDS and choice.reason for choice in choices)


def test_operations_give_shapes_on_the_meta_device() -> None:
    """As models do that are built without memory, to be filled later."""
    x, vector = torch.empty(6, 8, device="meta"), torch.empty(8, device="meta")
    matrix, offsets = torch.empty(12, 8, device="meta"), torch.empty(3, dtype=torch.int32, device="meta")
    ids, heads = torch.empty(6, dtype=torch.int64, device="meta"), x.view(6, 2, 4)
    assert ops.linear(x, matrix, activation="gelu").shape == (6, 12)
    assert ops.layer_norm(x, vector, vector).shape == x.shape
    assert ops.bias_gelu(x, vector).shape == x.shape
    assert ops.softmax(x[None, None]).shape == (1, 1, 6, 8)
    assert ops.embedding_layer_norm([ids], [matrix], vector, vector).shape == x.shape
    attended = ops.attention(heads.detach(), heads, heads.clone().requires_grad_(), offsets, offsets, 4, 4)
    assert attended.shape == heads.shape
    assert attended.requires_grad
    assert ops.linear_cross_entropy(x, matrix, None, ids).loss_sum.shape == ()
