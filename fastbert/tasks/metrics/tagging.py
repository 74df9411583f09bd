"""Metrics of tags: entities by seqeval, words by counting; in percent."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from fastbert.io.log import logger
from fastbert.tasks.metrics.library import library
from fastbert.tasks.readers.tags import Scheme, convert, scheme_of


def tagging_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, where: str = "the evaluation set"
) -> dict[str, float]:
    """Compute `accuracy` over words; if the gold tags follow a scheme of entities also `f1`, `precision` and `recall`
    of whole entities and `f1_TYPE` of each type, in percent.

    Entities are those of seqeval's default mode and of conlleval: invalid tags are read leniently, so that `I-` after
    `O` begins an entity.
    """
    lengths = [len(tags) for tags in gold]
    if lengths != [len(tags) for tags in predicted]:
        raise ValueError("predictions must have as many sentences as the gold tags, and each as many tags")
    words = sum(lengths)
    if not words:
        raise ValueError("there are no tags to compare")
    correct = sum(a == b for tags, predictions in zip(gold, predicted) for a, b in zip(tags, predictions))
    accuracy = 100 * correct / words
    scheme = scheme_of(gold)
    if scheme is None:
        return {"accuracy": accuracy}
    if not any(tag != "O" for tags in gold for tag in tags):
        logger.warning("%s: has no entity: recall and F1 are 0 by convention", where)
    report = entity_scores(gold, predicted, scheme)
    total = report.pop("micro avg", {"precision": 0.0, "recall": 0.0, "f1-score": 0.0})
    scores = {"f1": total["f1-score"], "precision": total["precision"], "recall": total["recall"]}
    scores |= {f"f1_{kind}": row["f1-score"] for kind, row in sorted(report.items()) if not kind.endswith(" avg")}
    return {name: 100 * float(value) for name, value in scores.items()} | {"accuracy": accuracy}


def entity_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: Scheme
) -> dict[str, dict[str, float]]:
    """Return seqeval's report on whole entities: `precision`, `recall`, `f1-score` (from 0 to 1) and `support` by type,
    and averages under names ending in ` avg`; nothing if neither side has an entity."""
    seqeval = library("seqeval.metrics")
    x, y = ([list(convert(tags, scheme, "BIO")) for tags in sentences] for sentences in (gold, predicted))
    if not (_any(x) or _any(y)):
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types that are never predicted
        rows: dict[str, dict[str, float]] = seqeval.classification_report(x, y, output_dict=True, zero_division=0)
    return rows


def _any(sentences: Sequence[Sequence[str]]) -> bool:
    return any(tag != "O" for tags in sentences for tag in tags)
