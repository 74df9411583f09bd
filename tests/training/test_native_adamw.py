"""The native AdamW: torch's bits and state, and packed copies that are never stale."""

import copy
import itertools
import math

import cpu_kernels
import pytest
import torch
from fences import Fenced
from sweeps import sweep
from torch import Tensor, nn

from fastbert import _C
from fastbert.ops.native import matmul, prepacked_weights
from fastbert.training.optimizer import AdamW

pytestmark = pytest.mark.usefixtures("one_thread")

LEVELS = [name for name in ("portable", "avx2", "avx512") if cpu_kernels.in_hardware(name)]
# Widths that are no multiples of a vector, of eight and of a cache line, and more than a chunk.
SHAPES = [(48, 40), (45, 33), (7,), (1025, 9), (3, 3, 3), (2,), (1,), (), (0, 5), (70, 103), (8,), (32769,)]
OPTIONS = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-6}


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest):
    with cpu_kernels.running(request.param):
        yield request.param


class Draw:
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def gradient(self, shape: tuple) -> Tensor:
        """Of any size, with zeros and denormals in it."""
        grad = self(*shape) * 10 ** float(self(1))
        grad.view(-1)[::7] = 0.0
        grad.view(-1)[3::11] *= 1e-38
        return grad


def parameters(draw: Draw, shapes: list = SHAPES) -> list[nn.Parameter]:
    return [nn.Parameter(draw(*shape)) for shape in shapes]


def twins(own: list[nn.Parameter]) -> list[nn.Parameter]:
    return [nn.Parameter(p.detach().clone()) for p in own]


def groups(own: list[nn.Parameter]) -> list[dict]:
    return [{"params": own[::2], "weight_decay": 0.1}, {"params": own[1::2], "weight_decay": 0.0, "lr": 3e-3}]


def apart(a: Tensor, b: Tensor) -> int:
    """The most units in the last place between two fp32 tensors."""
    if a.numel() == 0:
        return 0

    def ordered(x: Tensor) -> Tensor:
        bits = x.detach().view(torch.int32).long()
        return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    return int((ordered(a) - ordered(b)).abs().max())


def assert_same(ours: torch.optim.Optimizer, theirs: torch.optim.Optimizer, ulps: int) -> None:
    for mine, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        for p, q in zip(mine["params"], other["params"], strict=True):
            pairs = [(p, q), *[(ours.state[p][name], theirs.state[q][name]) for name in ("exp_avg", "exp_avg_sq")]]
            assert max(apart(x, y) for x, y in pairs) <= ulps
            assert float(ours.state[p]["step"]) == float(theirs.state[q]["step"])


@pytest.mark.parametrize(
    "betas", [(0.9, 0.999), (0.4, 0.9), (0.0, 0.5)], ids=["usual", "from-the-gradient", "no-first"]
)
def test_fifty_clipped_steps_have_the_bits_of_torchs_fused_ones(level: str, betas: tuple, seed: int) -> None:
    draw = Draw(seed)
    own = parameters(draw)
    other = twins(own)
    ours = AdamW(groups(own), **{**OPTIONS, "betas": betas})
    theirs = torch.optim.AdamW(groups(other), **{**OPTIONS, "betas": betas}, fused=True)
    for _ in range(50):
        for p, q in zip(own, other, strict=True):
            p.grad = draw.gradient(p.shape)
            q.grad = p.grad.clone()
        norm = ours.clip_gradients(1.0)
        exact = torch.stack([q.grad.double().square().sum() for q in other]).sum().sqrt()
        assert abs(float(norm) - float(exact)) <= 1e-12 * float(exact)
        assert ours.clip_factor == pytest.approx(min(1.0, 1.0 / (float(exact) + 1e-6)), rel=1e-6)
        for q in other:
            q.grad.mul_(ours.clip_factor)
        ours.step()
        theirs.step()
        assert ours.clip_factor == 1.0
    # Portable kernels have no FMA and round twice: a neighbour once in 2^29.
    assert_same(ours, theirs, 0 if level != "portable" else 1)


