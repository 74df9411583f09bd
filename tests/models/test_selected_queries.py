"""The last layer on CPUs computes the queries of the tokens that are read from it, with the bits that they have among
all queries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import cpu_kernels
import layers
import pytest
import torch
from torch import Tensor

import fastbert
from fastbert import BertConfig, PackedBatch, use_backend
from fastbert.models.encoder import EncoderModel
from fastbert.ops.encoder_layer import native_general
from fastbert.ops.encoder_layer.arguments import LayerBatch, LayerPositions
from fastbert.ops.encoder_layer.spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec, RotarySpec
from fastbert.ops.native.matmul_table import same_in_every_batch

SHAPE = {"vocab_size": 50, "num_hidden_layers": 2, "intermediate_size": 80, "max_position_embeddings": 512}
DTYPES: dict[str, Callable[[EncoderModel], object]] = {
    "fp32": lambda model: model,
    "bf16": lambda model: model.bfloat16(),
    "int8": lambda model: model.quantize("int8"),
    "bf16 int8": lambda model: model.bfloat16().quantize("int8"),
}
BATCHES = {
    "short": [9, 1, 0, 20, 0, 0, 33, 1],
    "one": [64],
    "first and last empty": [0, 0, 5, 70, 0],
    "tiles": [23, 24, 25, 95, 96, 97, 31, 32, 33],
    "blocks of keys": [255, 256, 257],
    "longest": [512, 1, 385],
}


def bert(seed: int, width: int, heads: int, **values: Any) -> EncoderModel:
    model = fastbert.BertModel(BertConfig(**SHAPE | values, hidden_size=width, num_attention_heads=heads)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model


def batch_of(lengths: list[int], seed: int) -> PackedBatch:
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    ids = torch.randint(0, 50, (sum(lengths),), generator=generator)
    return PackedBatch(input_ids=ids, cu_seqlens=offsets, max_seqlen=max(lengths))


def selections(lengths: list[int], seed: int) -> dict[str, Tensor]:
    """Tokens to read, fewer than there are."""
    tokens, generator = sum(lengths), torch.Generator().manual_seed(seed)
    ends = list(accumulate(lengths))
    firsts = torch.tensor([end - length for end, length in zip(ends, lengths, strict=True) if length])
    shuffled = torch.randperm(tokens, generator=generator)
    repeated = torch.randint(0, tokens, (tokens // 2,), generator=generator)
    return {
        "first": firsts,
        "last": torch.tensor([tokens - 1]),
        "sixth": shuffled[: max(1, tokens // 6)].sort().values,
        "all but one": shuffled[1:].sort().values,
        "out of order": shuffled[: tokens - 1],
        "repeated": torch.cat([repeated, repeated.flip(0)])[: tokens - 1],
        "one sequence": torch.arange(ends[-1] - lengths[-1], ends[-1])[: tokens - 1],
        "none": firsts[:0],
    }


@pytest.fixture(params=["stack", "layers"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All layers in one call, or one by one."""
    if request.param == "layers":
        monkeypatch.setattr("fastbert.models.encoder.current_stack", lambda *_: None)
    return request.param


