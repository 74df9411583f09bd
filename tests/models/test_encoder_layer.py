"""The fused encoder layer against float64 and the composed one, and what makes a layer run composed."""

import gc
from collections.abc import Iterator
from dataclasses import replace

import layers
import pytest
import torch
from accuracy import assert_as_accurate
from batches import random_batch
from garbage import leave_out_old_objects
from torch import nn

from fastbert import BertConfig, BertForPreTraining, BertModel, use_backend
from fastbert.errors import UserError
from fastbert.models import modules as bert
from fastbert.models.layers import layer_batch
from fastbert.models.modules import Layer
from fastbert.ops.encoder_layer import op
from fastbert.packing import PackedBatch

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels import launch
from fastbert.kernels.tuning import tables

GPU = torch.cuda.is_available()
# The interpreter divides with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([pytest.mark.gpu] if GPU else [])]
DEVICE = torch.device("cuda" if GPU else "cpu")
CONFIG = BertConfig(
    vocab_size=120, hidden_size=96, num_hidden_layers=2, num_attention_heads=3, intermediate_size=160,
    max_position_embeddings=160, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
)  # fmt: skip
LENGTHS = [13, 1, 0, 40]
# The rule of twice eager torch's error holds for each operation. Of a whole layer's gradient in half precision the
# largest error is of one element in thousands, made of roundings at other places: 2.1 times has been seen.
FACTOR = 3.0
DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.float16, id="fp16"),
    pytest.param(torch.bfloat16, id="bf16"),
]


def batch_of(lengths: list[int], seed: int) -> PackedBatch:
    return random_batch(lengths, CONFIG.vocab_size, 7, seed).to(DEVICE)


def random_layer(seed: int, config: BertConfig = CONFIG) -> Layer:
    return layers.random_layer(seed, config).to(DEVICE)


def run(
    backend: str, layer: Layer, x: torch.Tensor, grad: torch.Tensor, batch: PackedBatch, training: bool, **options
) -> dict[str, torch.Tensor]:
    """Output and all gradients."""
    leaf = x.detach().requires_grad_()
    p = 0.1 if training else 0.0
    with use_backend(backend):
        y = layers.run_layer(layer, leaf, batch, p, **options)
        names = [name for name, parameter in layer.named_parameters() if parameter.requires_grad]
        leaves = [leaf, *(parameter for parameter in layer.parameters() if parameter.requires_grad)]
        gradients = torch.autograd.grad(y, leaves, grad.to(y.dtype))
    return {"y": y.detach(), **dict(zip(["x", *names], gradients, strict=True))}


@pytest.fixture
def fused_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """The values of `recompute` in the calls of the fused operation."""
    calls: list[bool] = []
    original = op.run

    def counted(arguments, backend):
        calls.append(arguments.recompute)
        return original(arguments, backend)

    monkeypatch.setattr(op, "run", counted)
    return calls


