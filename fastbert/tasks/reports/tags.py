"""Reports on tags: entities by type, length and presence in the training set, or tags of words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from fastbert.tasks.examples import Dataset, Prediction, TaggedExample
from fastbert.tasks.metrics.classification import ordered
from fastbert.tasks.metrics.tagging import entity_scores
from fastbert.tasks.readers.tags import OUTSIDE, Scheme, scheme_of, spans_of
from fastbert.tasks.reports import classes
from fastbert.tasks.reports.report import Report, Table
from fastbert.tasks.reports.texts import confident_first

Span = tuple[int, int, str]
"""An entity: first word, word after the last, type."""
Aligned = tuple[Span | None, Span | None]
"""A gold entity and the predicted one that it overlaps; None for an entity that overlaps no other."""
LONGEST = 4  # words; longer entities are counted together
MISSED, SPURIOUS, WRONG_TYPE, WRONG_BOUNDARY = "missed", "spurious", "wrong type", "wrong boundary"
WRONG_BOTH = "wrong type and boundary"


def tagging_report(
    dataset: Dataset[TaggedExample], predictions: Sequence[Prediction], train: Dataset[TaggedExample] | None = None
) -> Report:
    """Return the report of entities if the gold tags follow a scheme of entities, else of single words; `train` tells
    seen from unseen ones."""
    scheme = scheme_of([example.tags or () for example in dataset])
    if scheme is None:
        return _word_report(dataset, predictions, train)
    return _entity_report(dataset, predictions, train, scheme)


def align(gold: Sequence[Span], predicted: Sequence[Span]) -> list[Aligned]:
    """Pair each gold entity with at most one predicted entity that overlaps it, and each predicted one with at most one
    gold entity: equal ones first, then those with equal words, then by the number of shared words."""
    equal = set(gold) & set(predicted)
    pairs: list[Aligned] = [(span, span) for span in gold if span in equal]
    left, others = [span for span in gold if span not in equal], [span for span in predicted if span not in equal]
    overlaps = [
        (x[:2] == y[:2], min(x[1], y[1]) - max(x[0], y[0]), x[2] == y[2], -i, -j)
        for i, x in enumerate(left)
        for j, y in enumerate(others)
        if x[0] < y[1] and y[0] < x[1]
    ]
    used, taken = set(), set()
    for *_, i, j in sorted(overlaps, reverse=True):
        if -i not in used and -j not in taken:
            used.add(-i)
            taken.add(-j)
            pairs.append((left[-i], others[-j]))
    pairs += [(span, None) for i, span in enumerate(left) if i not in used]
    pairs += [(None, span) for j, span in enumerate(others) if j not in taken]
    return pairs


def kind_of(pair: Aligned) -> str | None:
    """Return the kind of an error, None for a correct entity."""
    gold, predicted = pair
    if gold is None or predicted is None:
        return SPURIOUS if gold is None else MISSED
    if gold == predicted:
        return None
    if gold[:2] == predicted[:2]:
        return WRONG_TYPE
    return WRONG_BOUNDARY if gold[2] == predicted[2] else WRONG_BOTH


def _entity_report(
    dataset: Dataset[TaggedExample],
    predictions: Sequence[Prediction],
    train: Dataset[TaggedExample] | None,
    scheme: Scheme,
) -> Report:
    gold = [list(spans_of(example.tags or (), scheme)) for example in dataset]
    predicted = [list(spans_of(prediction["tags"], scheme)) for prediction in predictions]
    pairs = [align(*spans) for spans in zip(gold, predicted, strict=True)]
    types = ordered(span[2] for spans in chain(gold, predicted) for span in spans)
    names = [
        tuple(OUTSIDE if span is None else span[2] for span in pair) for pair in chain.from_iterable(pairs)
    ]  # fmt: skip
    confusion = classes.confusion(
        [name[0] for name in names],
        [name[1] for name in names],
        (*types, *(() if OUTSIDE in types else (OUTSIDE,))),
        "entity types; O: missed or spurious",
        None if OUTSIDE in types else OUTSIDE,
    )
    warnings: tuple[str, ...] = ()
    if any(gold) and not any(predicted):
        warnings = (
            f"no entity is predicted, and there are {sum(map(len, gold)):,}; train for more steps, or with a different"
            " --lr",
        )
    rows = [
        _entity_row(example, prediction, pair, kind)
        for example, prediction, aligned in zip(dataset, predictions, pairs, strict=True)
        for pair in aligned
        if (kind := kind_of(pair)) is not None
    ]
    columns = ("kind", "gold_type", "gold", "predicted_type", "predicted", "score", "sentence", "location")
    return Report(
        errors=Table(columns, confident_first(rows, 5)),
        per_class=_per_type(dataset, predictions, scheme, predicted),
        confusion=confusion,
        groups=_entity_groups(dataset, gold, predicted, pairs, train),
        warnings=warnings,
    )


def _per_type(
    dataset: Dataset[TaggedExample], predictions: Sequence[Prediction], scheme: Scheme, predicted: list[list[Span]]
) -> Table:
    rows = entity_scores(
        [example.tags or () for example in dataset], [prediction["tags"] for prediction in predictions], scheme
    )
    counts = Counter(span[2] for spans in predicted for span in spans)
    columns = ("precision", "recall", "f1-score")
    return Table(
        classes.COLUMNS,
        [
            (name, *(100 * float(row[column]) for column in columns), int(row["support"]), counts[name])
            for name, row in sorted(rows.items())
            if not name.endswith(" avg")
        ],
    )


def _entity_row(example: TaggedExample, prediction: Prediction, pair: Aligned, kind: str) -> tuple[Any, ...]:
    """Return a row of errors.tsv. The score is the least probability of the predicted entity's tags, for a missed
    entity of the tags predicted on its words."""
    spans = [span for span in pair if span is not None]
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    begin, end, _ = spans[-1]
    probabilities = _probabilities(prediction)
    score = min(probabilities[begin:end]) if probabilities else None
    cells = [
        cell
        for span in pair
        for cell in ((None, None) if span is None else (span[2], " ".join(example.words[span[0] : span[1]])))
    ]
    return kind, *cells, score, _marked(example.words, first, last), example.location


def _probabilities(prediction: Prediction) -> list[float] | None:
    """Return the probability of each tag, None if they are unknown."""
    values = prediction.get("probability")
    if not isinstance(values, Sequence) or len(values) != len(prediction["tags"]):
        return None
    return [float(value) for value in values]


def _marked(words: Sequence[str], first: int, last: int) -> str:
    """Return a sentence with the words `first` up to `last` in brackets."""
    inside = f"[{' '.join(words[first:last])}]"
    return " ".join((*words[:first], inside, *words[last:]))


def _entity_groups(
    dataset: Dataset[TaggedExample],
    gold: list[list[Span]],
    predicted: list[list[Span]],
    pairs: list[list[Aligned]],
    train: Dataset[TaggedExample] | None,
) -> Table:
    """Return precision, recall and F1 by the number of words of an entity and, with `train`, by whether its words are
    those of an entity of the training set."""

    def length(example: TaggedExample, span: Span) -> str:
        words = span[1] - span[0]
        return str(words) if words < LONGEST else f"{LONGEST} or more"

    by: dict[str, Callable[[TaggedExample, Span], str]] = {"words": length}
    if train is not None:
        scheme = scheme_of([example.tags or () for example in train])
        known = {
            example.words[first:last]
            for example in train
            for first, last, _ in (spans_of(example.tags or (), scheme) if scheme else ())
        }
        by["in training set"] = lambda example, span: "yes" if example.words[span[0] : span[1]] in known else "no"
    rows: list[tuple[Any, ...]] = []
    for name, value_of in by.items():
        support, guesses = (_counted(dataset, spans, value_of) for spans in (gold, predicted))
        right = _counted(dataset, [[x for x, y in each if x is not None and x == y] for each in pairs], value_of)
        for value in sorted(support.keys() | guesses.keys()):
            precision = right[value] / guesses[value] if guesses[value] else 0.0
            recall = right[value] / support[value] if support[value] else 0.0
            f1 = 2 * right[value] / (support[value] + guesses[value])
            rows.append((name, value, 100 * precision, 100 * recall, 100 * f1, support[value], guesses[value]))
    return Table(("by", "value", "precision", "recall", "f1", "support", "predicted"), rows)


def _counted(
    dataset: Dataset[TaggedExample], sentences: Sequence[Sequence[Span]], value_of: Callable[[TaggedExample, Span], str]
) -> Counter[str]:
    return Counter(value_of(example, span) for example, spans in zip(dataset, sentences, strict=True) for span in spans)


def _words(
    dataset: Dataset[TaggedExample], predictions: Sequence[Prediction]
) -> Iterator[tuple[TaggedExample, Prediction, int]]:
    """Yield each word by its example, prediction and number."""
    for example, prediction in zip(dataset, predictions, strict=True):
        for number in range(len(example.words)):
            yield example, prediction, number


def _word_report(
    dataset: Dataset[TaggedExample], predictions: Sequence[Prediction], train: Dataset[TaggedExample] | None
) -> Report:
    gold = [tag for example in dataset for tag in example.tags or ()]
    predicted = [tag for prediction in predictions for tag in prediction["tags"]]
    labels = ordered([*gold, *predicted])
    rows = []
    for (example, prediction, i), right, tag in zip(_words(dataset, predictions), gold, predicted, strict=True):
        if right != tag:
            probabilities = _probabilities(prediction)
            score = probabilities[i] if probabilities else None
            rows.append((example.words[i], right, tag, score, _marked(example.words, i, i + 1), example.location))
    groups = None
    if train is not None:
        known = {word for example in train for word in example.words}
        seen = ["yes" if example.words[i] in known else "no" for example, _, i in _words(dataset, predictions)]
        support = Counter(seen)
        correct = Counter(value for value, x, y in zip(seen, gold, predicted, strict=True) if x == y)
        groups = Table(
            ("by", "value", "accuracy", "support"),
            [
                ("in training set", value, 100 * correct[value] / count, count)
                for value, count in sorted(support.items())
            ],
        )
    return Report(
        errors=Table(("word", "gold", "predicted", "score", "sentence", "location"), confident_first(rows, 3)),
        per_class=classes.per_class(gold, predicted, labels),
        confusion=classes.confusion(gold, predicted, labels, "tags"),
        groups=groups,
        warnings=classes.collapse(gold, predicted),
    )


def most_frequent_tags(train: Dataset[TaggedExample], dataset: Dataset[TaggedExample]) -> list[list[str]]:
    """Return the most frequent tag in `train` of each word of `dataset`; for other words O, or without O the most
    frequent tag of all."""
    counts: dict[str, Counter[str]] = {}
    for example in train:
        for word, tag in zip(example.words, example.tags or ()):
            counts.setdefault(word, Counter())[tag] += 1
    totals = Counter(tag for example in train for tag in example.tags or ())
    other = OUTSIDE if OUTSIDE in totals else totals.most_common(1)[0][0]
    best = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
    return [[best.get(word, other) for word in example.words] for example in dataset]
