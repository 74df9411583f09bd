"""`fastbert.Classifier`: a fine-tuned model of a folder that gives texts a class, a set of classes, or a number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, overload

import numpy as np
from numpy.typing import NDArray

from fastbert.checkpoints.pipeline_files import CONFIG, MODULES
from fastbert.checkpoints.source import config_folder, find_source
from fastbert.errors import UserError, require_whole
from fastbert.io.columns import Series, SeriesT, is_series, items_of, refuse_surrogates, series_like
from fastbert.io.job_progress import job_progress
from fastbert.io.plain_numbers import plain_number
from fastbert.io.untrusted_input import read_json_object
from fastbert.models import registry
from fastbert.reranking.settings import OLD_KEY, SECTION
from fastbert.tasks.classifier_inputs import Pair, TextItem, texts_and_pairs
from fastbert.tasks.examples import Dataset, TextExample
from fastbert.tasks.finetuned_model import load_trained
from fastbert.tasks.inference import Device, Dtype, check_inference
from fastbert.tasks.multilabel.task import PROBLEM, MultiLabel
from fastbert.tasks.predicting import outputs_of
from fastbert.tasks.probabilities import class_probabilities, label_probabilities
from fastbert.tasks.stored import stored_task
from fastbert.tasks.texts import Regression, TextTask
from fastbert.tokenizers.tokenizer import Tokenizer

Items: TypeAlias = Iterable[TextItem] | NDArray[Any] | Series
"""Texts or pairs of texts: a list, a generator, a NumPy array, or a column of pandas, polars or Arrow."""
TaskKind = Literal["classification", "multilabel", "regression"]
CHUNK_TEXTS = 16_384  # which are tokenized, sorted and computed at a time
# For models of other tasks, what predicts with them.
_OTHERS = {
    "embedding": "fastbert.Embedder",
    "rerank": "fastbert.CrossEncoder",
    "splade": "fastbert.SparseEncoder",
    "colbert": "fastbert.TokenEncoder",
}


class Classifier:
    """A fine-tuned model that gives texts, or pairs of texts, a class, a set of classes, or a number.

    Attributes: `model`, in eval mode; `tokenizer`; `task`, with its settings; `classes_`, the names of the classes in
    the order of the model's outputs, an array of strings (classes,), empty for regression; `how`, device and dtype in
    words. Models of other tasks (tagging, question answering, multiple choice, text generation) are used by
    `fastbert.predict`.

    Raises UserError for wrong options, and for the folder of another model, with the name of what uses it; and
    CheckpointError for damaged files.

    Example:
        import fastbert

        classifier = fastbert.Classifier("runs/task/model")
        print(classifier.classes_, classifier.predict(["a short one.", "one"]))
    """

    def __init__(
        self,
        source: str | Path,
        *,
        task: TaskKind | None = None,
        device: Device | None = "auto",
        dtype: Dtype = "auto",
        max_length: int | None = None,
        threshold: float | None = None,
    ) -> None:
        """Load the folder of a fine-tuned model or of its run, or a model by its name in the Hub's local cache.

        Args:
            source: the folder or the name.
            task: the kind of task; None is the one that the folder or its config.json names.
            device: "auto" (a GPU if there is one), "cpu" or "cuda".
            dtype: "auto" is that in which the run scored its model, else the faster of fp32 and bf16 on the device;
                "int8", on CPUs, is faster still and less exact.
            max_length: tokens per text or pair, special ones included; None is that of training, else 128. Longer texts
                are truncated.
            threshold: the probability from which a class is in a text's set, of models for sets; None is that of
                training, else 0.5.

        Example:
            import fastbert

            classifier = fastbert.Classifier("runs/task/model", device="cpu", dtype="fp32", max_length=64)
        """
        place, kind = check_inference(device, dtype)
        max_length, threshold = plain_number(max_length), plain_number(threshold)
        require_whole("max_length", max_length, 4, optional=True)
        name = _task_of(find_source(source), task)
        settings: dict[str, Any] = {"max_length": max_length}
        if threshold is not None:
            settings["threshold"] = _threshold(threshold, name)
        trained = load_trained(str(source), task=name, device=place, dtype=kind, **settings)
        assert isinstance(trained.task, TextTask)  # as `_task_of` has checked
        if trained.model.new_weights:
            raise UserError(f"{source}: lacks the weights of its head ({trained.model.new_weights[0]}); fine-tune it")
        length, positions = trained.task.settings.max_length, trained.model.config.max_sequence_length
        if length > positions:
            raise UserError(f"max_length={length} is more than the {positions} positions of {source}; lower it")
        self.task: TextTask = trained.task
        self.model: Any = trained.model
        self.tokenizer: Tokenizer = trained.tokenizer
        self.how: str = trained.how
        self.classes_: NDArray[np.str_] = np.array(self.task.labels or (), dtype=np.str_)

    def __repr__(self) -> str:
        classes = f"{len(self.classes_)} classes, " if len(self.classes_) else ""
        return f"Classifier({self.task.name}, {classes}{self.task.settings.max_length} tokens per text, {self.how})"

    @overload
    def predict(
        self,
        texts: SeriesT,
        pairs: Items | None = None,
        *,
        batch_tokens: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> SeriesT: ...

    @overload
    def predict(
        self,
        texts: str,
        pairs: str | None = None,
        *,
        batch_tokens: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> Any: ...

    @overload
    def predict(
        self,
        texts: Iterable[TextItem] | NDArray[Any],
        pairs: Items | None = None,
        *,
        batch_tokens: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> NDArray[Any]: ...

    def predict(
        self,
        texts: str | Items,
        pairs: str | Items | None = None,
        *,
        batch_tokens: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> Any:
        """Return the prediction for each text: an array (texts,) of the names of classes, str; of sets of classes,
        tuples of str in the order of `classes_`; or of numbers, fp32.

        A Series of pandas or polars gives a Series, with the index of the texts, and a single text its prediction
        alone.

        Args:
            texts: texts, or pairs of texts as tuples: a list, a generator, a NumPy array, or a column of pandas, polars
                or Arrow; or a single text.
            pairs: the second texts of pairs, an array or column (texts,), instead of tuples.
            batch_tokens: tokens per batch; None is 4,096, on a GPU 65,536.
            show_progress_bar: True shows a bar, None one on a terminal if the texts take more than two seconds.

        Raises UserError for wrong options, for an item that is missing or not a text, by its index, and for single
        texts where the model was trained on pairs, or the reverse.

        Example:
            import fastbert

            classifier = fastbert.Classifier("runs/task/model")
            print(classifier.predict("a short one."), classifier.predict(["a short one.", "one"]))
        """
        logits = self._logits(texts, pairs, batch_tokens, show_progress_bar)
        predictions: NDArray[Any]
        if isinstance(self.task, Regression):
            predictions = logits[:, 0]
        elif isinstance(self.task, MultiLabel):
            predictions = np.empty(len(logits), dtype=object)
            for row, belongs in enumerate(label_probabilities(logits) >= self.task.settings.threshold):
                predictions[row] = tuple(self.classes_[belongs].tolist())
        else:
            predictions = self.classes_[logits.argmax(axis=1)]
        if isinstance(texts, str):
            return predictions.tolist()[0]
        if is_series(texts):
            values = predictions if isinstance(self.task, Regression) else predictions.tolist()
            return series_like(texts, values, self.task.prediction_format.key)
        return predictions

    def predict_proba(
        self,
        texts: str | Items,
        pairs: str | Items | None = None,
        *,
        batch_tokens: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> NDArray[np.float64]:
        """Return the probability of each class, float64 (texts, classes) in the order of `classes_`; of a single text
        (classes,). Those of a class per text sum to 1, those of sets of classes are independent.

        The arguments are those of `predict`: `texts` and `pairs`, arrays or columns (texts,), or lists. Raises
        UserError as `predict` does, and for a model that predicts numbers.

        Example:
            import fastbert

            classifier = fastbert.Classifier("runs/task/model")
            print(classifier.predict_proba(["a short one.", "one"]).round(3))
        """
        if isinstance(self.task, Regression):
            raise UserError("this model predicts numbers, which have no probabilities: use predict")
        logits = self._logits(texts, pairs, batch_tokens, show_progress_bar)
        of_logits = label_probabilities if isinstance(self.task, MultiLabel) else class_probabilities
        probabilities = of_logits(logits)
        return probabilities[0] if isinstance(texts, str) else probabilities

    def _logits(
        self, texts: str | Items, pairs: str | Items | None, batch_tokens: int | None, show: bool | None
    ) -> NDArray[np.float32]:
        """Return the logits of texts, fp32 (texts, outputs)."""
        if isinstance(texts, str):
            texts, pairs = [texts], None if pairs is None else [pairs] if isinstance(pairs, str) else pairs
        items = items_of(texts)
        total = len(items) if isinstance(items, list | tuple) else None
        both: Iterable[Pair] = texts_and_pairs(items, texts, pairs, paired=self.task.settings.paired)
        both = both if total is None else list(both)  # a wrong item is reported before anything is computed
        chunks: list[NDArray[np.float32]] = []
        with job_progress("predicting", total, show) as report:
            for first, chunk in _chunks(both):
                chunks.append(self._chunk_logits(chunk, first, batch_tokens, report))
                report(first + len(chunk))
        outputs = self.model.config.num_labels
        return np.concatenate(chunks) if chunks else np.empty((0, outputs), dtype=np.float32)

    def _chunk_logits(
        self, chunk: list[Pair], first: int, batch_tokens: int | None, report: Any
    ) -> NDArray[np.float32]:
        dataset = Dataset(
            "texts",
            tuple(
                TextExample(id=str(index), location=f"item {index}", text=text, pair=pair)
                for index, (text, pair) in enumerate(chunk, first)
            ),
        )
        try:
            rows = self.task.encode(dataset, self.tokenizer, labelled=False)
        except TypeError:  # the tokenizer counts texts from the chunk's beginning
            refuse_surrogates((text for text, _ in chunk), "texts", first)
            refuse_surrogates((pair or "" for _, pair in chunk), "pairs", first)
            raise
        outputs = outputs_of(
            self.task,
            self.model,
            rows,
            batch_tokens=batch_tokens,
            progress=lambda done, fraction: report(first + len(chunk) * fraction),
            source=lambda index: f"texts[{first + index}]",
        )
        # Pairs that are read in both orders have two rows, with the same logits.
        return np.stack(outputs)[np.searchsorted(rows.examples, np.arange(len(chunk)))]


def _chunks(items: Iterable[Pair]) -> Iterator[tuple[int, list[Pair]]]:
    """Yield items in chunks, with the number of those before."""
    iterator, first = iter(items), 0
    while chunk := list(islice(iterator, CHUNK_TEXTS)):
        yield first, chunk
        first += len(chunk)


def _threshold(threshold: object, task: str) -> float:
    """Return the threshold of a task's model. Raises UserError for one that is no probability, or for another task."""
    if task != MultiLabel.name:
        raise UserError(f"threshold={threshold!r}: the model is for {task}, which has no threshold; leave it out")
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 < threshold < 1:
        raise UserError(f"threshold={threshold!r} must be above 0 and below 1 (a probability)")
    return float(threshold)


