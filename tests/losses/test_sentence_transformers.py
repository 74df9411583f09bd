"""Each loss beside sentence-transformers' class of the same loss, with the same vectors or scores: values and gradients
within 1e-6 of the largest, fp32."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
import torch
from loss_models import FixedVectors, columns, fixed_scores, padded
from torch import Tensor

from fastbert import losses

pytest.importorskip("sentence_transformers")
TOLERANCE = 1e-6


def tensors(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


def token_vectors(seed: int, *lengths: int) -> list[Tensor]:
    """Vectors of about length 1, as models of late interaction have."""
    return [(each.detach() / 8**0.5).requires_grad_() for each in tensors(seed, *[(length, 8) for length in lengths])]


def compare(ours: Callable[[], Tensor], theirs: Callable[[], Tensor], inputs: Sequence[Tensor]) -> None:
    expected = theirs()
    gradients = torch.autograd.grad(expected, inputs)
    value = ours()
    assert value.dtype == torch.float32
    assert value.shape == ()
    assert float(expected.detach()) != 0
    torch.testing.assert_close(value, expected, rtol=TOLERANCE, atol=0)
    for actual, gradient in zip(torch.autograd.grad(value, inputs), gradients):
        torch.testing.assert_close(actual, gradient, rtol=0, atol=TOLERANCE * float(gradient.abs().max()))


def dense(name: str, **options: Any) -> Any:
    from sentence_transformers.sentence_transformer import losses as library

    model = FixedVectors(16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated classes
        return getattr(library, name)(model, **options)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("negatives", [0, 2])
def test_info_nce(seed: int, similarity: Any, negatives: int) -> None:
    from sentence_transformers.util import cos_sim, dot_score

    a, p, *n = inputs = tensors(seed, *[(9, 16)] * (2 + negatives))
    function = {"cosine": cos_sim, "dot": dot_score}[similarity]
    loss = dense("MultipleNegativesRankingLoss", similarity_fct=function, scale=20 if similarity == "cosine" else 1)
    temperature = 0.05 if similarity == "cosine" else 1.0
    ours = partial(losses.info_nce, similarity=similarity, temperature=temperature)
    compare(lambda: ours(a, torch.cat([p, *n])), lambda: loss(columns(*inputs), None), inputs)


def test_symmetric_info_nce(seed: int) -> None:
    a, p = inputs = tensors(seed, (9, 16), (9, 16))
    loss = dense("MultipleNegativesSymmetricRankingLoss")
    compare(lambda: losses.info_nce(a, p, symmetric=True), lambda: loss(columns(*inputs), None), inputs)


def test_info_nce_of_token_vectors(seed: int) -> None:
    """Ragged texts with hard negatives; theirs are padded, ours packed."""
    from sentence_transformers.multi_vector_encoder import losses as library

    queries = token_vectors(seed, 4, 2, 5)
    positives, negatives = token_vectors(seed + 1, 3, 7, 1), token_vectors(seed + 2, 3, 7, 1)
    inputs = [*queries, *positives, *negatives]
    loss = library.MultiVectorMultipleNegativesRankingLoss(FixedVectors())
    texts = [padded(queries), padded(positives), padded(negatives)]

    def ours() -> Tensor:
        documents = [*positives, *negatives]
        offsets = [torch.tensor([0, *accumulate(map(len, each))]) for each in (queries, documents)]
        scores = losses.maxsim_scores(torch.cat(queries), offsets[0], torch.cat(documents), offsets[1])
        return losses.info_nce_from_scores(scores)

    compare(ours, lambda: loss(texts), inputs)


def test_kl_of_token_vectors(seed: int) -> None:
    from sentence_transformers.multi_vector_encoder import losses as library

    queries = token_vectors(seed, 4, 2)
    first, second = token_vectors(seed + 1, 3, 7), token_vectors(seed + 2, 3, 7)
    teacher = torch.tensor([[4.0, -1.0], [0.0, 3.0]])  # a divergence near 0 would be nothing but rounding
    inputs = [*queries, *first, *second]
    loss = library.MultiVectorDistillKLDivLoss(FixedVectors(), temperature=2.0)
    texts = [padded(queries), padded(first), padded(second)]

    def ours() -> Tensor:
        documents = [first[0], second[0], first[1], second[1]]
        offsets = [torch.tensor([0, *accumulate(map(len, each))]) for each in (queries, documents)]
        scores = losses.maxsim_pairs(torch.cat(queries), offsets[0], torch.cat(documents), offsets[1])
        return losses.kl_distillation(scores, teacher, temperature=2.0)

    compare(ours, lambda: loss(texts, teacher), inputs)


def test_cosent_and_angle(seed: int) -> None:
    a, b = inputs = tensors(seed, (12, 15), (12, 15))
    scores = torch.tensor([0.0, 1, 2, 2, 3, 4, 5, 5, 5, 0, 1, 2]) / 5
    loss, angle = dense("CoSENTLoss"), dense("AnglELoss")
    compare(
        lambda: losses.cosent(losses.pairwise_similarity(a, b), scores),
        lambda: loss(columns(*inputs), scores),
        inputs,
    )
    compare(lambda: losses.angle(a, b, scores), lambda: angle(columns(*inputs), scores), inputs)


def test_cosine_regression(seed: int) -> None:
    a, b = inputs = tensors(seed, (12, 16), (12, 16))
    scores = torch.rand(12, generator=torch.Generator().manual_seed(seed))
    loss = dense("CosineSimilarityLoss")
    compare(
        lambda: losses.cosine_regression(losses.pairwise_similarity(a, b), scores),
        lambda: loss(columns(*inputs), scores),
        inputs,
    )


@pytest.mark.parametrize(("distance", "margin"), [("euclidean", 5.0), ("manhattan", 5.0), ("cosine", 0.3)])
def test_triplet(seed: int, distance: Any, margin: float) -> None:
    from sentence_transformers.sentence_transformer.losses import TripletDistanceMetric

    inputs = tensors(seed, (12, 16), (12, 16), (12, 16))
    loss = dense("TripletLoss", distance_metric=getattr(TripletDistanceMetric, distance.upper()), triplet_margin=margin)
    ours = partial(losses.triplet, *inputs, margin=margin, distance=distance)
    compare(ours, lambda: loss(columns(*inputs), None), inputs)


@pytest.mark.parametrize("name", ["contrastive", "online_contrastive"])
@pytest.mark.parametrize("labels", [[0, 1] * 6, [1] * 12, [0] * 12], ids=["both", "positives", "negatives"])
def test_contrastive(seed: int, name: str, labels: list[int]) -> None:
    a, b = inputs = tensors(seed, (12, 16), (12, 16))
    y = torch.tensor(labels)
    classes = {"contrastive": "ContrastiveLoss", "online_contrastive": "OnlineContrastiveLoss"}
    loss = dense(classes[name], margin=1.2)
    ours = partial(getattr(losses, name), a, b, y, margin=1.2)
    compare(ours, lambda: loss(columns(*inputs), y), inputs)


def test_contrastive_by_euclidean_distance(seed: int) -> None:
    """Theirs adds 1e-6 to each difference, so gradients differ by more than rounding."""
    from sentence_transformers.sentence_transformer.losses import SiameseDistanceMetric

    a, b = tensors(seed, (12, 16), (12, 16))
    y = torch.tensor([0, 1] * 6)
    loss = dense("ContrastiveLoss", margin=6.0, distance_metric=SiameseDistanceMetric.EUCLIDEAN)
    ours = losses.contrastive(a, b, y, margin=6.0, distance="euclidean")
    torch.testing.assert_close(ours, loss(columns(a, b), y), rtol=1e-5, atol=0)


@pytest.mark.parametrize("negatives", [1, 3])
def test_margin_mse(seed: int, negatives: int) -> None:
    q, p, *n = inputs = tensors(seed, *[(6, 16)] * (2 + negatives))
    (teacher,) = tensors(seed + 1, (6, 1 + negatives))
    loss = dense("MarginMSELoss")

    def ours() -> Tensor:
        scores = [losses.pairwise_similarity(q, each, "dot") for each in (p, *n)]
        return losses.margin_mse(scores[0], torch.stack(scores[1:], dim=1), teacher[:, 0], teacher[:, 1:])

    compare(ours, lambda: loss(columns(*inputs), teacher), inputs)


def test_kl_distillation(seed: int) -> None:
    q, *documents = inputs = tensors(seed, *[(6, 16)] * 4)
    (teacher,) = tensors(seed + 1, (6, 3))
    loss = dense("DistillKLDivLoss", temperature=2.0, teacher_temperature=0.5)

    def ours() -> Tensor:
        scores = torch.stack([losses.pairwise_similarity(q, each, "dot") for each in documents], dim=1)
        return losses.kl_distillation(scores, teacher, temperature=2.0, teacher_temperature=0.5)

    compare(ours, lambda: loss(columns(*inputs), teacher), inputs)


MATRYOSHKA = {"matryoshka_dims": [4, 16, 8], "matryoshka_weights": [0.5, 1.0, 2.0]}


def test_matryoshka(seed: int) -> None:
    """Theirs divides shortened vectors by their length, which makes no difference to cosines."""
    from sentence_transformers.sentence_transformer import losses as library

    inputs = tensors(seed, (9, 16), (9, 16))
    model = FixedVectors(16)
    loss = library.MatryoshkaLoss(model, library.MultipleNegativesRankingLoss(model), **MATRYOSHKA)
    ours = partial(losses.matryoshka, losses.info_nce, inputs, *MATRYOSHKA.values())
    compare(ours, lambda: loss(columns(*inputs), None), inputs)


def test_matryoshka_of_distances(seed: int) -> None:
    from sentence_transformers.sentence_transformer import losses as library

    inputs = tensors(seed, (9, 16), (9, 16), (9, 16))
    model = FixedVectors(16)
    loss = library.MatryoshkaLoss(model, library.TripletLoss(model, triplet_margin=0.5), **MATRYOSHKA)
    ours = partial(losses.matryoshka, partial(losses.triplet, margin=0.5), inputs, *MATRYOSHKA.values(), normalize=True)
    compare(ours, lambda: loss(columns(*inputs), None), inputs)


@pytest.mark.parametrize("threshold", [None, 20])
def test_splade(seed: int, threshold: int | None) -> None:
    from sentence_transformers.sparse_encoder import losses as library

    logits = tensors(seed, (6, 40), (6, 40), (6, 40))
    model = FixedVectors()
    inner = library.SparseMultipleNegativesRankingLoss(model)
    weights = {"query_regularizer_weight": 0.3, "document_regularizer_weight": 0.2}
    loss = library.SpladeLoss(model, inner, **weights, document_regularizer_threshold=threshold)

    def vectors() -> list[Tensor]:
        return [each.relu().log1p() for each in logits]

    def ours() -> Tensor:
        q, *documents = vectors()
        d = torch.cat(documents)
        ranking = losses.info_nce(q, d, similarity="dot", temperature=1.0)
        return losses.splade(ranking, q, d, 0.3, 0.2, document_threshold=threshold)

    compare(ours, lambda: sum(loss(columns(*vectors()), None).values(), torch.zeros(())), logits)


@pytest.mark.parametrize("weight", [None, 3.0])
def test_binary_cross_entropy(seed: int, weight: float | None) -> None:
    from sentence_transformers.cross_encoder import losses as library

    (logits,) = tensors(seed, (12,))
    labels = torch.tensor([0.0, 1, 0.5] * 4)
    loss = library.BinaryCrossEntropyLoss(
        fixed_scores(logits), pos_weight=None if weight is None else torch.tensor(weight)
    )
    pairs = [["query"] * 12, [str(index) for index in range(12)]]
    ours = partial(losses.binary_cross_entropy, logits, labels, positive_weight=weight)
    compare(ours, lambda: loss(pairs, labels), [logits])


LENGTHS = [4, 1, 7, 3]


def listwise(seed: int) -> tuple[Tensor, Tensor, Tensor, list[list[Any]], list[Tensor]]:
    """Logits, grades and offsets of ragged lists, and the input of their losses."""
    generator = torch.Generator().manual_seed(seed)
    (logits,) = tensors(seed, (sum(LENGTHS),))
    labels = torch.randint(0, 4, (sum(LENGTHS),), generator=generator).float()
    labels[:2] = torch.tensor([0.0, 3.0])
    offsets = torch.tensor([0, *accumulate(LENGTHS)])
    rows = [list(map(str, part.tolist())) for part in torch.arange(len(labels)).split(LENGTHS)]
    return logits, labels, offsets, [["query"] * len(LENGTHS), rows], list(labels.split(LENGTHS))


def test_list_net(seed: int) -> None:
    from sentence_transformers.cross_encoder import losses as library

    logits, labels, offsets, pairs, parts = listwise(seed)
    loss = library.ListNetLoss(fixed_scores(logits))
    ours = partial(losses.list_cross_entropy, logits, labels, offsets, targets="softmax")
    compare(ours, lambda: loss(pairs, parts), [logits])


@pytest.mark.parametrize("k", [None, 2, 5])
@pytest.mark.parametrize("weights", ["ndcg2++", "ndcg2", "lambdarank", "none"])
def test_lambda_rank(seed: int, weights: Any, k: int | None) -> None:
    from sentence_transformers.cross_encoder import losses as library

    logits, labels, offsets, pairs, parts = listwise(seed)
    schemes = {
        "ndcg2++": library.NDCGLoss2PPScheme(mu=10.0),
        "ndcg2": library.NDCGLoss2Scheme(),
        "lambdarank": library.LambdaRankScheme(),
        "none": None,
    }
    loss = library.LambdaLoss(fixed_scores(logits), weighting_scheme=schemes[weights], k=k, sigma=1.5)
    ours = partial(losses.lambda_rank, logits, labels, offsets, weights=weights, k=k, sigma=1.5)
    compare(ours, lambda: loss(pairs, parts), [logits])
