"""Scoring predictions against a gold file, of every kind of task, whoever has predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastbert.errors import UserError
from fastbert.tasks.examples import Dataset
from fastbert.tasks.prediction_files import NO_ANSWER, VALUES

if TYPE_CHECKING:
    from fastbert.tasks.base import Columns, Prediction


def read_gold(task_name: str, path: str, columns: Columns, skip_bad: bool = False) -> Dataset[Any]:
    """The labelled examples of a file, as scoring needs them; `skip_bad` leaves out rows that cannot be read."""
    match task_name:
        case "classification" | "regression":
            from fastbert.tasks.readers.texts import read_texts

            return read_texts(path, columns, labelled=True, regression=task_name == "regression", skip_bad=skip_bad)
        case "tagging":
            from fastbert.tasks.readers.conll import read_conll

            return read_conll(path, columns, labelled=True, skip_bad=skip_bad)
        case "span":
            from fastbert.tasks.readers.squad import read_squad

            return read_squad(path, labelled=True, set_aside=lambda message: None, spans=False, skip_bad=skip_bad)
        case "choice":
            from fastbert.tasks.readers.choices import read_choices

            return read_choices(path, columns, labelled=True, skip_bad=skip_bad)
        case "seq2seq":
            from fastbert.tasks.readers.sequences import read_sequences

            return read_sequences(path, columns, labelled=True, skip_bad=skip_bad)
    raise UserError(f"{task_name!r} is no task; these are: {', '.join(VALUES)}")


def score_predictions(
    task_name: str,
    dataset: Dataset[Any],
    predictions: Sequence[Prediction],
    no_answer_probabilities: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The metrics of a task, the one that models are chosen by first. The classes are those of the dataset and those
    predicted, in alphabetical order."""
    values = [prediction[VALUES[task_name]] for prediction in predictions]
    match task_name:
        case "classification":
            from fastbert.tasks.metrics.classification import classification_scores, ordered

            gold = [example.label for example in dataset]
            return classification_scores(gold, values, ordered([*gold, *values]), where=dataset.path)
        case "regression":
            from fastbert.tasks.metrics.classification import regression_scores

            return regression_scores([example.label for example in dataset], values, where=dataset.path)
        case "tagging":
            from fastbert.tasks.metrics.tagging import tagging_scores

            return tagging_scores([example.tags for example in dataset], values, where=dataset.path)
        case "span":
            from fastbert.tasks.metrics.questions import squad_scores, thresholded_scores

            if no_answer_probabilities is None and all(NO_ANSWER in prediction for prediction in predictions):
                return thresholded_scores(dataset, predictions)
            said = {prediction["id"]: prediction["text"] for prediction in predictions}
            return squad_scores(dataset, said, no_answer_probabilities)
        case "choice":
            from fastbert.tasks.metrics.classification import choice_scores

            return choice_scores([example.label for example in dataset], values)
        case "seq2seq":
            from fastbert.tasks.metrics.generation import generation_scores

            return generation_scores([example.target for example in dataset], values)
    raise UserError(f"{task_name!r} is no task; these are: {', '.join(VALUES)}")
