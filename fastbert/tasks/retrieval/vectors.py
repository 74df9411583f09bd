"""The losses of vectors: a query's positive among all texts of a batch, scores of pairs, and a teacher's scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastbert.errors import UserError
from fastbert.flags import flag
from fastbert.io.log import logger
from fastbert.tasks.coupled import CoupledBatch, CoupledLosses, CoupledTask
from fastbert.tasks.examples import Dataset, Prediction, TextGroup
from fastbert.tasks.retrieval.flags import LossName, VectorFlags, check_vector_flags
from fastbert.tasks.retrieval.groups import SideTokens, TrainingForm, evaluation_rows, expanded, training_rows
from fastbert.tasks.retrieval.scores import predictions_of
from fastbert.tasks.retrieval.task import GroupSettings, GroupTask
from fastbert.tasks.rows import Rows, TaskBatch
from fastbert.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

TEACHER_LOSSES: tuple[LossName, ...] = ("margin-mse", "kl")
_LOSSES_OF_FLAGS: dict[str, tuple[LossName, ...]] = {
    "loss_temperature": ("info-nce", "kl"),
    "symmetric": ("info-nce",),
    "margin": ("triplet", "contrastive", "online-contrastive"),
}
MASKED = "masked_negatives"
"""The name in metrics.jsonl of the false negatives of a batch that are left out."""


@dataclass(frozen=True, kw_only=True)
class VectorSettings(GroupSettings, VectorFlags):
    """Settings of a task on vectors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_vector_flags(self)


