"""Prepacked copies of weights are never stale: every way in which torch changes a weight."""

import gc

import pytest
import torch
from sweeps import sweep
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from fastbert import BertConfig, BertModel, ops, use_backend
from fastbert.ops.native import matmul, prepacked_weights
from fastbert.training.optimizer import AdamW

OUT, IN = 48, 40


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_fresh(x: Tensor, *weights: Tensor) -> None:
    """The matmuls with the copies, forward and backward, are those with the current weights."""
    counts = (len(weights),)
    with torch.no_grad():
        actual = matmul.matmul(x, prepacked_weights.prepacked_group(weights, counts, "fp32")[0])
        expected = F.linear(x, torch.cat(weights))
        transposed = prepacked_weights.prepacked_group(weights, counts, "fp32", transposed=True)[0]
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
        back = matmul.matmul(expected, transposed)
    torch.testing.assert_close(back, expected @ torch.cat(weights), atol=1e-4, rtol=1e-5)


def optimizers() -> list:
    """Every optimizer that torch has, with the variants of its loop where it offers them."""
    results = []
    for name in sorted(vars(torch.optim)):
        kind = getattr(torch.optim, name)
        if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer) or kind is torch.optim.Optimizer:
            continue
        variants = [{}]
        if name in ("SGD", "Adam", "AdamW", "Adagrad"):
            variants = [{}, {"foreach": True}, {"fused": True}]
        results += [pytest.param(kind, options, id="-".join([name, *options])) for options in variants]
    return [*results, pytest.param(AdamW, {}, id="ours"), pytest.param(AdamW, {"maximize": True}, id="ours-by-torch")]


@sweep(("kind", "options"), optimizers())
def test_a_step_of_an_optimizer_is_seen(kind: type, options: dict, seed: int) -> None:
    weight, x = nn.Parameter(random(seed, OUT, IN)), random(seed + 1, 5, IN)
    assert_fresh(x, weight)
    before = weight.detach().clone()
    optimizer = kind([weight], lr=0.1, **options)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.linear(x, weight).square().mean()
        value.backward()
        return value

    if kind is torch.optim.SparseAdam:
        weight.grad = random(seed + 2, OUT, IN).to_sparse()
        optimizer.step()
    else:
        optimizer.step(loss)
    assert not torch.equal(weight.detach(), before)
    assert_fresh(x, weight)
    if kind is not torch.optim.SparseAdam:
        optimizer.step(loss)
        assert_fresh(x, weight)


def test_several_optimizers_share_a_joined_copy(seed: int) -> None:
    """Ours steps one of the weights, torch's another, and one stays."""
    weights = [nn.Parameter(random(seed + i, OUT, IN)) for i in range(3)]
    x = random(seed + 5, 3, IN)
    actual, expected = AdamW(weights[:1], lr=0.1), torch.optim.SGD(weights[1:2], lr=0.1)
    for _ in range(3):
        assert_fresh(x, *weights)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        actual.step()
        assert_fresh(x, *weights)
        expected.step()
        assert_fresh(x, *weights)
        actual.step()
        expected.step()


@pytest.mark.parametrize("element", ["fp32", "bf16"])
@pytest.mark.parametrize("rows", [(48, 48), (45, 3)], ids=["groups", "odd"])
def test_a_stale_copy_is_written_anew_where_it_lies(element: str, rows: tuple, seed: int) -> None:
    """Unless somebody holds it, who goes on with the weights as they were."""
    weights = [nn.Parameter(random(seed + i, size, IN)) for i, size in enumerate(rows)]
    optimizer = torch.optim.SGD(weights, lr=0.1)

    def copy(transposed: bool):
        return prepacked_weights.prepacked_group(weights, (2,), element, transposed)[0]

    for transposed in (False, True):
        address = id(copy(transposed))
        for _ in range(3):
            for weight in weights:
                weight.grad = random(seed + 7, *weight.shape)
            optimizer.step()
            with torch.no_grad():
                weights[0].add_(1.0)
            assert id(copy(transposed)) == address
            fresh = matmul.prepack(torch.cat([w.detach() for w in weights]), element, transposed)
            assert bytes(copy(transposed)) == bytes(fresh)
        held = copy(transposed)
        before = bytes(held)
        optimizer.step()
        assert bytes(copy(transposed)) != before
        assert bytes(held) == before


