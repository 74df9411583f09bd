"""Find the best spans of each question over all windows of its context, as transformers' example for SQuAD does.

In each row, the `n_best` tokens with the largest start logits are paired with those with the largest end logits; a pair
is an answer if both are in the context and it is neither backwards nor too long; its score is the sum of the two. The
rows of an example compete. If no pair is an answer, for which transformers returns "empty", all spans are compared.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fastbert.tasks.examples import Dataset, Prediction, QuestionExample
from fastbert.tasks.rows import bounds, runs
from fastbert.tasks.span.flags import SpanFlags
from fastbert.tasks.span.rows import NOWHERE, SpanRows

AT_ONCE = 512  # rows
FIRST_MARK = "\u0300"

SPAN = np.dtype([("example", np.int64), ("score", np.float32), ("begin", np.int64), ("end", np.int64)])
"""A candidate answer: the number of its example, its score, its first character and its end (exclusive)."""


def find_answers(
    dataset: Dataset[QuestionExample], rows: SpanRows, outputs: Sequence[np.ndarray], settings: SpanFlags
) -> list[Prediction]:
    """Return a prediction for each example, in their order; `outputs`: the logits (2, tokens) of each row."""
    predictions: list[Prediction] = []
    for first, last in _groups(rows.examples):
        padded = _Padded(rows, np.arange(first, last), np.concatenate(outputs[first:last], axis=1))
        spans = padded.pairs(settings)
        missing = np.setdiff1d(padded.examples, spans["example"])
        if len(missing):
            spans = np.concatenate((spans, padded.best_spans(np.isin(padded.examples, missing), settings)))
        # By example, best first; equal scores in the order of rows and of their logits' ranks.
        spans = spans[np.lexsort((-spans["score"], spans["example"]))]
        examples = np.arange(rows.examples[first], rows.examples[last - 1] + 1)
        limits = np.searchsorted(spans["example"], np.append(examples, examples[-1] + 1))
        best = np.minimum(np.diff(limits), settings.n_best)
        spans = spans[runs(limits[:-1], best)]
        predictions += _predictions(dataset, examples, spans, bounds(best), padded.null_scores(), settings)
    return predictions


def _groups(examples: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield groups of about `AT_ONCE` rows, with all rows of an example in the same group."""
    begins = np.concatenate(([0], np.flatnonzero(np.diff(examples)) + 1, [len(examples)]))
    first = 0
    while first < len(examples):
        index = int(np.searchsorted(begins, first + AT_ONCE, side="right")) - 1
        last = int(begins[index] if begins[index] > first else begins[index + 1])
        yield first, last
        first = last


