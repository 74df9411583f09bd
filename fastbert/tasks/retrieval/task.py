"""What the tasks of retrieval share: reading, prompts, metrics, and predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fastbert.checkpoints.pipeline_files import MODULES, encoder_folder, lower_cases, read_modules, role_prompt
from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.tasks.base import Task
from fastbert.tasks.examples import Dataset, Prediction, PredictionFormat, TextGroup, confidences
from fastbert.tasks.readers.cells import number
from fastbert.tasks.retrieval.flags import GroupFlags, LossName, check_group_flags
from fastbert.tasks.retrieval.groups import TrainingForm, form_of, without_positive
from fastbert.tasks.retrieval.scores import METRICS, SCORED_METRICS, gold_of, scores_of
from fastbert.tasks.settings import TaskSettings

if TYPE_CHECKING:
    from fastbert.config import BertConfig
    from fastbert.tasks.readers.text_groups import TextGroups
    from fastbert.tokenizers.tokenizer import Tokenizer

TEACHER_LOSSES: tuple[LossName, ...] = ("margin-mse", "kl", "mse")
PAIR_LOSSES = ("cosent", "angle", "cosine", "contrastive", "online-contrastive")
DETAILS = ("rank", "scores", "negative_score", "widths")


@dataclass(frozen=True, kw_only=True)
class GroupSettings(TaskSettings, GroupFlags):
    """Settings of a task on groups of texts."""

    def __post_init__(self) -> None:
        for name in ("negative_column", "score_range"):  # JSON has no tuples
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
        check_group_flags(self)


class GroupTask(Task[TextGroup]):
    """A task on groups of texts: a query with its positive and negatives, two texts with a score, or a query with
    labelled texts."""

    metrics: ClassVar[tuple[str, ...]] = METRICS
    prediction_format: ClassVar[PredictionFormat] = PredictionFormat(
        "score",
        (".tsv", ".txt"),
        lambda value, where, example: number(value, where, "the predicted score"),
        confidences(*DETAILS),
    )
    settings_type: ClassVar[type[GroupSettings]] = GroupSettings
    head_has_labels = False
    can_distill = False
    reads_groups = True
    default_length = 256
    ranks_all_documents: ClassVar[bool] = True
    """True if positives are ranked among all documents of a file; False: among the texts of their own row."""
    losses: ClassVar[Mapping[TrainingForm, tuple[LossName, ...]]]
    """The losses by the form of the training file, the default one first."""
    settings: GroupSettings
    _chosen: str | None = None
    form: TrainingForm = "groups"
    """The form of the training file."""

    @property
    def main_metric(self) -> str:
        """The metric that chooses models: nDCG@10, or Spearman's correlation if the first file has scores."""
        return self.settings.metric or self._chosen or self.metrics[0]

    @classmethod
    def check_suffix(cls, path: str) -> None:
        """Raise `UserError` for a file that holds no table, by its name."""
        from fastbert.tasks.readers.tables import kind_of

        kind_of(path)

    def read_groups(self, path: str, *, labelled: bool = True) -> TextGroups:
        """Read the groups of a file, as they are in it, and log the columns that were taken."""
        from fastbert.tasks.readers.text_groups import GroupColumns, read_text_groups

        settings, flags = self.settings, self.settings.columns
        columns = GroupColumns(
            anchor=settings.anchor_column,
            positive=settings.positive_column,
            negative=settings.negative_column,
            text1=flags.text,
            text2=flags.pair,
            label=flags.label,
            id=flags.id,
        )
        groups = read_text_groups(path, columns, labelled=labelled, skip_bad=settings.skip_bad)
        logger.warning("%s: %s", path, groups.description)
        return groups

    def read(self, path: str, *, labelled: bool = True) -> Dataset[TextGroup]:
        from fastbert.tasks.readers.group_scores import scaled_scores
        from fastbert.tasks.readers.text_groups import Form

        settings, read = self.settings, self.read_groups(path, labelled=labelled)
        examples = read.examples
        if labelled and (read.form is Form.SCORED or (read.form is Form.LABELLED and settings.score_range is not None)):
            scores = scaled_scores(read, settings.score_range)
            examples = tuple(replace(each, labels=(score,)) for each, score in zip(examples, scores, strict=True))
        if read.form is Form.LISTS:
            examples = tuple(_by_teacher(each) for each in examples)
        elif read.form is Form.LABELLED and labelled and settings.loss not in PAIR_LOSSES:
            examples = _as_lists(examples)
        return Dataset(read.path, examples)

    def read_gold(self, path: str) -> Dataset[TextGroup]:
        dataset = self.read(path, labelled=True)
        self._choose_metric(dataset)
        if form_of(dataset) == "lists" and (count := without_positive(dataset)):
            logger.warning(
                "%s: %s of %s queries have no text with a label above 0; nDCG, MRR and MAP leave them out",
                dataset.path,
                f"{count:,}",
                f"{len(dataset):,}",
            )
        return dataset

    def learn_labels(self, train: Dataset[TextGroup]) -> None:
        self.form = form_of(train)
        for index, example in enumerate(train):
            if (example.labels is None) != (train[0].labels is None):
                kinds = ["labels or scores", "none"]
                raise UserError(
                    f"{train.where(index)}: has {kinds[example.labels is None]}, and {train.where(0)} has"
                    f" {kinds[train[0].labels is None]}; train on files of one form"
                )
        try:
            self.settings = replace(self.settings, loss=self.loss_name)
        except UserError as error:
            raise UserError(f"{train.path}: {error}") from None
        self._check_of_use(train)
        self._choose_metric(train, final=False)

    def _check_of_use(self, train: Dataset[TextGroup]) -> None:
        """Raise `UserError` for flags that have no effect with the loss."""
        if self.settings.score_range is not None and self.form == "groups":
            raise UserError(
                f"{train.path}: holds {_FORMS[self.form]}, for which --score-range changes nothing; leave it out"
            )

    def taught(
        self, train: Dataset[TextGroup], folder: Path, on_message: Callable[[str], None], device: str = "auto"
    ) -> Dataset[TextGroup]:
        """Return groups with the scores that a cross-encoder or an embedder gives; the loss is margin-mse by default.
        Raises UserError for a loss that does not read them."""
        from fastbert.tasks.retrieval.teacher import taught

        if self.settings.loss not in (None, *TEACHER_LOSSES):
            raise UserError(
                f"--teacher {folder}: --loss {self.settings.loss} does not read its scores; leave it out, or use --loss"
                " margin-mse"
            )
        known = self.losses.get(form_of(train), ())
        loss = next((name for name in TEACHER_LOSSES if name in known), None)
        if loss is None:
            raise UserError(
                f"--teacher {folder}: teaches queries with positives and negatives, and {train.path} holds"
                f" {_FORMS[form_of(train)]}; leave it out"
            )
        if self.settings.loss is None:
            self.settings = replace(self.settings, loss=loss)
        return taught(train, folder, on_message, device)

    def report_without_positive(self, train: Dataset[TextGroup]) -> None:
        """Report training queries without a relevant text, from which a ranking loss learns nothing; `strict` refuses
        them."""
        if self.form == "lists" and (count := without_positive(train)):
            self.report_unusable(
                f"{train.path}: {count:,} of {len(train):,} queries have no text with a label above 0, and --loss"
                f" {self.loss_name} learns nothing from them; label one, or leave these queries out"
            )

    def encoder_folder(self, source: Path) -> Path:
        return encoder_folder(source) if source.is_dir() else source

    def load_tokenizer(self, source: Path) -> Tokenizer:
        """Load the tokenizer of a folder, which lower-cases texts if the folder's settings do."""
        from fastbert.embeddings.lower_case import load_with_case

        encoder = self.encoder_folder(source)
        return load_with_case(encoder, encoder.is_dir() and lower_cases(encoder))

    def base_config(self, folder: Path) -> BertConfig:
        return super().base_config(self.encoder_folder(folder))

    def _choose_metric(self, dataset: Dataset[TextGroup], final: bool = True) -> None:
        """Take the metric of the first file that is evaluated on."""
        if self._final:
            return
        self._chosen = SCORED_METRICS[0] if form_of(dataset) == "scored" else METRICS[0]
        self._final = final

    _final = False

    @property
    def loss_name(self) -> LossName:
        """The loss of the settings, or the default one of the training file's form. Raises UserError."""
        known, name = self.losses.get(self.form, ()), self.settings.loss
        if not known:
            raise UserError(self._unusable())
        if name is None:
            return known[0]
        if name not in known:
            raise UserError(
                f"holds {_FORMS[self.form]}, for which --task {self.name} has --loss {', '.join(known)}, not {name}"
            )
        return name

    def _unusable(self) -> str:
        return f"--task {self.name} cannot be trained on {_FORMS[self.form]}"

    def score(self, dataset: Dataset[TextGroup], predictions: Sequence[Prediction]) -> dict[str, float]:
        scores = scores_of(dataset, predictions, all_documents=self.ranks_all_documents)
        main = self.main_metric if self.main_metric in scores else next(iter(scores), "")
        for width in predictions[0].get("widths", {}) if len(predictions) else ():
            narrowed = [{**each, **each["widths"][width]} for each in predictions]
            narrow = scores_of(dataset, narrowed, all_documents=self.ranks_all_documents)
            if main in narrow:
                scores[f"{main}/{width}"] = narrow[main]
        return scores

    def gold_prediction(self, example: TextGroup) -> Prediction:
        return gold_of(example)

    def prompts_of(self, stored: Mapping[str, str]) -> tuple[str, str]:
        """Return the prompts of queries and documents: those of the flags, else those that a folder has."""
        query, document = self.settings.query_prompt, self.settings.document_prompt
        if query is None:
            query = stored.get(role_prompt("query", stored) or "", "")
        if document is None:
            document = stored.get(role_prompt("document", stored) or "", "")
        return query, document

    def save_prompts(self, stored: Mapping[str, str]) -> dict[str, str]:
        """Return the prompts of a trained model's folder; an empty one of a flag replaces that of the folder."""
        query, document = self.prompts_of(stored)
        prompts = dict(stored)
        if query or self.settings.query_prompt is not None:
            prompts["query"] = query
        if document or self.settings.document_prompt is not None:
            prompts["document"] = document
        return prompts


