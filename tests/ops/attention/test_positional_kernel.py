"""The Triton attention with windows, rotary embeddings, tables by distance and grouped heads, against the oracle."""

import contextlib
from typing import Any

import pytest
import torch
from accuracy import assert_as_accurate
from attention_kernels import DEVICE, DTYPES, GPU, offsets
from guards import Guarded, GuardingTorch, NoReading

from fastbert import ops, use_backend
from fastbert.errors import UserError
from fastbert.ops import reference
from fastbert.ops.attention.arguments import AttentionArguments, WantedGradients
from fastbert.ops.attention.triton import Triton

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels import launch
from fastbert.kernels.attention.positional import launchers as kernels
from fastbert.kernels.configs.configuration import Config
from fastbert.kernels.tuning import tables

# The interpreter divides with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([pytest.mark.gpu] if GPU else [])]

TABLES = ("distance_bias", "position_keys", "position_queries")
# Each feature with and without each other one, except relative positions with rotary embeddings.
COMBINATIONS = [
    {"window", "rotary", "grouped"},
    {"window", "distance_bias", "position_keys", "dropout", "causal"},
    {"position_keys", "position_queries", "dropout"},
    {"rotary", "distance_bias", "causal", "dropout"},
    {"window", "position_keys", "position_queries", "distance_bias", "grouped", "dropout"},
    {"position_keys", "grouped", "causal", "window"},
    {"distance_bias", "position_queries", "grouped"},
    {"partial", "window", "distance_bias", "grouped", "dropout"},
    {"partial", "causal"},
    {"position_queries", "window", "dropout", "causal"},
]


