"""What the losses have in common: fp32 whatever the inputs, the divisor of parts, and batches without examples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from fastbert import losses

LABELS = torch.tensor([1, 0, 1, 0, 0, 1])


def of_rows(loss: Callable[..., Tensor], *constants: Tensor) -> Callable[..., Tensor]:
    """A loss of rows [first, end) of two matrices (6, 8), with the same rows of the constants."""
    return lambda a, b, first, end, items=None: loss(
        a[first:end], b[first:end], *(each[first:end] for each in constants), items=items
    )


def by_scores(loss: Callable[..., Tensor], *constants: Tensor) -> Callable[..., Tensor]:
    return of_rows(lambda a, b, *rest, items: loss(losses.pairwise_similarity(a, b), *rest, items=items), *constants)


def in_batch(a: Tensor, b: Tensor, first: int, end: int, items: float | None = None) -> Tensor:
    return losses.info_nce(a[first:end], b, torch.arange(first, end), items=items)


def lists(a: Tensor, b: Tensor, first: int, end: int, items: float | None = None) -> Tensor:
    offsets = torch.arange(0, 8 * (end - first) + 1, 8)
    logits = (a * b)[first:end].flatten()
    return losses.list_cross_entropy(logits, logits.detach().abs(), offsets, items=items)


def ranked(a: Tensor, b: Tensor, first: int, end: int, items: float | None = None) -> Tensor:
    offsets = torch.arange(0, 8 * (end - first) + 1, 8)
    labels = (a * b)[first:end].flatten().detach().gt(0)
    return losses.lambda_rank((a + b)[first:end].flatten(), labels, offsets, items=6 if items is None else items)


def margins(a: Tensor, b: Tensor, first: int, end: int, items: float | None = None) -> Tensor:
    teacher = torch.linspace(0, 1, 6)[first:end]
    return losses.margin_mse(a[first:end, 0], b[first:end], teacher, teacher[:, None].expand(-1, 8), items=items)


MEANS = {
    "info_nce": in_batch,
    "triplet": of_rows(lambda a, b, *, items: losses.triplet(a, b, b.flip(1), items=items)),
    "contrastive": of_rows(losses.contrastive, LABELS),
    "cosine_regression": by_scores(losses.cosine_regression, LABELS),
    "binary_cross_entropy": by_scores(losses.binary_cross_entropy, LABELS),
    "margin_mse": margins,
    "kl_distillation": of_rows(losses.kl_distillation),
    "l1": of_rows(lambda a, b, *, items: losses.l1(a * b, items=items)),
    "list_cross_entropy": lists,
    "lambda_rank": ranked,
}
by_name = pytest.mark.parametrize("name", MEANS)


def matrices(seed: int) -> tuple[Tensor, Tensor]:
    a, b = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(seed))
    return a.requires_grad_(), b.requires_grad_()


@by_name
def test_parts_with_the_divisor_of_all_sum_to_the_whole(name: str, seed: int) -> None:
    a, b = matrices(seed)
    loss = MEANS[name]
    whole = loss(a, b, 0, 6)
    parts = loss(a, b, 0, 1, 6) + loss(a, b, 1, 4, 6) + loss(a, b, 4, 4, 6) + loss(a, b, 4, 6, 6)
    torch.testing.assert_close(parts, whole)
    for actual, expected in zip(torch.autograd.grad(parts, (a, b), allow_unused=True), gradients(whole, a, b)):
        torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(loss(a, b, 0, 6, 12), whole / 2)


def gradients(loss: Tensor, *inputs: Tensor) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(loss, inputs, allow_unused=True)


@by_name
def test_no_examples_have_the_loss_0(name: str, seed: int) -> None:
    a, b = matrices(seed)
    loss = MEANS[name](a, b, 3, 3)
    assert float(loss.detach()) == 0
    assert all(each is None or not each.any() for each in gradients(loss, a, b))


@by_name
def test_half_precision_is_computed_in_fp32(name: str, seed: int) -> None:
    a, b = (each.detach().bfloat16().requires_grad_() for each in matrices(seed))
    loss = MEANS[name](a, b, 0, 6)
    assert loss.dtype == torch.float32
    if name not in ("lambda_rank", "list_cross_entropy", "l1"):  # whose inputs are computed above, in bf16
        torch.testing.assert_close(loss, MEANS[name](a.float(), b.float(), 0, 6))
    assert all(each is None or each.dtype == torch.bfloat16 for each in gradients(loss, a, b))


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_autocast_changes_nothing(similarity: str, seed: int) -> None:
    a, b = matrices(seed)
    offsets = torch.tensor([0, 2, 6])
    for loss in (
        partial(losses.info_nce, a, b, similarity=similarity, symmetric=True),
        lambda: losses.maxsim_scores(a, offsets, b, offsets).square().sum(),
    ):
        expected = loss()
        with torch.autocast("cpu", torch.bfloat16):
            actual = loss()
        assert torch.equal(actual, expected)
        for one, other in zip(gradients(actual, a, b), gradients(expected, a, b)):
            assert torch.equal(one, other)


def test_online_contrastive_and_cosent_without_pairs() -> None:
    nothing = torch.zeros(0, 8, requires_grad=True)
    for loss in (
        losses.online_contrastive(nothing, nothing, torch.zeros(0)),
        losses.cosent(nothing.sum(1), torch.zeros(0)),
        losses.flops(nothing),
    ):
        assert float(loss.detach()) == 0
        assert loss.requires_grad


def test_matryoshka_is_the_weighted_sum(seed: int) -> None:
    a, b = matrices(seed)
    total = losses.matryoshka(losses.info_nce, (a, b), [2, 8], [0.5, 2])
    expected = 0.5 * losses.info_nce(a[:, :2], b[:, :2]) + 2 * losses.info_nce(a, b)
    torch.testing.assert_close(total, expected)
