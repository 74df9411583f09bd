"""The training benchmark's report on a step: its memory part by part, and the operations that take its time."""

import gc
from typing import Any

import pytest
import torch
from sweeps import sweep
from torch import nn

from fastbert import _C
from fastbert.benchmarks.harness import process_memory
from fastbert.benchmarks.peers.training import PlainUpdate
from fastbert.benchmarks.training import memory, profile
from fastbert.ops.native import matmul

# Memory


@pytest.mark.parametrize(
    ("rows", "activations_count"),
    [pytest.param(4096, True, id="after the forward pass"), pytest.param(8, False, id="when the gradient has come")],
)
def test_parts_are_those_of_the_moment_when_most_is_alive(rows: int, activations_count: bool) -> None:
    """A linear layer's input is saved twice and counted once; its output is saved by the next operation."""
    model = nn.Linear(128, 128, bias=False)
    x = torch.randn(rows, 128, requires_grad=True)
    update = PlainUpdate(model)
    captured: dict[str, torch.Tensor] = {}

    def forward() -> None:
        y = model(x)
        captured["loss"] = (y * y).sum() + (x * x).sum()

    phases = {"forward": forward, "backward": lambda: captured.pop("loss").backward(), "clip": update.clip}
    result = memory.parts_of_a_step(model, update.optimizer, {**phases, "optimizer": update.step})
    weight = 128 * 128 * 4
    assert result["weights"] == weight
    assert result["optimizer"] == 2 * weight + 4  # two moments, and the number of steps
    if activations_count:
        assert (result["activations"], result["gradients"]) == (2 * rows * 128 * 4, 0)
    else:
        assert result["activations"] <= 2 * rows * 128 * 4
        assert result["gradients"] == weight


def test_copies_that_autocast_makes_of_weights_are_no_activations() -> None:
    model = nn.Linear(64, 32, bias=False)
    update = PlainUpdate(model)
    x = torch.randn(4096, 64, requires_grad=True)
    captured: dict[str, torch.Tensor] = {}

    def forward() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            captured["loss"] = model(x).sum()

    phases = {"forward": forward, "backward": lambda: captured.pop("loss").backward()}
    result = memory.parts_of_a_step(model, update.optimizer, phases)
    assert result["weight_copies"] == 32 * 64 * 2
    assert result["activations"] == 4096 * 64 * 2


def test_packed_weights_are_found_wherever_they_are_held() -> None:
    gc.collect()  # weights that earlier tests have dropped
    before = memory.packed_bytes()
    held: Any = ({"nested": [matmul.prepack(torch.randn(64, 32), "bf16")]},)
    same = (held[0]["nested"][0],)
    gc.collect()
    assert memory.packed_bytes() - before == 64 * 32 * 2
    del held, same


def test_the_high_water_mark_can_be_forgotten() -> None:
    if process_memory.high_water() is None or not process_memory.forget_high_water():
        pytest.skip("this system keeps no high-water mark that can be set back")
    start = process_memory.high_water()
    assert start is not None
    block = bytearray(256 << 20)
    block[::4096] = b"x" * len(block[::4096])
    del block
    peak = process_memory.high_water()
    assert peak is not None
    assert peak - start > 128 << 20  # a system may take back idle memory meanwhile
    process_memory.forget_high_water()
    assert (process_memory.high_water() or 0) < peak - (64 << 20)


# Where the time goes


@sweep(
    ("event", "kind"),
    [
        ("aten::addmm", "matmuls"),
        ("aten::mm", "matmuls"),
        ("aten::bmm", "attention"),
        ("fastbert._C.matmul", "matmuls"),
        ("fastbert._C.weight_gradient", "matmuls"),
        ("fastbert._C.attention_backward", "attention"),
        ("fastbert._C.layer_norm", "norms"),
        ("fastbert._C.embedding_layer_norm", "embeddings"),
        ("fastbert._C.bias_gelu_backward", "GELU"),
        ("fastbert._C.adamw", "optimizer"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::_log_softmax", "loss"),
        ("aten::_softmax_backward_data", "attention"),
        ("aten::linalg_vector_norm", "clip"),
        ("aten::bernoulli_", "dropout"),
        ("aten::_to_copy", "casts"),
        ("aten::mul", "elementwise"),
        ("aten::fill_", "memory"),
        ("AddmmBackward0", "rest"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "rest"),
    ],
)
def test_operations_have_a_kind(event: str, kind: str) -> None:
    assert profile.operation_of(event) == kind


def test_a_profile_sees_torch_and_the_extension() -> None:
    x = torch.randn(64, 64)
    packed = matmul.prepack(x, "fp32")
    untouched = dict(vars(_C)), dict(vars(matmul))
    calls: list[str] = []

    def phases() -> dict[str, Any]:
        return {
            "forward": lambda: (calls.append("forward"), matmul.matmul(x, packed)),
            "backward": lambda: (calls.append("backward"), torch.softmax(x @ x, -1)),
        }

    result = profile.profile(phases, 2)
    assert calls == ["forward", "backward"] * 3
    assert set(result["phases_ms"]) == {"forward", "backward"}
    assert result["operations_ms"]["matmuls"] > 0
    assert result["operations_ms"]["attention"] > 0
    assert sum(result["operations_ms"].values()) == pytest.approx(result["profiled_ms"], rel=0.02)
    assert (dict(vars(_C)), dict(vars(matmul))) == untouched


def test_functions_taken_out_of_the_extension_are_seen_too() -> None:
    x = torch.randn(64, 64)
    packed = matmul.prepack(x, "fp32")
    activities = [torch.profiler.ProfilerActivity.CPU]
    with profile.watched_extension(), torch.profiler.profile(activities=activities) as seen:
        matmul.matmul(x, packed)
    assert "fastbert._C.matmul" in {event.key for event in seen.key_averages()}