class Call:
    """Random tensors of one call in some dtype, with NaN all round those of floats."""

    def __init__(
        self, lengths_q: list[int], lengths_k: list[int], features: set[str], *, seed: int, dtype: torch.dtype,
        heads: int = 2, width: int = 32,
    ) -> None:  # fmt: skip
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        self.longest = max(lengths_q, default=0), max(lengths_k, default=0)
        # Tables may be longer than the longest sequence.
        distances, rows = 2 * max(self.longest) + 3, 7
        groups = heads // 2 if "grouped" in features else heads
        self.tensors = {
            "q": draw(sum(lengths_q), heads, width),
            "k": draw(sum(lengths_k), groups, width),
            "v": draw(sum(lengths_k), groups, width),
            "distance_bias": draw(heads, distances),
            "position_keys": draw(rows, heads, width),
            "position_queries": draw(rows, heads, width),
        }
        self.tensors = {name: x for name, x in self.tensors.items() if name not in TABLES or name in features}
        self.gradient = draw(sum(lengths_q), heads, width)
        self.cu = offsets(lengths_q), offsets(lengths_k)
        if lengths_q == lengths_k:
            self.cu = self.cu[:1] * 2
        self.options: dict[str, Any] = {"causal": "causal" in features}
        if "window" in features:
            self.options["window"] = 9
        if {"rotary", "partial"} & features:
            turned = width // 2 if "partial" in features else width
            angles = torch.arange(self.longest[0] + 2)[:, None] / 100 ** (torch.arange(turned // 2) / turned)
            self.options["rotary"] = torch.cat((angles.cos(), angles.sin()), 1).to(DEVICE)
        if {"position_keys", "position_queries"} & features:
            # Neighbouring distances share buckets, and so do some far apart.
            buckets = torch.randint(0, rows, (distances,), generator=generator, dtype=torch.int32)
            self.options["buckets"] = buckets.to(DEVICE)
        if "dropout" in features:
            key = torch.randint(-(2**62), 2**62, (len(lengths_q),), generator=generator).to(DEVICE)
            self.options |= {"dropout_p": 0.2, "dropout_key": key, "dropout_site": 513}

    def run(self, function: Any, dtype: torch.dtype | None = None, *, guard: bool = False) -> dict[str, torch.Tensor]:
        """Return output and gradients of `function`, with tensors of another dtype if one is given."""
        guarded = {name: Guarded(x.to(dtype or x.dtype), DEVICE) for name, x in self.tensors.items()}
        leaves = {name: item.tensor.requires_grad_() for name, item in guarded.items()}
        q, k, v, *tables = leaves.values()
        out = function(q, k, v, *self.cu, **dict(zip(list(leaves)[3:], tables, strict=True)), **self.options)
        upstream = Guarded(self.gradient.to(out.dtype), DEVICE)
        gradients = torch.autograd.grad(out, list(leaves.values()), upstream.tensor, allow_unused=True)
        if guard:
            for item in [*guarded.values(), upstream]:
                item.check()
        results = zip(leaves, gradients, strict=True)
        return {"out": out} | {
            name: torch.zeros_like(leaves[name]) if gradient is None else gradient for name, gradient in results
        }

    def triton(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *cu: torch.Tensor, **options: Any) -> Any:
        with use_backend("triton"):
            return ops.attention(q, k, v, *cu, *self.longest, **options)

    def check(self) -> dict[str, torch.Tensor]:
        """Compare with float64 and with eager PyTorch in the same dtype."""
        exact, eager = self.run(reference.attention, torch.float64), self.run(reference.attention)
        actual = self.run(self.triton, guard=True)
        for name, mine in actual.items():
            assert_as_accurate(mine, eager[name].to(mine.dtype), exact[name], f"{name} of {sorted(self.options)}")
        return actual


@pytest.mark.parametrize("dtype", DTYPES)
def test_combinations_are_as_accurate_as_eager(dtype: torch.dtype, seed: int) -> None:
    chosen = {torch.float32: COMBINATIONS, torch.bfloat16: COMBINATIONS[4:5], torch.float16: COMBINATIONS[3:4]}[dtype]
    for features in chosen:
        heads = 2 if {"grouped", "distance_bias"} & features else 1
        Call([3, 37, 0, 1], [3, 37, 0, 1], features, seed=seed, dtype=dtype, heads=heads).check()


@pytest.mark.parametrize(
    ("lengths_q", "lengths_k"),
    [
        pytest.param([5, 45, 2], [40, 9, 70], id="cross"),
        pytest.param([4, 35], [0, 0], id="no-keys"),
        pytest.param([0], [40], id="no-queries"),
        pytest.param([], [], id="no-sequence"),
    ],
)
def test_lengths_of_queries_and_keys_that_differ(lengths_q: list[int], lengths_k: list[int], seed: int) -> None:
    features = {"window", "distance_bias", "position_keys", "position_queries", "dropout"}
    Call(lengths_q, lengths_k, features, seed=seed, dtype=torch.float32, heads=1).check()
    if len(lengths_q) > 2:
        features ^= {"window", "causal", "position_keys"}
        Call(lengths_q, lengths_k, features, seed=seed, dtype=torch.float32, heads=1).check()


@pytest.mark.parametrize("width", [64, 96, 128])
def test_widths_of_a_head(width: int, seed: int) -> None:
    # Wide heads are turned in half precision and in tf32.
    dtype = torch.float32 if width == 64 else torch.float16
    for positions in ({"position_keys", "position_queries"} if width == 64 else {"partial"}, {"rotary"}):
        features = {*positions, "distance_bias", "window"}
        Call([34], [34], features, seed=seed, dtype=dtype, heads=1, width=width).check()


def test_tiles_of_sixteen_drop_the_same_probabilities(seed: int) -> None:
    features = {"position_keys", "position_queries", "distance_bias", "dropout"}
    call = Call([70, 19], [70, 19], features, seed=seed, dtype=torch.float32, heads=1)
    with contextlib.ExitStack() as stack:
        for name in ("forward", "queries", "keys", "tables"):
            config = Config(constants={"BLOCK": 16}, num_warps=8)
            stack.enter_context(tables.overridden(f"positional_{name}", "ieee-32-masked-dropout", config))
        observed = stack.enter_context(launch.observing())
        call.check()
    assert {each.constants["BLOCK"] for each in observed} == {16}


def test_positions_of_tokens_and_offsets_given_twice(seed: int) -> None:
    call = Call([7, 40], [7, 40], {"rotary"}, seed=seed, dtype=torch.float32, heads=1)
    expected = call.run(call.triton)
    call.cu = (call.cu[0], call.cu[0].clone())
    again = call.run(call.triton)
    call.options["rotary_positions"] = torch.cat([torch.arange(7), torch.arange(40)]).to(DEVICE)
    for name, mine in call.run(call.triton).items():
        assert torch.equal(mine, expected[name])
        assert torch.equal(again[name], expected[name])
    call.options["rotary_positions"] = call.options["rotary_positions"].flip(0)
    call.check()


def test_the_same_bits_on_every_run_and_in_every_batch(seed: int) -> None:
    check_bits({"window", "distance_bias", "dropout", "grouped", "rotary"}, 2, seed)
    check_bits({"window", "dropout", "position_keys", "position_queries"}, 1, seed)


def check_bits(features: set[str], heads: int, seed: int) -> None:
    lengths = [5, 34]
    call = Call(lengths, lengths, features, seed=seed, dtype=torch.float16, heads=heads)
    together, again = call.run(call.triton), call.run(call.triton)
    assert all(torch.equal(x, again[name]) for name, x in together.items())
    tensors, keys = call.tensors, call.options["dropout_key"]
    for i, length in enumerate(lengths):
        part = slice(sum(lengths[:i]), sum(lengths[: i + 1]))
        alone = Call([length], [length], features, seed=seed, dtype=torch.float16, heads=heads)
        alone.tensors = {name: x if name in TABLES else x[part] for name, x in tensors.items()}
        alone.gradient, alone.options = call.gradient[part], call.options | {"dropout_key": keys[i : i + 1]}
        # A bound on the length must not change a bit either; tables and rotary positions reach to 36.
        alone.longest = (min(length + 29, 35),) * 2
        for name, mine in alone.run(alone.triton).items():
            if name not in TABLES:
                assert torch.equal(mine, together[name][part]), f"{name} of length {length}, seed {seed}"


def test_a_query_with_one_visible_key_has_no_gradient(seed: int) -> None:
    call = Call([40], [40], {"window", "causal", "distance_bias", "position_keys"}, seed=seed, dtype=torch.bfloat16)
    call.gradient[1:] = 0
    gradients = call.run(call.triton)
    assert gradients["v"].any()
    assert not any(gradients[name].any() for name in ("q", "k", "distance_bias", "position_keys"))


def test_every_output_is_written_and_nothing_beside_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    guarding = GuardingTorch()
    monkeypatch.setattr(kernels, "torch", guarding)
    features = {"distance_bias", "position_keys", "position_queries", "grouped"}
    call = Call([34, 1], [34, 1], features, seed=seed, dtype=torch.float32)
    actual = call.run(call.triton)
    # Output, lse, rest; three gradients, delta; sums by distance of three tables, and two of them by bucket.
    assert len(guarding.allocated) == 12
    for item in guarding.allocated:
        item.check()
        assert not item.tensor.isnan().any()
    assert not any(x.isnan().any() for x in actual.values())


def arguments_of(call: Call, **changes: Any) -> AttentionArguments:
    values = {"causal": False, "dropout_p": 0.0, "dropout_key": None, "dropout_site": 0, "bias": None, "scale": 0.2}
    values |= {name: x.to(DEVICE) for name, x in call.tensors.items()} | call.options | changes
    sizes = {"max_seqlen_q": call.longest[0], "max_seqlen_k": call.longest[1]}
    return AttentionArguments(cu_seqlens_q=call.cu[0], cu_seqlens_k=call.cu[1], tf32=False, **sizes, **values)


def test_the_launchers_read_nothing_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    features = {"window", "distance_bias", "position_keys", "position_queries", "grouped", "dropout"}
    call = Call([5, 300], [5, 300], features, seed=0, dtype=torch.float16)
    started: list[str] = []
    monkeypatch.setattr(kernels, "launch", lambda kernel, grid, *rest, **constants: started.append(kernel.__name__))
    # Offsets and positions on a CPU are checked by reading them.
    for name in ("check_offsets", "check_positions"):
        monkeypatch.setattr(AttentionArguments, name, lambda self: None)
    arguments, wanted = arguments_of(call), WantedGradients(False, True, True, True)
    with NoReading():
        arguments.check()
        out, lse, rest = Triton().forward(arguments)
        Triton().backward(arguments, out, lse, rest, out, wanted)
    assert rest.shape[0] == Triton().rest_rows(arguments) == 305
    assert started == [
        "positional_forward", "positional_queries", "positional_keys", "positional_tables", "positional_tables",
        "positional_buckets", "positional_buckets",
    ]  # fmt: skip


def test_opcheck(seed: int) -> None:
    features = {"window", "distance_bias", "position_queries"}
    call = Call([3, 4], [3, 4], features, seed=seed, dtype=torch.float16, heads=1)
    for name in ("q", "k", "v", *TABLES):
        if name in call.tensors:
            call.tensors[name] = call.tensors[name].to(DEVICE).requires_grad_()
    torch.library.opcheck(torch.ops.fastbert.attention.default, (*arguments_of(call), "triton", True))


def test_what_has_no_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call([5], [5], {"window"}, seed=0, dtype=torch.float32)
    assert Triton().supports(arguments_of(call)) is None
    reason = Triton().supports(arguments_of(call, bias=torch.zeros(2, 5, 5)))
    assert reason is not None
    assert reason.text == "bias together with window has no kernel: pass a distance_bias"
    for features, width, text in (
        ({"position_queries", "window"}, 96, "position_queries with head_dim=96 have no kernel: 32 and 64 do"),
        ({"position_keys", "rotary"}, 32, "position_keys together with rotary have no kernel: use one of them"),
        ({"distance_bias"}, 96, "distance_bias with head_dim=96 in fp32 has no kernel: use bf16"),
        (
            {"rotary", "window"}, 128,
            "rotary with head_dim=128 in fp32 has no kernel without TF32: use bf16, or allow it by"
            " torch.set_float32_matmul_precision('high')",
        ),
    ):  # fmt: skip
        reason = Triton().supports(arguments_of(Call([5], [5], features, seed=0, dtype=torch.float32, width=width)))
        assert reason is not None
        assert reason.text == text
    turned = arguments_of(Call([5], [5], {"rotary"}, seed=0, dtype=torch.float32, width=128))
    assert Triton().supports(turned._replace(tf32=True)) is None
    call = Call([5], [5], {"position_keys"}, seed=0, dtype=torch.float32)
    call.options["buckets"] = torch.full((13,), 7, dtype=torch.int32)
    monkeypatch.setenv("FASTBERT_DEBUG", "1")
    with pytest.raises(UserError, match="buckets holds 7, outside of a table of 7 rows"):
        call.run(call.triton)
