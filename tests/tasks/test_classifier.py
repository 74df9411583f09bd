"""`fastbert.Classifier`: predictions and probabilities of every kind of task, columns, and what is refused."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_tasks import toy_folder

import fastbert
from fastbert.errors import UserError
from fastbert.tasks import classifier as module
from fastbert.tasks.finetuned_model import save_task
from fastbert.tasks.multilabel.task import MultiLabel, MultiLabelSettings
from fastbert.tasks.stored import FILE
from fastbert.tasks.tagging.task import Tagging
from fastbert.tasks.texts import Classification, ClassificationSettings, Regression, TextSettings

CPU: dict[str, Any] = {"device": "cpu", "dtype": "fp32"}
TEXTS = ["the house was bright", "", "a cruel day", "they found a road"]
PAIRS = [("the house", "was warm"), ("", "a day"), ("cold", ""), ("a", "b")]
Trained = Callable[..., Path]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A function that saves a model of a task with weights that matter, `plain` without the task's own file."""
    base = toy_folder(tmp_path_factory.mktemp("base"))
    tokenizer = fastbert.load_tokenizer(base)

    def save(task: Any, *, plain: bool = False) -> Path:
        folder = tmp_path_factory.mktemp(task.name)
        task.settings = replace(task.settings, max_length=48)
        config = task.head_config(task.base_config(base))
        model = task.head(config)(config)
        model.init_weights(seed=3)
        for parameter in model.classifier.parameters():
            parameter.data.normal_(0.0, 2.0)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if not plain:
            save_task(task, folder)
        return folder

    return save


