"""The Triton attention against the oracle: in the interpreter on a CPU, compiled where there is a GPU."""

import contextlib
import itertools
import math
from dataclasses import replace

import pytest
import torch
from accuracy import assert_as_accurate
from attention_kernels import DTYPES, GPU, NAMES, Inputs, check

from fastbert.ops import reference

pytest.importorskip("triton", reason="needs triton")

from fastbert.kernels import launch
from fastbert.kernels.configs.configuration import Config
from fastbert.kernels.tuning import tables

# The interpreter divides with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([pytest.mark.gpu] if GPU else [])]

# (lengths of queries, lengths of keys); every tile of the short path, its edges, and the long path.
LENGTHS = [
    pytest.param([1], [1], id="one-token"),
    pytest.param([16, 5, 17, 1], [16, 5, 17, 1], id="around-16"),
    pytest.param([33, 31, 32], [33, 31, 32], id="around-32"),
    pytest.param([63, 65, 64], [63, 65, 64], id="around-64"),
    pytest.param([127, 129, 128], [127, 129, 128], id="around-128"),
    pytest.param([0, 3, 0, 140, 0], [0, 3, 0, 140, 0], id="empty-between"),
    pytest.param([5, 40, 130, 2], [9, 3, 20, 150], id="cross"),
    pytest.param([4, 70], [0, 0], id="no-keys"),
    pytest.param([0, 0], [4, 140], id="no-queries"),
    pytest.param([], [], id="no-sequence"),
]


