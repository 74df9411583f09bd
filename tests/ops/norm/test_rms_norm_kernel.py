"""The Triton RMSNorms, and LayerNorms without a bias, against float64 and eager torch: on a GPU, or interpreted."""

import pytest
import torch
from guards import Guarded
from norm_kernels import DEVICE, INTERPRETED, check, inputs, random, run, token_dropout

from fastbert import ops, use_backend
from fastbert.ops.dropout.triton import kernel_inputs

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.configs import norm as shipped_norm
from fastbert.kernels.norm import rms_norm
from fastbert.kernels.tuning import tables

# The interpreter divides with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([] if INTERPRETED else [pytest.mark.gpu])]

CASES = [
    pytest.param(0, 64, torch.bfloat16, id="no-row"),
    pytest.param(1, 96, torch.float16, id="one-row"),
    pytest.param(37, 768, torch.bfloat16, id="base-width"),
    pytest.param(300, 33, torch.float32, id="odd-width"),
    pytest.param(2, shipped_norm.WIDEST, torch.float16, id="widest"),
]


def rms_alone(x, weight, **_):
    return (ops.rms_norm(x, weight),)


def rms_of_sum(x, weight, residual, x_bias=None, dropout=None):
    return ops.dropout_add_rms_norm(x, residual, weight, 1e-6, dropout, x_bias=x_bias, return_sum=True)


def unbiased(x, weight, **_):
    return (ops.layer_norm(x, weight),)


def unbiased_of_sum(x, weight, residual, x_bias=None, dropout=None):
    return ops.dropout_add_layer_norm(x, residual, weight, None, 1e-5, dropout, x_bias=x_bias, return_sum=True)


def unbiased_of_gelu(x, weight, x_bias=None, **_):
    return (ops.gelu_layer_norm(x, x_bias, weight),)


def leaves_of(function, rows: int, width: int, dtype: torch.dtype, seed: int) -> dict:
    tensors = inputs(rows, width, dtype, seed)
    del tensors["bias"]
    if function in (rms_alone, unbiased):
        del tensors["residual"], tensors["x_bias"]
    if function is unbiased_of_gelu:
        del tensors["residual"]
    return tensors


@pytest.mark.parametrize(("rows", "width", "dtype"), CASES)
@pytest.mark.parametrize("function", [rms_alone, rms_of_sum, unbiased, unbiased_of_sum, unbiased_of_gelu])
def test_norms_are_as_accurate_as_torch(function, rows: int, width: int, dtype: torch.dtype, seed: int) -> None:
    tensors = leaves_of(function, rows, width, dtype, seed)
    upstream = [random((rows, width), seed + i) for i in (5, 6)]
    if "residual" not in tensors:
        check(function, tensors, upstream[:1])
        return
    for dropout, biased in ((None, False), (token_dropout(rows, seed), True)):
        used = {name: x for name, x in tensors.items() if biased or name != "x_bias"}
        actual = check(function, used, upstream, dropout=dropout)
        assert ("dx_bias" in actual) == biased
        reached = check(function, used, [None, upstream[1]], dropout=dropout)
        assert "dweight" not in reached


def test_writes_every_element_and_nothing_around(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    guards: list[Guarded] = []

    def guarded(tensor: torch.Tensor) -> torch.Tensor:
        guards.append(Guarded(tensor, torch.device(DEVICE)))
        return guards[-1].tensor

    def empty(shape, **options) -> torch.Tensor:
        return guarded(torch.full(shape if isinstance(shape, tuple) else (shape,), torch.nan, **options))

    for rows, width, dtype in ((5, 33, torch.float32), (270, 96, torch.bfloat16)):
        x, residual, x_bias, weight, _ = map(guarded, inputs(rows, width, dtype, seed).values())
        gradient, other = (guarded(random((rows, width), seed + i).to(dtype)) for i in (5, 6))
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", empty)
            for dropout in (None, token_dropout(rows, seed)):
                drops = kernel_inputs(dropout)
                _, total, rstd = rms_norm.forward(x, x_bias, residual, weight, 1e-5, drops, True)
                rms_norm.backward(gradient, other, total, rstd, weight, drops, x_bias=True, residual=True)
            _, total, rstd = rms_norm.forward(x, None, None, weight, 1e-5, None, True)
            rms_norm.backward(gradient, None, total, rstd, weight, None, x_bias=False, residual=False)
        assert total is x
    assert len(guards) > 30
    for guard in guards:
        guard.check()
        assert guard.tensor.isfinite().all()


def test_rows_do_not_depend_on_their_neighbours(seed: int) -> None:
    tensors = leaves_of(rms_of_sum, 50, 96, torch.bfloat16, seed)
    upstream, some = [random((50, 96), seed + i) for i in (5, 6)], slice(17, 24)
    together, again = (run("triton", rms_of_sum, tensors, upstream) for _ in range(2))
    assert all(torch.equal(together[name], again[name]) for name in together)
    fewer = tensors | {name: tensors[name][some] for name in ("x", "residual")}
    apart = run("triton", rms_of_sum, fewer, [g[some] for g in upstream])
    for name in ("y", "sum", "dx", "dresidual"):
        assert torch.equal(together[name][some], apart[name]), name


def test_the_norm_is_that_of_the_returned_sum_and_compiles_whole(seed: int) -> None:
    tensors = leaves_of(rms_of_sum, 21, 200, torch.bfloat16, seed)
    with use_backend("triton"):
        y, total = rms_of_sum(**tensors)
        assert torch.equal(y, rms_alone(total, tensors["weight"])[0])
        compiled = torch.compile(lambda: rms_of_sum(**tensors), backend="aot_eager", fullgraph=True)
        assert all(torch.equal(one, other) for one, other in zip(compiled(), (y, total)))


def test_every_width_has_a_configuration() -> None:
    for target in tables.DEFAULTS:
        for width in (32, 768, shipped_norm.WIDEST):
            shape = tables.shape_class(torch.bfloat16, False, width)
            for kernel in ("rms_norm_forward", "rms_norm_backward"):
                assert tables.lookup(kernel, shape, target).constants["BLOCK_N"] >= width
