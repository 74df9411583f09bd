"""The Triton vocabulary matmul with its loss against float64 and eager torch: compiled, or interpreted on a CPU."""

import math
import weakref

import pytest
import torch
from accuracy import assert_as_accurate
from guards import Guarded
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fastbert import ops, use_backend
from fastbert.errors import UserError
from fastbert.ops import reference

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.loss import linear_cross_entropy as kernels

INTERPRETED = not torch.cuda.is_available()
# The interpreter computes with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([] if INTERPRETED else [pytest.mark.gpu])]
DEVICE = "cpu" if INTERPRETED else "cuda"
IGNORED = -100

SHAPES = [
    pytest.param(1, 33, 8, id="one-row"),
    pytest.param(5, 1, 8, id="one-label"),
    pytest.param(6, 1024, 96, id="one-block"),
    pytest.param(7, 2049, 24, id="odd-vocabulary"),
    pytest.param(3, 5003, 33, id="three-blocks"),
]
# In half precision the worst error of few elements is luck, for eager torch as for us.
HALF_SHAPES = [pytest.param(40, 100, 64, id="small"), pytest.param(24, 2049, 48, id="odd-vocabulary")]
DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.float16, id="fp16"),
    pytest.param(torch.bfloat16, id="bf16"),
]
HALF = DTYPES[1:]
NAMES = ("dx", "dweight", "dbias")


def inputs(
    rows: int, vocabulary: int, width: int, seed: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    """x, weight, bias and labels, every fourth row without a label.

    In half precision logits spread less: else few labels have all the probability, and with it the rounding errors.
    """
    spread = 3.0 if dtype == torch.float32 else 1.0
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator)
    weight = torch.randn(vocabulary, width, generator=generator) * spread / math.sqrt(width)
    bias = torch.randn(vocabulary, generator=generator) * spread / 3
    labels = torch.randint(vocabulary, (rows,), generator=generator)
    labels[2::4] = IGNORED
    return (*(tensor.to(dtype).to(DEVICE) for tensor in (x, weight, bias)), labels.to(DEVICE))


def run(backend: str, tensors: tuple[torch.Tensor | None, ...], upstream: float = 0.37, **options):
    """The result, and the gradients of x, weight and bias, where there is a bias."""
    *operands, labels = tensors
    leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in operands]
    with use_backend(backend):
        actual = ops.linear_cross_entropy(*leaves, labels, **options)
        needed = [leaf for leaf in leaves if leaf is not None]
        return actual, torch.autograd.grad(actual.loss_sum, needed, actual.loss_sum.new_tensor(upstream))


def exactly(
    tensors, upstream: float = 0.37, *, label_smoothing: float = 0.0, z_loss: float = 0.0, ignore_index=IGNORED
):
    """Losses by row, their labels right or not, and the gradients, in float64."""
    x, weight, bias, labels = tensors
    leaves = [tensor.detach().double().requires_grad_() for tensor in (x, weight, bias) if tensor is not None]
    logits = leaves[0] @ leaves[1].T
    if bias is not None:
        logits = logits + leaves[2]
    labelled = labels != ignore_index
    losses = reference.cross_entropy(logits[labelled], labels[labelled], label_smoothing)
    losses = losses + z_loss * logits[labelled].logsumexp(-1).square()
    right = (logits.argmax(-1) == labels) & labelled
    return losses, right, torch.autograd.grad(losses.sum() * upstream, leaves)


def check(tensors: tuple[torch.Tensor | None, ...], upstream: float = 0.37, **options):
    """Compare with float64: the gradients by the tolerance rule, the sum of losses within rounding; returns ours."""
    losses, _, exact = exactly(tensors, upstream, **options)
    ours, gradients = run("triton", tensors, upstream, **options)
    theirs, others = run("eager", tensors, upstream, **options)
    for name, mine, other, truth in zip(NAMES, gradients, others, exact, strict=False):
        assert_as_accurate(mine, other, truth, name)
    half = tensors[0].dtype.itemsize == 2
    torch.testing.assert_close(ours.loss_sum.double(), losses.sum().detach(), rtol=1e-2 if half else 1e-5, atol=1e-4)
    assert ours.loss_sum.dtype == torch.float32
    assert ours.count.dtype == ours.correct.dtype == torch.int64
    assert ours.count == theirs.count == len(losses)
    return ours, gradients