def test_copies_that_no_step_needed_are_dropped(seed: int) -> None:
    weight = nn.Parameter(random(seed, OUT, IN))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    prepacked_weights.prepacked(weight, "fp32")
    optimizer.step()
    optimizer.step()
    assert weight not in prepacked_weights._copies


def test_a_refreshed_copy_of_other_shapes_is_made_anew(seed: int) -> None:
    weight, x = nn.Parameter(random(seed, OUT, IN)), random(seed + 1, 5, IN)
    assert_fresh(x, weight)
    weight.data = random(seed + 2, 2 * OUT, IN)
    assert_fresh(x, weight)
    weight.data = random(seed + 3, OUT, 2 * IN)
    assert_fresh(random(seed + 4, 5, 2 * IN), weight)
    weight.data = random(seed + 5, IN, OUT).t()
    assert_fresh(x, weight)


@pytest.mark.parametrize("element", ["fp32", "bf16"])
def test_the_same_memory_read_in_another_way_is_seen(element: str, seed: int) -> None:
    """Neither address nor version nor contents tell a square weight from its transpose, or rows from longer ones."""
    weight = nn.Parameter(random(seed, IN, IN))
    for seen in (lambda: weight.data.t(), lambda: weight.data.t().view(IN // 2, 2 * IN)):
        prepacked_weights.prepacked(weight, element)
        weight.data = seen()
        fresh = matmul.prepack(weight.detach().contiguous(), element)
        assert bytes(prepacked_weights.prepacked(weight, element)) == bytes(fresh)


def copy_in_place(weight: nn.Parameter, new: Tensor) -> None:
    with torch.no_grad():
        weight.copy_(new)


def swap_data(weight: nn.Parameter, new: Tensor) -> None:
    weight.data = new


def write_data(weight: nn.Parameter, new: Tensor) -> None:
    weight.data.copy_(new)


def write_numpy(weight: nn.Parameter, new: Tensor) -> None:
    weight.detach().numpy()[:] = new.numpy()


def write_one_and_tell(weight: nn.Parameter, new: Tensor) -> None:
    weight.data[3, 7] = 100.0
    prepacked_weights.forget(weight)


def write_one_through_data(weight: Tensor) -> None:
    weight.data[3, 7] = 100.0


def write_one_through_numpy(weight: Tensor) -> None:
    weight.detach().view(torch.int16 if weight.dtype == torch.bfloat16 else torch.int32).numpy()[3, 7] = 0x4242


def negate_a_row_through_data(weight: Tensor) -> None:
    weight.data[5].neg_()


def swap_rows_through_data(weight: Tensor) -> None:
    weight.data[[2, 9]] = weight.data[[9, 2]]


def step_by_hand(weight: Tensor) -> None:
    """An optimizer that updates a row at a time, out of place."""
    for row in (11, 12):
        weight.data[row] = weight.data[row] - 0.1 * torch.ones_like(weight.data[row])


WRITES = [
    write_one_through_data,
    write_one_through_numpy,
    negate_a_row_through_data,
    swap_rows_through_data,
    step_by_hand,
]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("element", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["weight-fp32", "weight-bf16"])
def test_a_large_product_sees_a_small_write_that_torch_does_not_count(
    write, element: str, dtype: torch.dtype, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ran before: no matmul, a small one, a large one. With the flag, matmuls of any size detect it."""
    weights = [nn.Parameter(random(seed + i, 96, 128).to(dtype)) for i in range(2)]

    def copies(rows: int) -> list[bytes]:
        return [bytes(packed) for packed in prepacked_weights.prepacked_group(weights, (1, 1), element, rows=rows)]

    def fresh() -> list[bytes]:
        return [bytes(matmul.prepack(weight, element)) for weight in weights]

    large = prepacked_weights.HASHED_ROWS[element]
    for before in ((1,), (large,), (1, large), (large, 1)):
        for rows in before:
            copies(rows)
        write(weights[1])
        assert copies(large) == fresh()
        assert copies(1) == fresh()
    held = prepacked_weights.prepacked_group(weights, (1, 1), element, rows=large)
    assert prepacked_weights.prepacked_group(weights, (1, 1), element, rows=large) is held
    monkeypatch.setattr(prepacked_weights, "CHECK_ALL", True)
    del held
    copies(1)
    write(weights[0])
    assert copies(1) == fresh()


def test_memory_shared_with_numpy_is_seen(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    array = random(seed, 300, 512).numpy()
    layer = nn.Linear(512, 300, bias=False)
    layer.weight = nn.Parameter(torch.from_numpy(array), requires_grad=False)
    x = random(seed + 1, prepacked_weights.HASHED_ROWS["fp32"], 512)
    with torch.no_grad(), use_backend("native"):
        ops.linear(x, layer.weight)
        for index in ((0, 1), (150, 3), (299, 510)):
            array[index] += 50.0
            torch.testing.assert_close(ops.linear(x, layer.weight), x @ layer.weight.T, atol=1e-3, rtol=1e-4)
        monkeypatch.setattr(prepacked_weights, "CHECK_ALL", True)
        few = x[:3]
        ops.linear(few, layer.weight)
        array[7, 9] += 50.0
        torch.testing.assert_close(ops.linear(few, layer.weight), few @ layer.weight.T, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("quantized", [False, True], ids=["fp32", "int8"])
def test_an_encoder_layer_sees_a_small_write(quantized: bool, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = BertModel(BertConfig.preset("tiny", vocab_size=50, num_hidden_layers=1))
    model.init_weights(seed=seed)
    model.eval().quantize("int8" if quantized else None)
    monkeypatch.setattr(prepacked_weights, "HASHED_ROWS", dict.fromkeys(prepacked_weights.HASHED_ROWS, 64))
    ids = torch.randint(0, 50, (2, 40), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad(), use_backend("native"):
        before = model(input_ids=ids).last_hidden_state
        model.encoder.layer[0].output.dense.weight.data[3, 7] = 100.0
        after = model(input_ids=ids).last_hidden_state
        model.eval()
        assert not torch.equal(after, before)
        assert torch.equal(after, model(input_ids=ids).last_hidden_state)


def test_our_optimizer_keeps_its_copies_under_the_flag(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And makes those anew that a write in between left stale."""
    monkeypatch.setattr(prepacked_weights, "CHECK_ALL", True)
    weight, x = nn.Parameter(random(seed, OUT, IN)), random(seed + 1, 5, IN)
    optimizer = AdamW([weight], lr=0.1)
    for _ in range(2):
        assert_fresh(x, weight)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert_fresh(x, weight)
        weight.data[4, 4] = -50.0
        optimizer.step()
        assert_fresh(x, weight)


@pytest.mark.parametrize("change", [copy_in_place, swap_data, write_data, write_numpy, write_one_and_tell])
@pytest.mark.parametrize("joined", [False, True], ids=["alone", "joined"])
def test_a_change_is_seen(change, joined: bool, seed: int) -> None:
    weights = [nn.Parameter(random(seed + i, OUT, IN)) for i in range(2 if joined else 1)]
    x = random(seed + 5, 3, IN)
    assert_fresh(x, *weights)
    change(weights[-1], random(seed + 9, OUT, IN))
    assert_fresh(x, *weights)


def test_weights_made_in_inference_mode_have_no_version(seed: int) -> None:
    with torch.inference_mode():
        weight = random(seed, OUT, IN)
        assert_fresh(random(seed + 1, 3, IN), weight)
        weight.mul_(2.0)
        assert_fresh(random(seed + 1, 3, IN), weight)


def test_load_state_dict_and_eval_are_seen(seed: int) -> None:
    layer, x = nn.Linear(IN, OUT), random(seed, 3, IN)
    for assign in (False, True):
        assert_fresh(x, layer.weight)
        layer.load_state_dict({"weight": random(seed + assign, OUT, IN), "bias": torch.zeros(OUT)}, assign=assign)
        assert_fresh(x, layer.weight)


def test_an_unchanged_weight_is_packed_once_and_freed_with_it(seed: int) -> None:
    weight = nn.Parameter(random(seed, OUT, IN))
    first = prepacked_weights.prepacked(weight, "bf16")
    assert prepacked_weights.prepacked(weight, "bf16") is first
    assert prepacked_weights.prepacked(weight, "fp32") is not first
    assert prepacked_weights.prepacked(weight, "bf16") is first
    assert any(packed is weight for packed in prepacked_weights._copies)
    del weight
    gc.collect()
    # Weights of other tests may be collected too.
    assert all(first not in copies.packed for of in prepacked_weights._copies.values() for copies in of.values())


def test_a_strided_weight_is_packed_as_it_reads(seed: int) -> None:
    base = random(seed, IN, OUT)
    weight = base.t()
    assert_fresh(random(seed + 1, 3, IN), weight)
    base.mul_(3.0)
    assert_fresh(random(seed + 1, 3, IN), weight)


def test_few_copies_are_kept_of_a_weight(seed: int) -> None:
    query = nn.Parameter(random(seed, OUT, IN))
    for i in range(20):
        prepacked_weights.prepacked_group((query, nn.Parameter(random(seed + i, OUT, IN))), (2,), "fp32")
    assert len(prepacked_weights._copies[query]) <= prepacked_weights.MAX_COPIES


@pytest.mark.parametrize("layout", ["transposed", "expanded", "every second"])
def test_linear_takes_rows_as_they_lie(layout: str, seed: int) -> None:
    weight = nn.Parameter(random(seed, OUT, IN).bfloat16())
    x = {
        "transposed": lambda: random(seed + 1, IN, 9).t(),
        "expanded": lambda: random(seed + 1, 1, IN).expand(9, IN),
        "every second": lambda: random(seed + 1, 9, 2 * IN)[:, ::2],
    }[layout]().to(torch.bfloat16)
    with torch.no_grad():
        torch.testing.assert_close(ops.linear(x, weight), ops.linear(x.contiguous(), weight), atol=0, rtol=0)


def test_linear_keeps_forward_derivatives(seed: int) -> None:
    weight, x = nn.Parameter(random(seed, OUT, IN).bfloat16()), random(seed + 1, 5, IN).bfloat16()
    with torch.no_grad(), forward_ad.dual_level():
        y = ops.linear(forward_ad.make_dual(x, torch.ones_like(x)), weight)
        assert forward_ad.unpack_dual(y).tangent is not None


def test_another_layout_of_the_same_memory_is_seen(seed: int) -> None:
    """Address, span, version and contents stay what they were."""
    weight, x = nn.Parameter(random(seed, 40, 40)), random(seed + 1, 5, 40)
    assert_fresh(x, weight)
    weight.data = weight.data.t()
    assert_fresh(x, weight)
    with torch.no_grad():
        prepacked_weights.prepacked(weight, "fp32")
        weight.data = torch._neg_view(weight.data)
        actual = matmul.matmul(x, prepacked_weights.prepacked(weight, "fp32"))
    torch.testing.assert_close(actual, F.linear(x, weight.detach().resolve_neg()), atol=1e-5, rtol=1e-5)


def test_copies_are_unshared_after_a_failed_compile() -> None:
    """torch.compile that raises leaves Python in a mode in which a call holds one more reference of its arguments."""

    def breaking(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    weight = torch.nn.Parameter(torch.randn(64, 32))
    with pytest.raises(Exception, match="graph_break"):
        torch.compile(breaking, fullgraph=True, backend="eager")(torch.ones(2))
    prepacked_weights.prepacked(weight, "fp32")
    (copies,) = prepacked_weights._copies[weight].values()
    assert prepacked_weights._is_unshared(copies)
    held = copies.packed
    assert not prepacked_weights._is_unshared(copies)
    del held