@pytest.fixture
def without_medium(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute backward of all sequences beyond the short ones by the kernels for the longest."""
    lookup = tables.lookup

    def changed(kernel: str, shape: str, architecture: str) -> tables.Config:
        config = lookup(kernel, shape, architecture)
        if kernel == "backward_medium":
            return replace(config, constants={**config.constants, "MAX_MEDIUM": 0})
        return config

    monkeypatch.setattr(tables, "lookup", changed)


def check_single_keys(seed: int, *, causal: bool) -> None:
    for length in (9, 40, 100, 140):
        key_lengths = [length if causal else 1]
        options = {"dtype": torch.bfloat16, "heads": 1, "dropout_p": 0.3, "causal": causal}
        inputs = Inputs([length], key_lengths, seed=seed, **options)
        if causal:
            inputs.gradient[1:] = 0
        _, dq, dk, _ = inputs.run(inputs.triton)
        assert not dq.any(), length
        assert not dk.any(), length


def test_sixteen_keys_at_a_time_drop_the_same_probabilities(without_medium: None, seed) -> None:
    inputs = Inputs([70, 140], [70, 140], seed=seed, dtype=torch.float32, heads=1, width=32, dropout_p=0.3)
    config = Config(constants={"BLOCK_M": 16, "BLOCK_N": 16}, num_warps=8)
    with contextlib.ExitStack() as stack:
        for kernel in ("forward_long", "backward_queries", "backward_keys"):
            stack.enter_context(tables.overridden(kernel, "ieee-32-dropout", config))
        observed = stack.enter_context(launch.observing())
        check(inputs)
    assert [each.constants.get("BLOCK_N") for each in observed].count(16) == 3


def test_a_query_with_one_visible_key_has_no_gradient(seed) -> None:
    """Its softmax is constant: dq and dk are zeros, whatever rounding does."""
    check_single_keys(seed, causal=True)
    check_single_keys(seed, causal=False)


def test_the_longest_sequences(without_medium: None, seed) -> None:
    check_single_keys(seed, causal=True)
    check_single_keys(seed, causal=False)
    flags = {"causal": True, "dropout_p": 0.2, "bias": True}
    check(Inputs([5, 40, 130, 0], [9, 3, 150, 140], seed=seed, dtype=torch.float32, **flags))
    check(Inputs([140], [140], seed=seed, dtype=torch.float32, heads=1, dropout_p=0.2))
    check(Inputs([140, 129], [140, 129], seed=seed, dtype=torch.bfloat16, heads=1))
    lengths = [5, 140]
    options = {"seed": seed, "dtype": torch.float16, "heads": 2}
    inputs = Inputs(lengths, lengths, dropout_p=0.1, **options)
    together = inputs.run(inputs.triton)
    inputs.tensors[2][2] = math.nan
    for mine, again in zip(inputs.run(inputs.triton), together):
        assert torch.equal(mine[5:], again[5:])


@pytest.mark.parametrize(("lengths_q", "lengths_k"), LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_is_as_accurate_as_eager(lengths_q, lengths_k, dtype, seed) -> None:
    check(Inputs(lengths_q, lengths_k, seed=seed, dtype=dtype))


@pytest.mark.parametrize(("lengths_q", "lengths_k"), LENGTHS)
def test_with_causal_mask_dropout_and_bias(lengths_q, lengths_k, seed) -> None:
    inputs = Inputs(lengths_q, lengths_k, seed=seed, dtype=torch.float32, causal=True, dropout_p=0.2, bias=True)
    check(inputs)


@pytest.mark.parametrize("width", [32, 64, 96, 128])
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_widths_of_a_head(width, dtype, seed) -> None:
    check(Inputs([10, 60, 140], [10, 60, 140], seed=seed, dtype=dtype, heads=1, width=width, dropout_p=0.1))


@pytest.mark.parametrize("flags", list(itertools.product((False, True), repeat=3)), ids=str)
def test_all_combinations_of_causal_dropout_and_bias(flags, seed) -> None:
    causal, dropout, bias = flags
    options = {"causal": causal, "dropout_p": 0.3 * dropout, "bias": bias}
    check(Inputs([6, 45, 90], [6, 45, 90], seed=seed, dtype=torch.float32, heads=3, **options))
    check(Inputs([130], [150], seed=seed, dtype=torch.float32, heads=1, **options))


@pytest.mark.parametrize("heads", [1, 3, 5, 9, 12])
def test_heads_that_do_not_fill_a_program(heads, seed) -> None:
    check(Inputs([7, 20], [7, 20], seed=seed, dtype=torch.float32, heads=heads, dropout_p=0.1, bias=True))


@pytest.mark.parametrize("lengths", [[3, 30, 60], [129, 40]], ids=["short", "long"])
def test_the_dropout_mask_is_the_oracles(lengths, seed) -> None:
    inputs = Inputs(lengths, lengths, seed=seed, dtype=torch.float32, heads=1, width=32, dropout_p=0.5)
    actual, exact = inputs.run(inputs.triton)[0], inputs.run(reference.attention, torch.float64)[0]
    torch.testing.assert_close(actual.double(), exact, rtol=1e-5, atol=1e-5)
    inputs.options["dropout_site"] += 1
    other = inputs.run(inputs.triton)[0]
    assert not torch.allclose(actual, other)


@pytest.mark.parametrize(("dropout_p", "causal"), [(0.0, False), (0.3, True)], ids=["plain", "dropout-causal"])
def test_a_sequence_is_the_same_alone_and_in_any_batch_bitwise(dropout_p, causal, seed) -> None:
    lengths = [5, 20, 50, 100, 140]
    inputs = Inputs(lengths, lengths, seed=seed, dtype=torch.float16, heads=2, dropout_p=dropout_p, causal=causal)
    together = inputs.run(inputs.triton)
    for i, length in enumerate(lengths):
        begin = sum(lengths[:i])
        alone = Inputs([length], [length], seed=seed, dtype=torch.float16, heads=2)
        alone.tensors = [x[begin : begin + length] for x in inputs.tensors]
        alone.gradient = inputs.gradient[begin : begin + length]
        # A bound on the length must not change a bit either.
        alone.longest = (length + 300, length + 300) if i % 2 else (length, length)
        alone.options = dict(inputs.options)
        if dropout_p:
            alone.options["dropout_key"] = inputs.options["dropout_key"][i : i + 1]
        for name, mine, whole in zip(NAMES, alone.run(alone.triton), together):
            assert torch.equal(mine, whole[begin : begin + length]), f"{name} of length {length}, seed {seed}"


def test_a_second_run_gives_the_same_bits(seed) -> None:
    lengths = [5, 70, 140]
    inputs = Inputs(lengths, lengths, seed=seed, dtype=torch.float16, heads=1, bias=True, dropout_p=0.1)
    for first, second in zip(inputs.run(inputs.triton), inputs.run(inputs.triton)):
        assert torch.equal(first, second)


@pytest.mark.parametrize("length", [10, 60, 120, 140])
def test_infinite_bias_hides_keys_and_a_row_of_it_gives_zeros(length, seed) -> None:
    inputs = Inputs([length], [length], seed=seed, dtype=torch.float32, heads=1, bias=True)
    bias = inputs.tensors[3]
    bias[:, :, 1 : length // 2] = -math.inf
    bias[0, 2] = -math.inf
    actual = inputs.run(inputs.triton)
    exact = inputs.run(reference.attention, torch.float64)
    assert torch.equal(actual[0][2, 0], torch.zeros_like(actual[0][2, 0]))
    for name, mine, truth in zip(NAMES, actual, exact):
        torch.testing.assert_close(mine.double(), truth, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("level", [-200.0, -20.0, 20.0])
def test_keys_far_below_zero_behind_tiles_that_an_infinite_bias_hides(level, dtype, seed) -> None:
    inputs = Inputs([140], [140], seed=seed, dtype=dtype, heads=1, bias=True)
    bias = torch.full(inputs.tensors[3].shape, level, dtype=dtype)
    bias[:, :, :70] = -math.inf
    bias[:, ::2, :130] = -math.inf
    inputs.tensors[3] = bias
    exact, eager = inputs.run(reference.attention, torch.float64), inputs.run(reference.attention)
    for name, mine, other, truth in zip(NAMES, inputs.run(inputs.triton, guard=True), eager, exact):
        # A score of -200 itself is known to 1e-5 only.
        assert_as_accurate(mine, other, truth, name, floor=2e-4)


@pytest.mark.parametrize(("dtype", "level"), [(torch.float32, 100.0), (torch.float16, 15.0)], ids=str)
@pytest.mark.parametrize("dropout_p", [0.0, 0.2])
def test_a_large_bias_behind_the_end_of_a_sequence_changes_nothing(dtype, level, dropout_p, seed) -> None:
    lengths = [5, 30, 40, 100, 135]
    inputs = Inputs(lengths, lengths, seed=seed, dtype=dtype, heads=1, bias=True, dropout_p=dropout_p)
    inputs.tensors[3] = torch.full((1, 140, 140), level, dtype=dtype)
    exact, eager = inputs.run(reference.attention, torch.float64), inputs.run(reference.attention)
    for name, mine, other, truth in zip(NAMES, inputs.run(inputs.triton, guard=True), eager, exact):
        # A score of 100 itself is known to 1e-5 only.
        assert_as_accurate(mine, other, truth, name, floor=2e-4)


def test_keys_of_dropout_that_do_not_lie_side_by_side(seed) -> None:
    inputs = Inputs([5, 40, 140], [5, 40, 140], seed=seed, dtype=torch.float32, heads=1, dropout_p=0.3)
    expected = inputs.run(inputs.triton)
    key = inputs.options["dropout_key"]
    inputs.options["dropout_key"] = torch.stack([key, key + 1], 1)[:, 0]
    for mine, other in zip(inputs.run(inputs.triton), expected):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("lengths_q", [[1, 16, 17, 32, 33, 64, 65, 128, 129]])
@pytest.mark.parametrize("length_k", [0, 1, 17, 128, 129])
def test_every_class_of_queries_with_other_classes_of_keys(lengths_q, length_k, seed) -> None:
    lengths_k = [length_k] * len(lengths_q)
    check(Inputs(lengths_q, lengths_k, seed=seed, dtype=torch.float32, heads=1, causal=True, dropout_p=0.2, bias=True))


@pytest.mark.parametrize("length", [12, 90, 140])
def test_nan_and_infinity_stay_in_their_sequence(length, seed) -> None:
    inputs = Inputs([20, length, 30], [20, length, 30], seed=seed, dtype=torch.float32, heads=1)
    clean = inputs.run(inputs.triton)
    for x in (*inputs.tensors, inputs.gradient):
        x[20 : 20 + length] = math.nan
    inputs.tensors[2][21] = math.inf
    for name, mine, expected in zip(NAMES, inputs.run(inputs.triton), clean):
        assert mine[20 : 20 + length].isnan().all(), name
        assert torch.equal(mine[:20], expected[:20]), name
        assert torch.equal(mine[20 + length :], expected[20 + length :]), name


def test_a_bias_smaller_than_a_sequence_counts_as_zero_beyond(seed) -> None:
    inputs = Inputs([40, 140], [40, 140], seed=seed, dtype=torch.float32, heads=1, bias=True)
    small = inputs.tensors[3][:, :30, :50].contiguous()
    padded = torch.zeros_like(inputs.tensors[3])
    padded[:, :30, :50] = small
    inputs.tensors[3] = padded
    whole = inputs.run(inputs.triton)
    inputs.tensors[3] = small
    actual = inputs.run(inputs.triton)
    for mine, other in zip(actual[:4], whole[:4]):
        assert torch.equal(mine, other)
    torch.testing.assert_close(actual[4], whole[4][:, :30, :50])


@pytest.mark.parametrize("bias_dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_a_bias_in_half_precision(bias_dtype, seed) -> None:
    inputs = Inputs([20, 90, 140], [20, 90, 140], seed=seed, dtype=torch.float16, heads=1, bias=True)
    inputs.tensors[3] = inputs.tensors[3].to(bias_dtype)
    actual, exact = inputs.run(inputs.triton), inputs.run(reference.attention, torch.float64)
    assert actual[4].dtype == bias_dtype
    for name, mine, truth in zip(NAMES, actual, exact):
        torch.testing.assert_close(
            mine.double(), truth, rtol=2e-2, atol=2e-2, msg=lambda text, name=name: f"{name}: {text}"
        )
