"""Device functions that several kernels share: GELU, dropout of token vectors, sums over rows."""

import pytest
import torch

pytest.importorskip("triton", reason="needs triton")
import triton
import triton.language as tl

from fastbert import ops, use_backend
from fastbert.kernels.columns import column_sums
from fastbert.kernels.gelu.activation import gelu, gelu_and_derivative
from fastbert.kernels.token_dropout import keep_mask, load_key_and_offset
from fastbert.ops import reference

INTERPRETED = not torch.cuda.is_available()
# The interpreter divides with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([] if INTERPRETED else [pytest.mark.gpu])]
DEVICE = "cpu" if INTERPRETED else "cuda"


@triton.jit
def write_gelu(x_ptr, value_ptr, derivative_ptr, again_ptr, TANH: tl.constexpr, COUNT: tl.constexpr):
    offsets = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    x = tl.load(x_ptr + offsets)
    value, derivative = gelu_and_derivative(x, TANH)
    tl.store(value_ptr + offsets, value)
    tl.store(derivative_ptr + offsets, derivative)
    tl.store(again_ptr + offsets, gelu(x, TANH))


@triton.jit
def write_mask(
    key_ptr, sequence_ptr, offset_ptr, out_ptr, tokens, sequences, site, threshold,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    token = tl.arange(0, BLOCK_M)[:, None]
    exists = token < tokens
    key, offset = load_key_and_offset(key_ptr, sequence_ptr, offset_ptr, token, exists, sequences)
    keep = keep_mask(key, offset, 0, site, threshold, BLOCK_M, BLOCK_N)
    tl.store(out_ptr + token * BLOCK_N + tl.arange(0, BLOCK_N)[None, :], keep.to(tl.float32), mask=exists)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_and_its_derivative(approximate: str) -> None:
    x = torch.cat((torch.linspace(-16, 16, 8190), torch.tensor([-1e20, 1e20]))).to(DEVICE)
    actual = [torch.empty_like(x) for _ in range(3)]
    write_gelu[(8,)](x, *actual, TANH=approximate == "tanh", COUNT=1024)
    value, derivative, again = (y[:-2].double() for y in actual)
    exact = x[:-2].double().requires_grad_()
    expected = reference.gelu(exact, approximate)
    (slope,) = torch.autograd.grad(expected.sum(), exact)
    assert torch.equal(value, again)
    assert float((value - expected).detach().abs().max()) < 2.5e-6
    assert float((derivative - slope).abs().max()) < 2.5e-6
    below = (x[:-2] > -4) & (x[:-2] < -1)  # nothing cancels there
    assert float(((value - expected) / expected).detach()[below].abs().max()) < 1e-3
    assert [float(y) for y in actual[0][-2:]] == [0.0, float(x[-1])]


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_token_dropout_is_the_oracles(p: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    key = torch.randint(-(2**63), 2**63 - 1, (3,), generator=generator)
    sequence, offset = torch.tensor([0] * 5 + [1] * 7 + [2] * 3), torch.arange(15) * 37
    out = torch.full((15, 128), torch.nan, device=DEVICE)
    threshold = round(p * 65536)
    arguments = (key.to(DEVICE), sequence.to(DEVICE), offset.to(DEVICE), out, 15, 3, 259, threshold)
    write_mask[(1,)](*arguments, BLOCK_M=16, BLOCK_N=128)
    expected = reference.token_dropout_mask(128, p, key, sequence, offset, 259) > 0
    assert torch.equal(out.cpu() > 0, expected)


@pytest.mark.parametrize("shape", [(1, 5), (64, 32), (65, 3, 33), (264, 3, 768)], ids=str)
def test_column_sums(shape: tuple[int, ...], seed: int) -> None:
    partial = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    torch.testing.assert_close(column_sums(partial).double(), partial.double().sum(0), rtol=1e-5, atol=1e-4)
    assert torch.equal(column_sums(partial), column_sums(partial))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(0, 64), (1, 8), (13, 100), (9, 768)], ids=str)
def test_dropout_of_tokens_and_its_gradient(shape: tuple[int, int], dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, gradient = (torch.randn(shape, generator=generator).to(DEVICE, dtype) for _ in range(2))
    key = torch.randint(-(2**63), 2**63 - 1, (2,), generator=generator).to(DEVICE)
    sequence = (torch.arange(shape[0]) % 2).to(DEVICE)
    dropout = ops.TokenDropout(0.3, key, sequence, torch.arange(shape[0]).to(DEVICE), 4)
    results = []
    for backend in ("triton", "eager"):
        leaf = x.clone().requires_grad_()
        with use_backend(backend):
            y = ops.dropout(leaf, dropout)
            results.append((y.detach(), *torch.autograd.grad(y, leaf, gradient)))
    for actual, expected in zip(*results):
        # Eager torch rounds the factor to the rows' dtype before it multiplies.
        torch.testing.assert_close(actual, expected, rtol=1e-6 if dtype == torch.float32 else 2**-7, atol=0.0)
    arguments = (leaf, key, sequence, dropout.offsets, 0.3, 4, "triton")
    torch.library.opcheck(torch.ops.fastbert.dropout.default, arguments)
