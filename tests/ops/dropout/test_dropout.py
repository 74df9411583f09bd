"""Dropout by counter: known answers, the same mask from every generator, the right rate, and nothing but the place."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sweeps import sweep
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import fastbert
from fastbert import _C, ops
from fastbert.errors import UserError
from fastbert.ops import dispatch, reference
from fastbert.ops.dropout.arguments import DropoutArguments, Site, TokenDropout, quantized
from fastbert.ops.dropout.masks import attention_mask, token_mask
from fastbert.ops.dropout.op import DROPOUT


def words(counter: list[int], key: int, rounds: int) -> list[int]:
    parts = tuple(torch.tensor(word) for word in counter)
    return [int(word) for word in reference.philox(parts, torch.tensor(key), rounds)]


def test_philox_known_answers() -> None:
    # The vectors that come with Random123, the authors' own implementation.
    ones = 0xFFFFFFFF
    assert words([0, 0, 0, 0], 0, 10) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert words([ones] * 4, -1, 10) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    digits = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    key = 0x299F31D0 << 32 | 0xA4093822
    assert words(digits, key, 10) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]
    assert words([0, 0, 0, 0], 0, 7) == [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]
    assert words([ones] * 4, -1, 7) == [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]
    assert words(digits, key, 7) == [0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A]


@sweep("dtype", [torch.float32, torch.bfloat16, torch.float16])
@sweep("width", [1, 7, 8, 255, 256, 257, 1000])
def test_native_token_masks_equal_the_oracle(width: int, dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([3, 0, 5])
    sequence = torch.arange(3).repeat_interleave(lengths)
    offsets = torch.tensor([0, 1, 2, 0, 1, 2, 3, 4])
    key = torch.randint(-(2**62), 2**62, (3,), generator=generator)
    dropout = TokenDropout(0.1, key, sequence, offsets, Site.FEED_FORWARD_OUTPUT.of_layer(11))
    oracle = reference.token_dropout_mask(width, 0.1, key, sequence, offsets, dropout.site)
    assert torch.equal(token_mask(dropout, width, dtype), oracle.to(dtype))
    narrow = replace(dropout, sequence_ids=sequence.int(), offsets=offsets.int())
    assert torch.equal(token_mask(narrow, width, dtype), oracle.to(dtype)), "ids may be int32"


@pytest.mark.parametrize("keys", [1, 8, 127, 300])
def test_native_attention_masks_equal_the_oracle(keys: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    key = torch.randint(-(2**62), 2**62, (2,), generator=generator)
    oracle = torch.stack([reference.attention_dropout_mask(3, 5, keys, 0.25, sequence_key, 9) for sequence_key in key])
    assert torch.equal(attention_mask((2, 3, 5, keys), 0.25, key, 9, torch.float32), oracle.float())


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5])
def test_rate_and_mean(p: float, seed: int) -> None:
    key = torch.randint(0, 2**62, (1,), generator=torch.Generator().manual_seed(seed))
    tokens, width = 2000, 512
    index = torch.arange(tokens)
    mask = token_mask(TokenDropout(p, key, 0 * index, index, 5), width, torch.float32)
    threshold, scale = quantized(p)
    dropped = float((mask == 0).double().mean())
    expected = threshold / 65536
    spread = math.sqrt(expected * (1 - expected) / mask.numel())
    assert abs(dropped - expected) < 6 * spread, f"seed {seed}"
    assert abs(expected - p) < 1 / 65536
    assert scale == pytest.approx(1 / (1 - expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_probability_next_to_one_keeps_one_draw_in_256(dtype: torch.dtype, seed: int) -> None:
    key = torch.randint(0, 2**62, (1,), generator=torch.Generator().manual_seed(seed))
    mask = attention_mask((1, 2, 300, 300), 1 - 1e-9, key, 5, dtype)
    assert set(mask.unique().tolist()) == {0.0, 256.0}
    oracle = reference.attention_dropout_mask(2, 300, 300, 1 - 1e-9, key[0], 5)
    assert torch.equal(mask[0], oracle.to(dtype))


def test_sites_layers_heads_and_keys_give_unrelated_masks(seed: int) -> None:
    key = torch.randint(0, 2**62, (2,), generator=torch.Generator().manual_seed(seed))
    masks = [
        attention_mask((1, 2, 64, 64), 0.5, sequence_key[None], site, torch.float32).flatten(1)
        for sequence_key in key
        for site in (Site.ATTENTION.of_layer(0), Site.ATTENTION.of_layer(1))
    ]
    rows = torch.cat([mask.view(2, -1) for mask in masks])
    correlation = np.corrcoef(rows.numpy())
    off_diagonal = correlation[~np.eye(len(rows), dtype=bool)]
    assert np.abs(off_diagonal).max() < 6 / math.sqrt(64 * 64), f"seed {seed}"


def test_a_mask_does_not_depend_on_the_batch() -> None:
    key = torch.tensor([11, 22, 33])
    index = torch.arange(4).repeat(3)
    sequence = torch.arange(3).repeat_interleave(4)
    together = token_mask(TokenDropout(0.3, key, sequence, index, 1), 40, torch.float32)
    alone = token_mask(TokenDropout(0.3, key[1:2], torch.zeros(4).long(), index[:4], 1), 40, torch.float32)
    assert torch.equal(together[4:8], alone)


def test_gradient_goes_through_the_same_mask(seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(6, 33, requires_grad=True)
    dropout = TokenDropout(0.4, torch.tensor([5]), torch.zeros(6).long(), torch.arange(6), 2)
    gradient = torch.randn(6, 33)
    y = ops.dropout(x, dropout)
    (dx,) = torch.autograd.grad(y, x, gradient)
    mask = token_mask(dropout, 33, torch.float32)
    assert torch.equal(y, x * mask)
    assert torch.equal(dx, gradient * mask)
    assert ops.dropout(x, None) is x


def test_bad_arguments_are_refused_not_crashed_on() -> None:
    out, keys, index = np.zeros((2, 8), np.uint32), np.zeros(1, np.int64), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="outside the keys"):
        _C.token_dropout_mask(out, keys, index + 1, index, 0, 1, 1)
    with pytest.raises(ValueError, match="one entry per token"):
        _C.token_dropout_mask(out, keys, index[:1], index, 0, 1, 1)
    with pytest.raises(TypeError):
        _C.token_dropout_mask(out.astype(np.float64), keys, index, index, 0, 1, 1)


GOOD = {
    "x": torch.ones(4, 8), "p": 0.1, "key": torch.ones(2).long(), "sequence_ids": torch.ones(4).long(),
    "offsets": torch.ones(4).long(), "site": 1,
}  # fmt: skip
WRONG = [
    pytest.param({"x": torch.ones(2, 4, 8)}, r"x must be floating of shape \(tokens, width\)", id="axes"),
    pytest.param({"x": torch.ones(4, 8).long()}, "x must be floating .*not torch.int64", id="dtype"),
    pytest.param({"p": 1.0}, r"token_dropout\.p=1\.0 must be at least 0 and below 1", id="p"),
    pytest.param({"p": math.nan}, r"token_dropout\.p=nan must be", id="p-nan"),
    pytest.param({"site": -1}, r"token_dropout\.site=-1 must be at least 0", id="site"),
    pytest.param({"site": 2**31}, r"token_dropout\.site=2147483648 must be", id="site-large"),
    pytest.param({"key": torch.ones(2)}, r"token_dropout\.key must be int64 \(sequences,\)", id="key"),
    pytest.param({"key": torch.ones(2, device="meta").long()}, r"token_dropout\.key is on meta", id="device"),
    pytest.param({"sequence_ids": torch.ones(3).long()}, r"token_dropout\.sequence_ids must be .*\(4,\)", id="ids"),
    pytest.param({"offsets": torch.ones(4)}, r"token_dropout\.offsets must be int64 or int32", id="offsets"),
]


@pytest.mark.parametrize("backend_name", ["triton", "native", "eager"])
@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_arguments_are_named(change: dict, message: str, backend_name: str) -> None:
    named = GOOD | change
    x = named.pop("x")
    with fastbert.use_backend(backend_name), pytest.raises(UserError, match=message):
        ops.dropout(x, TokenDropout(**named))


def test_native_and_eager_backends_drop_the_same_elements() -> None:
    dropout = TokenDropout(0.1, torch.tensor([7, 8]), torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0]), 3)
    x = torch.randn(3, 70)
    chosen = dispatch.select_backend(DROPOUT, x.device, DropoutArguments(x, dropout))
    assert chosen.name == "native"
    native = ops.dropout(x, dropout)
    with fastbert.use_backend("eager"):
        assert torch.equal(ops.dropout(x, dropout), native)


def test_drops_inside_of_transforms(seed: int) -> None:
    """Inside torch.func new tensors have no memory for the native generator to write to."""
    dropout = TokenDropout(0.25, torch.tensor([seed, 5]), torch.zeros(70).long(), torch.arange(70), 3)
    x = torch.randn(70, 64, generator=torch.Generator().manual_seed(seed))
    actual = torch.func.grad(lambda x: ops.dropout(x, dropout).square().sum())(x)
    torch.testing.assert_close(actual, 2 * x * token_mask(dropout, 64, torch.float32) ** 2)


def test_a_recorded_call_draws_its_mask_again() -> None:
    """make_fx records what PyTorch computes: memory that the C++ generator wrote to would be missing in the graph."""
    index = torch.arange(6)
    dropout = TokenDropout(0.4, torch.tensor([3]), 0 * index, index, 5)
    x, twice = torch.randn(6, 32), torch.randn(6, 32)
    graph = make_fx(lambda x: ops.dropout(x, dropout))(x)
    assert torch.equal(graph(twice), ops.dropout(twice, dropout))
    scores = torch.rand(2, 3, 5, 5)
    key = torch.tensor([1, 2])
    graph = make_fx(lambda scores: scores * attention_mask((2, 3, 5, 5), 0.4, key, 9, torch.float32))(scores)
    assert torch.equal(graph(scores), scores * attention_mask((2, 3, 5, 5), 0.4, key, 9, torch.float32))


def test_fake_tensors_have_fake_masks() -> None:
    index = torch.arange(6)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        dropout = TokenDropout(0.4, mode.from_tensor(torch.tensor([3])), 0 * index, index, 5)
        assert ops.dropout(mode.from_tensor(torch.randn(6, 32)), dropout).shape == (6, 32)