# The first test: the interpreter writes wherever it is told to, and without guards that ends in a crash.
@pytest.mark.parametrize(("rows", "vocabulary"), [(3, 33), (2, 2049)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_writes_every_element_and_nothing_around(
    rows: int, vocabulary: int, dtype: torch.dtype, seed: int, monkeypatch
) -> None:
    device = torch.device(DEVICE)
    x, weight, bias, labels = inputs(rows, vocabulary, 8, seed, dtype)
    guarded = []
    empty = torch.empty

    def with_guards(*size, dtype=None, device=None):
        shape = size[0] if isinstance(size[0], tuple | torch.Size) else size
        if not dtype.is_floating_point or not math.prod(shape):
            return empty(*size, dtype=dtype, device=device)
        guarded.append(Guarded(torch.full(shape, math.nan, dtype=dtype), device))
        return guarded[-1].tensor

    read = [Guarded(tensor, device) for tensor in (x, weight, bias)]
    monkeypatch.setattr(torch, "empty", with_guards)
    result = kernels.forward(
        kernels.LossInputs(*(one.tensor for one in read), labels, IGNORED, 0.1, 1e-3, True, True, True)
    )
    monkeypatch.undo()
    assert len(guarded) >= 4  # losses, logits, dx, dweight
    for one in (*read, *guarded):
        one.check()
    assert all(tensor.isfinite().all() for tensor in result)


OPTIONS = pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.1, "z_loss": 1e-2}], ids=["", "smoothing-and-z-loss"]
)


@pytest.mark.parametrize(("rows", "vocabulary", "width"), SHAPES)
@OPTIONS
def test_is_as_accurate_as_torch(rows: int, vocabulary: int, width: int, options: dict, seed: int) -> None:
    check(inputs(rows, vocabulary, width, seed), **options)


@pytest.mark.parametrize(("rows", "vocabulary", "width"), HALF_SHAPES)
@pytest.mark.parametrize("dtype", HALF)
@OPTIONS
def test_is_as_accurate_as_torch_in_half_precision(
    rows: int, vocabulary: int, width: int, dtype: torch.dtype, options: dict, seed: int
) -> None:
    check(inputs(rows, vocabulary, width, seed, dtype), 0.5, **options)


@pytest.mark.parametrize("dtype", HALF)
def test_the_upstream_gradient_costs_one_rounding(dtype: torch.dtype, seed: int) -> None:
    """Half-precision gradients are stored before it is known; a power of two, as above, rounds nothing."""
    tensors = inputs(20, 60, 32, seed, dtype)
    _, ones = run("triton", tensors, 1.0)
    _, scaled = run("triton", tensors, 0.37)
    for name, one, ours in zip(NAMES, ones, scaled):
        exact = one.double() * 0.37
        # The gradient of the weight and of the bias are stored in fp32: one's own rounding is in the comparison.
        error = (ours.double() - exact).abs() / exact.abs().clamp(min=torch.finfo(dtype).tiny)
        assert error.max() <= torch.finfo(dtype).eps * (0.5 if name == "dx" else 1.0) * 1.01, name


@pytest.mark.parametrize("dtype", DTYPES)
def test_losses_are_as_accurate_as_torch(dtype: torch.dtype, seed: int) -> None:
    """Row by row: a sum is at times right by luck."""
    options = {"label_smoothing": 0.1, "z_loss": 1e-2}
    x, weight, bias, labels = inputs(40, 100, 16, seed, dtype)
    labels %= 100
    losses, _, _ = exactly((x, weight, bias, labels), **options)
    by_row = []
    for backend in ("triton", "eager"):
        with use_backend(backend):
            rows = [ops.linear_cross_entropy(x[i, None], weight, bias, labels[i, None], **options) for i in range(40)]
        by_row.append(torch.stack([row.loss_sum for row in rows]))
    assert_as_accurate(*by_row, losses.detach(), "loss")


