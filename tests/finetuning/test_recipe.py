"""Schedules, layer-wise rates, freezing, re-initialisation, the order of examples: all by their definitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import transformers

from fastbert import BertConfig, BertForSequenceClassification
from fastbert.errors import UserError
from fastbert.finetuning import order, recipe
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.defaults import resolved


def model(layers: int = 3) -> BertForSequenceClassification:
    return BertForSequenceClassification(
        BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=16)
    )


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.37])
@pytest.mark.parametrize("total", [2, 7, 100])
def test_linear_schedule_is_that_of_transformers(warmup: float, total: int) -> None:
    rising = int(np.ceil(total * warmup))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, rising, total)
    for step in range(total):
        assert recipe.factor("linear", warmup, step, total) == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()


def test_a_run_of_one_step_trains() -> None:
    assert recipe.factor("linear", 0.1, 0, 1) == 1
    assert [recipe.factor("linear", 0.9, step, 2) for step in range(2)] == [0, 1]


def test_constant_schedule_stays_behind_its_warm_up() -> None:
    assert [recipe.factor("constant", 0.5, step, 4) for step in range(4)] == [0.0, 0.5, 1.0, 1.0]


def test_slanted_triangles_rise_for_a_tenth_and_fall_to_a_32nd() -> None:
    factors = [recipe.factor("slanted-triangular", 0.0, step, 1000) for step in range(1001)]
    assert factors[0] == pytest.approx(1 / 32)
    assert factors[100] == pytest.approx(1.0)
    assert factors[1000] == pytest.approx(1 / 32)
    assert factors[550] == pytest.approx((1 + 0.5 * 31) / 32)


def test_the_inverse_root_schedule_is_that_of_the_transformer() -> None:
    """lrate = d^-0.5 * min(step^-0.5, step * warmup^-1.5), Vaswani et al. 2017, section 5.3."""
    total, warmup, width = 1000, 40, 64
    peak = (width * warmup) ** -0.5
    factors = [recipe.factor("inverse-sqrt", warmup / total, step, total) for step in range(1, total)]
    expected = [width**-0.5 * min(step**-0.5, step * warmup**-1.5) for step in range(1, total)]
    assert [peak * factor for factor in factors] == pytest.approx(expected)
    assert recipe.factor("inverse-sqrt", 0.0, 0, total) == recipe.factor("inverse-sqrt", 0.0, 1, total) == 1.0


def test_new_models_have_the_optimiser_of_the_transformer() -> None:
    new = FinetuneConfig(task="seq2seq", architecture="transformer")
    (betas,) = {group["betas"] for group in recipe.optimizer(model(), new, 1e-3).param_groups}
    assert betas == (0.9, 0.98)
    chosen = resolved(new, examples=1000, classes=0, hidden_size=512)
    assert (chosen.schedule, chosen.batch_size, chosen.lr) == ("inverse-sqrt", (64,), (7e-4,))
    assert chosen.epochs == (100.0,)
    assert resolved(FinetuneConfig(), examples=1000, classes=0, hidden_size=512).schedule is None
    assert recipe.factor(None, 0.1, 550, 1000) == recipe.factor("linear", 0.1, 550, 1000) == 0.5


def test_layer_decay_multiplies_from_the_head_down() -> None:
    one = model()
    optimizer = recipe.optimizer(one, FinetuneConfig(layer_decay=0.5), 1e-3)
    recipe.set_rates(optimizer, 0.1)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    named = dict(one.named_parameters())
    assert len(rates) == len(named)
    expected = {
        "classifier.weight": 0.1,
        "bert.pooler.dense.bias": 0.1,
        "bert.encoder.layer.2.output.dense.weight": 0.05,
        "bert.encoder.layer.0.output.dense.weight": 0.0125,
        "bert.embeddings.word_embeddings.weight": 0.00625,
    }
    for name, rate in expected.items():
        assert rates[id(named[name])] == pytest.approx(rate), name
    assert decays[id(named["bert.encoder.layer.2.output.LayerNorm.weight"])] == 0.0
    assert decays[id(named["bert.encoder.layer.2.output.dense.bias"])] == 0.0
    assert decays[id(named["classifier.weight"])] == 0.01


def test_one_rate_for_all_makes_two_groups() -> None:
    assert len(recipe.optimizer(model(), FinetuneConfig(), 1e-3).param_groups) == 2


def test_unfreezing_adds_a_layer_an_epoch() -> None:
    one = model(layers=3)
    counts = []
    for epoch in range(6):
        recipe.freeze(one, recipe.unfrozen(epoch, 3))
        counts.append({recipe.group_of(n, 3) for n, p in one.named_parameters() if p.requires_grad})
    assert counts == [{4}, {3, 4}, {2, 3, 4}, {1, 2, 3, 4}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}]


def test_every_layer_is_trained_in_a_run_of_few_epochs() -> None:
    def stages(per_epoch: int, total: int) -> list[int]:
        return [recipe.stage(step, per_epoch, total, layers=3) for step in range(total)]

    assert stages(2, 14) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]  # an epoch each
    assert stages(6, 12) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]  # two epochs, five groups
    assert stages(6, 3) == [0, 1, 2]


def test_top_layers_are_drawn_anew_and_nothing_else() -> None:
    one = model(layers=3)
    before = {name: p.detach().clone() for name, p in one.named_parameters()}
    names = recipe.top_layers(one, 2)
    recipe.reinitialise(one, names, 0.02, seed=3)
    changed = {name for name, p in one.named_parameters() if not torch.equal(p, before[name])}
    weights = {name for name in names if name.endswith("weight") and "LayerNorm" not in name}
    assert changed == weights
    assert {recipe.group_of(name, 3) for name in names} == {2, 3, 4}
    assert not any("classifier" in name for name in names)


def test_more_layers_than_there_are() -> None:
    with pytest.raises(UserError, match="--reinit-layers 4: the model has 3 layers"):
        recipe.top_layers(model(), 4)


def test_new_weights_depend_on_their_seed_alone() -> None:
    first, second = model(), model()
    for one in (first, second):
        torch.manual_seed(id(one) % 1000)
        recipe.reinitialise(one, ["classifier.weight"], 0.02, seed=5)
    assert torch.equal(first.classifier.weight, second.classifier.weight)
    recipe.reinitialise(second, ["classifier.weight"], 0.02, seed=6)
    assert not torch.equal(first.classifier.weight, second.classifier.weight)


def test_every_epoch_sees_every_example_once() -> None:
    seen: dict[int, list[int]] = {}
    sizes = []
    for epoch, units in order.batches(10, 4, seed=1, first=0, total=9):
        seen.setdefault(epoch, []).extend(units.tolist())
        sizes.append(len(units))
    assert sizes == [4, 4, 2] * 3
    assert all(sorted(units) == list(range(10)) for units in seen.values())
    assert seen[0] != seen[1]


def test_the_order_does_not_depend_on_where_a_run_begins() -> None:
    whole = list(order.batches(10, 4, seed=1, first=0, total=9))
    rest = list(order.batches(10, 4, seed=1, first=5, total=9))
    assert all(a[0] == b[0] and np.array_equal(a[1], b[1]) for a, b in zip(whole[5:], rest, strict=True))


def test_dropout_keys_are_distinct_and_repeatable() -> None:
    units = np.arange(10_000)
    keys = [order.dropout_keys(units, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len(np.unique(np.concatenate(keys))) == 40_000
    assert np.array_equal(order.dropout_keys(units[::-1], 0, 0)[::-1], keys[0])


def test_steps_of_a_run() -> None:
    assert order.steps_of(10, 4, 3, None) == (3, 9)
    assert order.steps_of(10, 4, 0.5, None) == (3, 2)
    assert order.steps_of(10, 4, 3, 5) == (3, 5)
    assert order.steps_of(10, 4, 3, 50) == (3, 9)
    assert order.steps_of(10, 4, None, 50) == (3, 50)


def test_decays_of_pretraining_and_the_rate_that_they_end_at() -> None:
    for schedule in ("linear", "cosine", "wsd"):
        factors = [recipe.factor(schedule, 0.1, step, 1000, decay_fraction=0.2, min_ratio=0.05) for step in range(1001)]
        assert factors[50] == 0.5
        assert factors[100] == max(factors) == 1.0
        assert factors[-1] == pytest.approx(0.05)
        assert all(a >= b for a, b in itertools.pairwise(factors[100:]))
        assert (factors[799] == 1.0) == (schedule == "wsd")


@pytest.mark.parametrize(
    ("flags", "kind", "betas", "eps"),
    [
        ({}, "AdamW", (0.9, 0.999), 1e-6),
        ({"optimizer": "stableadamw"}, "StableAdamW", (0.9, 0.98), 1e-6),
        ({"optimizer": "lamb", "eps": 1e-5}, "Lamb", (0.9, 0.999), 1e-5),
        ({"optimizer": "muon", "layer_decay": 0.5}, "Muon", (0.9, 0.98), 1e-6),
        ({"betas": (0.8, 0.9)}, "AdamW", (0.8, 0.9), 1e-6),
    ],
)
def test_the_flags_choose_the_optimiser(flags: dict, kind: str, betas: tuple, eps: float) -> None:
    optimizer = recipe.optimizer(model(), FinetuneConfig(model="x", **flags), 1e-3)
    assert type(optimizer).__name__ == kind
    assert all((group["betas"], group["eps"]) == (betas, eps) for group in optimizer.param_groups)