def test_no_result_depends_on_the_threads(level: str, seed: int) -> None:
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        draw = Draw(seed)
        own = parameters(draw, [*SHAPES, (300, 1030)])
        optimizer = AdamW(own, **OPTIONS)
        for p in own:
            p.grad = draw.gradient(p.shape)
        found.append([optimizer.clip_gradients(0.1)])
        optimizer.step()
        found[-1] += [p.detach() for p in own]
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_the_norm_is_the_same_number_at_every_level(seed: int) -> None:
    tensors = [Draw(seed).gradient((size,)) for size in (1, 15, 16, 17, 32768, 32769, 100003)]
    spans = [(x.data_ptr(), x.numel()) for x in tensors]
    found = set()
    for name in LEVELS:
        with cpu_kernels.running(name):
            found.add(_C.sum_of_squares(spans))
    assert len(found) == 1


@pytest.mark.parametrize("first", ["ours", "torch"])
def test_state_dicts_go_both_ways(first: str, seed: int) -> None:
    """Three steps with one, three with the other, are six of torch's."""
    kinds = [lambda p: AdamW(p, **OPTIONS, fused=True), lambda p: torch.optim.AdamW(p, **OPTIONS, fused=True)]
    if first == "torch":
        kinds.reverse()
    draw = Draw(seed)
    own = parameters(draw)
    other = twins(own)
    gradients = [[draw.gradient(p.shape) for p in own] for _ in range(6)]
    reference = torch.optim.AdamW(other, **OPTIONS, fused=True)
    optimizer = kinds[0](own)
    for step, grads in enumerate(gradients):
        if step == 3:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = kinds[1](own)
            optimizer.load_state_dict(state)
        for p, q, grad in zip(own, other, grads, strict=True):
            p.grad, q.grad = grad.clone(), grad.clone()
        optimizer.step()
        reference.step()
    assert_same(optimizer, reference, 0)
    assert optimizer.state_dict()["state"].keys() == reference.state_dict()["state"].keys()


OTHERWISE = [
    {"amsgrad": True}, {"maximize": True}, {"foreach": True}, {"lr": torch.tensor(0.01)},
]  # fmt: skip


@pytest.mark.parametrize("options", OTHERWISE, ids=lambda options: next(iter(options)))
def test_what_is_not_served_takes_torchs_step(options: dict, seed: int) -> None:
    draw = Draw(seed)
    own = parameters(draw)
    other = twins(own)
    ours, theirs = AdamW(own, **{**OPTIONS, **options}), torch.optim.AdamW(other, **{**OPTIONS, **options})
    for _ in range(3):
        for p, q in zip(own, other, strict=True):
            p.grad = draw.gradient(p.shape)
            q.grad = p.grad.clone()
        ours.clip_gradients(0.5)
        torch._foreach_mul_([q.grad for q in other], ours.clip_factor)
        ours.step()
        theirs.step()
        assert len(ours.changed_by_torch) == len(own)
    assert_same(ours, theirs, 0)


def test_dtypes_and_layouts_are_mixed(seed: int) -> None:
    """bf16, fp64, strided, sparse-free and plain parameters in one optimiser: each as torch has it."""
    draw = Draw(seed)
    made = [draw(6, 5), draw(6, 5).bfloat16(), draw(6, 5).double(), draw(5, 6).t(), draw(12, 5)[::2]]
    own = [nn.Parameter(x) for x in made]
    other = [nn.Parameter(x.detach().clone(memory_format=torch.preserve_format)) for x in made]
    ours, theirs = AdamW(own, **OPTIONS), torch.optim.AdamW(other, **OPTIONS, foreach=False)
    for p, q in zip(own, other, strict=True):
        p.grad = draw(6, 5).to(p.dtype)
        q.grad = p.grad.clone()
    ours.step()
    theirs.step()
    assert [p is own[1] or p is own[2] or p is own[3] or p is own[4] for p in ours.changed_by_torch] == [True] * 4
    for p, q in zip(own[1:], other[1:], strict=True):
        assert torch.equal(p, q)
    torch.testing.assert_close(own[0], other[0])


