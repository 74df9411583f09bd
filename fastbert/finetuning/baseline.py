"""Linear models on the frozen encoder's vectors: the score that fine-tuning should reach at least.

A text's vector is the mean of its last hidden states, of unit length, as `fastbert embed` gives it; a pair of texts
u, v is u, v, |u - v| and u * v; a word is the last hidden state of its first sub-token. Features are standardised, and
the strength of regularisation is chosen on a fifth of the training examples. A task has a baseline if `BASELINES` lists
it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastbert.embeddings.embed import Counts, embed, inferring
from fastbert.errors import UserError
from fastbert.finetuning import results
from fastbert.finetuning.order import permutation
from fastbert.models.encoder import EncoderModel
from fastbert.tasks.base import Task
from fastbert.tasks.examples import Dataset
from fastbert.tasks.metrics.library import library
from fastbert.tasks.rows import Rows, runs, tokens_per_batch
from fastbert.tasks.tagging.task import TagRows
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.training.reporter import Reporter

NAME = "linear"
"""The baseline's name in results.json."""
SHOWN_NAME = "linear on frozen vectors"
MOST_TEXTS, MOST_WORDS = 20_000, 100_000  # to train on
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)  # C of the logistic regressions; alpha of the ridge regression is 100 / C
CHOICE_ITEMS, CHOICE_PART = 5_000, 0.2  # items that the strength is chosen on, and the part that is held out
LEAST_ITEMS = 20  # below this the strength is not chosen
MAX_STEPS = 300
LEAST_LOG_PROBABILITY = -30.0  # of a class without training examples

Scorer = Callable[[np.ndarray], np.ndarray]
"""Features (items, width) -> outputs (items, classes), as a model's head gives them."""
Fit = Callable[[np.ndarray, np.ndarray, float], Scorer]
"""(features, targets, strength) -> the fitted model."""
OnFits = Callable[[int], None]
"""Called with the number of strengths that were tried."""