def test_predictions_and_probabilities_are_those_of_predict(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trained(Classification(labels=["bad", "good", "so so"]))
    expected = fastbert.predict(folder, TEXTS, **CPU)
    classifier = fastbert.Classifier(folder, **CPU)
    assert classifier.classes_.tolist() == ["bad", "good", "so so"]
    predictions, probabilities = classifier.predict(TEXTS), classifier.predict_proba(TEXTS)
    assert predictions.tolist() == [item["label"] for item in expected]
    assert (probabilities.shape, probabilities.dtype) == ((4, 3), np.dtype("float64"))
    assert np.abs(probabilities - [list(item["probabilities"].values()) for item in expected]).max() < 1e-6
    assert np.allclose(probabilities.sum(axis=1), 1.0, atol=1e-12)
    for chunk, options in ((1, {}), (3, {"batch_tokens": 8}), (100, {"show_progress_bar": True})):
        monkeypatch.setattr(module, "CHUNK_TEXTS", chunk)
        assert np.abs(classifier.predict_proba(iter(TEXTS), **options) - probabilities).max() < 1e-6
    assert classifier.predict(TEXTS[0]) == predictions[0]
    assert type(classifier.predict(TEXTS[0])) is str
    assert classifier.predict_proba(TEXTS[0]).shape == (3,)
    assert (classifier.predict([]).shape, classifier.predict_proba(iter([])).shape) == ((0,), (0, 3))
    assert "Classifier(classification, 3 classes, 48 tokens per text" in repr(classifier)


def test_numbers_and_sets_of_classes(trained: Trained) -> None:
    folder = trained(Regression(TextSettings(paired=True)))
    expected = np.array([item["score"] for item in fastbert.predict(folder, PAIRS, **CPU)], dtype=np.float32)
    regressor = fastbert.Classifier(folder, **CPU)
    firsts, seconds = zip(*PAIRS)
    for predicted in (
        regressor.predict(PAIRS),
        regressor.predict(firsts, seconds),
        regressor.predict(map(list, PAIRS)),
    ):
        assert (predicted.dtype, predicted.tolist()) == (np.dtype("float32"), expected.tolist())
    assert regressor.predict(*PAIRS[0]) == pytest.approx(expected[0], abs=1e-5)
    assert regressor.classes_.tolist() == []
    with pytest.raises(UserError, match="this model predicts numbers, which have no probabilities: use predict"):
        regressor.predict_proba(PAIRS)
    folder = trained(MultiLabel(MultiLabelSettings(threshold=0.4), labels=["x", "y", "z"]))
    sets = fastbert.Classifier(folder, **CPU)
    assert list(sets.predict(TEXTS)) == [tuple(item["labels"]) for item in fastbert.predict(folder, TEXTS, **CPU)]
    assert sets.predict(TEXTS[1]) == sets.predict(TEXTS)[1]
    probabilities = sets.predict_proba(TEXTS)
    all_but_none = fastbert.Classifier(folder, threshold=1e-9, **CPU)
    assert list(all_but_none.predict(TEXTS)) == [("x", "y", "z")] * 4
    half = fastbert.Classifier(folder, threshold=0.5, **CPU).predict(TEXTS)
    assert [len(labels) for labels in half] == (probabilities >= 0.5).sum(axis=1).tolist()


def test_a_series_gives_a_series(trained: Trained) -> None:
    pandas, polars, pyarrow = map(pytest.importorskip, ("pandas", "polars", "pyarrow"))
    classifier = fastbert.Classifier(trained(Classification(labels=["bad", "good"])), **CPU)
    expected = classifier.predict(TEXTS).tolist()
    column = pandas.Series(TEXTS, index=[4, 3, 3, 1])
    answer = classifier.predict(column)
    assert isinstance(answer, pandas.Series)
    assert (answer.tolist(), answer.index.tolist(), answer.name) == (expected, [4, 3, 3, 1], "label")
    answer = classifier.predict(polars.Series("text", TEXTS))
    assert isinstance(answer, polars.Series)
    assert (answer.to_list(), answer.name) == (expected, "label")
    assert classifier.predict(pyarrow.array(TEXTS)).tolist() == classifier.predict(np.array(TEXTS)).tolist() == expected
    assert np.array_equal(classifier.predict_proba(column), classifier.predict_proba(TEXTS))
    regressor = fastbert.Classifier(trained(Regression(TextSettings(paired=True))), **CPU)
    frame = pandas.DataFrame(PAIRS, columns=["first", "second"], index=list("wxyz"))
    scores = regressor.predict(frame["first"], frame["second"])
    assert (scores.name, str(scores.dtype), scores.index.tolist()) == ("score", "float32", list("wxyz"))
    with pytest.raises(UserError, match=r"^pairs\[1\] \(index label 'x'\) is missing"):
        regressor.predict(frame["first"], frame["second"].where(frame["second"] != "a day"))
    sets = fastbert.Classifier(trained(MultiLabel(labels=["x", "y"])), **CPU)
    assert sets.predict(polars.Series("text", TEXTS)).to_list() == list(map(list, sets.predict(TEXTS)))


def test_models_of_other_libraries_have_the_task_of_their_config(trained: Trained, tmp_path: Path) -> None:
    for task, name in (
        (Classification(labels=["b", "a"]), "classification"),
        (MultiLabel(labels=["b", "a"]), "multilabel"),
        (Regression(), "regression"),
    ):
        classifier = fastbert.Classifier(trained(task, plain=True), **CPU)
        assert (classifier.task.name, classifier.classes_.tolist()) == (name, list(task.labels or ()))
        assert classifier.task.settings.max_length == 64, "as many as the model has positions for"


@pytest.mark.usefixtures("unchecked_folders")
def test_folders_of_other_models_are_refused(trained: Trained, tmp_path: Path) -> None:
    good = trained(Classification(labels=["bad", "good"]))
    plain = toy_folder(tmp_path / "plain")
    headless = trained(Classification(labels=["bad", "good"]), plain=True)
    config = json.loads((headless / "config.json").read_text())
    toy_folder(headless)
    (headless / "config.json").write_text(json.dumps(config))
    damaged = trained(Classification(labels=["bad", "good"]))
    (damaged / FILE).write_text('{"task": "classification"')
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (trained(Tagging(labels=["O"])), {}, "was trained for tagging: use fastbert.predict"),
        (plain, {}, "config.json names a BertModel, not a classifier; fine-tune it with `fastbert finetune`"),
        (headless, {}, "lacks the weights of its head (classifier"),
        (damaged, {}, "not a JSON file"),
        (tmp_path, {}, "config.json"),
        (tmp_path / "nothing", {}, "nothing"),
        ("", {}, "is empty; name the folder of a model"),
        (good, {"task": "tagging"}, "task='tagging' must be one of classification, multilabel, regression"),
        (good, {"task": "regression"}, f"task='regression': {good} was trained for classification; leave task out"),
        (good, {"threshold": 0.5}, "threshold=0.5: the model is for classification, which has no threshold"),
        (trained(MultiLabel(labels=["x"])), {"threshold": 1}, "threshold=1 must be above 0 and below 1"),
        (good, {"max_length": 3}, "max_length=3 must be a whole number, at least 4"),
        (good, {"max_length": 65}, "max_length=65 is more than the 64 positions of"),
        (good, {"device": "tpu"}, "device='tpu' must be 'auto', 'cpu' or 'cuda'"),
        (good, {"dtype": "fp8"}, "dtype='fp8' must be"),
    ]
    for folder, options, message in cases:
        with pytest.raises(UserError, match=re.escape(message)) as caught:
            fastbert.Classifier(folder, **{**CPU, **options})
        assert "\n" not in str(caught.value)