def test_tensors_that_share_memory_are_computed_one_after_the_other(seed: int) -> None:
    base, twin = Draw(seed)(10, 8), Draw(seed)(10, 8)
    results = []
    for memory, kind in ((base, AdamW), (twin, torch.optim.AdamW)):
        own = [nn.Parameter(memory[:6]), nn.Parameter(memory[4:])]
        optimizer = kind(own, **OPTIONS)
        for i, p in enumerate(own):
            p.grad = Draw(seed + 1 + i)(6, 8)
        optimizer.step()
        results.append(memory)
    assert torch.equal(*results)


def test_hooks_closures_and_schedulers_run(seed: int) -> None:
    weight = nn.Parameter(Draw(seed)(20, 30))
    optimizer = AdamW([weight], **OPTIONS)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))

    def closure() -> Tensor:
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        seen.append("closure")
        return loss

    loss = optimizer.step(closure)
    schedule.step()
    assert float(loss.detach()) > 0
    assert seen == ["before", "closure", "after"]
    assert optimizer.param_groups[0]["lr"] == 0.5 * OPTIONS["lr"]
    version = weight._version
    optimizer.step(closure)
    assert weight._version > version
    # The fallback runs them once, too.
    optimizer.param_groups[0]["maximize"] = True
    seen.clear()
    optimizer.step(closure)
    assert seen == ["before", "closure", "after"]


