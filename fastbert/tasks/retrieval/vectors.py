"""The losses of vectors: a query's positive among all texts of a batch, scores of pairs, and a teacher's scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastbert.errors import UserError
from fastbert.tasks.coupled import CoupledBatch, CoupledLosses, CoupledTask
from fastbert.tasks.examples import Dataset, Prediction, TextGroup
from fastbert.tasks.retrieval.flags import LossName, VectorFlags, check_vector_flags
from fastbert.tasks.retrieval.groups import SideTokens, evaluation_rows, expanded, training_rows
from fastbert.tasks.retrieval.scores import predictions_of
from fastbert.tasks.retrieval.task import GroupSettings, GroupTask
from fastbert.tasks.rows import Rows, TaskBatch
from fastbert.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

TEACHER_LOSSES: tuple[LossName, ...] = ("margin-mse", "kl")
MASKED = "masked_negatives"
"""The name in metrics.jsonl of the false negatives of a batch that are left out."""


@dataclass(frozen=True, kw_only=True)
class VectorSettings(GroupSettings, VectorFlags):
    """Settings of a task on vectors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_vector_flags(self)


@dataclass(frozen=True)
class Sides:
    """The vectors of a batch by their part, fp32, in the order of the units: one anchor and one positive per unit, and
    all negatives with the number of each one's unit."""

    anchors: Tensor
    positives: Tensor
    negatives: Tensor
    owner: Tensor


class VectorTask(GroupTask, CoupledTask[TextGroup]):
    """A task whose model turns each text into vectors, which similarities compare."""

    settings_type = VectorSettings
    parts = (MASKED,)
    losses: ClassVar = {
        "groups": ("info-nce", "triplet", *TEACHER_LOSSES),
        "lists": ("info-nce", "triplet", *TEACHER_LOSSES),
        "scored": ("cosent", "angle", "cosine", "contrastive", "online-contrastive"),
    }
    default_temperature: ClassVar[float] = 1.0
    default_batch_size = 64
    settings: VectorSettings

    @abstractmethod
    def sides(self) -> tuple[SideTokens, SideTokens]:
        """Return how queries and documents become tokens."""

    def encode(self, dataset: Dataset[TextGroup], tokenizer: Tokenizer, *, labelled: bool) -> Rows:
        """Return a unit of rows per group to train on, or a row per distinct text of a file to evaluate on."""
        self.tokenizer = tokenizer
        query, document = self.sides()
        if not labelled:
            return evaluation_rows(dataset, tokenizer, query, document)
        teaches = self.loss_name in TEACHER_LOSSES
        if teaches:
            dataset = self._taught(dataset)
        rows = training_rows(dataset, tokenizer, query, document, teacher=teaches)
        if self.loss_name in ("triplet", *TEACHER_LOSSES) and rows.unit_sizes is not None and rows.unit_sizes.min() < 3:
            unit = int(rows.unit_sizes.argmin())
            where = dataset.where(int(rows.examples[rows.unit_offsets[unit]]))
            raise UserError(
                f"{where}: has no negative, which --loss {self.loss_name} needs; mine some, or leave it out"
            )
        return rows

    def _taught(self, dataset: Dataset[TextGroup]) -> Dataset[TextGroup]:
        """Return groups with as many negatives and scores of a teacher as all of them have."""
        from dataclasses import replace

        groups = expanded(dataset)
        for group in groups:
            if group.teacher is None:
                raise UserError(
                    f"{dataset.path}, {group.location}: has no scores of a teacher, which --loss {self.loss_name}"
                    " needs; name a cross-encoder with --teacher, or give each row a list `scores`"
                )
        count = min(len(group.texts) for group in groups)
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
            parts: Sequence[Tensor] = (a, b)
        else:
            sides = self.split(vectors, batch.sizes)
            parts = (sides.anchors, sides.positives, sides.negatives)
            if self.loss_name == "info-nce":
                excluded, count = self.false_negatives(batch)
                masked = masked + count
                loss = self._in_batch_loss(excluded)
            elif self.loss_name == "triplet":
                loss = self._triplet_loss(sides.owner)
            else:
                loss = self._teacher_loss(batch, sides.owner)
        if widths := self.widths():
            total = losses.matryoshka(loss, parts, widths, [1 / len(widths)] * len(widths))
        else:
            total = loss(*parts)
        return CoupledLosses(total + self.regularizer(parts, progress), (masked,))

    def regularizer(self, parts: Sequence[Tensor], progress: float) -> Tensor | float:
        """Return what is added to the loss; nothing by default."""
        return 0.0

    def split(self, vectors: Tensor, sizes: Tensor) -> Sides:
        """Return the vectors of units of these sizes, int64 (units,), by their part."""
        first, owner, others = self.parts_of(sizes)
        return Sides(vectors[first], vectors[first + 1], vectors[others], owner)

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
            own = losses.pairwise_similarity(anchors, positives, kind)  # type: ignore[arg-type]
            other = losses.pairwise_similarity(anchors[owner], negatives, kind)  # type: ignore[arg-type]
            other = other.view(len(first), -1)
            if self.loss_name == "margin-mse":
                return losses.margin_mse(own, other, positive, negatives_of_teacher)
            scores = self._columns(own, other) / self.temperature
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
                **own,
                **({"widths": {str(width): narrow[width][index] for width in narrow}} if narrow else {}),
            }
            for index, (example, own) in enumerate(zip(dataset, predictions, strict=True))
        ]

    def _compared(self, dataset: Dataset[TextGroup], vectors: Tensor) -> list[dict[str, Any]]:
        from torch.nn import functional as F

        vectors = F.normalize(vectors, dim=1) if self.similarity_kind() == "cosine" else vectors
        return predictions_of(
            dataset,
            lambda a, b: vectors[a] @ vectors[b].T,
            lambda a, b: (vectors[a] * vectors[b]).sum(1),
        )
