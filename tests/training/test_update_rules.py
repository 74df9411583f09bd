"""StableAdamW and LAMB: the papers' steps on every path, shards as whole parameters, bf16 weights with fp32 masters."""

import copy
import math
import threading

import cpu_kernels
import pytest
import torch
from optimizer_references import REFERENCES
from torch import Tensor, nn

from fastbert import _C
from fastbert.errors import UserError
from fastbert.ops.native import matmul, prepacked_weights
from fastbert.training.optimizer import OPTIMIZERS, AdamW, GradientError
from fastbert.training.schedules import learning_rate_factor

pytestmark = pytest.mark.usefixtures("one_thread")

LEVELS = [name for name in ("portable", "avx2", "avx512") if cpu_kernels.in_hardware(name)]
RULES = list(OPTIMIZERS)
# More than a chunk; no multiples of a vector or of sixteen; one of each has no weight decay.
SHAPES, DECAYS = [(300, 130), (45, 33), (7,), (3, 3, 3), (1,), (0, 5)], [0.1, 0.1, 0.0, 0.1, 0.0, 0.1]
SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.98), "eps": 1e-6}
STEPS = 100


class Draw:
    """Weights of the size of a model's, and gradients that grow hundredfold in the middle, as before a loss spike."""

    def __init__(self, seed: int, shapes: list = SHAPES) -> None:
        self.generator, self.shapes = torch.Generator().manual_seed(seed), shapes

    def __call__(self, scale: float) -> list[Tensor]:
        return [scale * torch.randn(shape, generator=self.generator) for shape in self.shapes]

    def gradients(self, step: int) -> list[Tensor]:
        return self(1.0 if step % 25 == 24 else 0.01)


def make(rule: str, weights: list[Tensor], **options: object) -> tuple[AdamW, list[nn.Parameter]]:
    own = [nn.Parameter(weight.clone()) for weight in weights]
    groups = [
        {"params": [p for p, d in zip(own, DECAYS) if bool(d) == decayed], "weight_decay": 0.1 if decayed else 0.0}
        for decayed in (True, False)
    ]
    return OPTIMIZERS[rule](groups, **{**SETTINGS, **options}), own


def set_gradients(own: list[nn.Parameter], gradients: list[Tensor]) -> None:
    for parameter, gradient in zip(own, gradients, strict=True):
        parameter.grad = gradient.to(parameter.dtype, copy=True)


def distance(own: list[Tensor], exact: list[Tensor]) -> float:
    """The relative distance of all weights in the Euclidean norm."""
    errors = torch.stack([(p.detach().double() - q).norm() for p, q in zip(own, exact, strict=True)])
    return float(errors.norm() / torch.stack([q.norm() for q in exact]).norm())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("path", [*LEVELS, "torch", "captured"])
def test_a_hundred_steps_are_those_of_the_paper(path: str, rule: str, seed: int) -> None:
    """Within 1e-6, on the kernels of each processor and in PyTorch operations, also those that a graph can capture.

    The rate changes from step to step, as in a run: a constant one rounds AdamW's factor for weight decay, and torch's,
    the same way a hundred times.
    """
    draw = Draw(seed)
    weights = draw(0.1)
    options = {"torch": {"foreach": True}, "captured": {"fused": True}}.get(path, {})
    optimizer, own = make(rule, weights, **options)
    if path == "captured":
        optimizer.found_inf = torch.zeros(())
        for group in optimizer.param_groups:
            group["lr"], group["capturable"] = torch.tensor(SETTINGS["lr"], dtype=torch.float64), True
    reference = REFERENCES[rule](weights, DECAYS, SETTINGS["lr"], SETTINGS["betas"], SETTINGS["eps"])
    with cpu_kernels.running(path if path in LEVELS else LEVELS[-1]):
        for step in range(STEPS):
            reference.lr = SETTINGS["lr"] * learning_rate_factor((step + 0.5) / STEPS, 0.1)
            for group in optimizer.param_groups:
                group["lr"] = group["lr"].fill_(reference.lr) if path == "captured" else reference.lr
            gradients = draw.gradients(step)
            set_gradients(own, gradients)
            if path in LEVELS:  # clipping is a factor of the step
                norm = float(optimizer.clip_gradients(50.0))
                gradients = [gradient * min(1.0, 50.0 / (norm + 1e-6)) for gradient in gradients]
            optimizer.step()
            reference.step(gradients)
    assert bool(optimizer.changed_by_torch) == (path not in LEVELS)
    assert distance(own, reference.weights) < 1e-6


