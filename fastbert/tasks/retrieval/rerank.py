"""Rerankers: a cross-encoder reads a query and a text together and gives one score (Nogueira and Cho 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.tasks.base import TaskOutput
from fastbert.tasks.examples import Dataset, Prediction, TextGroup
from fastbert.tasks.retrieval.flags import LossName
from fastbert.tasks.retrieval.groups import TrainingForm
from fastbert.tasks.retrieval.task import GroupSettings, GroupTask
from fastbert.tasks.rows import Rows, TaskBatch
from fastbert.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor


LIST_LOSSES: tuple[LossName, ...] = ("list-ce", "lambda", "margin-mse")
TEACHER_LOSSES = ("margin-mse", "mse")


@dataclass(frozen=True, kw_only=True)
class RerankSettings(GroupSettings):
    """Settings of rerankers."""

    stored_prompts: dict[str, str] | None = None
    """The prompts of the folder that the model was trained from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.document_prompt:
            raise UserError(
                f"--document-prompt {self.document_prompt!r}: a cross-encoder's folder stores a prompt of queries only;"
                " write it into the texts, or leave the flag out"
            )


class Rerank(GroupTask):
    """The logit of a sequence classifier with one label, for each pair of a query and a text."""

    name = "rerank"
    head_name = "ForSequenceClassification"
    settings_type: ClassVar[type[RerankSettings]] = RerankSettings
    head_has_labels = True
    ranks_all_documents = False
    losses: ClassVar[Mapping[TrainingForm, tuple[LossName, ...]]] = {
        "groups": ("bce", *LIST_LOSSES, "mse"),
        "lists": ("list-ce", "bce", "lambda", "margin-mse", "mse"),
        "scored": ("bce", "mse"),
    }
    settings: RerankSettings

    def learn_labels(self, train: Dataset[TextGroup]) -> None:
        super().learn_labels(train)
        if self.form == "groups" and all(len(example.texts) == 2 for example in train):
            raise UserError(
                f"{train.path}: holds positives alone, and a reranker learns from negatives too; mine some with"
                " --mine-negatives MODEL, or name their column with --negative-column"
            )

    def base_config(self, folder: Path) -> BertConfig:
        """Read the config of the model in a folder, and the folder's prompt."""
        self._take(folder)
        return super().base_config(folder)

    def _take(self, folder: Path) -> None:
        from fastbert.reranking.settings import read_settings

        if self.settings.stored_prompts is None and (folder / "modules.json").is_file():
            try:
                prompt = read_settings(folder).prompt
            except UserError:  # an embedder's folder, whose encoder gets a new head
                prompt = ""
            self.settings = replace(self.settings, stored_prompts={"query": prompt} if prompt else {})

    def head_config(self, config: BertConfig) -> BertConfig:
        """Return the config of a head with one label. That of a folder stays if it has one; other heads start anew."""
        names = config.label_names if config.num_labels == 1 else None
        return replace(config, num_labels=1, label_names=names, problem_type=None)

    def save_model(self, model: Any, folder: Path) -> None:
        """Write the model with its settings in the format of sentence-transformers."""
        from fastbert.reranking.settings import CrossEncoderSettings
        from fastbert.retrieval.saving import save_with_settings

        query, _ = self.prompts_of(self.settings.stored_prompts or {})
        settings = CrossEncoderSettings(
            activation="sigmoid" if self.settings.loss in (None, "bce") else "identity",
            max_length=self.settings.max_length,
            prompt=query,
        )
        save_with_settings(model, settings, folder)

    def encode(self, dataset: Dataset[TextGroup], tokenizer: Tokenizer, *, labelled: bool) -> Rows:
        """Return a row per query and text, `[CLS] query [SEP] text [SEP]`, in a unit per group."""
        query, _ = self.prompts_of(self.settings.stored_prompts or {})
        sizes = np.array([len(example.texts) - 1 for example in dataset], dtype=np.int64)
        queries = [query + example.texts[0] for example in dataset for _ in example.texts[1:]]
        texts = [text for example in dataset for text in example.texts[1:]]
        packed = tokenizer.pack(queries, texts, self.settings.max_length)
        rows = Rows(
            input_ids=packed.input_ids.numpy().astype(np.int32),
            token_type_ids=packed.token_type_ids.numpy().astype(np.int32),
            offsets=packed.cu_seqlens.numpy().astype(np.int64),
            examples=np.repeat(np.arange(len(dataset)), sizes),
        )
        if not labelled:
            return rows
        if self.loss_name == "list-ce":
            self.report_without_positive(dataset)
        labels = np.array([label for example in dataset for label in self._labels(dataset, example)], dtype=np.float32)
        targets = {"labels": labels}
        if self.loss_name in TEACHER_LOSSES:
            targets["teacher"] = self._teacher(dataset)
        if self.loss_name not in LIST_LOSSES:  # pairs are independent of each other
            return replace(rows, row_targets=targets)
        if (sizes < 2).any():
            where = dataset.where(int(np.flatnonzero(sizes < 2)[0]))
            raise UserError(f"{where}: has one text, and --loss {self.loss_name} compares several; use --loss bce")
        units = {"sizes": sizes}
        if self.loss_name == "lambda":
            units["pairs"] = pairs_of(labels, sizes)
        return replace(rows, unit_sizes=sizes, unit_targets=units, row_targets=targets)

    def _labels(self, dataset: Dataset[TextGroup], example: TextGroup) -> Sequence[float]:
        if example.labels is None:
            return (1.0, *(0.0 for _ in example.texts[2:]))
        high = max(example.labels)
        if self.loss_name == "bce" and not (min(example.labels) >= 0 and high <= 1):
            if self.form == "lists":  # grades: relevant or not
                return tuple(float(label > 0) for label in example.labels)
            raise UserError(
                f"{dataset.path}, {example.location}: the score {high:g} is outside of 0 to 1, which --loss bce needs;"
                " set --score-range"
            )
        return example.labels

    def _teacher(self, dataset: Dataset[TextGroup]) -> np.ndarray:
        for example in dataset:
            if example.teacher is None:
                raise UserError(
                    f"{dataset.path}, {example.location}: has no scores of a teacher, which --loss {self.loss_name}"
                    " needs; name a cross-encoder with --teacher, or give each row a list `scores`"
                )
        scores = [score for example in dataset for score in example.teacher or ()]
        return np.array(scores, dtype=np.float32)

    def items(self, batch: TaskBatch) -> float:
        if "pairs" in batch.targets:  # lambda is a mean over pairs
            return float(batch.targets["pairs"].sum())
        sizes = batch.targets.get("sizes")
        return float(len(batch.inputs) if sizes is None else len(sizes))

    def forward(self, model: Any, batch: TaskBatch, items: float, **options: Any) -> TaskOutput:
        import torch

        from fastbert import losses

        output = model(batch.inputs, **options)
        logits = output.logits.float()[:, 0]
        name, targets = self.loss_name, batch.targets
        if name in LIST_LOSSES:
            offsets = torch.cat((targets["sizes"].new_zeros(1), targets["sizes"].cumsum(0)))
        if name == "bce":
            loss = losses.binary_cross_entropy(logits, targets["labels"], items=items)
        elif name == "list-ce":
            loss = losses.list_cross_entropy(logits, targets["labels"], offsets, items=items)
        elif name == "lambda":
            loss = losses.lambda_rank(logits, targets["labels"], offsets, items=items)
        elif name == "mse":
            target = targets["teacher"] if "teacher" in targets else targets["labels"]
            loss = (logits - target).square().sum() / items
        else:
            loss = self._margins(logits, targets["teacher"], offsets, items)
        return TaskOutput(loss, output.logits, output.hidden_states or ())

    @staticmethod
    def _margins(logits: Tensor, teacher: Tensor, offsets: Tensor, items: float) -> Tensor:
        """Return margin-MSE over lists of any length: the mean over a list's negatives, and over lists."""
        import torch

        sizes = offsets.diff()
        first = torch.repeat_interleave(offsets[:-1], sizes)
        errors = ((logits[first] - logits) - (teacher[first] - teacher)).square()  # 0 for the positive itself
        return (errors / torch.repeat_interleave(sizes - 1, sizes)).sum() / items

    def outputs(self, model: Any, batch: TaskBatch) -> list[np.ndarray]:
        """Return the logit of each row, fp32 (1,)."""
        return list(model.exact_logits(batch.inputs).float().cpu().numpy().reshape(-1, 1))

    def decode(self, dataset: Dataset[TextGroup], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Return the scores of each query's texts, and with positives the rank of the first text among them."""
        logits, predictions, position = np.concatenate(outputs), list[Prediction](), 0
        for example in dataset:
            scores = logits[position : position + len(example.texts) - 1]
            position += len(scores)
            prediction: Prediction = {"id": example.id, "score": float(scores[0])}
            if len(scores) > 1:
                prediction["scores"] = scores.tolist()
            if example.labels is None:
                prediction["rank"] = int((scores[1:] >= scores[0]).sum()) + 1
                if len(scores) > 1:
                    prediction["negative_score"] = float(scores[1:].max())
            predictions.append(prediction)
        return predictions


def pairs_of(labels: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the number of pairs with different labels of each list, int64 (lists,), from the `labels` of all texts,
    fp32 (texts,), and the `sizes` of the lists, int64 (lists,)."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((labels, owner))
    labels, owner = labels[order], owner[order]
    begins = np.flatnonzero(np.diff(labels, prepend=np.nan).astype(bool) | np.diff(owner, prepend=-1).astype(bool))
    runs = np.diff(begins, append=len(labels))
    equal = np.zeros(len(sizes), dtype=np.int64)
    np.add.at(equal, owner[begins], runs**2)
    return (sizes**2 - equal) // 2
