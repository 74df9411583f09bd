"""Exact match and F1 of answers, as the official scripts of SQuAD 1.1 and 2.0 define them; in percent."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastbert.io.log import logger
from fastbert.tasks.examples import Dataset, QuestionExample

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(answer: str) -> str:
    """Return an answer as it is compared: lower case, without ASCII punctuation, articles and extra white space."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(predicted: str, gold: str) -> float:
    """Return 1 if two answers are equal once `normalized`, else 0."""
    return float(normalized(predicted) == normalized(gold))


def word_f1(predicted: str, gold: str, *, empty_equals_empty: bool = False) -> float:
    """Compute F1 over the words that two answers share; for two without words it is 0 in SQuAD 1.1 and 1 in 2.0."""
    x, y = normalized(predicted).split(), normalized(gold).split()
    if empty_equals_empty and not (x and y):
        return float(x == y)
    shared = (Counter(x) & Counter(y)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(x), shared / len(y)
    return 2 * precision * recall / (precision + recall)


def squad_scores(
    dataset: Dataset[QuestionExample],
    predictions: Mapping[str, str],
    no_answer_probabilities: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Compute `f1` and `exact_match`, the best over a question's gold answers, in percent.

    A dataset in which a question has no answer is scored by the rules of SQuAD 2.0, where the correct answer to it is
    the empty text; the result then also has `HasAns_f1`, `HasAns_exact`, `NoAns_f1` and `NoAns_exact`, of the questions
    with and without an answer. With `no_answer_probabilities`, an answer whose question's lies above `threshold` counts
    as none, and `best_f1`, `best_exact` are the scores under the best threshold: `best_f1_thresh`, `best_exact_thresh`
    (not percentages). A question without a prediction counts as wrong, with a warning.
    """
    missing = [example.id for example in dataset if example.id not in predictions]
    if missing:
        counted = f"{len(missing)} of {len(dataset)} questions have no prediction and count as wrong"
        logger.warning("%s: %s, the first %s", dataset.path, counted, missing[0])
    has_none = any(not example.answers for example in dataset)
    pairs = [answer_scores(example, predictions.get(example.id), has_none) for example in dataset]
    raw = {"exact": np.array([pair[0] for pair in pairs]), "f1": np.array([pair[1] for pair in pairs])}
    answerable = np.array([bool(example.answers) for example in dataset])
    scores = dict(raw)
    if has_none and no_answer_probabilities is not None:
        above = np.array([no_answer_probabilities.get(example.id, 0.0) > threshold for example in dataset])
        scores = {name: np.where(above, ~answerable, values) for name, values in raw.items()}
    result = {"f1": 100 * float(np.mean(scores["f1"])), "exact_match": 100 * float(np.mean(scores["exact"]))}
    if not has_none:
        return result
    for name, chosen in (("HasAns", answerable), ("NoAns", ~answerable)):
        if chosen.any():
            result |= {f"{name}_{kind}": 100 * float(np.mean(scores[kind][chosen])) for kind in ("f1", "exact")}
    if no_answer_probabilities is not None:
        answered = np.array([bool(predictions.get(example.id)) for example in dataset])
        for kind in ("f1", "exact"):
            best, at = _best_threshold(dataset, raw[kind], answerable, answered, no_answer_probabilities)
            result |= {f"best_{kind}": best, f"best_{kind}_thresh": at}
    return result


def thresholded_scores(dataset: Dataset[QuestionExample], predictions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Compute `squad_scores` of predictions, and the best scores under any threshold on `null_score_difference`, above
    which each question's `best_answer` is replaced by no answer."""
    decided = squad_scores(dataset, {str(prediction["id"]): str(prediction["text"]) for prediction in predictions})
    answers = {
        str(prediction["id"]): str(prediction.get("best_answer", prediction["text"])) for prediction in predictions
    }
    differences = {str(prediction["id"]): float(prediction["null_score_difference"]) for prediction in predictions}
    best = squad_scores(dataset, answers, differences, math.inf)
    return decided | {name: value for name, value in best.items() if name.startswith("best_")}


def _gold(example: QuestionExample, has_none: bool) -> Sequence[str]:
    texts = [answer.text for answer in example.answers or ()]
    # SQuAD 2.0's script drops answers that are an article alone.
    return [text for text in texts if normalized(text)] or [""] if has_none else texts


def answer_scores(example: QuestionExample, predicted: str | None, has_none: bool) -> tuple[float, float]:
    """Return exact match and F1, from 0 to 1, with the best-matching gold answer; `has_none`: by the rules of SQuAD
    2.0, as for a dataset in which a question has no answer."""
    if predicted is None:
        return 0.0, 0.0
    gold = _gold(example, has_none)
    f1 = max(word_f1(predicted, text, empty_equals_empty=has_none) for text in gold)
    return max(exact_match(predicted, text) for text in gold), f1


def _best_threshold(
    dataset: Dataset[QuestionExample],
    scores: np.ndarray,
    answerable: np.ndarray,
    answered: np.ndarray,
    probabilities: Mapping[str, float],
) -> tuple[float, float]:
    """Return the best score in percent over all thresholds, and the threshold.

    Answers are admitted one by one, in order of the probability that there is none; each adds its score, or loses the
    point of a question without an answer.
    """
    indices = {example.id: i for i, example in enumerate(dataset)}
    order = sorted((name for name in probabilities if name in indices), key=lambda name: probabilities[name])
    chosen = np.array([indices[name] for name in order], dtype=np.int64)
    gains = np.where(answerable, scores, -answered.astype(np.float64))[chosen]
    unanswered = float((~answerable).sum())
    totals = unanswered + np.cumsum(gains)
    if not len(totals) or totals.max() <= unanswered:
        return 100 * unanswered / len(dataset), 0.0
    first = int(totals.argmax())
    return 100 * float(totals[first]) / len(dataset), float(probabilities[order[first]])