@pytest.mark.parametrize("training", [False, True], ids=["", "dropout"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_is_as_accurate_as_torch(dtype: torch.dtype, training: bool, fused_calls: list[bool], seed: int) -> None:
    batch, layer = batch_of(LENGTHS, seed), random_layer(seed).to(dtype)
    generator = torch.Generator().manual_seed(seed + 1)
    x, grad = (torch.randn(batch.num_tokens, 96, generator=generator).to(DEVICE, dtype) for _ in range(2))
    actual = run("triton", layer, x, grad, batch, training)
    assert len(fused_calls) == 1
    expected = run("eager", layer, x, grad, batch, training)
    exact = run("eager", layer.double(), x.double(), grad.double(), batch, training)
    for name, truth in exact.items():
        assert_as_accurate(actual[name], expected[name], truth, name, factor=FACTOR)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_autocast_multiplies_in_half_and_gives_fp32_gradients(dtype: torch.dtype, seed: int) -> None:
    batch, layer = batch_of(LENGTHS, seed), random_layer(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    x, grad = (torch.randn(batch.num_tokens, 96, generator=generator).to(DEVICE) for _ in range(2))
    grad = grad.to(dtype).float()  # as the layer's output gets it
    exact = run("eager", random_layer(seed).double(), x.double(), grad.double(), batch, True)
    with torch.autocast(DEVICE.type, dtype=dtype):
        for first in (x, x.to(dtype)):
            actual = run("triton", layer, first, grad, batch, True)
            expected = run("eager", layer, first, grad, batch, True)
            assert actual["y"].dtype == dtype
            assert actual["x"].dtype == first.dtype
            for name, truth in exact.items():
                assert_as_accurate(actual[name], expected[name], truth, name, factor=FACTOR)


@pytest.mark.parametrize("tanh", [False, True], ids=["erf", "tanh"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_forms_of_a_layer(tanh: bool, causal: bool, seed: int) -> None:
    config = replace(CONFIG, hidden_act="gelu_pytorch_tanh" if tanh else "gelu")
    batch, layer = batch_of(LENGTHS, seed), random_layer(seed, config)
    generator = torch.Generator().manual_seed(seed + 1)
    x, grad = (torch.randn(batch.num_tokens, 96, generator=generator).to(DEVICE) for _ in range(2))
    actual = run("triton", layer, x, grad, batch, True, causal=causal)
    expected = run("eager", layer, x, grad, batch, True, causal=causal)
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-4, atol=2e-5, msg=name)


def test_gelu_behind_the_librarys_product_gives_the_same(seed: int) -> None:
    """As on GPUs for which the table does not choose the product with GELU in its epilogue."""
    batch, layer = batch_of(LENGTHS, seed), random_layer(seed).half()
    generator = torch.Generator().manual_seed(seed + 1)
    x, grad = (torch.randn(batch.num_tokens, 96, generator=generator).to(DEVICE).half() for _ in range(2))
    architecture = launch.architecture(DEVICE)
    config = tables.lookup("matmul_gelu", "half-256", architecture)
    results = []
    for fused in (0, 1):
        chosen = replace(config, constants={**config.constants, "FUSED": fused})
        with tables.overridden("matmul_gelu", "half-256", chosen), launch.observing() as launches:
            results.append(run("triton", layer, x, grad, batch, True))
        names = {launch.kernel.__name__ for launch in launches}
        assert ("matmul_gelu_backward" in names) == bool(fused)
        assert ("bias_gelu_backward" in names) == (not fused)
    for name, value in results[0].items():
        torch.testing.assert_close(value, results[1][name], rtol=2e-2, atol=2e-2, msg=name)


def test_recomputing_changes_nothing(fused_calls: list[bool], seed: int) -> None:
    batch, layer = batch_of(LENGTHS, seed), random_layer(seed)
    x, grad = (torch.randn(batch.num_tokens, 96, device=DEVICE) for _ in range(2))
    kept = run("triton", layer, x, grad, batch, True)
    again = run("triton", layer, x, grad, batch, True, recompute=True)
    assert fused_calls == [False, True]
    for name, gradient in kept.items():
        torch.testing.assert_close(gradient, again[name], rtol=1e-5, atol=1e-6, msg=name)


def test_frozen_weights_get_no_gradient_and_others_the_same(seed: int) -> None:
    batch, layer = batch_of(LENGTHS, seed), random_layer(seed)
    x, grad = (torch.randn(batch.num_tokens, 96, device=DEVICE) for _ in range(2))
    everything = run("triton", layer, x, grad, batch, True)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_("key" in name or "LayerNorm" in name)
    for name, gradient in run("triton", layer, x, grad, batch, True).items():
        assert torch.equal(gradient, everything[name]), name


def test_a_part_that_is_not_plain_runs_its_own_forward(fused_calls: list[bool], seed: int) -> None:
    class Adapted(nn.Linear):
        """A linear layer with something added, as adapters do."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 1.5 * super().forward(x)

    batch = batch_of(LENGTHS, seed)
    x = torch.randn(batch.num_tokens, 96, device=DEVICE)
    settings = (x, layer_batch(batch, 0.0, 0.0, False))
    with use_backend("triton"), torch.no_grad():
        plain = random_layer(seed)(*settings)
        assert len(fused_calls) == 1
        for place in ("attention.self.query", "attention.output.dense", "intermediate.dense", "output.dense"):
            layer = random_layer(seed)
            part = layer.get_submodule(place)
            part.__class__ = Adapted
            adapted = layer(*settings)
            scaled = random_layer(seed)
            for parameter in scaled.get_submodule(place).parameters():
                parameter *= 1.5
            torch.testing.assert_close(adapted, scaled(*settings), rtol=1e-4, atol=1e-5)
            assert not torch.allclose(adapted, plain, atol=1e-3)
        layer, seen = random_layer(seed), []
        layer.output.dense.register_forward_hook(lambda *arguments: seen.append(len(arguments)))
        before = len(fused_calls)
        torch.testing.assert_close(layer(*settings), plain, rtol=1e-4, atol=1e-5)
        assert seen == [3]
        assert len(fused_calls) == before


def twice(function):
    return lambda *arguments: 2.0 * function(*arguments)


def test_what_a_layer_was_changed_to_is_what_it_computes(fused_calls: list[bool], seed: int) -> None:
    class Shifted(bert.Output):
        def forward(self, *arguments) -> torch.Tensor:
            return super().forward(*arguments) + 1.0

    def other_eps(layer: Layer) -> None:
        layer.attention.output.LayerNorm.eps = 0.5

    def other_class(layer: Layer) -> None:
        layer.output.__class__ = Shifted

    def other_forward(layer: Layer) -> None:
        layer.output.forward = twice(layer.output.forward)

    def forward_of_a_linear(layer: Layer) -> None:
        layer.output.dense.forward = twice(layer.output.dense.forward)

    batch = batch_of(LENGTHS, seed)
    settings = (torch.randn(batch.num_tokens, 96, device=DEVICE), layer_batch(batch, 0.0, 0.0, False))
    with torch.no_grad():
        for change in (other_eps, other_class, other_forward, forward_of_a_linear):
            layer = random_layer(seed)
            with use_backend("eager"):
                plain = layer(*settings)
            change(layer)
            with use_backend("triton"):
                changed = layer(*settings)
            with use_backend("eager"):
                torch.testing.assert_close(changed, layer(*settings), rtol=1e-4, atol=1e-5)
            assert not torch.allclose(changed, plain, atol=1e-3), change
    assert fused_calls == []


@pytest.mark.parametrize("mode", ["layer", "selective"])
@pytest.mark.parametrize("backend", [None, "triton"])
def test_checkpointing_changes_nothing(mode: str, backend: str | None, seed: int) -> None:
    batch = batch_of([20, 7], seed)
    gradients = []
    for chosen in ("none", mode):
        model = BertForPreTraining(replace(CONFIG, num_hidden_layers=1)).to(DEVICE).train()
        model.init_weights(seed=1)
        model.checkpoint_activations(chosen)
        with use_backend(backend):
            model(batch).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-5, atol=1e-7, msg=name)


def kept_bytes(model: BertForPreTraining, batch: PackedBatch) -> int:
    """Return the bytes that forward allocates and backward needs: saved by autograd, or by Python for it."""
    sizes: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def alive() -> list[torch.Tensor]:
        gc.collect()
        return [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, nn.Parameter)]

    before = {tensor.untyped_storage().data_ptr() for tensor in alive()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model(batch).loss
    for tensor in alive():
        note(tensor)
    assert loss is not None
    return sum(size for place, size in sizes.items() if place not in before)


def test_selective_checkpointing_keeps_less(seed: int) -> None:
    leave_out_old_objects()
    batch, sizes = batch_of([40], seed), {}
    for backend in ("eager", "triton"):
        for mode in ("none", "selective", "layer"):
            model = BertForPreTraining(CONFIG).to(DEVICE).train()
            model.checkpoint_activations(mode)
            with use_backend(backend):
                sizes[backend, mode] = kept_bytes(model, batch)
    for backend in ("eager", "triton"):
        assert sizes[backend, "layer"] < sizes[backend, "selective"] < sizes[backend, "none"], sizes
    assert sizes["triton", "none"] < sizes["eager", "none"], sizes


@pytest.mark.parametrize("some", [False, True], ids=["", "rows"])
def test_the_operators_keep_their_promises(some: bool, seed: int) -> None:
    rows = torch.tensor([3, 0, 3, 50], device=DEVICE) if some else None
    batch, layer = batch_of(LENGTHS, seed), random_layer(seed)
    dropouts = layer_batch(batch, 0.1, 0.1, True)
    x = torch.randn(batch.num_tokens, 96, device=DEVICE).requires_grad_()
    fields = (
        batch.cu_seqlens, 40, 0.1, 0.1, dropouts.dropout_key, dropouts.sequence_ids, dropouts.offsets, rows, 1,
        torch.float32, False,
    )  # fmt: skip
    parameters, spec = layer.fusible_parameters(), layer.spec.encoded
    assert parameters is not None
    for save in (0, 1, 2):
        arguments = (x, list(parameters), spec, *fields, save, "triton")
        # opcheck draws its own gradients of all outputs, and only the first of this one has any.
        checks = ("test_schema", "test_faketensor")
        torch.library.opcheck(torch.ops.fastbert.encoder_layer.default, arguments, test_utils=checks)
    saved = [tensor.detach() for tensor in torch.ops.fastbert.encoder_layer(*arguments)[1:]]
    detached = [parameter.detach() for parameter in parameters]
    grad = torch.randn(len(x) if rows is None else len(rows), 96, device=DEVICE)
    arguments = (grad, saved, x.detach(), detached, spec, *fields, "triton", [True] * 9)
    torch.library.opcheck(torch.ops.fastbert.encoder_layer_backward.default, arguments)


def test_a_model_of_fused_layers(fused_calls: list[bool], seed: int) -> None:
    model, batch = BertModel(CONFIG).to(DEVICE).eval(), batch_of([100, 16, 33, 2], seed)
    with torch.no_grad():
        with use_backend("triton"):
            actual = model(batch).last_hidden_state
        with use_backend("eager"):
            expected = model(batch).last_hidden_state
    assert len(fused_calls) == 2
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_wrong_offsets_are_named(seed: int) -> None:
    batch = batch_of([5, 3], seed)
    wrong = replace(batch, cu_seqlens=batch.cu_seqlens - 1)
    x = torch.randn(8, 96, device=DEVICE)
    if GPU:
        pytest.skip("on a GPU they are read under FASTBERT_DEBUG=1 only")
    with use_backend("triton"), pytest.raises(UserError, match="cu_seqlens_q starts at -1: it must start at 0"):
        random_layer(seed)(x, layer_batch(wrong, 0.0, 0.0, False))


def test_loss_scaling_in_fp16(seed: int) -> None:
    """Gradients of a whole model, scaled as GradScaler begins, are finite, fp32, and as close to float64 as eager's."""
    batch, results = batch_of([20, 9], seed), {}
    runs = (("exact", "eager", None), ("eager", "eager", torch.half), ("triton", "triton", torch.half))
    for name, backend, dtype in runs:
        model = BertForPreTraining(replace(CONFIG, num_hidden_layers=1))
        model.init_weights(seed=1)
        model.to(DEVICE, torch.float64 if dtype is None else torch.float32).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(DEVICE.type, init_scale=65536.0, enabled=dtype is not None)
        with use_backend(backend):
            with torch.autocast(DEVICE.type, dtype=torch.half, enabled=dtype is not None):
                loss = model(batch).loss
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        results[name] = {key: parameter.grad for key, parameter in model.named_parameters()}
        scaler.step(optimizer)
        scaler.update()
        assert dtype is None or scaler.get_scale() == 65536.0
    for key, truth in results["exact"].items():
        assert results["triton"][key].dtype == torch.float32
        assert_as_accurate(results["triton"][key], results["eager"][key], truth, key, factor=FACTOR, floor=2e-4)
