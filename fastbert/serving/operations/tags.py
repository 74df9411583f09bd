"""Entities of a text with their places, as token-classification clients read them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from fastbert.serving.jobs import Job
from fastbert.serving.operations.tasks import Predict
from fastbert.tasks.readers.tags import scheme_of, spans_of

_WORD = re.compile(r"\w+|[^\w\s]")


class Tag(Predict):
    """Tags of texts: entities, or, where the tags are of no scheme, a tag per word. Inputs are texts, which are split
    into words and punctuation marks."""

    name: ClassVar[str] = "token_classification"

    def tokenize(self, jobs: Sequence[Job]) -> None:
        """Set the rows of each job; a text without words has no entities."""
        for job in jobs:
            texts = job.options.setdefault("texts", job.inputs)  # if they are tokenized again, after an error
            matches = job.options["matches"] = [list(_WORD.finditer(text)) for text in texts]
            worded = [[match[0] for match in text] for text in matches if text]
            if not worded:
                continue
            job.inputs = worded
            super().tokenize([job])

    def finish(self, job: Job) -> list[list[dict[str, Any]]]:
        """Return the entities of each text: `entity_group`, `score`, the mean probability of its words, `word`, and
        `start` and `end` in characters."""
        matches, texts = job.options["matches"], job.options["texts"]
        predictions = iter(self.predictions(job) if job.rows is not None else ())
        scheme = scheme_of(self.task.known_labels)
        answers: list[list[dict[str, Any]]] = []
        for text, words in zip(texts, matches, strict=True):
            if not words:
                answers.append([])
                continue
            prediction = next(predictions)
            tags, scores = prediction["tags"], prediction["probability"]
            spans = spans_of(tags, scheme) if scheme else ((i, i + 1, tag) for i, tag in enumerate(tags))
            answers.append(
                [
                    {
                        "entity_group": kind,
                        "score": round(float(np.mean(scores[first:last])), 6),
                        "word": text[words[first].start() : words[last - 1].end()],
                        "start": words[first].start(),
                        "end": words[last - 1].end(),
                    }
                    for first, last, kind in spans
                ]
            )
        return answers