_FORMS: dict[TrainingForm, str] = {
    "groups": "queries with positives",
    "scored": "pairs with scores",
    "lists": "queries with labelled texts",
}


def _by_teacher(example: TextGroup) -> TextGroup:
    """Return a list without labels with the text first that its teacher scores highest."""
    if example.labels is not None or example.teacher is None:
        return example
    order = np.argsort(-np.array(example.teacher), kind="stable").tolist()
    return replace(
        example,
        texts=(example.texts[0], *(example.texts[1 + each] for each in order)),
        teacher=tuple(example.teacher[each] for each in order),
        keys=None if example.keys is None else (example.keys[0], *(example.keys[1 + each] for each in order)),
    )


def _as_lists(examples: Sequence[TextGroup]) -> tuple[TextGroup, ...]:
    """Return rows of a query, a document and a label as lists of each query's documents, in the position of its first
    row; rows whose queries all differ stay pairs."""
    by_query: dict[str, list[TextGroup]] = {}
    for example in examples:
        by_query.setdefault(example.texts[0], []).append(example)
    if len(by_query) == len(examples):
        return tuple(examples)
    return tuple(
        replace(
            group[0],
            texts=(query, *(each.texts[1] for each in group)),
            labels=tuple(label for each in group for label in each.labels or ()),
            teacher=None,
            keys=None if any(each.keys is None for each in group) else _keys(group),
        )
        for query, group in by_query.items()
    )


def _keys(group: Sequence[TextGroup]) -> tuple[str, ...]:
    keys = [each.keys for each in group if each.keys is not None]
    return (keys[0][0], *(text_key for _, text_key in keys))


def pools(folder: Path) -> bool:
    """Return True if a folder of sentence-transformers is an embedder of one vector per text."""
    return (folder / MODULES).is_file() and any(kind == "Pooling" for kind, _ in read_modules(folder))