def _unreported(fits: int) -> None: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoder:
    """The frozen pre-trained model, with the settings that the task's rows are made with."""

    model: EncoderModel
    tokenizer: Tokenizer
    max_length: int
    on_texts: Callable[[int], None]
    """Called with the number of texts or rows that were encoded since the last call."""

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors of unit length, fp32 (texts, width)."""
        before = 0

        def progress(done: int) -> None:
            nonlocal before
            self.on_texts(done - before)
            before = done

        vectors = embed(
            self.model,
            texts,
            self.tokenizer,
            pooling="mean",
            normalize=True,
            max_length=self.max_length,
            counts=Counts(),
            progress=progress,
        )
        return vectors.numpy()

    def pairs(self, first: Sequence[str], second: Sequence[str]) -> np.ndarray:
        """Return u, v, |u - v|, u * v for each pair of texts, fp32 (pairs, 4 * width)."""
        u, v = self.texts(first), self.texts(second)
        return np.concatenate((u, v, np.abs(u - v), u * v), axis=1)

    def words(self, rows: TagRows) -> np.ndarray:
        """Return the last hidden states of the words' first sub-tokens, fp32 (words, width), in the order of the
        rows."""
        vectors = np.empty((len(rows.words), self.model.config.hidden_size), dtype=np.float32)
        counts = np.diff(rows.word_offsets)
        device = self.model.device
        with inferring(self.model):
            for indices in rows.by_length(tokens_per_batch(device.type)):
                batch = rows.packed(indices).to(device)
                states, _ = self.model.encode(batch, token_indices=batch.masked_positions)
                vectors[runs(rows.word_offsets[indices], counts[indices])] = states.float().cpu().numpy()
                self.on_texts(len(indices))
        return vectors


def _multinomial(x: np.ndarray, y: np.ndarray, classes: int, strength: float) -> Scorer:
    """Fit a logistic regression of classes, int64 (items,); its outputs are log-probabilities (items, classes)."""
    present = np.unique(y)
    model = None if len(present) == 1 else _logistic(x, y, strength)

    def score(x: np.ndarray) -> np.ndarray:
        outputs = np.full((len(x), classes), LEAST_LOG_PROBABILITY, dtype=np.float32)
        with np.errstate(divide="ignore"):  # of probabilities that are 0 in fp32
            outputs[:, present] = 0.0 if model is None else model.predict_log_proba(x)
        return np.maximum(outputs, LEAST_LOG_PROBABILITY)

    return score


def _binary(x: np.ndarray, y: np.ndarray, strength: float) -> Scorer:
    """Fit a logistic regression for each column of labels, 0 or 1 (items, labels); its outputs are logits."""
    models = [None if len(np.unique(column)) == 1 else _logistic(x, column, strength) for column in y.T]
    constant = np.where(y.mean(axis=0) > 0.5, 1.0, -1.0) * -LEAST_LOG_PROBABILITY

    def score(x: np.ndarray) -> np.ndarray:
        columns = [
            np.full(len(x), constant[index]) if model is None else model.decision_function(x)
            for index, model in enumerate(models)
        ]
        return np.stack(columns, axis=1).astype(np.float32)

    return score


def _ridge(x: np.ndarray, y: np.ndarray, strength: float) -> Scorer:
    """Fit a ridge regression of numbers (items, 1)."""
    model = library("sklearn.linear_model").Ridge(alpha=100 / strength).fit(x, y[:, 0])
    return lambda x: model.predict(x).astype(np.float32)[:, None]


def _logistic(x: np.ndarray, y: np.ndarray, strength: float) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of steps that were not enough: the fit is close enough
        return library("sklearn.linear_model").LogisticRegression(C=strength, max_iter=MAX_STEPS).fit(x, y)


def _class_loss(outputs: np.ndarray, y: np.ndarray) -> float:
    return float(-outputs[np.arange(len(y)), y].mean())


def _label_loss(outputs: np.ndarray, y: np.ndarray) -> float:
    return float((np.logaddexp(0, outputs) - y * outputs).mean())


def _squared_error(outputs: np.ndarray, y: np.ndarray) -> float:
    return float(((outputs - y) ** 2).mean())


def _best_strength(
    x: np.ndarray,
    y: np.ndarray,
    fit: Fit,
    loss: Callable[[np.ndarray, np.ndarray], float],
    on_fits: OnFits,
) -> float:
    """Return the strength with the lowest loss on held-out items."""
    order = permutation(len(x), 0, 1)[:CHOICE_ITEMS]
    if len(order) < LEAST_ITEMS:
        return STRENGTHS[1]
    held, rest = np.split(order, [round(CHOICE_PART * len(order))])
    losses = []
    for number, strength in enumerate(STRENGTHS, start=1):
        losses.append(loss(fit(x[rest], y[rest], strength)(x[held]), y[held]))
        on_fits(number)
    return STRENGTHS[int(np.argmin(losses))]


class Baseline:
    """The baseline of a kind of task: the features and targets of a dataset, and the linear model on them.

    This one is for a class per text or pair of texts.
    """

    title = "logistic regression on the frozen model's vectors"
    unit = "training examples"
    most = MOST_TEXTS

    def sizes(self, dataset: Dataset[Any]) -> np.ndarray:
        """Return the number of items of each example, int64."""
        return np.ones(len(dataset), dtype=np.int64)

    def texts(self, dataset: Dataset[Any], rows: Rows) -> int:
        """Return the number of texts that `features` encodes."""
        return len(dataset) * (1 if dataset[0].pair is None else 2)

    def features(self, encoder: Encoder, dataset: Dataset[Any], rows: Rows) -> np.ndarray:
        """Return the features of the items of a dataset, fp32 (items, width)."""
        texts = [example.text for example in dataset]
        if dataset[0].pair is None:
            return encoder.texts(texts)
        return encoder.pairs(texts, [example.pair for example in dataset])

    def targets(self, rows: Rows) -> np.ndarray:
        """Return the targets of the items of labelled rows."""
        return rows.unit_targets["labels"]

    def fit(self, task: Task[Any], x: np.ndarray, y: np.ndarray, on_fits: OnFits = _unreported) -> Scorer:
        """Return the linear model, with the best of `STRENGTHS`."""
        classes = len(task.known_labels)

        def fit(x: np.ndarray, y: np.ndarray, strength: float) -> Scorer:
            return _multinomial(x, y, classes, strength)

        return fit(x, y, _best_strength(x, y, fit, _class_loss, on_fits))

    def outputs(self, scores: np.ndarray, rows: Rows) -> list[np.ndarray]:
        """Return the outputs of each row, as `Task.decode` reads them."""
        return list(np.repeat(scores, len(rows) // len(scores), axis=0))


class _LabelSets(Baseline):
    """A logistic regression per label."""

    def fit(self, task: Task[Any], x: np.ndarray, y: np.ndarray, on_fits: OnFits = _unreported) -> Scorer:
        return _binary(x, y, _best_strength(x, y, _binary, _label_loss, on_fits))


class _Numbers(Baseline):
    """A ridge regression."""

    title = "ridge regression on the frozen model's vectors"

    def fit(self, task: Task[Any], x: np.ndarray, y: np.ndarray, on_fits: OnFits = _unreported) -> Scorer:
        return _ridge(x, y, _best_strength(x, y, _ridge, _squared_error, on_fits))


class _Tags(Baseline):
    """A class per word."""

    title = "linear tagger on the frozen model's vectors"
    unit = "words to train on"
    most = MOST_WORDS

    def sizes(self, dataset: Dataset[Any]) -> np.ndarray:
        return np.array([len(example.words) for example in dataset], dtype=np.int64)

    def texts(self, dataset: Dataset[Any], rows: Rows) -> int:
        return len(rows)

    def features(self, encoder: Encoder, dataset: Dataset[Any], rows: Rows) -> np.ndarray:
        assert isinstance(rows, TagRows)
        return encoder.words(rows)

    def targets(self, rows: Rows) -> np.ndarray:
        assert isinstance(rows, TagRows)
        return rows.labels

    def outputs(self, scores: np.ndarray, rows: Rows) -> list[np.ndarray]:
        assert isinstance(rows, TagRows)
        return np.split(scores, rows.word_offsets[1:-1])


class _Choices(_LabelSets):
    """Right or wrong for each pair of a prompt and an ending."""

    unit = "endings to train on"

    def sizes(self, dataset: Dataset[Any]) -> np.ndarray:
        return np.array([len(example.endings) for example in dataset], dtype=np.int64)

    def texts(self, dataset: Dataset[Any], rows: Rows) -> int:
        return 2 * int(self.sizes(dataset).sum())

    def features(self, encoder: Encoder, dataset: Dataset[Any], rows: Rows) -> np.ndarray:
        prompts = [example.prompt for example in dataset for _ in example.endings]
        endings = [f"{example.start} {ending}".strip() for example in dataset for ending in example.endings]
        return encoder.pairs(prompts, endings)

    def targets(self, rows: Rows) -> np.ndarray:
        right = rows.unit_targets["labels"]
        return (np.arange(rows.per_unit) == right[:, None]).reshape(-1, 1).astype(np.float32)


BASELINES: Mapping[str, Baseline] = {
    "classification": Baseline(),
    "multilabel": _LabelSets(),
    "regression": _Numbers(),
    "tagging": _Tags(),
    "choice": _Choices(),
}


def check(task: str) -> None:
    """Raise `UserError` for a task without a baseline, and for a missing scikit-learn."""
    if task not in BASELINES:
        raise UserError(f"--baseline: there is none for --task {task}, only for {', '.join(BASELINES)}; leave it out")
    library("sklearn.linear_model")


@dataclass(frozen=True, kw_only=True)
class LinearScores:
    """The scores of a linear baseline by file and metric, and what it is, in words."""

    scores: Mapping[str, Mapping[str, float]]
    description: str


def score_linear(
    task: Task[Any],
    model: EncoderModel,
    tokenizer: Tokenizer,
    train: Dataset[Any],
    evaluations: Sequence[tuple[str, Dataset[Any], Rows]],
    reporter: Reporter,
) -> LinearScores:
    """Fit the task's baseline on the training examples, on a sample of those beyond a bound, and score it on the files
    to evaluate on: name, examples and rows without labels. `model` is the pre-trained one.
    """
    baseline = BASELINES[task.name]
    sample, used, total = _sample(train, baseline.sizes(train), baseline.most)
    rows = task.encode(sample, tokenizer, labelled=True)
    texts = sum(baseline.texts(dataset, r) for dataset, r in [(sample, rows), *((d, r) for _, d, r in evaluations)])
    encoded, on_encoded = 0, reporter.on_stage("baseline, vectors", texts, "texts")

    def on_texts(count: int) -> None:
        nonlocal encoded
        encoded += count
        on_encoded(encoded)

    encoder = Encoder(model=model, tokenizer=tokenizer, max_length=task.settings.max_length, on_texts=on_texts)
    x = baseline.features(encoder, sample, rows)
    features = {name: baseline.features(encoder, dataset, unlabelled) for name, dataset, unlabelled in evaluations}
    scaler = library("sklearn.preprocessing").StandardScaler(copy=False)
    on_fits = reporter.on_stage("baseline, linear model", len(STRENGTHS) + 1, "fits")
    scorer = baseline.fit(task, scaler.fit_transform(x), baseline.targets(rows), on_fits)
    on_fits(len(STRENGTHS) + 1)
    scores: dict[str, dict[str, float]] = {}
    for name, dataset, unlabelled in evaluations:
        outputs = scorer(scaler.transform(features[name]))
        predictions = task.decode(dataset, unlabelled, baseline.outputs(outputs, unlabelled))
        scores[name] = {metric: round(value, 4) for metric, value in task.score(dataset, predictions).items()}
    counted = "" if used == total else f" ({used:,} of the {total:,} {baseline.unit})"
    return LinearScores(scores=scores, description=f"{baseline.title}{counted}")


def _sample(dataset: Dataset[Any], sizes: np.ndarray, most: int) -> tuple[Dataset[Any], int, int]:
    """Return a random part of the examples with at most `most` items, in their order; its items, and those of all."""
    total = int(sizes.sum())
    if total <= most:
        return dataset, total, total
    order = permutation(len(dataset), 0, 0)
    count = max(int(np.searchsorted(np.cumsum(sizes[order]), most, side="right")), 1)
    chosen = np.sort(order[:count])
    return Dataset(dataset.path, tuple(dataset[index] for index in chosen.tolist())), int(sizes[chosen].sum()), total


def read_results(folder: Path) -> LinearScores | None:
    """Return the scores that results.json holds; None if there are none."""
    stored = results.stored(folder)
    if "linear_baseline" not in stored:
        return None
    scores = {file: values[NAME] for file, values in stored["baselines"].items() if NAME in values}
    return LinearScores(scores=scores, description=stored["linear_baseline"])


def lines(linear: LinearScores, metric: str) -> list[str]:
    """Return a line for people per file: what the baseline is, and its score."""
    return [
        f"{file}: baseline: {linear.description}: {metric} {scores[metric]:.2f}"
        for file, scores in linear.scores.items()
        if metric in scores
    ]
