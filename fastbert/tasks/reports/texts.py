"""Reports on texts: with a class, with a number, with a choice of endings, or with a text to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from fastbert.tasks.examples import (
    ChoiceExample,
    Dataset,
    Example,
    Prediction,
    PredictionFormat,
    SequenceExample,
    TextExample,
)
from fastbert.tasks.metrics.library import library
from fastbert.tasks.reports import classes
from fastbert.tasks.reports.report import Report, Table

NARROW = 0.05  # spread of predicted numbers relative to that of the gold numbers
RANGES = 5  # of gold numbers in the groups of a regression


def confident_first(rows: Sequence[tuple[Any, ...]], column: int) -> list[tuple[Any, ...]]:
    """Return rows by their score in a column, highest first; rows without a score come last, in their order."""
    return sorted(rows, key=lambda row: -np.inf if row[column] is None else row[column], reverse=True)


def classification_report(
    dataset: Dataset[TextExample], predictions: Sequence[Prediction], labels: Sequence[str]
) -> Report:
    """Return the report of one class per text or pair."""
    gold = [str(example.label) for example in dataset]
    predicted = [str(prediction["label"]) for prediction in predictions]
    texts = _texts(dataset)
    rows = [
        (*_text_cells(example, texts), right, name, _probability(prediction, name), example.location)
        for example, prediction, right, name in zip(dataset, predictions, gold, predicted, strict=True)
        if right != name
    ]
    return Report(
        errors=Table((*texts, "gold", "predicted", "score", "location"), confident_first(rows, len(texts) + 2)),
        per_class=classes.per_class(gold, predicted, labels),
        confusion=classes.confusion(gold, predicted, labels),
        warnings=classes.collapse(gold, predicted),
    )


def label_sets_report(
    dataset: Dataset[TextExample],
    predictions: Sequence[Prediction],
    gold: Sequence[Sequence[str]],
    labels: Sequence[str],
) -> Report:
    """Return the report of a set of labels per text or pair: the score of an error is the largest distance of the
    probability of a wrongly decided label from what is correct, 1 or 0."""
    texts, rows = _texts(dataset), []
    predicted = [list(prediction["labels"]) for prediction in predictions]
    for example, prediction, right, names in zip(dataset, predictions, gold, predicted, strict=True):
        missed, spurious = [x for x in right if x not in names], [x for x in names if x not in right]
        if not missed and not spurious:
            continue
        probabilities = [_probability(prediction, name) for name in (*missed, *spurious)]
        distances = [p if number >= len(missed) else 1.0 - p for number, p in enumerate(probabilities) if p is not None]
        cells = (" | ".join(group) for group in (right, names, missed, spurious))
        rows.append((*_text_cells(example, texts), *cells, max(distances, default=None), example.location))
    columns = (*texts, "gold", "predicted", "missed", "spurious", "score", "location")
    joined = [[" | ".join(sorted(names)) or "no label" for names in sets] for sets in (gold, predicted)]
    return Report(
        errors=Table(columns, confident_first(rows, len(texts) + 4)),
        per_class=classes.per_label(gold, predicted, labels, counts=True),
        warnings=(*classes.collapse(*joined), *classes.never_predicted(gold, predicted)),
    )


def _texts(dataset: Dataset[TextExample]) -> tuple[str, ...]:
    return ("text", "pair") if any(example.pair is not None for example in dataset) else ("text",)


def _text_cells(example: TextExample, texts: Sequence[str]) -> tuple[str, ...]:
    return (example.text, example.pair or "")[: len(texts)]


def _probability(prediction: Prediction, label: str) -> float | None:
    probabilities = prediction.get("probabilities")
    return float(probabilities[label]) if isinstance(probabilities, Mapping) and label in probabilities else None


def regression_report(dataset: Dataset[TextExample], predictions: Sequence[Prediction]) -> Report:
    """Return the report of one number per text or pair: errors largest first, scores by ranges of the gold number."""
    gold = np.array([example.label for example in dataset], dtype=np.float64)
    predicted = np.array([prediction["score"] for prediction in predictions], dtype=np.float64)
    errors, texts = predicted - gold, _texts(dataset)
    rows = [
        (*_text_cells(dataset[i], texts), float(gold[i]), float(predicted[i]), float(errors[i]), dataset[i].location)
        for i in np.argsort(-np.abs(errors), kind="stable").tolist()
        if errors[i]
    ]
    warnings: tuple[str, ...] = ()
    if len(gold) > 1 and predicted.std() < NARROW * gold.std():
        warnings = (
            f"all predictions are between {predicted.min():.4g} and {predicted.max():.4g}, the gold numbers between"
            f" {gold.min():g} and {gold.max():g}; train for more steps, or with a different --lr",
        )
    return Report(
        errors=Table((*texts, "gold", "predicted", "error", "location"), rows),
        groups=_ranges(gold, predicted),
        warnings=warnings,
    )


def _ranges(gold: np.ndarray, predicted: np.ndarray) -> Table:
    """Return scores by ranges of the gold number, of equal width."""
    edges = np.linspace(gold.min(), gold.max(), RANGES + 1)
    numbers = np.clip(np.searchsorted(edges, gold, side="right") - 1, 0, RANGES - 1)
    rows = []
    for number in np.unique(numbers).tolist():
        x, y = gold[numbers == number], predicted[numbers == number]
        name = f"{edges[number]:.4g} to {edges[number + 1]:.4g}"
        mse, error = float(np.mean((y - x) ** 2)), float(np.mean(y - x))
        rows.append(("gold number", name, len(x), float(x.mean()), float(y.mean()), error, mse))
    return Table(("by", "value", "support", "mean_gold", "mean_predicted", "mean_error", "mse"), rows)


def choice_report(dataset: Dataset[ChoiceExample], predictions: Sequence[Prediction]) -> Report:
    """Return the report of choices, with the scores by the number of the correct ending, from 0."""
    gold = [str(example.label) for example in dataset]
    predicted = [str(prediction["label"]) for prediction in predictions]
    rows = []
    for example, prediction in zip(dataset, predictions, strict=True):
        right, chosen = example.label, int(prediction["label"])
        if right is None or right == chosen:
            continue
        probabilities = prediction.get("probabilities")
        score = None
        if isinstance(probabilities, Sequence) and len(probabilities) == len(example.endings):
            score = float(probabilities[chosen])
        prompt = f"{example.prompt} {example.start}" if example.start else example.prompt
        rows.append((prompt, example.endings[right], example.endings[chosen], score, example.location))
    return Report(
        errors=Table(("prompt", "gold", "predicted", "score", "location"), confident_first(rows, 3)),
        groups=_endings(gold, predicted),
        warnings=classes.collapse(gold, predicted),
    )


def _endings(gold: Sequence[str], predicted: Sequence[str]) -> Table:
    """Return the accuracy by the number of the correct ending, which tells a preference for a position."""
    support, guesses = Counter(gold), Counter(predicted)
    correct = Counter(x for x, y in zip(gold, predicted, strict=True) if x == y)
    rows = []
    for name in sorted(support.keys() | guesses.keys(), key=int):
        accuracy = 100 * correct[name] / support[name] if support[name] else None
        rows.append(("correct ending", name, accuracy, support[name], guesses[name]))
    return Table(("by", "value", "accuracy", "support", "predicted"), rows)


def sequence_report(dataset: Dataset[SequenceExample], predictions: Sequence[Prediction]) -> Report:
    """Return the report of written texts: those that differ from the gold text, lowest ROUGE-L first."""
    scorer = library("rouge_score.rouge_scorer").RougeScorer(["rougeL"], use_stemmer=True)
    written = [str(prediction["text"]) for prediction in predictions]
    rows = []
    for example, text, prediction in zip(dataset, written, predictions, strict=True):
        target = example.target or ""
        if text != target:
            rouge = 100 * float(scorer.score(target, text)["rougeL"].fmeasure)
            score = prediction.get("score")
            confidence = float(score) if isinstance(score, int | float) else None
            rows.append((example.source, target, text, rouge, confidence, example.location))
    warnings: tuple[str, ...] = ()
    (text, count), *_ = Counter(written).most_common(1)
    gold = sum(example.target == text for example in dataset)
    if len(written) > 1 and count >= classes.COLLAPSED * len(written) and gold < classes.COMMON * len(written):
        warnings = (
            f"{count:,} of {len(written):,} predicted texts are the same; train for more steps, or with a different"
            " --lr",
        )
    columns = ("source", "gold", "predicted", "rougeL", "score", "location")
    return Report(errors=Table(columns, sorted(rows, key=lambda row: row[3])), warnings=warnings)


def plain_report(
    dataset: Dataset[Any],
    predictions: Sequence[Prediction],
    gold: Sequence[Prediction],
    prediction_format: PredictionFormat,
) -> Report:
    """Return the report of a task that has none of its own: the texts of the examples whose prediction is wrong."""
    key = prediction_format.key
    names = [
        each.name for each in fields(dataset[0]) if each.name not in ("id", "location") and each.type == "str"
    ] if len(dataset) else []  # fmt: skip
    rows = [
        (*(_value(example, name) for name in names), right[key], prediction[key], example.location)
        for example, prediction, right in zip(dataset, predictions, gold, strict=True)
        if prediction[key] != right[key]
    ]
    return Report(errors=Table((*names, "gold", "predicted", "location"), rows))


def _value(example: Example, name: str) -> str:
    return str(getattr(example, name))
