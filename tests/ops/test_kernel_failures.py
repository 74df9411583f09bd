"""Kernels that the GPU's compiler refuses: the call runs on PyTorch, one line says why, other calls are unchanged."""

import logging
from typing import Any

import pytest
import torch

from fastbert import ops, use_backend
from fastbert.config import BertConfig
from fastbert.errors import KernelError, UserError
from fastbert.models import BertForPreTraining
from fastbert.ops import dispatch, kernel_failures

pytest.importorskip("triton", reason="needs triton")
from graphed_runs import Data
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from fastbert.kernels.gelu import bias_gelu as gelu_kernels
from fastbert.kernels.norm import layer_norm as norm_kernels
from fastbert.training.device_step import DeviceStep
from fastbert.training.optimizer import adamw
from fastbert.training.step_loss import StepLoss

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHARED_MEMORY = OutOfResources(131072, 101376, "shared memory")


@pytest.fixture(autouse=True)
def on_triton_without_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton first, as on a GPU; nothing has failed or been logged yet."""
    monkeypatch.setattr(kernel_failures, "_failures", {})
    monkeypatch.setattr(kernel_failures, "_logged", set())
    monkeypatch.setattr(dispatch, "PREFERENCE", {"cpu": ("triton", "eager"), "cuda": ("triton", "eager")})


class Refused:
    """A kernel whose every launch raises, as one does that cannot be compiled."""

    def __init__(self, kernel: Any, error: Exception) -> None:
        self.__name__, self.error, self.launches = kernel.__name__, error, 0

    def __getitem__(self, grid: object) -> "Refused":
        return self

    def __call__(self, *arguments: object, **options: object) -> None:
        self.launches += 1
        raise self.error


def refuse(patch: pytest.MonkeyPatch, module: Any, name: str, error: Exception = SHARED_MEMORY) -> Refused:
    refused = Refused(getattr(module, name), error)
    patch.setattr(module, name, refused)
    return refused


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(SHARED_MEMORY, "Required: 131072, Hardware limit: 101376", id="99-KiB"),
        pytest.param(PTXASError("Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas fatal error : no"), "fatal"),
        pytest.param(CompilationError("x = y", None, "ValueError: an error of the compiler"), "error of the compiler"),
    ],
)
def test_a_call_falls_back_and_says_why_once(monkeypatch, caplog, error: Exception, text: str, seed: int) -> None:
    refused = refuse(monkeypatch, gelu_kernels, "bias_gelu_forward", error)
    x, bias = torch.randn(5, 48, device=DEVICE), torch.randn(48, device=DEVICE)
    with caplog.at_level(logging.WARNING, "fastbert"):
        results = [ops.bias_gelu(x, bias) for _ in range(3)]
    with use_backend("eager"):
        expected = ops.bias_gelu(x, bias)
    assert all(torch.equal(result, expected) for result in results)
    assert refused.launches == 1
    (record,) = caplog.records
    line = record.getMessage()
    assert line.startswith("PyTorch computes what needs this kernel: triton ")
    assert "cannot compile bias_gelu_forward for float32 (5, 48) on " in line
    assert text in line
    assert "`fastbert doctor`" in line
    assert "\n" not in line
    assert list(kernel_failures.report()) == [line.removeprefix("PyTorch computes what needs this kernel: ")]


def test_other_widths_and_operations_keep_their_kernels(monkeypatch, seed: int) -> None:
    forward = gelu_kernels.bias_gelu_forward
    refused = refuse(monkeypatch, gelu_kernels, "bias_gelu_forward")
    ops.bias_gelu(torch.randn(5, 48, device=DEVICE), None)
    monkeypatch.setattr(gelu_kernels, "bias_gelu_forward", forward)
    for width, triton in ((48, False), (64, True)):
        x = torch.randn(3, width, device=DEVICE)
        with use_backend("triton"):
            if triton:
                ops.bias_gelu(x, None)
            else:
                with pytest.raises(UserError, match="backend 'triton' does not support 'bias_gelu' here: triton"):
                    ops.bias_gelu(x, None)
            ops.layer_norm(x, *torch.ones(2, width, device=DEVICE))
    assert refused.launches == 1


def test_a_failure_in_backward_is_raised_once_and_then_avoided(monkeypatch, seed: int) -> None:
    refused = refuse(monkeypatch, norm_kernels, "norm_backward")
    weight, bias = torch.ones(2, 64, device=DEVICE)
    x = torch.randn(7, 64, device=DEVICE, requires_grad=True)
    with pytest.raises(KernelError, match="cannot compile norm_backward") as error:
        ops.layer_norm(x, weight, bias).square().sum().backward()
    assert error.value.recorded
    ops.layer_norm(x, weight, bias).square().sum().backward()
    assert refused.launches == 1


def test_a_training_step_goes_on(monkeypatch, caplog, seed: int) -> None:
    """Single operations fail, and the fused layer: the step starts again for each, until PyTorch computes them."""
    refused = refuse(monkeypatch, norm_kernels, "norm_backward")
    config = BertConfig(
        vocab_size=150, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    steps = []
    for _ in range(2):
        model = BertForPreTraining(config).to(DEVICE)
        model.init_weights(seed=seed % 2**31)
        optimizer, scaler = adamw(model, lr=1e-3, weight_decay=0.01), torch.amp.GradScaler(enabled=False)
        steps.append(DeviceStep(StepLoss(model), optimizer, scaler, max_grad_norm=1.0, dtype=torch.float32))
    batches = [steps[0].prepare(Data(seed, same=True).batch(0, first, 3)) for first in (0, 3)]
    with caplog.at_level(logging.WARNING, "fastbert"):
        stats = kernel_failures.until_compiled(lambda: steps[0](batches, 1e-3))
    assert refused.launches >= 2
    assert len(caplog.records) == 1, "one line per kernel"
    assert {name.rsplit(".", 2)[-1] for name, _ in kernel_failures._failures} == {"Triton", "LayerNorm"}
    again = steps[1](batches, 1e-3)
    assert stats.read()[1] == again.read()[1]
    for first, second in zip(*(step.loss.model.parameters() for step in steps)):
        assert torch.equal(first, second)


def test_a_failure_that_no_fallback_avoids_is_raised() -> None:
    calls = []

    def run() -> None:
        calls.append(1)
        raise KernelError("the optimiser's kernel")

    with pytest.raises(KernelError, match="the optimiser's kernel"):
        kernel_failures.until_compiled(run)
    assert len(calls) == 1


def test_doctors_check_names_every_kernel_that_fails(monkeypatch, caplog, seed: int) -> None:
    from fastbert.models import kernel_check

    monkeypatch.setattr(kernel_check, "WIDTH", 64)
    monkeypatch.setattr(kernel_check, "HEADS", 2)
    monkeypatch.setattr(kernel_check, "LENGTHS", (3, 7))
    assert kernel_check.failures(DEVICE, torch.float32) == ()
    for module, name in ((norm_kernels, "norm_backward"), (gelu_kernels, "bias_gelu_forward")):
        refuse(monkeypatch, module, name)
    lines = kernel_check.failures(DEVICE, torch.float32)
    assert {line.split(" for ")[0].rpartition(" ")[2] for line in lines} == {"norm_backward", "bias_gelu_forward"}
    assert not caplog.records
