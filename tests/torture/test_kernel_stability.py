"""Kernels give the same bits on every run and in every batch (row 15): a row, or a sequence, alone and among others, in
any order, padded or packed, on one thread and on several; results, and gradients of what belongs to the row."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import cpu_kernels
import torch
from torch import Tensor, nn
from torture.campaign import Campaign
from torture.kernel_draws import Draw
from torture.ledger import Figures, merged
from torture.scorecard import scored

from fastbert import BertConfig, BertModel, PackedBatch, ops, use_backend
from fastbert.ops import dispatch
from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.ops.encoder_layer.arguments import LayerBatch, LayerParameters
from fastbert.ops.encoder_layer.op import encoder_layer
from fastbert.ops.encoder_layer.spec import bert_layer

# One case in so many runs Triton's kernels of rows in the interpreter; where there is a GPU, the tests that are marked
# `gpu` run them.
TRITON_SHARE = 20
# Computes the units of the given numbers together, on some backend: for each its results and gradients.
Batch = Callable[[list[int]], list[list[Tensor]]]


def rows_of(draw: Draw, name: str, dtype: torch.dtype) -> tuple[int, Batch]:
    """Return 64 rows and the call of an operation on some of them."""
    count, width = 64, draw.size(300, 1)
    wide = 2 * width if name == "gated_activation" else width
    x, residual = draw.normal(count, wide, dtype=dtype), draw.normal(count, wide, dtype=dtype)
    vectors = draw.normal(3, wide, dtype=dtype)
    outputs = draw.size(200, 1)
    weight = nn.Parameter(draw.normal(outputs, width, dtype=dtype, scale=width**-0.5), requires_grad=False)
    labels = torch.randint(outputs, (count,), generator=draw.generator)
    key, p = draw.keys(count), draw.random.choice((0.0, 0.1, 0.5))
    activation = draw.random.choice(("gelu", "gelu_tanh"))
    tables = [draw.normal(50, width, dtype=dtype) for _ in range(3)]
    ids = [torch.randint(50, (count,), generator=draw.generator) for _ in tables]
    gradients = draw.normal(count, max(wide, outputs), dtype=dtype)

    def call(rows: Tensor, x: Tensor) -> Tensor:
        a, b, c = vectors
        dropout = TokenDropout(p, key, rows, torch.arange(count)[rows], 5)
        match name:
            case "layer_norm":
                return ops.layer_norm(x, a, b)
            case "rms_norm":
                return ops.rms_norm(x, a)
            case "dropout_add_layer_norm":
                return ops.dropout_add_layer_norm(x, residual[rows], a, b, 1e-5, dropout, x_bias=c)
            case "dropout_add_rms_norm":
                return ops.dropout_add_rms_norm(x, residual[rows], a, 1e-5, dropout, x_bias=c)
            case "gelu_layer_norm":
                return ops.gelu_layer_norm(x, a, b, c)
            case "bias_gelu":
                return ops.bias_gelu(x, a, "tanh" if activation == "gelu_tanh" else "none")
            case "gated_activation":
                return ops.gated_activation(x, a, "silu")
            case "dropout":
                return ops.dropout(x, dropout)
            case "linear":
                return ops.linear(x, weight, activation=activation)
            case "softmax":
                return ops.softmax(x[:, None, None], scale=0.5)[:, 0, 0]
            case "linear_cross_entropy":
                return ops.linear_cross_entropy(x, weight, None, labels[rows]).loss_sum
            case _:
                return ops.embedding_layer_norm([i[rows] for i in ids], tables, a, b, 1e-5, dropout)

    def batch(numbers: list[int]) -> list[list[Tensor]]:
        rows = torch.tensor(numbers)
        part = x[rows].requires_grad_()
        y = call(rows, part)
        found: list[Tensor] = [] if y.dim() == 0 else [y.detach()]
        if y.requires_grad:
            upstream = torch.ones(()) if y.dim() == 0 else gradients[rows, : y.shape[1]]
            found += torch.autograd.grad(y, part, upstream)
        return [[tensor[i] for tensor in found] for i in range(len(numbers))]

    return count, batch


def sequences_of(draw: Draw, name: str, dtype: torch.dtype) -> tuple[int, Batch]:
    """Return 24 sequences and the call of attention, of a layer or of a model on some of them."""
    count = 24
    lengths = [draw.random.choice((0, 1, 2, 15, 16, 17, 33, draw.random.randint(1, 70))) for _ in range(count)]
    heads, dim = draw.random.choice((1, 2, 3)), draw.random.choice((16, 32, 33, 64))
    width, inner = heads * dim, draw.size(150, 1)
    starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
    key, p = draw.keys(count), draw.random.choice((0.0, 0.1))
    causal = draw.chance(0.3)
    if name == "attention":
        inputs = [draw.normal(starts[-1], heads, dim, dtype=dtype) for _ in range(3)]
    else:
        inputs = [draw.normal(starts[-1], width, dtype=dtype)]
    gradient = draw.normal(starts[-1], width, dtype=dtype)
    shapes = {"intermediate": (inner, width), "output": (width, inner), "intermediate_bias": (inner,)}
    square = ("query", "key", "value", "attention_output")
    weights = LayerParameters(
        *[
            nn.Parameter(draw.normal(*shape, dtype=dtype, scale=shape[-1] ** -0.5 if len(shape) > 1 else 0.5))
            for shape in (
                shapes.get(field, (width, width) if field in square else (width,)) for field in LayerParameters._fields
            )
        ]
    )
    spec = bert_layer(width, heads, inner, "gelu", 1e-12, causal=causal)
    trains = draw.chance(0.5)

    def batch(numbers: list[int]) -> list[list[Tensor]]:
        tokens = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in numbers])
        sizes = [lengths[i] for i in numbers]
        ends, longest = torch.tensor([0, *sizes]).cumsum(0).int(), max(sizes)
        parts = [x[tokens].requires_grad_(trains) for x in inputs]
        keys = key[torch.tensor(numbers)]
        if name == "attention":
            options: dict[str, Any] = {"dropout_p": p, "dropout_key": keys, "dropout_site": 7} if p else {}
            y = ops.attention(*parts, ends, ends, longest, longest, causal=causal, **options).flatten(1)
        else:
            ids = torch.arange(len(numbers)).repeat_interleave(torch.tensor(sizes))
            drops = {"dropout_key": keys, "sequence_ids": ids, "offsets": torch.arange(len(ids)) - ends[ids].long()}
            layer = LayerBatch(cu_seqlens=ends, max_seqlen=longest)
            if p:
                layer = replace(layer, attention_p=p, attention_output_p=p, output_p=p, **drops)
            with nullcontext() if trains else torch.no_grad():
                y = encoder_layer(parts[0], weights, spec, layer)
        found = [y.detach()]
        if trains:
            found += torch.autograd.grad(y, parts, gradient[tokens])
        return [[tensor[ends[i] : ends[i + 1]] for tensor in found] for i in range(len(numbers))]

    return count, batch


def model_of(draw: Draw, dtype: torch.dtype) -> tuple[int, Batch]:
    """Return 24 texts and a model's hidden states of some of them: packed, or padded to a random width."""
    count, heads = 24, draw.random.choice((1, 2))
    config = BertConfig.preset(
        "tiny", vocab_size=60, hidden_size=32 * heads, intermediate_size=draw.size(100, 1), num_attention_heads=heads,
        num_hidden_layers=draw.random.choice((1, 2)), max_position_embeddings=80,
    )  # fmt: skip
    model = BertModel(config)
    model.init_weights(seed=draw.random.getrandbits(30))
    model = model.to(dtype).eval()
    lengths = [draw.random.choice((1, 2, 15, 16, 17, 33, draw.random.randint(1, 60))) for _ in range(count)]
    texts = [torch.randint(60, (length,), generator=draw.generator) for length in lengths]

    @torch.no_grad()
    def batch(numbers: list[int]) -> list[list[Tensor]]:
        chosen = [texts[i] for i in numbers]
        sizes = [len(text) for text in chosen]
        if draw.chance(0.5):
            ends = torch.tensor([0, *sizes]).cumsum(0).int()
            y = model(PackedBatch(input_ids=torch.cat(chosen), cu_seqlens=ends, max_seqlen=max(sizes)))
            return [[y.last_hidden_state[ends[i] : ends[i + 1]]] for i in range(len(numbers))]
        width = max(sizes) + draw.random.randint(0, 9)
        ids, mask = torch.zeros(len(numbers), width, dtype=torch.int64), torch.zeros(len(numbers), width)
        for i, text in enumerate(chosen):
            ids[i, : len(text)], mask[i, : len(text)] = text, 1
        y = model(input_ids=ids, attention_mask=mask.long())
        return [[y.last_hidden_state[i, :size]] for i, size in enumerate(sizes)]

    return count, batch