def test_the_rules_differ_on_these_gradients(seed: int) -> None:
    draw, results = Draw(seed), []
    weights = draw(0.1)
    gradients = [draw.gradients(step) for step in range(STEPS)]
    for rule in RULES:
        reference = REFERENCES[rule](weights, DECAYS, SETTINGS["lr"], SETTINGS["betas"], SETTINGS["eps"])
        for gradient in gradients:
            reference.step(gradient)
        results.append(reference.weights)
    adamw, stable, lamb = results
    assert min(distance(stable, adamw), distance(lamb, adamw), distance(lamb, stable)) > 1e-2


@pytest.mark.parametrize("rule", ["stableadamw", "lamb"])
def test_no_result_depends_on_threads_and_processors(rule: str, seed: int) -> None:
    results = {}
    for threads, level in [(1, LEVELS[-1]), (2, LEVELS[-1]), *[(1, level) for level in LEVELS[1:-1]]]:
        torch.set_num_threads(threads)
        draw = Draw(seed)
        optimizer, own = make(rule, draw(0.1))
        with cpu_kernels.running(level):
            for step in range(3):
                set_gradients(own, draw.gradients(step))
                optimizer.step(clear=True)
        results[threads, level] = [p.detach() for p in own]
        assert not any(p.grad.any() for p in own)
    first, *others = results.values()
    for other in others:
        assert all(torch.equal(one, two) for one, two in zip(first, other, strict=True))


