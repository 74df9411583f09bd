"""Attention without dropout by the library's kernels, where the table of configurations says so.

On a CPU, PyTorch's operators get implementations here, which check what they are called with.
"""

import contextlib

import pytest
import torch
from attention_kernels import DEVICE, GPU, Inputs, check

from fastbert import BertConfig, BertModel, ops, use_backend

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.attention import library
from fastbert.kernels.configs.configuration import Config
from fastbert.kernels.tuning import tables

pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([pytest.mark.gpu] if GPU else [])]
HALF = "half-32"


def sequences(cu_q, cu_k):
    """The rows of the queries and of the keys of each sequence."""
    spans = ([slice(a, b) for a, b in zip(cu.tolist(), cu.tolist()[1:])] for cu in (cu_q, cu_k))
    return zip(*spans)


def scores(q, k, scale):
    """fp32 (heads, queries, keys)."""
    return torch.einsum("qhd,khd->hqk", q.float(), k.float()) * scale


def flash_forward(q, k, v, cu_q, cu_k, max_q, max_k, dropout_p, causal, debug, *, scale=None, **windows):
    assert (dropout_p, causal, debug) == (0.0, False, False)
    out, lse = torch.empty_like(q), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)
    for rows, keys in sequences(cu_q, cu_k):
        assert rows.stop - rows.start <= max_q
        assert keys.stop - keys.start <= max_k
        values = scores(q[rows], k[keys], scale)
        lse[:, rows] = values.logsumexp(-1)
        out[rows] = torch.einsum("hqk,khd->qhd", values.softmax(-1), v[keys].float()).to(q.dtype)
    empty = q.new_empty(0)
    return out, lse, empty, empty, empty


def flash_backward(
    grad, q, k, v, out, lse, cu_q, cu_k, max_q, max_k, dropout_p, causal, seed, offset, *, scale=None, **windows
):
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert (dropout_p, causal) == (0.0, False)
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    for rows, keys in sequences(cu_q, cu_k):
        upstream = grad[rows].float()
        probabilities = (scores(q[rows], k[keys], scale) - lse[:, rows, None]).exp()
        delta = (upstream * out[rows].float()).sum(-1).t()[..., None]
        gradient = probabilities * (torch.einsum("qhd,khd->hqk", upstream, v[keys].float()) - delta) * scale
        dq[rows] = torch.einsum("hqk,khd->qhd", gradient, k[keys].float()).to(q.dtype)
        dk[keys] = torch.einsum("hqk,qhd->khd", gradient, q[rows].float()).to(q.dtype)
        dv[keys] = torch.einsum("hqk,qhd->khd", probabilities, upstream).to(q.dtype)
    return dq, dk, dv


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch):
    """The names of the library's operators that ran."""
    if GPU:
        pytest.skip("the operators of a CPU")
    called = []
    implementations = {
        "_flash_attention_forward": flash_forward,
        "_flash_attention_backward": flash_backward,
    }
    registered = torch.library.Library("aten", "IMPL", "CPU")
    for name, function in implementations.items():

        def run(*arguments, _name=name, _function=function, **options):
            called.append(_name.removesuffix("_attention_forward").removesuffix("_attention_backward").strip("_"))
            return _function(*arguments, **options)

        registered.impl(name, run)
    monkeypatch.setattr(library, "is_present", lambda device: True)
    monkeypatch.setattr(library, "architecture", lambda device: "sm_90")
    yield called
    registered._destroy()


@contextlib.contextmanager
def chosen(shape=HALF, **entries: int):
    with contextlib.ExitStack() as stack:
        for name, value in entries.items():
            stack.enter_context(tables.overridden(f"attention_{name}", shape, Config(constants={"LIBRARY": value})))
        yield


FLASH_EVERYWHERE = {f"training_{length}": library.FLASH for length in library.LENGTHS}


def mode():
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_flash_computes_output_and_gradients(calls, seed, dtype: torch.dtype) -> None:
    inputs = Inputs([5, 40, 130], [5, 44, 130], seed=seed, dtype=dtype)
    before = mode()
    try:
        for setting, warns in ((False, False), (True, False), (True, True)):
            calls.clear()
            torch.use_deterministic_algorithms(setting, warn_only=warns)
            with chosen(**FLASH_EVERYWHERE):
                check(inputs)
            assert calls == ["flash", "flash"]
            assert mode() == (setting, warns)
            assert torch.utils.deterministic.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def test_blocks_of_several_threads_leave_the_mode_as_it_was() -> None:
    before, first, second = mode(), library._DETERMINISTIC, library._DETERMINISTIC
    with contextlib.ExitStack() as one, contextlib.ExitStack() as other:
        one.enter_context(first)
        other.enter_context(second)
        one.close()
        assert mode() == (True, False)
    assert mode() == before


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        pytest.param({"dropout_p": 0.1}, torch.bfloat16, id="dropout"),
        pytest.param({"bias": True}, torch.bfloat16, id="bias"),
        pytest.param({"causal": True}, torch.bfloat16, id="causal"),
        pytest.param({"width": 96}, torch.bfloat16, id="width"),
        pytest.param({}, torch.float32, id="fp32"),
    ],
)
def test_calls_that_the_library_does_not_compute_keep_our_kernels(calls, seed, options, dtype: torch.dtype) -> None:
    with chosen(**FLASH_EVERYWHERE), chosen("ieee-32", **FLASH_EVERYWHERE), chosen("half-128", **FLASH_EVERYWHERE):
        inputs = Inputs([5, 40], [5, 40], seed=seed, dtype=dtype, **options)
        inputs.run(inputs.triton)
    assert calls == []


