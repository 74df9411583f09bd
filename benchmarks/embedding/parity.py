"""Train with each loss that fastbert and sentence-transformers share, in both: the same weights, batches, order,
optimiser and schedule, without dropout."""

from __future__ import annotations

import contextlib
import functools
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fastbert.benchmarks.embedding import peer_training
from fastbert.benchmarks.embedding.examples import Example, ExampleForm, in_form, write
from fastbert.benchmarks.embedding.peer_training import ModelKind, PeerBatch, Recipe
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import finetune
from fastbert.tasks.retrieval.splade import RAMP
from fastbert.training.metrics import read_records

TASKS: dict[ModelKind, Any] = {"embedder": "embedding", "sparse": "splade", "cross-encoder": "rerank"}
ONE_HOT = 1000.0
"""Factor of ListNet's labels 0 and 1, whose softmax is then one-hot: the cross-entropy over a list."""
KL_TEMPERATURE = 0.2
"""Temperature of the student's cosines; the teacher's is 1."""
SMALLEST = 1e-3
"""The least divisor of a difference, as a fraction of the mean loss; otherwise it is the loss of the step."""
BatchLoss = Callable[[PeerBatch, float], Tensor]
"""A batch and the finished fraction of the training -> the loss."""
Peer = Callable[[Any], BatchLoss]
"""A model of sentence-transformers -> its loss."""


@dataclass(frozen=True, kw_only=True)
class LossCase:
    """A loss in both libraries: the flags of `fastbert finetune`, and the peer's loss."""

    name: str
    kind: ModelKind = "embedder"
    form: ExampleForm = "triplets"
    flags: Mapping[str, Any] = field(default_factory=dict)
    peer: Peer


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The losses of both libraries, one per step; `control` are those of the peer with a different attention kernel,
    which differ only by rounding."""

    fastbert: list[float]
    peer: list[float]
    control: list[float] | None = None

    @staticmethod
    def relative(first: Sequence[float], second: Sequence[float]) -> list[float]:
        """Return the relative differences of two runs' losses, step by step."""
        least = SMALLEST * statistics.fmean(map(abs, second))
        pairs = zip(first, second, strict=True)
        return [abs(a - b) / max(abs(b), least, 1e-12) for a, b in pairs]

    @property
    def differences(self) -> list[float]:
        """The relative differences of the two libraries."""
        return self.relative(self.fastbert, self.peer)

    def row(self, name: str) -> dict[str, Any]:
        """Return a row of the record."""
        differences = self.differences
        worst = max(differences)
        row: dict[str, Any] = {
            "workload": name,
            "steps": len(self.fastbert),
            "first_loss": _rounded(self.peer[0]),
            "last_loss": _rounded(self.peer[-1]),
            "mean_loss": _rounded(statistics.fmean(self.peer)),
            "max_absolute_difference": _rounded(max(abs(a - b) for a, b in zip(self.fastbert, self.peer, strict=True))),
            "max_relative_difference": _rounded(worst),
            "at_step": differences.index(worst) + 1,
            "loss_at_step": _rounded(self.peer[differences.index(worst)]),
            "median_relative_difference": _rounded(statistics.median(differences)),
        }
        if self.control is not None:
            row["control_max_relative_difference"] = _rounded(max(self.relative(self.control, self.peer)))
        return row


def compare(
    case: LossCase,
    folder: Path,
    encoder: Path,
    triplets: Sequence[Example],
    scored: Sequence[Example],
    recipe: Recipe,
    *,
    control: bool = False,
) -> Agreement:
    """Train in both libraries from `encoder`, a folder that sentence-transformers loads; write files to `folder`."""
    count = recipe.steps * recipe.batch_size
    examples = in_form(case.form, triplets, scored)[:count]
    initial = peer_training.write_initial(encoder, folder / "initial", case.kind, recipe)
    losses = fastbert_losses(case, folder, initial, examples, recipe)

    def peer_losses(attention: str) -> list[float]:
        model = peer_training.load_peer(initial, case.kind, recipe.max_length, attention=attention)
        return peer_training.train(model, case.kind, case.form, examples, recipe, case.peer(model))

    return Agreement(fastbert=losses, peer=peer_losses("sdpa"), control=peer_losses("eager") if control else None)