def test_hostile_texts_are_refused_before_anything_is_computed(trained: Trained) -> None:
    single = fastbert.Classifier(trained(Classification(ClassificationSettings(paired=False), ["bad", "good"])), **CPU)
    double = fastbert.Classifier(trained(Regression(TextSettings(paired=True))), **CPU)
    either = fastbert.Classifier(trained(Classification(labels=["bad", "good"])), **CPU)
    cases: list[tuple[Any, tuple[Any, ...], str]] = [
        (single, (["a", None],), "texts[1] is missing (None): drop such rows first"),
        (single, (["a", 3],), "texts[1] must be a string, or a tuple of two, not int (3)"),
        (single, ([("a", "b", "c")],), "texts[0] must be a string, or a tuple of two, not tuple"),
        (single, ([b"a"],), "texts[0] is bytes: decode it first"),
        (single, (["a", "b\ud800"],), "texts[1] holds a lone surrogate"),
        (single, ([("a", "b")],), "texts[0] is a pair, and the model was trained on single texts: give single texts"),
        (double, (["a"],), "texts[0] is a single text, and the model was trained on pairs: give tuples of two texts"),
        (double, (["a"], ["b\udfff"]), "pairs[0] holds a lone surrogate"),
        (double, (["a"], ["b", "c"]), "texts has 1 items and pairs 2: give as many"),
        (double, (iter(["a"]), iter(["b", "c"])), "texts and pairs have different numbers of items"),
        (double, (["a"], "b"), "pairs must be a list of strings or another iterable, not str"),
        (either, (["a", ("b", "c")],), "texts[1] is a pair, unlike texts[0]: give one kind in a call"),
        (either, (b"a",), "texts must be a list of strings or another iterable, not bytes"),
        (either, (None,), "texts must be a list of strings or another iterable, not NoneType"),
        (either, (np.array([["a", "b"]]),), "texts has the shape (1, 2)"),
    ]
    for classifier, arguments, message in cases:
        with pytest.raises(UserError, match=f"^{re.escape(message)}"):
            classifier.predict(*arguments)
    with pytest.raises(UserError, match="batch_tokens=0 must be"):
        either.predict(TEXTS, batch_tokens=0)
    assert len(either.predict(["word " * 200_000, "日本語 \0 🙂"])) == 2