@pytest.fixture(params=[2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def assert_same_bits(model: EncoderModel, lengths: list[int], seed: int, **options: Any) -> None:
    batch = batch_of(lengths, seed)
    expected = model.encode(batch, **options)[0]
    for name, rows in selections(lengths, seed).items():
        actual = model.encode(batch, token_indices=rows, **options)[0]
        assert torch.equal(actual, expected[rows]), (lengths, name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BATCHES)
def test_rows_have_the_bits_they_have_among_all(dtype: str, name: str, path: str, seed: int) -> None:
    model = bert(seed, 64, 2)
    DTYPES[dtype](model)
    with torch.no_grad(), same_in_every_batch():
        assert_same_bits(model, BATCHES[name], seed)


def test_every_length(path: str, seed: int) -> None:
    lengths = [*range(2, 70), *range(80, 500, 37), *(2**k + step for k in (7, 8) for step in (-1, 0, 1)), 511, 512]
    model = bert(seed, 16, 1, num_hidden_layers=1)
    with torch.no_grad(), same_in_every_batch():
        for length in lengths:
            batch, rows = batch_of([length], seed), torch.tensor([length // 2])
            expected = model.encode(batch)[0][rows]
            assert torch.equal(model.encode(batch, token_indices=rows)[0], expected), length


@pytest.mark.parametrize("name", ["short", "tiles"])
@pytest.mark.parametrize(("width", "heads"), [(40, 2), (96, 6), (208, 13)])
def test_widths_whose_blocks_hold_queries_and_keys(
    name: str, width: int, heads: int, path: str, threads: int, seed: int
) -> None:
    model = bert(seed, width, heads)
    with torch.no_grad(), same_in_every_batch():
        for kind in (None, "int8"):
            assert_same_bits(model.quantize(kind), BATCHES[name], seed)


@pytest.mark.parametrize("level", cpu_kernels.KERNELS)
def test_every_kernel(level: str, path: str, seed: int) -> None:
    with cpu_kernels.running(level), torch.no_grad(), use_backend("native"), same_in_every_batch():
        for change in DTYPES.values():
            model = bert(seed, 40, 2)
            change(model)
            for lengths in ([9, 0, 1, 17], [30, 40]):
                assert_same_bits(model, lengths, seed)


def test_causal_attention(seed: int) -> None:
    """Of the last tokens it computes the queries alone; of others those of all tokens."""
    model = bert(seed, 64, 2)
    with torch.no_grad(), same_in_every_batch():
        for name in ("short", "blocks of keys"):
            batch = batch_of(BATCHES[name], seed)
            expected = model.encode(batch, causal=True)[0]
            ends = batch.cu_seqlens[1:][batch.cu_seqlens.diff() > 0].long()
            pairs = torch.stack([ends - 2, ends - 1], 1).flatten().clamp(min=0)
            for rows in (ends - 1, ends.flip(0) - 1, pairs, pairs.flip(0)):
                assert torch.equal(model.encode(batch, causal=True, token_indices=rows)[0], expected[rows])
            assert_same_bits(model, BATCHES[name], seed, causal=True)


ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped heads": {"key_value_heads": 2},
    "causal": {"causal": True},
    "window": {"window": 7},
    "bias by distance": {"position": "alibi"},
    "causal bias by distance": {"position": "alibi", "causal": True},
    "rotary": {"position": "rotary", "rotary": RotarySpec(1e4, 8)},
}


def parameters_of(spec: LayerSpec, seed: int) -> dict[str, Tensor]:
    """The parameters of a layer without biases."""
    attention, width, inner = spec.self_attention, spec.hidden_size, spec.feed_forward.intermediate_size
    groups = attention.key_value_heads or attention.heads
    queries, keys = attention.heads * attention.head_dim, groups * attention.head_dim
    shapes = {
        "query": (queries, width), "key": (keys, width), "value": (keys, width), "attention_output": (width, queries),
        "intermediate": (spec.feed_forward.first_width, width), "output": (width, inner),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    matrices = {name: torch.randn(shape, generator=generator) * shape[1] ** -0.5 for name, shape in shapes.items()}
    norms = ("attention_norm", "attention_norm_bias", "output_norm", "output_norm_bias")
    return matrices | {name: torch.randn(width, generator=generator) for name in norms}


def general_spec(width: int, attention: AttentionSpec, inner: int, *, gated: bool) -> LayerSpec:
    norm = NormSpec(1e-12, "pre" if gated else "post")
    network = FeedForwardSpec(inner, gated=gated, bias=False)
    return LayerSpec(width, attention, network, norm, norm)


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("gated", [False, True], ids=["post-norm", "gated pre-norm"])
def test_layers_of_other_encoders(kind: str, gated: bool, seed: int) -> None:
    values = {"projection_bias": False, "output_bias": False} | ATTENTION[kind]
    spec = general_spec(56, AttentionSpec(4, 10, **values), 48, gated=gated)  # keys begin within a block of outputs
    lengths, parameters = BATCHES["short"], parameters_of(spec, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    longest, x = max(lengths), torch.randn(sum(lengths), 56, generator=generator)
    positions = LayerPositions(distance_bias=torch.randn(4, 2 * longest - 1, generator=generator))
    if spec.self_attention.rotary is not None:
        positions = LayerPositions(rotary={spec.self_attention.rotary: torch.randn(longest, 8, generator=generator)})
    offsets = batch_of(lengths, seed).cu_seqlens
    for int8 in (False, True):

        def output(rows: Tensor | None, int8: bool = int8) -> Tensor:
            batch = LayerBatch(cu_seqlens=offsets, max_seqlen=longest, token_indices=rows, positions=positions)
            return native_general.infer(x, parameters, spec, batch, torch.float32, int8=int8)

        expected = output(None)
        ends = offsets[1:][offsets.diff() > 0].long() - 1
        for name, rows in (selections(lengths, seed) | {"ends": ends, "ends backwards": ends.flip(0)}).items():
            assert torch.equal(output(rows), expected[rows]), (name, int8)


def seconds_of(call: Callable[[], object], times: int) -> float:
    """The least of some measurements."""
    measured = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        measured.append(time.perf_counter() - start)
    return min(measured)


def test_attention_of_all_queries_would_take_longer(seed: int) -> None:
    """Attention of 4096 tokens takes most of a narrow layer's time."""
    config = BertConfig(**SHAPE | {"hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 4096})
    layer, batch = layers.random_layer(seed, config), batch_of([4096], seed)
    x, rows = torch.randn(4096, 64), torch.tensor([0, 7, 4000])
    for causal, read in ((False, rows), (True, torch.tensor([4094, 4095]))):
        with torch.no_grad(), use_backend("native"):
            some = seconds_of(lambda: layers.run_layer(layer, x, batch, rows=read, causal=causal), 5)  # noqa: B023
            every = seconds_of(lambda: layers.run_layer(layer, x, batch, causal=causal), 2)  # noqa: B023
        assert every > 4 * some, (every, some)


def test_projections_to_all_queries_would_take_longer(seed: int) -> None:
    """Of a layer with 48 heads that share one head of keys and values."""
    attention = AttentionSpec(48, 64, key_value_heads=1, projection_bias=False, output_bias=False)
    spec = general_spec(256, attention, 64, gated=False)
    parameters, x = parameters_of(spec, seed), torch.randn(2048, 256)
    offsets = torch.arange(0, 2049, 16, dtype=torch.int32)
    batch = LayerBatch(cu_seqlens=offsets, max_seqlen=16, token_indices=torch.tensor([3]))
    layer = seconds_of(lambda: native_general.infer(x, parameters, spec, batch, torch.float32), 5)
    queries = seconds_of(lambda: torch.nn.functional.linear(x, parameters["query"]), 2)
    assert queries > 3 * layer, (queries, layer)