def fastbert_losses(
    case: LossCase, folder: Path, initial: Path, examples: Sequence[Example], recipe: Recipe
) -> list[float]:
    """Return the losses of a run of `fastbert finetune`."""
    train = write(folder / "train.jsonl", case.form, examples)
    config = FinetuneConfig(
        task=TASKS[case.kind],
        model=str(initial),
        train=train,
        out=folder / "run",
        steps=recipe.steps,
        epochs=(float(recipe.steps),),
        batch_size=(recipe.batch_size,),
        lr=(recipe.lr,),
        seed=recipe.seed,
        warmup=recipe.warmup,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        max_length=recipe.max_length,
        dropout=recipe.dropout,
        device="cpu",
        dtype="fp32",
        log_every=1,
        **case.flags,
    )
    with contextlib.redirect_stderr(io.StringIO()):
        finetune(config)
    records = read_records(folder / "run" / "metrics.jsonl")
    return [record["loss"] for record in records if record["split"] == "train"]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _of_columns(make: Callable[..., nn.Module], *, label_factor: float | None = None, **options: Any) -> Peer:
    """Return the peer of a loss that takes columns and labels; `label_factor` multiplies the labels of each list."""

    def peer(model: Any) -> BatchLoss:
        loss = make(model, **options)

        def loss_of(batch: PeerBatch, progress: float) -> Tensor:
            labels = batch.labels if label_factor is None else [each * label_factor for each in batch.labels]
            result: Tensor = loss(batch.columns, labels)
            return result

        return loss_of

    return peer


def _splade(model: Any, *, query_weight: float, document_weight: float) -> BatchLoss:
    from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss

    loss = SpladeLoss(model, SparseMultipleNegativesRankingLoss(model), document_weight, query_weight)

    def loss_of(batch: PeerBatch, progress: float) -> Tensor:
        # The weights rise as in its SpladeRegularizerWeightSchedulerCallback, over fastbert's fraction of the run.
        ramp = min(progress / RAMP, 1.0) ** 2
        loss.query_regularizer_weight, loss.document_regularizer_weight = query_weight * ramp, document_weight * ramp
        total: Tensor = sum(loss(batch.columns, batch.labels).values())
        return total

    return loss_of


def _matryoshka(model: Any, *, widths: Sequence[int]) -> nn.Module:
    from sentence_transformers.sentence_transformer import losses

    weights = [1 / len(widths)] * len(widths)
    loss: nn.Module = losses.MatryoshkaLoss(
        model, losses.MultipleNegativesRankingLoss(model), list(widths), matryoshka_weights=weights
    )
    return loss


