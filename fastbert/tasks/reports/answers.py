"""Reports on answers in a context: by question word, by length, and answered against unanswered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from fastbert.tasks.examples import Dataset, Prediction, QuestionExample
from fastbert.tasks.metrics.questions import answer_scores
from fastbert.tasks.reports import classes
from fastbert.tasks.reports.report import QUESTIONS, Report, Table
from fastbert.tasks.reports.texts import confident_first

ANSWER, NO_ANSWER = "answer", "no answer"
QUESTION_WORDS = 9  # the most frequent first words; the others are counted together
ANSWER_WORDS = (0, 1, 2, 5, 10)
CONTEXT_WORDS = (50, 100, 150, 200, 300)


def span_report(dataset: Dataset[QuestionExample], predictions: Sequence[Prediction]) -> Report:
    """Return the report of answers: questions without an exact match, most confident first, and scores of groups."""
    has_none = any(not example.answers for example in dataset)
    texts = [str(prediction["text"]) for prediction in predictions]
    scores = [answer_scores(example, text, has_none) for example, text in zip(dataset, texts, strict=True)]
    rows: list[tuple[Any, ...]] = []
    for example, prediction, text, (exact, f1) in zip(dataset, predictions, texts, scores, strict=True):
        if not exact:
            gold = " | ".join(dict.fromkeys(answer.text for answer in example.answers or ()))
            score = prediction.get("probability")
            confidence = float(score) if isinstance(score, int | float) else None
            rows.append((example.question, gold, text, 100 * f1, confidence, example.location))
    per_class, confusion, warnings = None, None, _unanswered(texts)
    if has_none:
        gold_kinds = [ANSWER if example.answers else NO_ANSWER for example in dataset]
        kinds = [ANSWER if text else NO_ANSWER for text in texts]
        per_class = classes.per_class(gold_kinds, kinds, (ANSWER, NO_ANSWER))
        confusion = classes.confusion(gold_kinds, kinds, (ANSWER, NO_ANSWER), "answered questions")
        warnings = classes.collapse(gold_kinds, kinds)
    return Report(
        errors=Table(("question", "gold", "predicted", "f1", "score", "location"), confident_first(rows, 4)),
        per_class=per_class,
        confusion=confusion,
        groups=_groups(dataset, scores),
        warnings=warnings,
    )


def _unanswered(texts: Sequence[str]) -> tuple[str, ...]:
    """Return a warning if nearly all predicted answers to answerable questions are empty."""
    empty = sum(not text for text in texts)
    return (f"{empty:,} of {len(texts):,} predicted answers are empty",) if empty >= 0.95 * len(texts) else ()


def _groups(dataset: Dataset[QuestionExample], scores: Sequence[tuple[float, float]]) -> Table:
    words = [_first_word(example.question) for example in dataset]
    common = [word for word, _ in Counter(words).most_common(QUESTION_WORDS)]
    answers = [len(example.answers[0].text.split()) if example.answers else 0 for example in dataset]
    contexts = [len(example.context.split()) for example in dataset]
    rows: list[tuple[Any, ...]] = []
    for name, values, order in (
        (QUESTIONS, [word if word in common else "(other)" for word in words], (*common, "(other)")),
        ("words of the answer", [_range(n, ANSWER_WORDS) for n in answers], _ranges(ANSWER_WORDS)),
        ("words of the context", [_range(n, CONTEXT_WORDS) for n in contexts], _ranges(CONTEXT_WORDS)),
    ):
        for value in order:
            chosen = [score for score, each in zip(scores, values, strict=True) if each == value]
            if chosen:
                exact, f1 = (100 * sum(column) / len(chosen) for column in zip(*chosen, strict=True))
                rows.append((name, value, f1, exact, len(chosen)))
    return Table(("by", "value", "f1", "exact_match", "support"), rows)


def _first_word(question: str) -> str:
    words = question.lower().split()
    return words[0].strip("\"'(,.?¿¡") or "(other)" if words else "(other)"


def _range(number: int, limits: Sequence[int]) -> str:
    """Return the range between the limits, inclusive, that a number lies in."""
    return next((name for name, limit in zip(_ranges(limits), limits) if number <= limit), _ranges(limits)[-1])


def _ranges(limits: Sequence[int]) -> tuple[str, ...]:
    names = [
        str(last) if first == last else f"{first} to {last}"
        for first, last in zip((0, *(limit + 1 for limit in limits)), limits)
    ]
    return (*names, f"{limits[-1] + 1} or more")


def first_words(dataset: Dataset[QuestionExample]) -> list[str]:
    """Return the first words of each context, as many as the median of the gold answers has."""
    lengths = [len(example.answers[0].text.split()) for example in dataset if example.answers]
    count = max(1, int(median(lengths))) if lengths else 1
    return [" ".join(example.context.split()[:count]) for example in dataset]