def test_a_scaler_skips_steps_as_ever(seed: int) -> None:
    weight = nn.Parameter(Draw(seed)(20, 30))
    before = weight.detach().clone()
    for fused in (None, True):
        optimizer = AdamW([weight], **OPTIONS, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        weight.grad = torch.full_like(weight, math.inf)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(weight, before)
        assert scaler.get_scale() == 2.0


def test_gradients_are_cleared_in_the_pass_or_freed(seed: int) -> None:
    own = parameters(Draw(seed))
    optimizer = AdamW(own, **OPTIONS)
    for p in own:
        p.grad = torch.ones_like(p)
    grads = [p.grad for p in own]
    optimizer.step(clear=True)
    assert all(p.grad is grad and not grad.any() for p, grad in zip(own, grads, strict=True))
    optimizer.zero_grad()
    assert all(p.grad is None for p in own)


WIDTHS = [
    pytest.param([(64, 48)] * 3, id="whole-panels"),
    pytest.param([(45, 33)] * 3, id="odd"),
    pytest.param([(32, 16), (7, 16), (64, 16)], id="uneven"),
    pytest.param([(1000, 130)] * 3, id="many-chunks"),
    pytest.param([(1, 1)] * 3, id="one"),
]


@sweep("shapes", WIDTHS)
@sweep("element", ["fp32", "bf16"])
def test_packed_copies_equal_fresh_ones_after_each_step(level: str, shapes: list, element: str, seed: int) -> None:
    torch.set_num_threads(2)
    draw = Draw(seed)
    own = parameters(draw, shapes)
    optimizer = AdamW(own, **OPTIONS, weight_decay=0.1)

    def copies() -> list:
        found = [prepacked_weights.prepacked(p, element, transposed) for p in own for transposed in (False, True)]
        for transposed in (False, True):
            found += prepacked_weights.prepacked_group(own, (2, 1), element, transposed)
        return found

    places = [id(one) for one in copies()]
    for step in range(4):
        for i, p in enumerate(own):
            p.grad = None if step == 2 and i == 1 else draw.gradient(p.shape)  # one is left out
        optimizer.clip_gradients(1.0)
        optimizer.step()
        held = copies()
        assert [id(one) for one in held] == places, "packed again instead of written anew"
        plain = [p.detach() for p in own]
        joined = [torch.cat(plain[:2]), plain[2]]
        fresh = [matmul.prepack(p, element, transposed) for p in plain for transposed in (False, True)]
        fresh += [matmul.prepack(p, element, transposed) for transposed in (False, True) for p in joined]
        assert all(bytes(one) == bytes(two) for one, two in zip(held, fresh, strict=True))
        del held, fresh


def test_a_copy_that_somebody_holds_is_left_as_it_was(seed: int) -> None:
    weight = nn.Parameter(Draw(seed)(64, 48))
    held = prepacked_weights.prepacked(weight, "fp32")
    before = bytes(held)
    optimizer = AdamW([weight], **OPTIONS)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert bytes(held) == before
    assert bytes(prepacked_weights.prepacked(weight, "fp32")) == bytes(matmul.prepack(weight, "fp32"))


def test_copies_that_nobody_asks_for_are_dropped(seed: int) -> None:
    weight = nn.Parameter(Draw(seed)(64, 48))
    optimizer = AdamW([weight], **OPTIONS)
    prepacked_weights.prepacked(weight, "fp32")
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert weight in prepacked_weights._copies
    optimizer.step()
    assert weight not in prepacked_weights._copies


@sweep("size", [1, 7, 8, 9, 15, 16, 17, 31, 33, 1000])
@sweep("behind", [True, False])
def test_nothing_beyond_a_tensor_is_touched(level: str, size: int, behind: bool, seed: int) -> None:
    draw = Draw(seed)
    values = [draw(size), draw(size), draw(size), draw(size).abs(), torch.tensor([4.0])]
    fenced = [Fenced(x, behind) for x in values]
    addresses = [one.address for one in fenced]
    settings = [(1e-2, 0.9, 0.999, 1e-6, 0.1)]
    assert _C.adamw([(*addresses, 1, size, 0)], settings, [], 0.5, True)
    assert not fenced[1].tensor.any()
    assert float(fenced[4].tensor) == 5.0
    total, bad = _C.sum_of_squares([(addresses[0], size)])
    assert bad is None
    assert total == pytest.approx(float(fenced[0].tensor.double().square().sum()))


def test_the_extension_refuses_copies_that_do_not_fit() -> None:
    x = torch.ones(5, 64)
    places, step = [x[i].data_ptr() for i in range(4)], x[4].data_ptr()
    packed = matmul.prepack(torch.ones(8, 8), "fp32")
    integers = matmul.prepack(torch.ones(8, 8), "int8")
    settings = [(1e-2, 0.9, 0.999, 1e-6, 0.1)]
    for copy_of, rows, columns in itertools.product(
        [(packed, False, 0, 1), (packed, True, 0, 5), (integers, False, 0, 0), (packed, False, 3, 0)], [8], [8]
    ):
        with pytest.raises(ValueError, match=r"copy|parameter"):
            _C.adamw([(*places, step, rows, columns, 0)], settings, [copy_of], 1.0, False)
    with pytest.raises(ValueError, match="settings"):
        _C.adamw([(*places, step, 8, 8, 1)], settings, [], 1.0, False)
    with pytest.raises(ValueError, match="null"):
        _C.adamw([(0, *places[1:], step, 8, 8, 0)], settings, [], 1.0, False)
    assert (x == 1).all()


def test_decay_within_the_gradient_is_torchs(seed: int) -> None:
    """torch's group has a switch that makes Adam of AdamW."""
    own = [nn.Parameter(Draw(seed)(8, 8))]
    theirs = twins(own)
    for kind, given in ((AdamW, own), (torch.optim.AdamW, theirs)):
        optimizer = kind(given, weight_decay=0.5, fused=True, **OPTIONS)
        optimizer.param_groups[0]["decoupled_weight_decay"] = False
        given[0].grad = torch.ones(8, 8)
        optimizer.step()
    assert torch.equal(own[0], theirs[0])


def test_the_first_step_where_another_device_is_the_default(seed: int) -> None:
    own = [nn.Parameter(Draw(seed)(8, 8))]
    theirs = twins(own)
    for kind, given in ((AdamW, own), (torch.optim.AdamW, theirs)):
        optimizer = kind(given, fused=True, **OPTIONS)
        given[0].grad = torch.ones(8, 8)
        with torch.device("meta"):
            optimizer.step()
    assert torch.equal(own[0], theirs[0])