def _task_of(source: Path, task: str | None) -> str:
    """Return the task of a model's folder, which a caller may have named. Raises UserError for a folder of another kind
    of model."""
    if task not in (None, *get_args(TaskKind)):
        raise UserError(
            f"task={task!r} must be one of {', '.join(get_args(TaskKind))}; fastbert.predict has the others"
        )
    folder = config_folder(source)
    stored = stored_task(folder)
    if stored is not None:
        if stored not in get_args(TaskKind):
            raise UserError(f"{source}: was trained for {stored}: use {_OTHERS.get(stored, 'fastbert.predict')}")
        if task not in (None, stored):
            raise UserError(f"task={task!r}: {source} was trained for {stored}; leave task out")
        return stored
    config = registry.read_config(folder)
    values = read_json_object(folder / CONFIG)
    classes = values.get("architectures") or []
    if not isinstance(classes, list) or not any("ForSequenceClassification" in str(name) for name in classes):
        what = f"a {classes[0]}" if isinstance(classes, list) and classes else "no class of a model (architectures)"
        raise UserError(
            f"{source}: config.json names {what}, not a classifier; fine-tune it with `fastbert finetune` or"
            " fastbert.TextClassifier, or use fastbert.Embedder for vectors"
        )
    if task is not None:
        return task
    if config.num_labels == 1 and (SECTION in values or OLD_KEY in values or (folder / MODULES).exists()):
        raise UserError(f"{source}: is a cross-encoder, whose scores are of pairs: use fastbert.CrossEncoder")
    if config.problem_type == PROBLEM:
        return "multilabel"
    numbers = config.problem_type == "regression" or (config.problem_type is None and config.num_labels == 1)
    return "regression" if numbers else "classification"
