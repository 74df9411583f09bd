"""Each loss beside its formula, written as loops over float64 numbers, and its gradient beside finite differences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import exp, log, log1p, log2
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fastbert import losses

LISTS = [0, 3, 4, 8]
LABELS = [0.0, 2.0, 1.0, 3.0, 0.0, 0.0, 1.0, 1.0]


def dot(a: Tensor, b: Tensor) -> float:
    return sum(x * y for x, y in zip(a.tolist(), b.tolist()))


def norm(a: Tensor) -> float:
    return dot(a, a) ** 0.5


def cosine(a: Tensor, b: Tensor) -> float:
    return dot(a, b) / norm(a) / norm(b)


def softmax(values: list[float]) -> list[float]:
    total = sum(exp(value) for value in values)
    return [exp(value) / total for value in values]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def info_nce(a: Tensor, c: Tensor) -> float:
    rows = [[cosine(x, y) / 0.1 for y in c] for x in a]
    return mean([-log(softmax(row)[index]) for index, row in enumerate(rows)])


def symmetric(a: Tensor, c: Tensor) -> float:
    return (info_nce(a, c) + info_nce(c[: len(a)], a)) / 2


def cosent(s: Tensor, scores: list[float]) -> float:
    pairs = [(i, k) for i in range(len(s)) for k in range(len(s)) if scores[i] > scores[k]]
    return log1p(sum(exp(20 * float(s[k] - s[i])) for i, k in pairs))


def angle(a: Tensor, b: Tensor, scores: list[float]) -> float:
    half = a.shape[1] // 2
    similarities = []
    for x, y in zip(a, b):
        parts = [complex(*pair) for pair in zip(x[:half].tolist(), x[half:].tolist())]
        others = [complex(*pair) for pair in zip(y[:half].tolist(), y[half:].tolist())]
        total = sum(p * q.conjugate() for p, q in zip(parts, others)) / norm(x) / norm(y)
        similarities.append(abs(total.real + total.imag))
    return cosent(torch.tensor(similarities, dtype=torch.float64), scores)


def triplet(a: Tensor, p: Tensor, n: Tensor) -> float:
    return mean([max(0.0, norm(x - y) - norm(x - z) + 1.0) for x, y, z in zip(a, p, n)])


def contrastive(a: Tensor, b: Tensor, labels: list[float]) -> float:
    distances = [1 - cosine(x, y) for x, y in zip(a, b)]
    return mean([y * d**2 / 2 + (1 - y) * max(0.0, 1.2 - d) ** 2 / 2 for y, d in zip(labels, distances)])


def online_contrastive(a: Tensor, b: Tensor, labels: list[float]) -> float:
    pairs = [(y, 1 - cosine(p, q)) for y, p, q in zip(labels, a, b)]
    positives, negatives = ([d for y, d in pairs if y == label] for label in (1, 0))
    hard = [d**2 for d in positives if d > min(negatives)]
    return sum(hard) + sum(max(0.0, 1.2 - d) ** 2 for d in negatives if d < max(positives))


def margin_mse(p: Tensor, n: Tensor, tp: list[float], tn: Tensor) -> float:
    cells = [(i, j) for i in range(len(p)) for j in range(n.shape[1])]
    return mean([float((p[i] - n[i, j]) - (tp[i] - tn[i, j])) ** 2 for i, j in cells])


def kl(s: Tensor, t: Tensor) -> float:
    total = []
    for x, y in zip(s.tolist(), t.tolist()):
        student, teacher = softmax([value / 2 for value in x]), softmax([value / 3 for value in y])
        total.append(4 * sum(q * log(q / p) for p, q in zip(student, teacher)))
    return mean(total)


def flops(v: Tensor) -> float:
    return sum(mean([abs(x) for x in column]) ** 2 for column in v.T.tolist())


def binary(x: Tensor, labels: list[float]) -> float:
    probabilities = [1 / (1 + exp(-value)) for value in x.tolist()]
    return mean([-(3 * y * log(p) + (1 - y) * log(1 - p)) for p, y in zip(probabilities, labels)])


def list_cross_entropy(x: Tensor, labels: list[float], targets: str) -> float:
    total = []
    for first, end in pairwise(LISTS):
        y = labels[first:end]
        goal = softmax(y) if targets == "softmax" else [label / (sum(y) or 1) for label in y]
        total.append(-sum(t * log(p) for t, p in zip(goal, softmax(x[first:end].tolist()))))
    return mean(total)


def lambda_rank(x: Tensor, labels: list[float], k: int) -> float:
    """NDCGLoss2++ with mu 10."""
    losses = []
    for first, end in pairwise(LISTS):
        ranked = sorted(zip(x[first:end].tolist(), labels[first:end]), key=lambda pair: -pair[0])
        best = sorted((label for _, label in ranked), reverse=True)[:k]
        ideal = sum((2**label - 1) / log2(2 + rank) for rank, label in enumerate(best))
        for i, (score, label) in enumerate(ranked, 1):
            for j, (other, lower) in enumerate(ranked, 1):
                if label > lower and min(i, j) <= k:
                    gain = (2**label - 2**lower) / ideal
                    d = abs(i - j)
                    two = abs(1 / log2(1 + d) - 1 / log2(2 + d))
                    one = abs(1 / log2(1 + i) - 1 / log2(1 + j))
                    losses.append(gain * (10 * two + one) * log2(1 + exp(other - score)))
    return mean(losses)


class Case(NamedTuple):
    loss: Callable[..., Tensor]
    formula: Callable[..., float]
    shapes: list[tuple[int, ...]]
    constants: tuple[Any, ...] = ()
    """Further arguments of both."""


STS = (torch.tensor([0.0, 1, 1, 2, 3]),)
BINARY = (torch.tensor([1.0, 0, 1, 0, 0]),)
GENERATOR = torch.Generator().manual_seed(12345)
TEACHER = (torch.randn(5, generator=GENERATOR), torch.randn(5, 3, generator=GENERATOR))
RANKED = (torch.tensor(LABELS),)


def with_offsets(loss: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
    return lambda logits, labels: loss(logits, labels, torch.tensor(LISTS), **options)


CASES = {
    "info_nce": Case(partial(losses.info_nce, temperature=0.1), info_nce, [(4, 6), (7, 6)]),
    "symmetric": Case(partial(losses.info_nce, temperature=0.1, symmetric=True), symmetric, [(4, 6), (7, 6)]),
    "euclidean": Case(
        partial(losses.info_nce, temperature=1.0, similarity="euclidean"),
        lambda a, c: mean([-log(softmax([-norm(x - y) for y in c])[i]) for i, x in enumerate(a)]),
        [(4, 6), (7, 6)],
    ),
    "cosent": Case(losses.cosent, cosent, [(5,)], STS),
    "angle": Case(losses.angle, angle, [(5, 6), (5, 6)], STS),
    "cosine_regression": Case(
        losses.cosine_regression, lambda s, y: mean([(a - b) ** 2 for a, b in zip(s.tolist(), y)]), [(5,)], STS
    ),
    "triplet": Case(partial(losses.triplet, margin=1.0), triplet, [(5, 6)] * 3),
    "contrastive": Case(partial(losses.contrastive, margin=1.2), contrastive, [(5, 6)] * 2, BINARY),
    "online_contrastive": Case(
        partial(losses.online_contrastive, margin=1.2), online_contrastive, [(5, 6)] * 2, BINARY
    ),
    "margin_mse": Case(losses.margin_mse, margin_mse, [(5,), (5, 3)], TEACHER),
    "kl_distillation": Case(
        partial(losses.kl_distillation, temperature=2, teacher_temperature=3), kl, [(5, 3)], TEACHER[1:]
    ),
    "flops": Case(losses.flops, flops, [(5, 9)]),
    "l1": Case(losses.l1, lambda v: mean([sum(abs(x) for x in row) for row in v.tolist()]), [(5, 9)]),
    "binary_cross_entropy": Case(partial(losses.binary_cross_entropy, positive_weight=3), binary, [(5,)], BINARY),
    "list_cross_entropy": Case(
        with_offsets(losses.list_cross_entropy), partial(list_cross_entropy, targets="normalized"), [(8,)], RANKED
    ),
    "list_net": Case(
        with_offsets(losses.list_cross_entropy, targets="softmax"),
        partial(list_cross_entropy, targets="softmax"),
        [(8,)],
        RANKED,
    ),
    "lambda_rank": Case(with_offsets(losses.lambda_rank, k=2), partial(lambda_rank, k=2), [(8,)], RANKED),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, seed: int, threads: None) -> None:
    """float64 within 1e-12 of the formula, fp32 within 1e-5, and gradients by `gradcheck`."""
    torch.set_num_threads(1)  # for thousands of small operations
    case = CASES[name]
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in case.shapes]
    plain = [each.double().tolist() if each.dim() == 1 else each.double() for each in case.constants]
    expected = case.formula(*inputs, *plain)
    assert abs(expected) > 1e-3
    exact = case.loss(*inputs, *case.constants)
    assert exact.dtype == torch.float64
    assert abs(float(exact) - expected) <= 1e-12 * max(1, abs(expected))
    single = case.loss(*(each.float() for each in inputs), *case.constants)
    assert single.dtype == torch.float32
    assert abs(float(single) - expected) <= 1e-5 * max(1, abs(expected))
    for each in inputs:
        each.requires_grad_()
    assert torch.autograd.gradcheck(lambda *tensors: case.loss(*tensors, *case.constants), inputs)


@pytest.mark.parametrize("kind", ["cosine", "dot", "euclidean"])
def test_similarities(kind: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(n, 6, generator=generator, dtype=torch.float64) for n in (40, 30))
    functions = {"cosine": cosine, "dot": dot, "euclidean": lambda x, y: -norm(x - y)}
    expected = torch.tensor([[functions[kind](x, y) for y in b] for x in a], dtype=torch.float64)
    torch.testing.assert_close(losses.similarity(a, b, kind), expected)
    torch.testing.assert_close(losses.pairwise_similarity(a[:30], b, kind), expected.diagonal())


def test_distances_of_near_and_equal_vectors() -> None:
    """A matmul of vectors of length 100 would lose a distance of 0.01 in fp32."""
    a = torch.full((40, 100), 10.0, requires_grad=True)
    near = losses.similarity(a, a.detach() + 1e-3, "euclidean")
    torch.testing.assert_close(near.detach(), torch.full((40, 40), -0.01), rtol=1e-3, atol=0)
    (gradient,) = torch.autograd.grad(near.sum(), a)
    torch.testing.assert_close(gradient, torch.full((40, 100), 4.0), rtol=1e-3, atol=0)
    equal = losses.similarity(a, a, "euclidean")
    assert not equal.any()
    assert not torch.autograd.grad(equal.sum(), a)[0].any()


def test_one_relevant_candidate_is_plain_cross_entropy(seed: int) -> None:
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(seed))
    best = torch.tensor([4, 0, 2])
    labels = torch.nn.functional.one_hot(best, 5)
    offsets = torch.arange(0, 16, 5, dtype=torch.int32)
    loss = losses.list_cross_entropy(logits.flatten(), labels.flatten(), offsets)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, best))


def test_lists_without_a_relevant_candidate_add_nothing() -> None:
    logits = torch.zeros(4, requires_grad=True)
    loss = losses.list_cross_entropy(logits, torch.tensor([1, 0, 0, 0]), torch.tensor([0, 2, 4]))
    torch.testing.assert_close(loss.detach(), torch.tensor(log(2) / 2))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.tolist() == [-0.25, 0.25, 0, 0]
    loss = losses.lambda_rank(logits, torch.tensor([1, 1, 0, 0]), torch.tensor([0, 2, 4]))
    assert float(loss.detach()) == 0


def test_the_threshold_of_flops_leaves_sparse_vectors_alone() -> None:
    vectors = torch.tensor([[1.0, 0, 0, 0], [1, 2, 3, 0]], requires_grad=True)
    loss = losses.flops(vectors, threshold=1)
    assert float(loss.detach()) == 0.25 + 1 + 2.25
    (gradient,) = torch.autograd.grad(loss, vectors)
    assert gradient.tolist() == [[0, 0, 0, 0], [0.5, 1, 1.5, 0]]