ROWS = (
    "layer_norm", "rms_norm", "dropout_add_layer_norm", "dropout_add_rms_norm", "gelu_layer_norm", "bias_gelu",
    "gated_activation", "dropout", "linear", "softmax", "linear_cross_entropy", "embedding_layer_norm",
)  # fmt: skip
SEQUENCES = ("attention", "encoder_layer", "model")
NAMES = (*ROWS, *SEQUENCES)


def stable(number: int) -> Figures:
    """Compute units of one operation alone and in batches; compare all bits."""
    draw, name = Draw(number, "stable"), NAMES[number % len(NAMES)]
    turn = number // len(NAMES)
    level = cpu_kernels.HERE[turn % len(cpu_kernels.HERE)]
    dtype = draw.random.choice((torch.float32, torch.bfloat16))
    # On a GPU PyTorch multiplies, whose bits are its own.
    multiplies = name in ("linear", "linear_cross_entropy")
    interpreted = dispatch.HAS_TRITON and not torch.cuda.is_available()
    triton = interpreted and name in ROWS and not multiplies and turn % TRITON_SHARE == TRITON_SHARE - 1
    backend = "triton" if triton else "native"
    what = f"number {number}, {name} on {backend} at {level} in {dtype}"
    compared = 0
    with cpu_kernels.running(level), use_backend(backend):
        if name in ROWS:
            count, batch = rows_of(draw, name, dtype)
        elif name == "model":
            count, batch = model_of(draw, dtype)
        else:
            count, batch = sequences_of(draw, name, dtype)
        torch.set_num_threads(1)
        expected = batch(list(range(count)))
        sizes = [1, 1, count, draw.random.randint(2, 40), draw.random.choice((1, 2, 16, 17, 64, 256))]
        for size in sizes[: 2 if triton else None]:
            numbers = [draw.random.randrange(count) for _ in range(size)]
            if size == count:  # repeated as it was
                numbers = list(range(count))
            torch.set_num_threads(draw.random.choice((1, 1, 2, 3)))
            for i, results in zip(numbers, batch(numbers), strict=True):
                for which, (a, b) in enumerate(zip(results, expected[i], strict=True)):
                    assert torch.equal(a, b), (
                        f"{what}: result {which} of unit {i} differs in a batch of {size} on"
                        f" {torch.get_num_threads()} threads, by up to {float((a - b).abs().max()):.3g}"
                    )
                    compared += 1
    return {"comparisons": compared, f"on_{backend}": 1}


@scored(
    row=15,
    unit="operations in batches of 1 to 256",
    short=30,
    full=1_000,
    goal="the same bits in every batch, with any padding, on any number of threads",
)
def test_stable_kernels(campaign: Campaign, threads: None) -> None:
    """The bits of a row or of a sequence do not depend on what is computed beside it, nor on the run."""
    campaign.run(lambda numbers: merged(map(stable, numbers)))
