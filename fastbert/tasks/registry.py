"""The tasks by name: the one file to edit for a new task. Imports no torch and no task before it is used.

A task is a subclass of `fastbert.tasks.base.Task`, which owns its reader, batching, head, scorer, prediction format and
settings. It is listed in `TASKS`; a task with flags of its own also adds their classes to `TaskFlags` and, if they can
change after training, `PredictFlags`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from fastbert.errors import UserError
from fastbert.tasks.class_weights import ClassWeightFlags
from fastbert.tasks.multilabel.flags import MultiLabelFlags, MultiLabelPredictFlags
from fastbert.tasks.pair_order import PairOrderFlags
from fastbert.tasks.retrieval.flags import EmbeddingFlags, GroupFlags, SparseFlags, TokenVectorFlags, VectorFlags
from fastbert.tasks.seq2seq.flags import SequenceFlags, SequencePredictFlags
from fastbert.tasks.span.flags import SpanFlags, SpanPredictFlags
from fastbert.tasks.tagging.flags import TaggingFlags

if TYPE_CHECKING:
    from fastbert.tasks.base import Task

# Name -> module:class.
TASKS = {
    "classification": "fastbert.tasks.texts:Classification",
    "multilabel": "fastbert.tasks.multilabel.task:MultiLabel",
    "regression": "fastbert.tasks.texts:Regression",
    "tagging": "fastbert.tasks.tagging.task:Tagging",
    "span": "fastbert.tasks.span.task:SpanAnswers",
    "choice": "fastbert.tasks.choice:Choice",
    "seq2seq": "fastbert.tasks.seq2seq.task:SequenceToSequence",
    "embedding": "fastbert.tasks.retrieval.embedding:Embedding",
    "rerank": "fastbert.tasks.retrieval.rerank:Rerank",
    "splade": "fastbert.tasks.retrieval.splade:Splade",
    "colbert": "fastbert.tasks.retrieval.colbert:Colbert",
}


@dataclass(frozen=True, eq=False)
class OneOf:
    """An annotation of strings: the command line offers the keys of a registry as choices."""

    registry: Mapping[str, Any]


TaskName = Annotated[str, OneOf(TASKS)]


@dataclass(frozen=True, kw_only=True)
class _RetrievalFlags(TokenVectorFlags, SparseFlags, EmbeddingFlags, VectorFlags, GroupFlags):
    """The flags of the tasks of retrieval."""


@dataclass(frozen=True, kw_only=True)
class TaskFlags(
    _RetrievalFlags, ClassWeightFlags, PairOrderFlags, MultiLabelFlags, SequenceFlags, TaggingFlags, SpanFlags
):
    """The flags of all tasks, for training."""


@dataclass(frozen=True, kw_only=True)
class PredictFlags(MultiLabelPredictFlags, SequencePredictFlags, SpanPredictFlags):
    """The flags of all tasks that can change after training; None keeps the value of training."""


def task_class(name: str) -> type[Task[Any]]:
    """Return the subclass of `Task` with this name. Raises `UserError` for an unknown name."""
    if name not in TASKS:
        raise UserError(f"--task {name}: choose one of {', '.join(TASKS)}")
    module, _, attribute = TASKS[name].partition(":")
    kind: type[Task[Any]] = getattr(import_module(module), attribute)
    return kind


def make_task(name: str, settings: Any = None, labels: Sequence[str] | None = None) -> Task[Any]:
    """Return the `Task` with this name, with `TaskSettings` or the task's own subclass of them."""
    return task_class(name)(settings, labels)