def test_sequences_and_batches_that_are_empty_keep_our_kernels(calls, seed) -> None:
    with chosen(**FLASH_EVERYWHERE):
        for lengths in ([0, 0], []):
            inputs = Inputs(lengths, lengths, seed=seed, dtype=torch.bfloat16)
            assert all(x.numel() == 0 for x in inputs.run(inputs.triton))
    assert calls == []


@pytest.mark.parametrize(("longest", "length"), [(128, "128"), (129, "512"), (513, "any")])
def test_each_class_of_length_chooses_for_itself(calls, seed, longest: int, length: str) -> None:
    inputs = Inputs([longest], [longest], seed=seed, dtype=torch.bfloat16, heads=1)
    tensors = [x.to(DEVICE).requires_grad_() for x in inputs.tensors]
    others = {f"training_{name}": library.FLASH for name in library.LENGTHS if name != length}
    with chosen(**others):
        inputs.triton(*tensors, *inputs.cu)
    assert calls == []
    with chosen(**{f"training_{length}": library.FLASH}):
        inputs.triton(*tensors, *inputs.cu)
    assert calls == ["flash"]


def test_a_layer_uses_the_kernels_of_inference_and_of_training(calls, seed) -> None:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=50, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertModel(config).to(DEVICE, torch.bfloat16)
    ids = torch.randint(5, 50, (2, 24), device=DEVICE)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0

    def run(training: bool):
        model.train(training)
        with use_backend("triton"), contextlib.nullcontext() if training else torch.no_grad():
            out = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        if not training:
            return [out]
        model.zero_grad()
        (out * mask[..., None]).sin().sum().backward()
        return [out.detach(), *(p.grad.float() for p in model.encoder.parameters())]

    expected = {training: run(training) for training in (False, True)}
    assert calls == []
    for training, use, names in ((False, "inference", ["flash"]), (True, "training", ["flash", "flash"])):
        with chosen(**{f"{use}_128": library.FLASH}):
            for other in (not training, training):
                calls.clear()
                actual = run(other)
                assert calls == (names if other == training else [])
        for mine, other in zip(actual, expected[training], strict=True):
            torch.testing.assert_close(mine, other, rtol=0.05, atol=0.03 * float(other.abs().max()) + 1e-3)


def test_the_operators_of_this_pytorch_take_these_arguments() -> None:
    """Their own rules for shapes, on tensors without memory."""
    q, k, v = torch.empty(7, 3, 2, 32, dtype=torch.bfloat16, device="meta").unbind(1)
    cu = torch.empty(3, dtype=torch.int32, device="meta")
    flash = torch.ops.aten._flash_attention_forward(q, k, v, cu, cu, 5, 5, 0.0, False, False, scale=0.2)
    assert flash[0].shape == q.shape
    assert (flash[1].shape, flash[1].dtype) == ((2, 7), torch.float32)
    unused = torch.empty(0, dtype=torch.int64, device="meta")
    gradients = torch.ops.aten._flash_attention_backward(
        flash[0], q, k, v, *flash[:2], cu, cu, 5, 5, 0.0, False, unused, unused, scale=0.2
    )
    assert [x.shape for x in gradients] == [x.shape for x in (q, k, v)]


def test_attention_alone_uses_the_kernels_of_inference_too(calls, seed) -> None:
    inputs = Inputs([5, 40], [5, 44], seed=seed, dtype=torch.bfloat16)
    tensors = [x.to(DEVICE).requires_grad_() for x in inputs.tensors]
    with chosen(inference_128=library.FLASH):
        inputs.triton(*tensors, *inputs.cu)
        assert calls == []
        with torch.no_grad():
            inputs.triton(*tensors, *inputs.cu)
    assert calls == ["flash"]


def test_tensors_that_flash_cannot_load_keep_our_kernels(calls, seed) -> None:
    flat = torch.randn(45 * 64 + 1, dtype=torch.bfloat16, device=DEVICE)
    wide = torch.randn(45, 68, dtype=torch.bfloat16, device=DEVICE)
    cu = torch.tensor([0, 5, 45], dtype=torch.int32, device=DEVICE)
    for x in (flat[1:].view(45, 2, 32), wide[:, :64].view(45, 2, 32)):
        with chosen(inference_128=library.FLASH), use_backend("triton"):
            ops.attention(x, x, x, cu, cu, 40, 40)
    assert calls == []