class VectorTask(GroupTask, CoupledTask[TextGroup]):
    """A task whose model turns each text into vectors, which similarities compare."""

    settings_type: ClassVar[type[VectorSettings]] = VectorSettings
    parts: ClassVar[tuple[str, ...]] = (MASKED,)
    losses: ClassVar[Mapping[TrainingForm, tuple[LossName, ...]]] = {
        "groups": ("info-nce", "triplet", *TEACHER_LOSSES),
        "lists": ("info-nce", "triplet", *TEACHER_LOSSES),
        "scored": ("cosent", "angle", "cosine", "contrastive", "online-contrastive"),
    }
    default_temperature: ClassVar[float] = 1.0
    default_batch_size = 64
    settings: VectorSettings

    def _check_of_use(self, train: Dataset[TextGroup]) -> None:
        super()._check_of_use(train)
        for name, losses in _LOSSES_OF_FLAGS.items():
            if getattr(self.settings, name) not in (None, False) and self.loss_name not in losses:
                raise UserError(
                    f"{train.path}: is trained on with --loss {self.loss_name}, for which {flag(name)} changes nothing;"
                    " leave it out"
                )

    @abstractmethod
    def sides(self) -> tuple[SideTokens, SideTokens]:
        """Return how queries and documents become tokens."""

    def encode(self, dataset: Dataset[TextGroup], tokenizer: Tokenizer, *, labelled: bool) -> Rows:
        """Return a unit of rows per group to train on, or a row per distinct text of a file to evaluate on."""
        self.tokenizer = tokenizer
        query, document = self.sides()
        if not labelled:
            return evaluation_rows(dataset, tokenizer, query, document)
        teaches, scored = self.loss_name in TEACHER_LOSSES, self.form == "scored"
        self.report_without_positive(dataset)
        if scored:
            check_scores(dataset, self.loss_name)
        if teaches:
            dataset = self._taught(dataset)
        rows = training_rows(dataset, tokenizer, query, document, scored=scored, teacher=teaches)
        if self.loss_name in ("triplet", *TEACHER_LOSSES) and rows.unit_sizes is not None and rows.unit_sizes.min() < 3:
            unit = int(rows.unit_sizes.argmin())
            where = dataset.where(int(rows.examples[rows.unit_offsets[unit]]))
            raise UserError(
                f"{where}: has no negative, which --loss {self.loss_name} needs; mine some, or leave the row out"
            )
        if self.loss_name == "info-nce":
            report_duplicates(dataset, rows)
        return rows

    def check_batch_size(self, rows: Rows, batch_size: int) -> None:
        """Raise UserError for batches of one example, of which the loss would be 0 for want of others to compare."""
        largest, sizes = min(batch_size, rows.units), rows.unit_sizes
        without_negatives = self.loss_name == "info-nce" and sizes is not None and sizes.max(initial=0) <= 2
        if largest == 1 and (without_negatives or self.loss_name in ("cosent", "angle")):
            cure = "raise it" if rows.units > 1 else "add training examples, of which there is only one"
            raise UserError(
                f"--batch-size {batch_size}: --loss {self.loss_name} compares the examples of a batch with each other,"
                f" and a batch of one has a loss of 0; {cure}"
            )

    def _taught(self, dataset: Dataset[TextGroup]) -> Dataset[TextGroup]:
        """Return groups with as many negatives and scores of a teacher as all of them have; report those cut off."""
        groups = [group for _, group in expanded(dataset)]
        for group in groups:
            if group.teacher is None:
                raise UserError(
                    f"{dataset.path}, {group.location}: has no scores of a teacher, which --loss {self.loss_name}"
                    " needs; name a cross-encoder with --teacher, or give each row a list `scores`"
                )
        if not groups:  # which `training_rows` refuses
            return dataset
        count, most = (fit(len(group.texts) for group in groups) for fit in (min, max))
        if 2 < count < most:
            logger.warning(
                "%s: rows have %d to %d negatives, and --loss %s reads as many of each: the first %d",
                *(dataset.path, count - 2, most - 2, self.loss_name, count - 2),
            )
        cut = [
            replace(
                group,
                texts=group.texts[:count],
                teacher=None if group.teacher is None else group.teacher[: count - 1],
                keys=None if group.keys is None else group.keys[:count],
            )
            for group in groups
        ]
        return Dataset(dataset.path, tuple(cut))

    def similarity_kind(self) -> str:
        """Return the similarity of two vectors: "cosine" or "dot"."""
        return "dot"

    def widths(self) -> tuple[int, ...]:
        """Return the widths to which vectors are cut too; none by default."""
        return ()

    @property
    def temperature(self) -> float:
        """The temperature of the loss."""
        given = self.settings.loss_temperature
        return self.default_temperature if given is None else given

    def coupled_loss(self, vectors: Tensor, batch: CoupledBatch, items: float, progress: float) -> CoupledLosses:
        """Return the loss of the settings over the vectors (rows, width) of a batch, and the number of its masked false
        negatives."""
        import torch

        from fastbert import losses

        masked = torch.zeros((), device=vectors.device)
        if "scores" in batch.targets:
            a, b = vectors[batch.sizes.cumsum(0) - 2], vectors[batch.sizes.cumsum(0) - 1]
            loss: Callable[..., Tensor] = self._pair_loss(batch.targets["scores"])
            sides: Sequence[Tensor] = (a, b)
        else:
            first, owner, others = self.parts_of(batch.sizes)
            sides = vectors[first], vectors[first + 1], vectors[others]
            if self.loss_name == "info-nce":
                excluded, count = self.false_negatives(batch)
                masked = masked + count
                loss = self._in_batch_loss(excluded)
            elif self.loss_name == "triplet":
                loss = self._triplet_loss(owner)
            else:
                loss = self._teacher_loss(batch, owner)
        if widths := self.widths():
            total = losses.matryoshka(loss, sides, widths, [1 / len(widths)] * len(widths))
        else:
            total = loss(*sides)
        return CoupledLosses(total + self.regularizer(sides, progress), (masked,))

    def regularizer(self, sides: Sequence[Tensor], progress: float) -> Tensor | float:
        """Return the term that is added to the loss, 0 by default. `sides` are the vectors, fp32 (rows, width), of
        anchors, positives and negatives, or those of the first and the second texts of scored pairs."""
        return 0.0

    @staticmethod
    def parts_of(sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the row of each unit's anchor, whose positive follows it; and of each negative its unit and its row,
        all int64."""
        import torch

        first = sizes.cumsum(0) - sizes
        unit = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
        position = torch.arange(len(unit), device=sizes.device) - first[unit]
        others = (position > 1).nonzero()[:, 0]
        return first, unit[others], others

    def false_negatives(self, batch: CoupledBatch) -> tuple[Tensor, int]:
        """Return which candidates, positives before negatives, are false negatives of each anchor, bool (units,
        candidates), and their number: texts or ids that are equal to a positive of the same query."""
        from fastbert import losses

        first, _, others = self.parts_of(batch.sizes)
        candidates = self._cat((first + 1, others))
        keys = batch.targets["keys"]
        mask, _ = losses.duplicate_mask(keys[first], keys[candidates], anchor_text_keys=keys[first])
        ids = batch.targets.get("ids")
        if ids is not None:
            mask = mask | losses.duplicate_mask(ids[first], ids[candidates])[0]
        return mask, int(mask.sum())

    @staticmethod
    def _cat(tensors: Sequence[Tensor]) -> Tensor:
        import torch

        return torch.cat(tuple(tensors))

    def _in_batch_loss(self, excluded: Tensor) -> Callable[..., Tensor]:
        from fastbert import losses

        def loss(anchors: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
            return losses.info_nce(
                anchors,
                self._cat((positives, negatives)),
                temperature=self.temperature,
                similarity=self.similarity_kind(),  # type: ignore[arg-type]
                symmetric=self.settings.symmetric,
                excluded=excluded,
            )

        return loss

    def _triplet_loss(self, owner: Tensor) -> Callable[..., Tensor]:
        from fastbert import losses

        cosine = self.similarity_kind() == "cosine"
        margin = self.settings.margin or (0.2 if cosine else 5.0)

        def loss(anchors: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
            return losses.triplet(
                anchors[owner],
                positives[owner],
                negatives,
                margin=margin,
                distance="cosine" if cosine else "euclidean",
            )

        return loss

    def _teacher_loss(self, batch: CoupledBatch, owner: Tensor) -> Callable[..., Tensor]:
        from fastbert import losses

        first, _, others = self.parts_of(batch.sizes)
        teacher = batch.targets["teacher"]
        positive, negatives_of_teacher = teacher[first + 1], teacher[others].view(len(first), -1)
        kind = self.similarity_kind()

        def loss(anchors: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
            of_positives = losses.pairwise_similarity(anchors, positives, kind)  # type: ignore[arg-type]
            of_negatives = losses.pairwise_similarity(anchors[owner], negatives, kind)  # type: ignore[arg-type]
            of_negatives = of_negatives.view(len(first), -1)
            if self.loss_name == "margin-mse":
                return losses.margin_mse(of_positives, of_negatives, positive, negatives_of_teacher)
            scores = self._columns(of_positives, of_negatives) / self.temperature
            return losses.kl_distillation(scores, self._columns(positive, negatives_of_teacher))

        return loss

    @staticmethod
    def _columns(first: Tensor, others: Tensor) -> Tensor:
        import torch

        return torch.cat((first[:, None], others), dim=1)

    def _pair_loss(self, scores: Tensor) -> Callable[..., Tensor]:
        from fastbert import losses

        name, kind = self.loss_name, self.similarity_kind()

        def loss(a: Tensor, b: Tensor) -> Tensor:
            if name == "angle":
                return losses.angle(a, b, scores)
            if name in ("contrastive", "online-contrastive"):
                function = losses.contrastive if name == "contrastive" else losses.online_contrastive
                distance = "cosine" if kind == "cosine" else "euclidean"
                return function(a, b, scores, margin=self.settings.margin or 0.5, distance=distance)  # type: ignore[arg-type]
            similarities = losses.pairwise_similarity(a, b, kind)  # type: ignore[arg-type]
            return (
                losses.cosent(similarities, scores)
                if name == "cosent"
                else losses.cosine_regression(similarities, scores)
            )

        return loss

    def outputs(self, model: Any, batch: TaskBatch) -> list[np.ndarray]:
        """Return the vectors of each row, fp32."""
        import torch

        from fastbert.ops.native import matmul_table

        with matmul_table.same_in_every_batch():
            vectors = self.represent(model, batch.inputs)
        return list(torch.as_tensor(vectors).float().cpu().numpy())

    def decode(self, dataset: Dataset[TextGroup], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Return similarities of pairs, or of queries the ranks of their positives among all documents of the file."""
        import torch

        vectors = torch.from_numpy(np.stack(outputs))
        predictions = self._compared(dataset, vectors)
        narrow = {width: self._compared(dataset, vectors[:, :width]) for width in self.widths()}
        return [
            {
                "id": example.id,
                **prediction,
                **({"widths": {str(width): narrow[width][index] for width in narrow}} if narrow else {}),
            }
            for index, (example, prediction) in enumerate(zip(dataset, predictions, strict=True))
        ]

    def _compared(self, dataset: Dataset[TextGroup], vectors: Tensor) -> list[dict[str, Any]]:
        from torch.nn import functional as F

        vectors = F.normalize(vectors, dim=1) if self.similarity_kind() == "cosine" else vectors
        return predictions_of(
            dataset,
            lambda a, b: vectors[a] @ vectors[b].T,
            lambda a, b: (vectors[a] * vectors[b]).sum(1),
        )


def report_duplicates(dataset: Dataset[TextGroup], rows: Rows) -> None:
    """Log how many queries and positives of training rows occur more than once."""
    keys, first = rows.row_targets["keys"], rows.unit_offsets[:-1]
    repeated = []
    for each in (keys[first], keys[first + 1]):
        counts = np.unique(each, return_counts=True)[1]
        repeated.append(int(counts[counts > 1].sum()))
    if any(repeated):
        logger.warning(
            "%s: of %s rows %s have a query and %s a positive that other rows have too; in a batch their texts are not"
            " negatives of each other (masked_negatives in metrics.jsonl counts them)",
            *(dataset.path, *(f"{count:,}" for count in (rows.units, *repeated))),
        )


def check_scores(dataset: Dataset[TextGroup], loss: LossName) -> None:
    """Raise UserError, naming the row, for the score of a pair that a loss has no meaning for."""
    least, most = {"cosine": (-1.0, 1.0), "contrastive": (0.0, 1.0), "online-contrastive": (0.0, 1.0)}.get(
        loss, (-np.inf, np.inf)
    )
    for index, example in enumerate(dataset):
        for score in example.labels or ():
            if not least <= score <= most:
                raise UserError(
                    f"{dataset.where(index)}: the score {score:g} is not between {least:g} and {most:g}, as --loss"
                    f" {loss} needs; give the range of the file's scores as --score-range LOW HIGH"
                )
            if loss == "online-contrastive" and score not in (0, 1):
                raise UserError(
                    f"{dataset.where(index)}: the score {score:g} is neither 0 nor 1, as --loss {loss} needs; use"
                    " --loss contrastive"
                )