@pytest.mark.parametrize("rule", ["stableadamw", "lamb"])
def test_zero_weights_gradients_and_huge_ones(rule: str) -> None:
    """Zero norms leave the rate as it is; squares that overflow do not make a NaN where AdamW makes none."""
    for weight, gradient in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (1.0, 1e30), (1e-30, 1e-30)):
        results = []
        for kind in (rule, "adamw"):
            own = nn.Parameter(torch.full((40, 3), weight))
            optimizer = OPTIMIZERS[kind]([own], **SETTINGS, weight_decay=0.1)
            own.grad = torch.full_like(own, gradient)
            optimizer.step()
            results.append(own.detach())
        assert bool(results[0].isfinite().all())
        if weight == 0.0 or gradient == 0.0:
            share = 1.0 if rule == "stableadamw" or weight == 0.0 else 10.0  # |w| / |0.1 w|
            expected = weight + (results[1] - weight) * share
            torch.testing.assert_close(results[0], expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("rule", ["stableadamw", "lamb"])
def test_a_state_dict_continues_and_so_does_adamws(rule: str, seed: int) -> None:
    draw = Draw(seed)
    weights = draw(0.1)
    (one, own), (other, theirs) = make(rule, weights), make(rule, weights)
    gradients = [draw.gradients(step) for step in range(4)]
    for step in range(4):
        if step == 2:
            state, other = copy.deepcopy(other.state_dict()), make(rule, theirs)[0]
            theirs = [p for group in other.param_groups for p in group["params"]]
            theirs = [theirs[i] for i in (0, 1, 4, 2, 5, 3)]  # decayed first
            other.load_state_dict(state)
        for optimizer, parameters in ((one, own), (other, theirs)):
            set_gradients(parameters, gradients[step])
            optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(own, theirs, strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_gradients_that_are_not_finite_are_named(rule: str, seed: int) -> None:
    optimizer, own = make(rule, Draw(seed)(0.1))
    before = [p.detach().clone() for p in own]
    set_gradients(own, Draw(seed)(1.0))
    own[1].grad[2, 3] = math.nan
    for call in (lambda: optimizer.clip_gradients(1.0), optimizer.step):
        with pytest.raises(GradientError, match=r"parameter 1 of group 0, of shape \(45, 33\), is nan at \[2, 3\]"):
            call()
    assert all(torch.equal(p, q) for p, q in zip(own, before, strict=True))
    optimizer.found_inf = torch.ones(())  # as a captured step tells
    for group in optimizer.param_groups:
        group["capturable"] = True
    if rule != "adamw":
        optimizer.step()
        assert all(torch.equal(p, q) for p, q in zip(own, before, strict=True))
        assert not any(float(optimizer.state[p]["step"]) for p in own)


@pytest.mark.parametrize("masters", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("rule", RULES)
def test_a_scaler_unscales_and_skips(rule: str, masters: bool, seed: int) -> None:
    draw = Draw(seed)
    weights = [weight.bfloat16() if masters else weight for weight in draw(0.1)]
    gradients = [gradient.to(weights[0].dtype) for gradient in draw(0.01)]
    (plain, own), (scaled, theirs) = (make(rule, weights, masters=masters, fused=True) for _ in range(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    set_gradients(own, gradients)
    set_gradients(theirs, [4.0 * gradient for gradient in gradients])
    plain.step()
    scaler.step(scaled)
    scaler.update()
    for p, q in zip(own, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-2 if masters else 1e-6, atol=1e-8)
    before = [q.detach().clone() for q in theirs]
    theirs[0].grad[0, 0] = math.inf
    scaler.step(scaled)
    scaler.update()
    assert all(torch.equal(q.detach(), value) for q, value in zip(theirs, before, strict=True))
    assert scaler.get_scale() == 2.0
    assert {float(scaled.state[q]["step"]) for q in theirs} == {1.0}


@pytest.mark.parametrize("rule", ["stableadamw", "lamb"])
def test_what_the_rules_do_not_support_is_refused(rule: str, seed: int) -> None:
    optimizer, own = make(rule, Draw(seed)(0.1), amsgrad=True)
    set_gradients(own, Draw(seed)(1.0))
    with pytest.raises(UserError, match="with amsgrad is not supported"):
        optimizer.step()
    with pytest.raises(ValueError, match="rule must be"):
        _C.adam_sums([], [], 1.0, "adam")
    with pytest.raises(ValueError, match="one rate per parameter"):
        _C.adamw([], [], [], 1.0, False, [1.0])


class Ranks:
    """Sums over threads that each hold a shard of every parameter, as an all-reduce does over processes."""

    def __init__(self, count: int) -> None:
        self.barrier, self.values = threading.Barrier(count, timeout=30), [torch.zeros(())] * count

    def run(self, bodies: list) -> list:
        results: list = [None] * len(bodies)

        def call(rank: int) -> None:
            try:
                results[rank] = bodies[rank](lambda x: self.reduce(rank, x))
            except UserError as error:
                results[rank] = error

        threads = [threading.Thread(target=call, args=(rank,)) for rank in range(len(bodies))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def reduce(self, rank: int, x: Tensor) -> Tensor:
        self.values[rank] = x.clone()
        self.barrier.wait()
        total = torch.stack(list(self.values)).sum(0)
        self.barrier.wait()
        return total


class Shard(nn.Parameter):
    """A parameter of which a process holds some rows, as FSDP2's are: `to_local` and the whole number of elements."""

    def to_local(self) -> Tensor:
        return self.data

    def numel(self) -> int:
        return self.whole


@pytest.mark.parametrize("rule", ["stableadamw", "lamb"])
@pytest.mark.parametrize("options", [{}, {"foreach": True}], ids=["native", "torch"])
def test_shards_are_updated_like_whole_parameters(rule: str, options: dict, seed: int) -> None:
    shapes = [(46, 33), (46, 1)]
    draw = Draw(seed, shapes)
    weights, gradients = draw(0.1), [draw.gradients(step) for step in (0, 24)]
    whole = [nn.Parameter(weight.clone()) for weight in weights]
    expected = OPTIMIZERS[rule](whole, **SETTINGS, **options, weight_decay=0.1)
    norms = []
    for step in range(2):
        set_gradients(whole, gradients[step])
        norms.append(float(expected.clip_gradients(0.5)))
        expected.step()

    def body(rows: slice, fail: bool = False):
        def run(reduce) -> list:
            own = []
            for weight in weights:
                own.append(Shard(weight[rows].clone()))
                own[-1].whole = weight.numel()
            optimizer = OPTIMIZERS[rule](own, **SETTINGS, **options, weight_decay=0.1)
            optimizer.reduce_sums = reduce
            for step in range(2):
                for parameter, gradient in zip(own, gradients[step], strict=True):
                    parameter.grad = gradient[rows].clone()
                if fail:
                    own[1].grad[0] = math.inf
                assert float(optimizer.clip_gradients(0.5)) == pytest.approx(norms[step], rel=1e-9)
                optimizer.step()
            return [p.data for p in own]

        return run

    shards = (slice(0, 31), slice(31, 46))
    found = Ranks(2).run([body(rows) for rows in shards])
    for index, parameter in enumerate(whole):
        joined = torch.cat([shard[index] for shard in found])
        torch.testing.assert_close(joined, parameter.detach(), rtol=1e-6, atol=1e-8)
    first, second = Ranks(2).run([body(rows, fail=rows is shards[1]) for rows in shards])
    assert "a shard in another process" in str(first)
    assert "parameter 1 of group 0" in str(second)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("level", LEVELS)
def test_bf16_weights_are_their_rounded_masters(level: str, rule: str, seed: int) -> None:
    """Masters are those of fp32 weights with the same gradients, bit for bit; prepacked copies follow bf16 weights."""
    draw = Draw(seed)
    weights = [weight.bfloat16() for weight in draw(0.1)]
    optimizer, own = make(rule, weights, masters=True)
    wide, theirs = make(rule, [weight.float() for weight in weights])
    with cpu_kernels.running(level):
        held = [prepacked_weights.prepacked(own[0], element, True) for element in ("fp32", "bf16")]
        addresses = [id(each) for each in held]
        del held
        for step in range(4):
            gradients = [gradient.bfloat16() for gradient in draw.gradients(step)]
            set_gradients(own, gradients)
            set_gradients(theirs, [gradient.float() for gradient in gradients])
            assert float(optimizer.clip_gradients(1.0)) == float(wide.clip_gradients(1.0))
            for each in (optimizer, wide):
                each.step(clear=True)
            held = [prepacked_weights.prepacked(own[0], element, True) for element in ("fp32", "bf16")]
            assert [id(each) for each in held] == addresses
            fresh = [matmul.prepack(own[0].detach(), element, True) for element in ("fp32", "bf16")]
            assert all(bytes(one) == bytes(two) for one, two in zip(held, fresh, strict=True))
            del held
    for parameter, other in zip(own, theirs, strict=True):
        state = optimizer.state[parameter]
        assert torch.equal(state["master"], other.detach())
        assert torch.equal(parameter.detach(), other.detach().bfloat16())
        assert all(torch.equal(state[name], wide.state[other][name]) for name in ("exp_avg", "exp_avg_sq", "step"))
        assert not parameter.grad.any()
    loaded, others = make(rule, [p.detach() for p in own], masters=True)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for parameter, other in zip(own, others, strict=True):
        for name, value in optimizer.state[parameter].items():
            assert torch.equal(loaded.state[other][name], value)
            assert loaded.state[other][name].dtype == torch.float32


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_masters_are_kept_without_the_kernels_too(dtype: torch.dtype, rule: str, seed: int) -> None:
    draw = Draw(seed)
    weights = [weight.to(dtype) for weight in draw(0.1)]
    optimizer, own = make(rule, weights, masters=True, foreach=True)
    reference = REFERENCES[rule](weights, DECAYS, SETTINGS["lr"], SETTINGS["betas"], SETTINGS["eps"])
    for step in range(10):
        gradients = [gradient.to(dtype) for gradient in draw.gradients(step)]
        set_gradients(own, gradients)
        optimizer.step(clear=True)
        reference.step(gradients)
    masters = [optimizer.state[p]["master"] for p in own]
    assert distance(masters, reference.weights) < 1e-6
    assert all(torch.equal(p.detach(), master.to(dtype)) for p, master in zip(own, masters, strict=True))
    assert not any(p.grad.any() for p in own)