def _scaled_cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return cosines (n,) of fp32 vectors (n, d) over `KL_TEMPERATURE`: DistillKLDivLoss's own temperature would also
    multiply the loss by its square."""
    from sentence_transformers import util

    return util.pairwise_cos_sim(a, b) / KL_TEMPERATURE


def cases(widths: Sequence[int], *, pass_tokens: int, mini_batch_size: int) -> list[LossCase]:
    """Return all losses; `widths` are the Matryoshka widths, `pass_tokens` (fastbert) and `mini_batch_size` (the peer)
    the sizes of passes with cached gradients."""
    from sentence_transformers.cross_encoder import losses as cross
    from sentence_transformers.sentence_transformer import losses

    cosine = losses.TripletDistanceMetric.COSINE
    symmetric: dict[str, Any] = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    cached_flags = {"loss": "info-nce", "pass_tokens": pass_tokens}
    cached = functools.partial(losses.CachedMultipleNegativesRankingLoss, mini_batch_size=mini_batch_size)
    mnrl, sparse_weights = losses.MultipleNegativesRankingLoss, {"query_weight": 5e-3, "document_weight": 3e-3}
    sparse_flags = {"query_flops": 5e-3, "document_flops": 3e-3}
    return [
        LossCase(name="MultipleNegativesRankingLoss", flags={"loss": "info-nce"}, peer=_of_columns(mnrl)),
        LossCase(
            name="MultipleNegativesRankingLoss, symmetric",
            form="pairs",
            flags={"loss": "info-nce", "symmetric": True},
            peer=_of_columns(mnrl, **symmetric),
        ),
        LossCase(name="CachedMultipleNegativesRankingLoss", flags=cached_flags, peer=_of_columns(cached)),
        LossCase(
            name="MatryoshkaLoss of MultipleNegativesRankingLoss",
            flags={"loss": "info-nce", "matryoshka": tuple(widths)},
            peer=_of_columns(_matryoshka, widths=widths),
        ),
        LossCase(name="CoSENTLoss", form="scored", flags={"loss": "cosent"}, peer=_of_columns(losses.CoSENTLoss)),
        LossCase(name="AnglELoss", form="scored", flags={"loss": "angle"}, peer=_of_columns(losses.AnglELoss)),
        LossCase(
            name="CosineSimilarityLoss",
            form="scored",
            flags={"loss": "cosine"},
            peer=_of_columns(losses.CosineSimilarityLoss),
        ),
        LossCase(
            name="TripletLoss, cosine",
            flags={"loss": "triplet"},
            peer=_of_columns(losses.TripletLoss, distance_metric=cosine, triplet_margin=0.2),
        ),
        LossCase(
            name="TripletLoss, Euclidean",
            flags={"loss": "triplet", "similarity": "dot"},
            peer=_of_columns(losses.TripletLoss),
        ),
        LossCase(
            name="ContrastiveLoss",
            form="binary",
            flags={"loss": "contrastive"},
            peer=_of_columns(losses.ContrastiveLoss),
        ),
        LossCase(
            name="OnlineContrastiveLoss",
            form="binary",
            flags={"loss": "online-contrastive"},
            peer=_of_columns(losses.OnlineContrastiveLoss),
        ),
        LossCase(
            name="MarginMSELoss",
            form="taught",
            flags={"loss": "margin-mse", "similarity": "dot"},
            peer=_of_columns(losses.MarginMSELoss),
        ),
        LossCase(
            name="DistillKLDivLoss",
            form="taught",
            flags={"loss": "kl", "loss_temperature": KL_TEMPERATURE},
            peer=_of_columns(losses.DistillKLDivLoss, similarity_fct=_scaled_cosine),
        ),
        LossCase(
            name="SpladeLoss of SparseMultipleNegativesRankingLoss",
            kind="sparse",
            flags={"loss": "info-nce", **sparse_flags},
            peer=functools.partial(_splade, **sparse_weights),
        ),
        LossCase(
            name="BinaryCrossEntropyLoss",
            kind="cross-encoder",
            form="labelled",
            flags={"loss": "bce"},
            peer=_of_columns(cross.BinaryCrossEntropyLoss),
        ),
        LossCase(
            name="ListNetLoss of one-hot labels",
            kind="cross-encoder",
            form="lists",
            flags={"loss": "list-ce"},
            peer=_of_columns(cross.ListNetLoss, label_factor=ONE_HOT),
        ),
        LossCase(
            name="LambdaLoss",
            kind="cross-encoder",
            form="graded",
            flags={"loss": "lambda"},
            peer=_of_columns(cross.LambdaLoss),
        ),
        LossCase(
            name="MarginMSELoss of a cross-encoder",
            kind="cross-encoder",
            form="taught",
            flags={"loss": "margin-mse"},
            peer=_of_columns(cross.MarginMSELoss),
        ),
    ]
