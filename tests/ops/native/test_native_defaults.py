"""The native backend under torch's defaults: kernels get memory of their own dtypes, in this machine's memory."""

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fastbert import ops, use_backend
from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.ops.native import matmul
from fastbert.training.optimizer import AdamW

# Large enough that some of the memory is the pool's.
ROWS, WIDTH, VOCABULARY = 400, 48, 33


@contextlib.contextmanager
def defaults(dtype: torch.dtype | None, device: str | None) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        with torch.device(device) if device else contextlib.nullcontext():
            yield
    finally:
        torch.set_default_dtype(before)


class Operands:
    """Tensors of every operation, made under torch's own defaults."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).requires_grad_()

        self.x, self.residual, self.grad = drawn(ROWS, WIDTH), drawn(ROWS, WIDTH), drawn(ROWS, WIDTH).detach()
        self.weight, self.bias, self.x_bias = drawn(WIDTH), drawn(WIDTH), drawn(WIDTH)
        self.square, self.vocabulary = drawn(WIDTH, WIDTH), drawn(VOCABULARY, WIDTH)
        self.labels = torch.randint(VOCABULARY, (ROWS,), generator=generator)
        self.ids = [self.labels, self.labels // 2, self.labels % 2]
        self.tables = [drawn(VOCABULARY, WIDTH), drawn(VOCABULARY, WIDTH), drawn(2, WIDTH)]
        position, sequences = torch.arange(ROWS), torch.zeros(ROWS, dtype=torch.int64)
        self.dropout = TokenDropout(0.1, torch.tensor([seed]), sequences, position, 3)
        self.heads, self.heads_grad = drawn(3, ROWS, 2, 8), drawn(ROWS, 2, 8).detach()
        self.head_bias = drawn(2, ROWS, ROWS)
        self.offsets = torch.tensor([0, 30, ROWS], dtype=torch.int32)
        self.scores, self.scores_grad = drawn(2, 3, 5, 9), drawn(2, 3, 5, 9).detach()


def gradients(y: Tensor, grad: Tensor, *leaves: Tensor) -> list[Tensor]:
    return [y.detach(), *torch.autograd.grad(y, leaves, grad)]


def every_operation(o: Operands) -> dict[str, list[Tensor]]:
    """Results and gradients by operation."""
    q, k, v = o.heads
    problem = {"cu_seqlens_q": o.offsets, "cu_seqlens_k": o.offsets, "max_seqlen_q": ROWS, "max_seqlen_k": ROWS}
    loss = ops.linear_cross_entropy(o.x, o.vocabulary, None, o.labels)
    weight = torch.nn.Parameter(o.square.detach().clone())
    weight.grad = o.square.detach().sin()
    optimizer = AdamW([weight])
    norm = optimizer.clip_gradients(0.5)
    optimizer.step()
    return {
        "layer_norm": gradients(ops.layer_norm(o.x, o.weight, o.bias, 1e-5), o.grad, o.x, o.weight, o.bias),
        "dropout_add_layer_norm": gradients(
            ops.dropout_add_layer_norm(
                o.x, o.residual, o.weight, o.bias, 1e-5, token_dropout=o.dropout, x_bias=o.x_bias
            ),
            o.grad, o.x, o.residual, o.weight, o.bias, o.x_bias,
        ),
        "bias_gelu": gradients(ops.bias_gelu(o.x, o.bias), o.grad, o.x, o.bias),
        "gelu_layer_norm": gradients(
            ops.gelu_layer_norm(o.x, o.x_bias, o.weight, o.bias, 1e-5), o.grad, o.x, o.x_bias, o.weight, o.bias
        ),
        "embedding_layer_norm": gradients(
            ops.embedding_layer_norm(o.ids, o.tables, o.weight, o.bias, 1e-5), o.grad, *o.tables, o.weight, o.bias
        ),
        "dropout": gradients(ops.dropout(o.x, o.dropout), o.grad, o.x),
        "linear": gradients(
            ops.linear(o.x, o.square, o.bias, activation="gelu"), o.grad, o.x, o.square, o.bias
        ),
        "int8": [matmul.matmul(o.x, matmul.prepack(o.square, "int8"))],
        "linear_cross_entropy": [loss.count, loss.correct, *gradients(loss.loss_sum, o.grad[0, 0], o.x, o.vocabulary)],
        "attention": gradients(ops.attention(q, k, v, bias=o.head_bias, **problem), o.heads_grad, o.heads, o.head_bias),
        "softmax": gradients(ops.softmax(o.scores), o.scores_grad, o.scores),
        "AdamW": [weight.detach(), norm],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "device"),
    [
        pytest.param(torch.float64, None, id="fp64"),
        pytest.param(torch.bfloat16, None, id="bf16"),
        pytest.param(None, "meta", id="elsewhere"),
    ],
)
def test_torchs_defaults_change_no_bit(dtype: torch.dtype | None, device: str | None, seed: int) -> None:
    operands = Operands(seed)
    with use_backend("native"):
        expected = every_operation(operands)
        with defaults(dtype, device):
            actual = every_operation(operands)
    for name, tensors in expected.items():
        for i, (result, plain) in enumerate(zip(actual[name], tensors, strict=True)):
            assert (result.dtype, result.device) == (plain.dtype, plain.device), (name, i)
            assert torch.equal(result, plain), (name, i)
