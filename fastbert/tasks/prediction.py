"""Predict with the folder of a fine-tuned model: the function behind `fastbert.predict`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from fastbert.errors import UserError
from fastbert.tasks import predicting
from fastbert.tasks.base import Task
from fastbert.tasks.choice import Choice
from fastbert.tasks.examples import (
    ChoiceExample,
    Dataset,
    Example,
    Prediction,
    QuestionExample,
    SequenceExample,
    TaggedExample,
    TextExample,
)
from fastbert.tasks.finetuned_model import load_trained
from fastbert.tasks.seq2seq.task import SequenceToSequence
from fastbert.tasks.span.task import SpanAnswers
from fastbert.tasks.tagging.task import Tagging
from fastbert.tasks.texts import TextTask


def predict(
    model: str | Path,
    examples: str | Path | Sequence[Any],
    *,
    task: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    batch_tokens: int | None = None,
) -> list[Prediction]:
    """Return the predictions of a fine-tuned model for a file, or for examples in memory, in their order.

    Args:
        model: the folder of a fine-tuned model (RUN/model), or its name in the Hub's local cache.
        examples: the path of a file, as `fastbert predict` reads it, or a list. The list's items depend on the task: a
            text, or a pair of texts as a tuple (classification, regression, sequence to sequence: a text); a sentence,
            or its words as a list (tagging); a question and its context (span); a prompt and the list of its endings
            (choice).
        task: the kind of task, where the folder does not name it, as those of other libraries.
        device, dtype: as in `fastbert predict`; `"auto"` is a GPU if there is one, and the fastest dtype on it.
        batch_tokens: tokens in a batch, by default those that suit the device.

    Returns:
        One dictionary per example, with its `id` (in the file, else the number from 0) and the predicted value under
        the task's key (`label`, `score`, `tags` or `text`), and details such as probabilities, as JSON can hold them.

    Raises:
        UserError: the model or the examples cannot be read or do not belong together; the message names value, place
            and cure.

    Example:
        >>> import fastbert
        >>> predictions = fastbert.predict("runs/task/model", ["a short one.", "one"], device="cpu")
        >>> list(predictions[0])
        ['id', 'label', 'probabilities']
    """
    trained = load_trained(str(model), task=task, device=device, dtype=dtype)
    if isinstance(examples, str | Path):
        dataset = trained.task.read(str(examples), labelled=False)
    else:
        dataset = dataset_of(trained.task, examples)
    if not len(dataset):
        return []
    return predicting.predict(trained.task, trained.model, trained.tokenizer, dataset, batch_tokens=batch_tokens)


def dataset_of(task: Task[Any], items: Sequence[Any]) -> Dataset[Any]:
    """Return items in memory as the unlabelled examples of a task. Raises `UserError` for an item of another form."""
    make, form = _maker(task)
    examples = []
    for index, item in enumerate(items):
        example = make(item, {"id": str(index), "location": f"item {index}"})
        if example is None:
            raise UserError(f"item {index} is {_shown(item)}; {task.name} needs {form}")
        examples.append(example)
    endings = [len(example.endings) for example in examples if isinstance(example, ChoiceExample)]
    for index, count in enumerate(endings):
        if count != endings[0]:
            raise UserError(f"item {index} has {count} endings, and item 0 has {endings[0]}; give all as many")
    return Dataset("the list of examples", tuple(examples))


Maker = Callable[[Any, dict[str, Any]], Example | None]


def _maker(task: Task[Any]) -> tuple[Maker, str]:
    """Return the function that makes an example of an item, or None of one of another form; and the form in words."""
    for kind, make, form in _MAKERS:
        if isinstance(task, kind):
            return make, form
    raise UserError(f"{task.name} reads examples from files only; give the path of a file")


def _text(item: Any, common: dict[str, Any]) -> TextExample | None:
    if isinstance(item, str):
        return TextExample(text=item, **common)
    return TextExample(text=item[0], pair=item[1], **common) if _is_pair(item) and isinstance(item[1], str) else None


def _words(item: Any, common: dict[str, Any]) -> TaggedExample | None:
    words = tuple(item.split()) if isinstance(item, str) else tuple(item) if isinstance(item, Sequence) else ()
    return TaggedExample(words=words, **common) if words and all(isinstance(word, str) for word in words) else None


def _question(item: Any, common: dict[str, Any]) -> QuestionExample | None:
    if not _is_pair(item) or not isinstance(item[1], str):
        return None
    return QuestionExample(question=item[0], context=item[1], **common)


def _choices(item: Any, common: dict[str, Any]) -> ChoiceExample | None:
    endings = tuple(item[1]) if _is_pair(item) and isinstance(item[1], list | tuple) else ()
    if not endings or not all(isinstance(ending, str) for ending in endings):
        return None
    return ChoiceExample(prompt=item[0], endings=endings, **common)


def _source(item: Any, common: dict[str, Any]) -> SequenceExample | None:
    return SequenceExample(source=item, **common) if isinstance(item, str) else None


def _is_pair(item: Any) -> bool:
    return isinstance(item, Sequence) and not isinstance(item, str) and len(item) == 2 and isinstance(item[0], str)


def _shown(item: Any) -> str:
    text = repr(item)
    return text if len(text) <= 60 else f"{text[:57]}..."


_MAKERS: tuple[tuple[type[Task[Any]], Maker, str], ...] = (
    (TextTask, _text, "a text, or a tuple of two texts"),
    (Tagging, _words, "a sentence, or the list of its words"),
    (SpanAnswers, _question, "a tuple of a question and its context"),
    (Choice, _choices, "a tuple of a prompt and the list of its endings"),
    (SequenceToSequence, _source, "a text"),
)