@pytest.mark.parametrize(
    "options",
    [{"label_smoothing": 0.3}, {"label_smoothing": 1.0}, {"z_loss": 0.5}, {"ignore_index": 3}],
    ids=lambda options: "-".join(f"{name}-{value}" for name, value in options.items()),
)
def test_options_alone(options: dict, seed: int) -> None:
    tensors = inputs(8, 70, 12, seed)
    tensors[3][tensors[3] == IGNORED] = 3
    check(tensors, **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_bias(dtype: torch.dtype, seed: int) -> None:
    x, weight, _, labels = inputs(40, 100, 16, seed, dtype)
    check((x, weight, None, labels), 0.5, label_smoothing=0.1)


@pytest.mark.parametrize("rows", [0, 5], ids=["no-row", "all-ignored"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_label_the_loss_and_the_gradients_are_zero(rows: int, dtype: torch.dtype, seed: int) -> None:
    x, weight, bias, labels = inputs(rows, 50, 8, seed, dtype)
    labels.fill_(IGNORED)
    result, gradients = run("triton", (x, weight, bias, labels), label_smoothing=0.1, z_loss=1.0)
    assert result.loss_sum == result.count == result.correct == 0
    for gradient, tensor in zip(gradients, (x, weight, bias)):
        assert gradient.shape == tensor.shape
        assert gradient.dtype == dtype
        assert not gradient.any()


def test_counts_what_is_right_and_of_equal_logits_takes_the_first(seed: int) -> None:
    x, weight, bias, labels = inputs(8, 3000, 16, seed)
    exact = (x @ weight.T + bias).argmax(-1)
    labels[[0, 3, 5]] = exact[[0, 3, 5]]
    labels[2] = IGNORED
    weight[2500], bias[2500] = 0.0, 1000.0  # the highest everywhere, and then its equals at both sides
    weight[17], bias[17] = 0.0, 1000.0
    weight[2999], bias[2999] = 0.0, 1000.0
    labels[[0, 1, 4, 7]] = torch.tensor([17, 2500, 17, 2999], device=DEVICE)
    with use_backend("triton"):
        tied = ops.linear_cross_entropy(x, weight, bias, labels)
    assert tied.correct == 2
    plain = inputs(8, 3000, 16, seed)
    plain[3][[0, 3, 5]] = exact[[0, 3, 5]]
    with use_backend("triton"):
        result = ops.linear_cross_entropy(*plain)
    assert result.correct == int(exactly(plain)[1].sum()) >= 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_several_chunks_are_one(dtype: torch.dtype, seed: int, monkeypatch) -> None:
    tensors = inputs(40, 100, 32, seed, dtype)
    options = {"label_smoothing": 0.1, "z_loss": 1e-2}
    whole, together = run("triton", tensors, 0.5, **options)
    monkeypatch.setattr(kernels, "plan", lambda rows, vocabulary, element_size: 16)
    ours, gradients = run("triton", tensors, 0.5, **options)
    _, others = run("eager", tensors, 0.5, **options)
    _, _, exact = exactly(tensors, 0.5, **options)
    for name, mine, other, truth in zip(NAMES, gradients, others, exact):
        assert_as_accurate(mine, other, truth, name)
    assert ours.correct == whole.correct
    torch.testing.assert_close(ours.loss_sum, whole.loss_sum)
    torch.testing.assert_close(gradients[0], together[0])


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("several", [False, True], ids=["one-chunk", "chunks"])
def test_under_autocast(dtype: torch.dtype, several: bool, seed: int, monkeypatch) -> None:
    if several:
        monkeypatch.setattr(kernels, "plan", lambda rows, vocabulary, element_size: 16)
    x, weight, bias, labels = inputs(40, 100, 32, seed, dtype)
    x, weight, bias = x.float(), weight.float(), bias.float()
    _, _, exact = exactly((x, weight, bias, labels), 0.5, label_smoothing=0.1)
    for x_dtype in (torch.float32, dtype):
        tensors = (x.to(x_dtype), weight, bias, labels)
        with torch.autocast(DEVICE, dtype=dtype):
            result, ours = run("triton", tensors, 0.5, label_smoothing=0.1)
            _, theirs = run("eager", tensors, 0.5, label_smoothing=0.1)
        assert result.loss_sum.dtype == torch.float32
        for name, mine, other, truth in zip(NAMES, ours, theirs, exact):
            assert_as_accurate(mine, other, truth, name)
        assert ours[0].dtype == x_dtype
        assert ours[1].dtype == ours[2].dtype == torch.float32


def test_small_gradients_survive_in_fp16(seed: int) -> None:
    """Probabilities of 1e-8, which fp16 rounds to 0: the weights of such labels still get a gradient."""
    x, weight, bias, labels = inputs(4, 300, 8, seed)
    bias[200:] -= 17.0
    _, _, exact = exactly((x, weight, bias, labels), 1.0)
    with torch.autocast(DEVICE, dtype=torch.float16):
        _, (_, _, dbias) = run("triton", (x, weight, bias, labels), 1.0)
    far = slice(200, None)
    assert (dbias[far] != 0).double().mean() > (exact[2][far].float().half() != 0).double().mean()


def test_operands_may_lie_in_any_order_in_memory(seed: int) -> None:
    x, weight, bias, labels = inputs(6, 100, 16, seed)
    apart = torch.full((6, 2), IGNORED, device=DEVICE)
    apart[:, 1] = labels
    turned = (x.t().contiguous().t(), weight.t().contiguous().t(), bias[:, None].expand(100, 2)[:, 0], apart[:, 1])
    assert not any(tensor.is_contiguous() for tensor in (turned[0], turned[1], turned[3]))
    for mine, same in zip(run("triton", turned)[1], run("triton", (x, weight, bias, labels))[1]):
        torch.testing.assert_close(mine, same)


@pytest.mark.parametrize("hip", [None, "7.0"], ids=["", "amd"])
@pytest.mark.parametrize("alpha", [1.0, 0.25])
@pytest.mark.parametrize("kinds", [(0, 0), (1, 1), (1, 0)], ids=["fp32", "half", "half-into-fp32"])
def test_products_are_added(hip: str | None, alpha: float, kinds: tuple[int, int], seed: int, monkeypatch) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    operands, result = ((torch.float32, torch.bfloat16)[kind] for kind in kinds)
    a, b = (tensor.to(operands) for tensor in inputs(20, 30, 16, seed)[:2])
    out = torch.full((20, 30), math.nan, dtype=result, device=DEVICE)
    exact = alpha * (a.double() @ b.double().T)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if operands == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    for times in (1, 2, 3):
        kernels.add_matmul(out, a, b.t(), fresh=times == 1, alpha=alpha)
        torch.testing.assert_close(out.double(), times * exact, **tolerance)


@pytest.mark.parametrize("frozen", [{0}, {1}, {2}, {0, 2}, {1, 2}], ids=str)
def test_only_what_needs_a_gradient_gets_one(frozen: set[int], seed: int) -> None:
    *operands, labels = inputs(5, 60, 8, seed)
    _, every = run("triton", (*operands, labels))
    leaves = [tensor.clone().requires_grad_(i not in frozen) for i, tensor in enumerate(operands)]
    with use_backend("triton"):
        (ops.linear_cross_entropy(*leaves, labels).loss_sum * 0.37).backward()
    for i, leaf in enumerate(leaves):
        if i in frozen:
            assert leaf.grad is None
        else:
            torch.testing.assert_close(leaf.grad, every[i])


def test_a_tied_weight_gets_both_gradients(seed: int) -> None:
    _, table, bias, labels = inputs(6, 40, 16, seed)
    tokens = torch.arange(6, device=DEVICE)
    results = []
    for backend in ("triton", "eager"):
        weight = table.clone().requires_grad_()
        with use_backend(backend):
            ops.linear_cross_entropy(torch.tanh(weight[tokens]), weight, bias, labels).loss_sum.backward()
        results.append(weight.grad)
    torch.testing.assert_close(*results)


def test_backward_may_run_twice_with_any_upstream_gradient(seed: int) -> None:
    tensors = inputs(6, 90, 16, seed)
    leaves = [tensor.requires_grad_() for tensor in tensors[:3]]
    with use_backend("triton"):
        loss = ops.linear_cross_entropy(*leaves, tensors[3]).loss_sum
        first = torch.autograd.grad(loss * 0.5, leaves, retain_graph=True)
        second = torch.autograd.grad(loss * -3.0, leaves, retain_graph=True)
        third = torch.autograd.grad(loss, leaves)
    for a, b, c in zip(first, second, third):
        torch.testing.assert_close(a, 0.5 * c)
        torch.testing.assert_close(b, -3.0 * c)


def test_a_second_derivative_is_refused(seed: int) -> None:
    *operands, labels = inputs(3, 20, 8, seed)
    x = operands[0].requires_grad_()
    with use_backend("triton"):
        loss = ops.linear_cross_entropy(x, *operands[1:], labels).loss_sum
        (dx,) = torch.autograd.grad(loss, x, create_graph=True)
        with pytest.raises(RuntimeError, match="no autograd formula was registered"):
            (loss + dx.square().sum()).backward()


def test_without_gradients_none_is_computed(seed: int, monkeypatch) -> None:
    tensors = inputs(6, 90, 16, seed)
    expected, _ = run("triton", tensors)
    weight = tensors[1].clone().requires_grad_()

    def refuse(*_, **__):
        raise AssertionError("a gradient was computed")

    monkeypatch.setattr(kernels, "add_matmul", refuse)
    with use_backend("triton"):
        with torch.no_grad():
            actual = ops.linear_cross_entropy(tensors[0], weight, *tensors[2:])
        detached = ops.linear_cross_entropy(tensors[0], weight.detach(), *tensors[2:])
    for one in (actual, detached):
        assert torch.equal(one.loss_sum, expected.loss_sum)
        assert torch.equal(one.correct, expected.correct)
        assert not one.loss_sum.requires_grad


def test_the_same_bits_on_every_run(seed: int) -> None:
    tensors = inputs(9, 2100, 16, seed)
    runs = [run("triton", tensors, label_smoothing=0.1) for _ in range(2)]
    assert torch.equal(runs[0][0].loss_sum, runs[1][0].loss_sum)
    assert all(torch.equal(a, b) for a, b in zip(runs[0][1], runs[1][1]))


def test_a_row_does_not_depend_on_its_neighbours(seed: int) -> None:
    x, weight, bias, labels = inputs(5, 100, 8, seed)
    x[0] = math.nan
    x[2] = math.nan  # a row without a label
    result, (dx, _, _) = run("triton", (x, weight, bias, labels), 1.0)
    assert result.loss_sum.isnan()
    assert dx[0].isnan().all()
    assert not dx[2].any()
    _, (alone, _, _) = run("triton", (x[3:], weight, bias, labels[3:]), 1.0)
    torch.testing.assert_close(dx[3:], alone)


def test_logits_of_minus_infinity_and_far_from_zero(seed: int) -> None:
    x, weight, bias, labels = inputs(6, 2200, 16, seed)
    bias[:2100] = -math.inf  # the first whole block
    bias[2100:] += 3000.0
    labels[labels != IGNORED] = 2150
    result, gradients = run("triton", (x, weight, bias, labels))
    losses, _, exact = exactly((x, weight, bias, labels))
    torch.testing.assert_close(result.loss_sum.double(), losses.sum().detach(), rtol=1e-4, atol=1e-3)
    for gradient, truth in zip(gradients, exact):
        torch.testing.assert_close(gradient.double(), truth, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("wrong", [-1, 64, 70, 2**40, -(2**31) - 5], ids=str)
def test_a_label_outside_the_vocabulary_is_nan_and_reads_nothing(wrong: int, seed: int, monkeypatch) -> None:
    monkeypatch.delenv("FASTBERT_DEBUG", raising=False)
    x, weight, bias, labels = inputs(5, 64, 8, seed)
    labels[1] = wrong
    result, (dx, dweight, dbias) = run("triton", (x, weight, bias, labels))
    assert result.loss_sum.isnan()
    assert result.count == 4
    assert dx[1].isnan().all()
    assert dx[[0, 2, 3, 4]].isfinite().all()
    assert dweight.isnan().any()
    assert dbias.isnan().any()
    monkeypatch.setenv("FASTBERT_DEBUG", "1")
    for backend in ("triton", "eager"):
        with pytest.raises(UserError, match=rf"labels\[1\]={wrong} is not in the vocabulary of 64 labels"):
            run(backend, (x, weight, bias, labels))
    labels[1] = IGNORED
    run("triton", (x, weight, bias, labels))


def test_refuses_what_it_does_not_support(seed: int) -> None:
    x, weight, bias, labels = inputs(3, 20, 8, seed)
    with use_backend("triton"):
        with pytest.raises(
            UserError,
            match=r"'triton' does not support 'linear_cross_entropy' here: .*float64.*use_backend\('eager'\) does",
        ):
            ops.linear_cross_entropy(x.double(), weight.double(), bias.double(), labels)
        with pytest.raises(UserError, match=r"weight \(vocabulary, width\), not \(3, 8\) and \(20, 7\)"):
            ops.linear_cross_entropy(x, weight[:, :7], bias, labels)
        with pytest.raises(UserError, match=r"weight has no rows"):
            ops.linear_cross_entropy(x, weight[:0], bias[:0], labels)
        with pytest.raises(UserError, match=r"bias must have shape \(20,\), one per label, not \(19,\)"):
            ops.linear_cross_entropy(x, weight, bias[1:], labels)
        with pytest.raises(
            UserError, match=r"labels must be int64 of shape \(3,\), one per row, not torch.int32 \(3,\)"
        ):
            ops.linear_cross_entropy(x, weight, bias, labels.int())
        with pytest.raises(UserError, match=r"weight has dtype torch.float32, x torch.bfloat16: cast one, or use"):
            ops.linear_cross_entropy(x.bfloat16(), weight, bias, labels)
        with pytest.raises(UserError, match=r"label_smoothing=1.5 must be between 0 and 1"):
            ops.linear_cross_entropy(x, weight, bias, labels, label_smoothing=1.5)
        with pytest.raises(UserError, match=r"z_loss=-1 must be a finite number and not below 0"):
            ops.linear_cross_entropy(x, weight, bias, labels, z_loss=-1)
        with pytest.raises(UserError, match=r"labels is on meta, x on "):
            ops.linear_cross_entropy(x, weight, bias, labels.to("meta"))


@pytest.mark.parametrize("needed", [(True, True, True), (False, True, False), (False, False, False)], ids=str)
def test_the_operators_keep_their_promises(needed: tuple[bool, ...], seed: int) -> None:
    *operands, labels = inputs(5, 40, 8, seed)
    leaves = [tensor.requires_grad_(need) for tensor, need in zip(operands, needed)]
    arguments = (*leaves, labels, IGNORED, 0.1, 1e-3, *needed, "triton")
    torch.library.opcheck(torch.ops.fastbert.linear_cross_entropy.default, arguments)
    with torch.no_grad():
        gradients = torch.ops.fastbert.linear_cross_entropy(*arguments)[3:]
    arguments = (torch.tensor(0.3, device=DEVICE), *gradients, *(tensor.detach() for tensor in operands), "triton")
    torch.library.opcheck(torch.ops.fastbert.linear_cross_entropy_backward.default, arguments)


def test_compiles_whole_and_once_for_any_number_of_rows(seed: int) -> None:
    counter = CompileCounterWithBackend("aot_eager")

    def function(x, weight, bias, labels):
        result = ops.linear_cross_entropy(x * 2.0, weight, bias, labels, label_smoothing=0.1, z_loss=1e-3)
        return result.loss_sum / result.count.clamp(min=1), result.correct

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    with use_backend("triton"):
        for rows in (5, 9, 13):  # no other axis' sizes: torch would take two that are equal for one
            tensors = inputs(rows, 70, 16, seed)
            leaves = [tensor.requires_grad_() for tensor in tensors[:3]]
            results = [f(*leaves, tensors[3]) for f in (compiled, function)]
            gradients = [torch.autograd.grad(loss, leaves) for loss, _ in results]
            assert torch.equal(results[0][0], results[1][0])
            assert torch.equal(results[0][1], results[1][1])
            assert all(torch.equal(a, b) for a, b in zip(*gradients))
    assert counter.frame_count == 1


@pytest.mark.parametrize("vocabulary", [33, 2048, 30522, 119547, 256000])
@pytest.mark.parametrize("element_size", [2, 4])
def test_the_plan_bounds_the_buffer(vocabulary: int, element_size: int) -> None:
    row_bytes = kernels.padded(vocabulary) * element_size
    assert row_bytes % 128 == 0
    fewest = kernels.FEWEST // element_size // kernels.TILE * kernels.TILE
    for rows in (0, 1, 500, 4096, 4500, 10_000, 20_011, 70_000, 400_000):
        chunk = kernels.plan(rows, vocabulary, element_size)
        assert chunk >= 1
        if rows * row_bytes <= kernels.ONE_CHUNK:
            assert chunk == max(rows, 1)
            continue
        assert chunk % kernels.TILE == 0
        assert chunk * row_bytes <= 0.08 * rows * vocabulary * 4 or chunk <= fewest
        chunks = -(-rows // chunk)
        assert chunk <= fewest or chunk * row_bytes > 0.03 * rows * vocabulary * 4  # not needlessly small
        assert chunks * chunk - rows < chunks * kernels.TILE  # about equal


class Allocations(TorchDispatchMode):
    """The most bytes that new storages had at a time."""

    def __init__(self, known: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        self.alive = {tensor.untyped_storage()._cdata for tensor in known}
        self.bytes = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage._cdata not in self.alive:
                self.alive.add(storage._cdata)
                self.bytes += storage.nbytes()
                self.peak = max(self.peak, self.bytes)
                weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        return result

    def _free(self, key: int, size: int) -> None:
        self.alive.discard(key)
        self.bytes -= size


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16], ids=["autocast", "bf16"])
def test_ten_thousand_rows_take_a_tenth_of_their_fp32_logits(weight_dtype: torch.dtype, monkeypatch) -> None:
    """Everything but the gradient of the weight, in tensors without memory; matmuls and kernels do not run."""
    rows, vocabulary, width = 10_000, 30_522, 768
    monkeypatch.setattr(kernels, "launch", lambda *_, **__: None)
    monkeypatch.setattr(kernels, "add_matmul", lambda *_, **__: None)
    x = torch.empty(rows, width, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(vocabulary, width, dtype=weight_dtype, device="meta")
    bias = torch.empty(vocabulary, dtype=weight_dtype, device="meta")
    labels = torch.empty(rows, dtype=torch.int64, device="meta")
    with Allocations((x, weight, bias, labels)) as seen:
        result = kernels.forward(kernels.LossInputs(x, weight, bias, labels, IGNORED, 0.0, 0.0, True, True, True))
    logits = kernels.plan(rows, vocabulary, 2) * kernels.padded(vocabulary) * 2
    gradient = result[4].untyped_storage().nbytes()
    assert seen.peak > logits + gradient  # it does count
    assert seen.peak - gradient <= 0.1 * rows * vocabulary * 4