class _Padded:
    """Rows as a padded matrix, with logits of -inf at padding."""

    def __init__(self, rows: SpanRows, indices: np.ndarray, logits: np.ndarray) -> None:
        lengths = rows.lengths[indices]
        self.examples = rows.examples[indices]
        inside = np.arange(lengths.max()) < lengths[:, None]
        self.begins, self.ends = np.full(inside.shape, NOWHERE), np.full(inside.shape, NOWHERE)
        tokens = slice(rows.offsets[indices[0]], rows.offsets[indices[-1] + 1])
        self.begins[inside], self.ends[inside] = rows.begins[tokens], rows.ends[tokens]
        self.logits = np.full((2, *inside.shape), -np.inf, dtype=np.float32)
        self.logits[:, inside] = logits

    def pairs(self, settings: SpanFlags) -> np.ndarray:
        """Return the pairs of likely starts and likely ends that may be answers."""
        tokens = [_largest(logits, settings.n_best) for logits in self.logits]
        start, end = tokens[0][:, :, None], tokens[1][:, None, :]
        in_context = [np.take_along_axis(self.begins, columns, axis=1) != NOWHERE for columns in tokens]
        fits = (end >= start) & (end - start < settings.max_answer_length)
        fits &= in_context[0][:, :, None] & in_context[1][:, None, :]
        row, i, j = np.nonzero(fits)
        return self._spans(row, tokens[0][row, i], tokens[1][row, j])

    def best_spans(self, mask: np.ndarray, settings: SpanFlags) -> np.ndarray:
        """Return the best of all spans in the context of each row in the mask."""
        rows = np.flatnonzero(mask)
        outside = self.begins[rows] == NOWHERE
        start, end = (np.where(outside, -np.inf, logits[rows]) for logits in self.logits)
        width = start.shape[1]
        best, first, last = np.full(len(rows), -np.inf), np.zeros(len(rows), int), np.zeros(len(rows), int)
        for more in range(min(settings.max_answer_length, width)):
            scores = start[:, : width - more] + end[:, more:]
            at = scores.argmax(axis=1)
            score = scores[np.arange(len(rows)), at]
            better = score > best
            best[better], first[better], last[better] = score[better], at[better], at[better] + more
        exists = best > -np.inf
        return self._spans(rows[exists], first[exists], last[exists])

    def _spans(self, rows: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        scores = self.logits[0][rows, first] + self.logits[1][rows, last]
        return np.rec.fromarrays(
            [self.examples[rows], scores, self.begins[rows, first], self.ends[rows, last]], dtype=SPAN
        )

    def null_scores(self) -> np.ndarray:
        """Return the score of no answer for each example: the smallest of its rows', at their [CLS]."""
        of_rows = self.logits[0, :, 0] + self.logits[1, :, 0]
        least: np.ndarray = np.minimum.reduceat(of_rows, np.flatnonzero(np.diff(self.examples, prepend=-1)))
        return least


def _largest(logits: np.ndarray, count: int) -> np.ndarray:
    """Return the columns of the largest logits of each row, largest first."""
    count = min(count, logits.shape[1])
    columns = np.argpartition(-logits, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(logits, columns, axis=1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1)


def _predictions(
    dataset: Dataset[QuestionExample],
    examples: np.ndarray,
    spans: np.ndarray,
    limits: np.ndarray,
    null_scores: np.ndarray,
    settings: SpanFlags,
) -> Iterator[Prediction]:
    """Yield predictions from the best spans of each example, which lie between its limits."""
    candidates, bound, nulls = spans.tolist(), limits.tolist(), null_scores.tolist()
    for number, index in enumerate(examples.tolist()):
        context = dataset[index].context
        best: list[dict[str, Any]] = []
        for _, score, begin, token_end in candidates[bound[number] : bound[number + 1]]:
            end = _character_end(context, token_end)
            begin, end = _without_spaces(context, begin, end)
            best.append({"text": context[begin:end], "start": begin, "end": end, "score": score})
        yield _prediction(dataset[index].id, best, nulls[number], settings)


def _character_end(text: str, end: int) -> int:
    """Return the end of the character that ends here, including combining marks after it, which belong to no token."""
    while end < len(text) and text[end] >= FIRST_MARK and unicodedata.category(text[end]) in ("Mn", "Me"):
        end += 1
    return end


def _without_spaces(text: str, begin: int, end: int) -> tuple[int, int]:
    """Return a range of a text without white space at its ends, which a token may include (byte-level BPE)."""
    inner = text[begin:end].strip()
    begin += len(text[begin:end]) - len(text[begin:end].lstrip())
    return begin, begin + len(inner)


def _prediction(name: str, best: list[dict[str, Any]], null_score: float, settings: SpanFlags) -> Prediction:
    """Return the prediction for one example from its answers, best first."""
    nothing: dict[str, Any] = {"text": "", "start": None, "end": None, "score": null_score}
    answer = best[0] if best else nothing
    more: dict[str, Any] = {}
    if settings.unanswerable:
        # No answer is listed among the best, by its score.
        better = sum(candidate["score"] >= null_score for candidate in best)
        best = [*best[:better], nothing, *best[better:]]
        best = best[: settings.n_best] if better < settings.n_best else best
        more = {"null_score_difference": null_score - answer["score"], "best_answer": answer["text"]}
        if more["null_score_difference"] > settings.null_threshold:
            answer = nothing
    if not best:
        best = [nothing]
    weights = np.exp(
        np.array([candidate["score"] for candidate in best]) - max(candidate["score"] for candidate in best)
    )
    for candidate, probability in zip(best, (weights / weights.sum()).tolist(), strict=True):
        candidate["probability"] = probability
    answer.setdefault("probability", 0.0)  # SQuAD 2.0 with n_best=1, if the answer is not among the best
    chosen = {key: answer[key] for key in ("text", "start", "end", "probability")}
    return {"id": name, **chosen, "n_best": best, **more}
