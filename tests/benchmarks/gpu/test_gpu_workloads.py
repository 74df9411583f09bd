"""The GPU benchmark's workloads: what is counted and timed, and contenders that compute something else."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from fastbert.benchmarks.gpu import attention as gpu_attention
from fastbert.benchmarks.gpu import check, moments, timing
from fastbert.benchmarks.gpu import device as gpu_device
from fastbert.benchmarks.gpu import fused as gpu_fused
from fastbert.benchmarks.gpu import graphs as gpu_graphs
from fastbert.benchmarks.gpu import layer as gpu_layer
from fastbert.benchmarks.gpu import linear as gpu_linear
from fastbert.benchmarks.gpu import loss as gpu_loss
from fastbert.benchmarks.gpu import models as gpu_models
from fastbert.benchmarks.gpu import padded as gpu_padded
from fastbert.benchmarks.gpu import steps as gpu_steps
from fastbert.benchmarks.gpu.fused_patterns import PATTERNS
from fastbert.config import BertConfig
from fastbert.models import BertModel
from fastbert.ops import dispatch

DEVICE = gpu_device.Device()


@pytest.mark.parametrize("shape", gpu_attention.shapes(False)[::5], ids=lambda shape: shape.name)
def test_batches_have_the_tokens_and_the_padding_that_they_say(shape: gpu_attention.Shape) -> None:
    lengths = shape.lengths()
    assert len(lengths) == shape.sequences
    assert max(lengths) == shape.length
    assert min(lengths) >= 1
    assert sum(lengths) == pytest.approx(gpu_attention.TOKENS, rel=0.02)
    filled = sum(lengths) / (shape.sequences * shape.length)
    assert filled == pytest.approx({"full": 1.0, "half": 0.5, "lognormal": 0.3}[shape.padding], abs=0.02)


def test_operations_are_those_of_real_tokens() -> None:
    shape = gpu_attention.Shape(length=8, sequences=2, padding="half", heads=3, head_dim=32)
    squares = sum(length**2 for length in shape.lengths())
    assert shape.work().operations == 4 * squares * 32 * 3
    backward = gpu_attention.Shape(length=8, sequences=2, direction="backward", causal=True, heads=3, head_dim=32)
    assert backward.work().operations == 2.5 * 0.5 * 4 * 2 * 64 * 32 * 3


def test_contenders_that_refuse_are_noted_and_the_others_timed() -> None:
    device, case = gpu_device.Device(), timing.Case()
    calls: list[str] = []

    def refuse() -> timing.Calls:
        raise NotImplementedError("no dropout here\nand more")

    actual = timing.willing(
        device,
        case,
        "x",
        {"fastbert": lambda: [lambda: calls.append("a0"), lambda: calls.append("a1")], "other": refuse},
    )
    assert case.unmeasured == [{"workload": "x", "contender": "other", "reason": "no dropout here"}]
    (measured,) = timing.contest(device, "x", actual, timing.Work(tokens=10, operations=1e9), seconds=0.01)
    assert calls == ["a0"] + ["a0", "a1"] * ((len(calls) - 1) // 2), "the sets of inputs take turns"
    assert measured.tflops is not None
    flat = measured.as_json()
    assert flat["contender"] == "fastbert"
    assert flat["tokens_per_second"] > 0
    assert not flat["host_bound"]


def test_a_peer_that_computes_something_else_is_found_out() -> None:
    shape = gpu_attention.Shape(length=9, sequences=3, padding="half", heads=2, head_dim=32, direction="backward")
    inputs = gpu_attention.make_inputs(gpu_device.Device(), shape, 0)
    right = gpu_attention.judge(shape, inputs, gpu_attention.attention_peers.eager, padded=True, factor=4.0)
    assert right[1] == "close"
    inputs.visible = None  # padding is attended to
    wrong = gpu_attention.judge(shape, inputs, gpu_attention.attention_peers.eager, padded=True, factor=4.0)
    assert wrong[1].startswith("wrong: dq is off by")
    assert wrong[0] > right[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_timed_by_its_own_clock() -> None:
    device = gpu_device.Cuda()
    x = torch.randn(1 << 26, device=device.torch_device)
    calls = [x.clone] * 4
    device.sample(calls)
    asleep, awake = device.sample(calls, asleep=0.01), device.sample(calls)
    assert not asleep.host_bound
    assert asleep.host_seconds < asleep.seconds, "queued while the device slept"
    assert asleep.seconds == pytest.approx(awake.seconds, rel=0.5)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_masks_of_another_probability_are_found_out(direction: str) -> None:
    shape = gpu_attention.Shape(
        length=40, sequences=3, padding="half", dropout=0.1, heads=2, head_dim=64, direction=direction
    )
    inputs = gpu_attention.make_inputs(DEVICE, shape, 0)
    eager = gpu_attention.attention_peers.eager
    torch.manual_seed(0)
    for function, padded in ((gpu_attention.run_fastbert, False), (eager, True)):
        with dispatch.use_backend("eager"):
            assert gpu_attention.judge_masks(shape, inputs, function, padded) == "close"
    key, inputs.dropout = inputs.key, 1 / 16  # as cuDNN rounds it
    expected = inputs.__dict__["expected"]  # computed for 0.1
    wrong = gpu_attention.judge_masks(shape, inputs, eager, True)
    assert wrong.startswith("wrong: the variance over dropout masks is 0.")
    assert inputs.key is key
    draws = iter(torch.randn(moments.DRAWS, *expected["output"].mean.shape) * expected["output"].variance.sqrt() + 1)
    shifted = moments.sample(lambda: next(draws))
    assert moments.judge(shifted, expected["output"]).startswith("wrong: the mean over dropout masks deviates")


def test_a_step_that_computes_something_else_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    config = gpu_models.small(BertConfig.preset("base"), True)
    batch = gpu_steps._batch(DEVICE, config, gpu_steps.step_lengths(64, 16, "full"), 0)
    assert gpu_steps.check(DEVICE, config, batch)[1] == "close"
    assert gpu_steps.check_rival(DEVICE, config, batch, False) == "close"
    once, calls = gpu_steps._gradients, []

    def third_is_off(*arguments: object, **flags: bool) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(arguments)
        loss, gradients = once(*arguments, **flags)
        return loss, gradients * (1.05 if len(calls) == 3 else 1.0)

    monkeypatch.setattr(gpu_steps, "_gradients", third_is_off)
    assert gpu_steps.check(DEVICE, config, batch)[1].startswith("wrong: the gradients are off by 0.05")


def test_outputs_may_be_off_twice_as_far_as_eager() -> None:
    exact = {"output": torch.zeros(3, dtype=torch.float64)}
    eager = {"output": torch.tensor([0.0, 0.1, 0.0])}
    assert check.judge({"output": torch.tensor([0.2, 0.0, 0.0])}, exact, eager) == (pytest.approx(0.2), "close")
    difference, verdict = check.judge({"output": torch.tensor([0.3, 0.0, 0.0])}, exact, eager)
    assert verdict == "wrong: output is off by 0.3, eager torch by 0.1"
    assert difference == pytest.approx(0.3)
    difference, verdict = check.judge({"output": torch.tensor([torch.nan, 0.0, 0.0])}, exact, eager)
    assert verdict.startswith("wrong: output is off by nan")
    assert difference != difference


def test_output_and_gradients_are_judged_apart() -> None:
    exact = {name: torch.ones(2, dtype=torch.float64) for name in ("output", "gradient of x")}
    eager = {name: x.float() for name, x in exact.items()}
    results = {**eager, "gradient of x": torch.tensor([1.0, 2.0])}
    output, gradients = check.judged_apart(DEVICE, lambda: results, exact, eager)
    assert output == (0.0, "close")
    assert gradients == (1.0, "wrong: gradient of x is off by 1, eager torch by 0")

    def refuse() -> check.Tensors:
        raise TypeError("no such argument")

    assert check.judged_apart(DEVICE, refuse, exact, eager) == ((0.0, "not compared"), (0.0, "not compared"))


@pytest.mark.parametrize("operation", PATTERNS)
def test_the_yardstick_is_the_oracle_but_for_rounding(operation: str) -> None:
    pattern = PATTERNS[operation]
    drawn = gpu_fused.draw(DEVICE, pattern, 16, 32, 0)
    assert (drawn.dropout is not None) == pattern.drops
    exact = gpu_fused._composed(pattern, drawn, torch.float64)
    rounded = gpu_fused._composed(pattern, drawn, torch.bfloat16)
    assert set(exact) == {"output", *(f"gradient of {name}" for name in drawn.leaves)}
    assert all(x.dtype == torch.float64 for x in exact.values())
    for name, truth in exact.items():
        assert rounded[name].dtype != torch.float64
        torch.testing.assert_close(rounded[name].double(), truth, atol=0.2, rtol=0.1)
    if pattern.drops:
        free = gpu_fused.draw(DEVICE, pattern, 16, 32, 0, variant=("inference",))
        assert free.dropout is None
        assert not torch.equal(gpu_fused._composed(pattern, free, torch.float64)["output"], exact["output"])


def test_the_products_that_are_compared_agree() -> None:
    drawn = gpu_linear.draw(DEVICE, 12, 16, 32, 0).in_double()
    forward, backward = gpu_linear.contenders("forward"), gpu_linear.contenders("backward")
    torch.testing.assert_close(forward[gpu_linear.APART](drawn), forward["eager"](drawn))
    torch.testing.assert_close(backward[gpu_linear.APART](drawn), backward["eager"](drawn))
    u, weight = drawn.u.clone().requires_grad_(), drawn.back
    h = F.gelu(u)
    (du,) = torch.autograd.grad(h @ weight.T, u, drawn.grad)
    torch.testing.assert_close(backward["eager"](drawn), (du, h.detach(), du.sum(0)))


def test_padded_layers_compute_what_packed_ones_do() -> None:
    config = BertConfig.preset("tiny", vocab_size=50)
    model = BertModel(config).eval()
    batch = gpu_models.make_batch(config, torch.tensor([7, 3, 5]), 0)
    plain = gpu_padded.PaddedEncoder(model)
    padded, mask = batch.unpack(), gpu_padded.key_mask(batch)
    states = plain(padded["input_ids"], padded["token_type_ids"], mask)[padded["attention_mask"].bool()]
    torch.testing.assert_close(states, model(batch).last_hidden_state, atol=1e-5, rtol=1e-5)
    assert mask is not None
    assert mask.sum() == 15
    full = gpu_models.make_batch(config, torch.tensor([4, 4]), 0)
    assert gpu_padded.key_mask(full) is None


def test_a_layer_that_computes_something_else_is_found_out() -> None:
    config = BertConfig.preset("tiny")
    layer = gpu_layer.new_layer(config, DEVICE)
    few = gpu_layer.draw(DEVICE, config, [9, 4], 0, dropout=0.0)
    exact = gpu_layer._padded_results(layer, few, torch.float64)
    eager = gpu_layer._padded_results(layer, few, torch.bfloat16)
    actual = gpu_layer._packed_results(layer, few)
    assert check.judge(actual, exact, eager)[1] == "close"
    layer.output.LayerNorm.eps = 0.5
    assert check.judge(gpu_layer._packed_results(layer, few), exact, eager)[1].startswith("wrong: output")


def test_a_loss_that_computes_something_else_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = gpu_loss.draw(DEVICE, 20)
    assert gpu_loss._check(DEVICE, drawn)["fastbert"][1] == "close"
    monkeypatch.setattr(gpu_loss, "run_fastbert", lambda *arguments: 1.01 * gpu_loss.eager(*arguments))
    assert gpu_loss._check(DEVICE, drawn)["fastbert"][1].startswith("wrong: loss is off by")


def test_what_is_not_recorded_is_no_graph() -> None:
    uses = [SimpleNamespace(how="graph", reason="recorded"), SimpleNamespace(how="eager", reason="a host read")]
    gpu_graphs._insist(SimpleNamespace(report=lambda: uses[:1]))
    with pytest.raises(NotImplementedError, match="a host read"):
        gpu_graphs._insist(SimpleNamespace(report=lambda: uses))


def test_bytes_are_the_fewest_that_a_pattern_needs() -> None:
    norm = PATTERNS["dropout_add_layer_norm"]
    drawn = gpu_fused.draw(DEVICE, norm, 16, 32, 0)
    count = [gpu_fused.moved_bytes(norm, drawn, *flags) for flags in ((False, False), (True, False), (True, True))]
    assert count == [8 * 16 * 32, 8 * 16 * 32, 6 * 16 * 32]
    embedding = PATTERNS["embedding_layer_norm"]
    drawn = gpu_fused.draw(DEVICE, embedding, 16, 32, 0)
    read = 16 + 8 + 2  # all words differ, two sequences of 8 tokens, both segments
    assert gpu_fused.moved_bytes(embedding, drawn, False, False) == 2 * 16 * 32 + 4 * 32 * read
    backward = 2 * 16 * 32 + 4 * 32 * read + 4 * 4 * 16 * 32 + 4 * 32 * (64 + 32 + 2)
    assert gpu_fused.moved_bytes(embedding, drawn, True, False) == backward
    frequent = gpu_fused.draw(DEVICE, embedding, 512, 32, 0, variant=("frequent",))
    counts = frequent.tensors["ids"].bincount(minlength=64)
    assert counts[:8].sum() > 2 * counts[-8:].sum()


def test_two_sequences_share_a_slot() -> None:
    lengths = gpu_steps.step_lengths(32768, 512, "packed")
    assert len(lengths) == 128
    assert float(lengths.double().mean()) == 254.5
    assert (lengths.view(-1, 2).sum(1) == 509).all()
    assert lengths.min() < 70
    assert gpu_steps.step_lengths(1024, 128, "full").tolist() == [128] * 8


def test_operations_count_what_a_token_sees() -> None:
    config = BertConfig.preset("tiny")
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    weights = 2 * (4 * width * width + 2 * width * inner)
    assert gpu_models.operations_per_token(config, [10, 10]) == layers * (weights + 4 * 10 * width)
    assert gpu_models.operations_per_token(config, [3, 1]) == layers * (weights + 4 * 2.5 * width)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_at_the_peak_of_a_call_is_counted() -> None:
    device = gpu_device.Cuda()

    def call() -> torch.Tensor:
        x = torch.ones(1 << 20, device=device.torch_device)
        return (x + x)[:1].clone()

    peak = device.peak_bytes(call)
    assert peak is not None
    assert 8 << 20 <= peak < 9 << 20


def test_kernels_are_forced_in_a_dry_run_only_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(dispatch, "supported_by", lambda name: ("softmax", "linear"))
    assert gpu_device.own_backend(DEVICE, "softmax") == "triton"
    assert gpu_device.own_backend(DEVICE, "layer_norm") is None
    assert gpu_linear._forced_backend(DEVICE) is None
