"""Exact match and F1 of answers, as the official scripts of SQuAD 1.1 and 2.0 define them; in percent."""

from __future__ import annotations

import logging
import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastbert.tasks.examples import Dataset, QuestionExample

logger = logging.getLogger("fastbert")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(answer: str) -> str:
    """What of an answer is compared: lower case, without ASCII punctuation, articles and extra white space."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(predicted: str, gold: str) -> float:
    """1 where two answers are the same once `normalized`, else 0."""
    return float(normalized(predicted) == normalized(gold))


def word_f1(predicted: str, gold: str, *, empty_equals_empty: bool = False) -> float:
    """F1 over the words that two answers share. Of two without words it is 0 in SQuAD 1.1, and in 2.0 1."""
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
    """`f1` and `exact_match`, the best over a question's gold answers, in percent.

    A dataset in which a question has no answer is scored by the rules of SQuAD 2.0, where the right answer to it is the
    empty text: then also `HasAns_f1`, `HasAns_exact`, `NoAns_f1` and `NoAns_exact`, of the questions with and without.
    With `no_answer_probabilities`, an answer whose question's lies above `threshold` counts as none, and `best_f1`,
    `best_exact` are the scores under the best threshold: `best_f1_thresh`, `best_exact_thresh`, no percentages. A
    question without prediction counts as wrong, and the log says so.
    """
    missing = [example.id for example in dataset if example.id not in predictions]
    if missing:
        counted = f"{len(missing)} of {len(dataset)} questions have no prediction and count as wrong"
        logger.warning("%s: %s, the first %s", dataset.path, counted, missing[0])
    has_none = any(not example.answers for example in dataset)
    pairs = [_best(example, predictions.get(example.id), has_none) for example in dataset]
    raw = {"exact": np.array([pair[0] for pair in pairs]), "f1": np.array([pair[1] for pair in pairs])}
    answerable = np.array([_is_answerable(example) for example in dataset])
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
        said = np.array([bool(predictions.get(example.id)) for example in dataset])
        for kind in ("f1", "exact"):
            best, at = _best_threshold(dataset, raw[kind], answerable, said, no_answer_probabilities)
            result |= {f"best_{kind}": best, f"best_{kind}_thresh": at}
    return result


def thresholded_scores(dataset: Dataset[QuestionExample], predictions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """`squad_scores` of predictions as they were decided, with the best that another threshold would have reached: of
    each question's `best_answer`, by how much better no answer scores (`null_score_difference`)."""
    decided = squad_scores(dataset, {str(one["id"]): str(one["text"]) for one in predictions})
    answers = {str(one["id"]): str(one.get("best_answer", one["text"])) for one in predictions}
    differences = {str(one["id"]): float(one["null_score_difference"]) for one in predictions}
    best = squad_scores(dataset, answers, differences, math.inf)
    return decided | {name: value for name, value in best.items() if name.startswith("best_")}


def _gold(example: QuestionExample, has_none: bool) -> Sequence[str]:
    texts = [answer.text for answer in example.answers or ()]
    # An article alone is no answer to SQuAD 2.0's script.
    return [text for text in texts if normalized(text)] or [""] if has_none else texts


def _is_answerable(example: QuestionExample) -> bool:
    return bool(example.answers)


def _best(example: QuestionExample, predicted: str | None, has_none: bool) -> tuple[float, float]:
    """Exact match and F1 with the gold answer that suits best."""
    if predicted is None:
        return 0.0, 0.0
    gold = _gold(example, has_none)
    f1 = max(word_f1(predicted, text, empty_equals_empty=has_none) for text in gold)
    return max(exact_match(predicted, text) for text in gold), f1


def _best_threshold(
    dataset: Dataset[QuestionExample],
    scores: np.ndarray,
    answerable: np.ndarray,
    said: np.ndarray,
    probabilities: Mapping[str, float],
) -> tuple[float, float]:
    """The best score in percent that a threshold gives, and the threshold: answers are admitted one by one, from the
    least probability that there is none, and each gains its score, or loses the point for silence where silence was
    right."""
    places = {example.id: i for i, example in enumerate(dataset)}
    order = sorted((name for name in probabilities if name in places), key=lambda name: probabilities[name])
    chosen = np.array([places[name] for name in order], dtype=np.int64)
    gains = np.where(answerable, scores, -said.astype(np.float64))[chosen]
    silent = float((~answerable).sum())
    totals = silent + np.cumsum(gains)
    if not len(totals) or totals.max() <= silent:
        return 100 * silent / len(dataset), 0.0
    first = int(totals.argmax())
    return 100 * float(totals[first]) / len(dataset), float(probabilities[order[first]])
