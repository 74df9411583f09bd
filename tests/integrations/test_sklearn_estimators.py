"""`fastbert.TextClassifier` and `fastbert.TextEmbedder` as users of scikit-learn meet them."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import re
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from toy_tasks import sentence, toy_folder

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

import fastbert
from fastbert.errors import UserError
from fastbert.integrations.sklearn import bases, training
from fastbert.integrations.sklearn.trained_model import TrainedModel
from fastbert.training.stopping import Stopped

RANDOM = Random(0)
Y = [RANDOM.randrange(2) for _ in range(120)]
X = [sentence(RANDOM, bool(good)) for good in Y]
LABELS = np.array(["no", "yes"])[Y]
CPU: dict[str, Any] = {"device": "cpu", "dtype": "fp32"}


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for the disk, on which nothing is kept."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_folder(tmp_path_factory.mktemp("base") / "model", num_hidden_layers=1)


@pytest.fixture(scope="module")
def make(folder: Path) -> Callable[..., fastbert.TextClassifier]:
    def made(**options: Any) -> fastbert.TextClassifier:
        fast = {"steps": 30, "lr": 1e-2, "batch_size": 16, "random_state": 0, **CPU}
        return fastbert.TextClassifier(folder, **{**fast, **options})

    return made


@pytest.fixture(scope="module")
def fitted(make: Callable[..., fastbert.TextClassifier]) -> fastbert.TextClassifier:
    return make().fit(X[:80], LABELS[:80])


def test_it_learns_and_keeps_the_labels_it_was_given(fitted: fastbert.TextClassifier, make: Any) -> None:
    assert fitted.classes_.tolist() == ["no", "yes"]
    probabilities = fitted.predict_proba(X[80:])
    assert (probabilities.shape, probabilities.dtype) == ((40, 2), np.dtype("float64"))
    predictions = fitted.predict(X[80:])
    assert predictions.dtype == LABELS.dtype
    assert predictions.tolist() == fitted.classes_[probabilities.argmax(axis=1)].tolist()
    assert fitted.score(X[:80], LABELS[:80]) > 0.8
    same = [make(steps=2).fit(X[:40], labels[:40]).predict_proba(X) for labels in (Y, LABELS)]
    assert np.array_equal(*same), "the same seed and texts"
    for labels in ([7, -1], [True, False], [2.0, 1.0], ["b", "a\n"], ["", " "]):
        mapped = np.array(labels)[Y[:20]]
        short = make(steps=1).fit(X[:20], mapped)
        assert short.classes_.tolist() == sorted(labels)
        assert short.predict(X[:3]).dtype == mapped.dtype
    state = np.random.RandomState(0)
    assert make(steps=1, random_state=state).fit(X[:8], Y[:8]).classes_.tolist() == [0, 1]


def test_options_reach_the_training(make: Any) -> None:
    plain = make(steps=2).fit(X[:40], Y[:40]).predict_proba(X)
    for options in (
        {"class_weight": {1: 9.0}},
        {"class_weight": "balanced", "epochs": 1},
        {"frozen": True},
        {"validation_fraction": 0.25, "early_stopping": 1, "epochs": 2},
        {"max_length": 5},
        {"batch_size": None, "lr": None},
    ):
        changed = make(steps=2).set_params(**options).fit(X[:40], Y[:40])
        assert not np.array_equal(changed.predict_proba(X), plain), options


def test_pairs_and_columns(make: Any) -> None:
    pandas, polars = map(pytest.importorskip, ("pandas", "polars"))
    pairs = [(text, "a house") for text in X[:20]]
    assert make(steps=1).fit(pairs, Y[:20]).predict(pairs).shape == (20,)
    expected = make(steps=1).fit(X[:20], Y[:20]).predict_proba(X[:20])
    for texts, labels in (
        (pandas.Series(X[:20], index=range(20, 0, -1)), pandas.Series(Y[:20])),
        (polars.Series("text", X[:20]), polars.Series("label", Y[:20])),
        (np.array(X[:20]), np.array(Y[:20])),
    ):
        classifier = make(steps=1).fit(texts, labels)
        assert np.array_equal(classifier.predict_proba(texts), expected)
        assert isinstance(classifier.predict(texts), np.ndarray)
    frame = pandas.DataFrame({"text": X[:20], "number": range(20)})
    columns = ColumnTransformer([("text", fastbert.TextEmbedder(make().model, **CPU), "text")], remainder="passthrough")
    assert columns.fit_transform(frame).shape == (20, 33)
    assert columns.get_feature_names_out()[[0, -1]].tolist() == ["text__textembedder0", "remainder__number"]
    columns.set_output(transform="pandas")
    assert columns.fit_transform(frame.set_index("number", drop=False)).index.tolist() == list(range(20))
    embedder = fastbert.TextEmbedder(make().model, **CPU).set_output(transform="polars")
    assert embedder.fit_transform(X[:2]).columns[:2] == ["textembedder0", "textembedder1"]


def test_pipelines_searches_and_clones(make: Any, folder: Path) -> None:
    search = GridSearchCV(make(), {"steps": [1, 2]}, cv=2).fit(X[:40], Y[:40])
    assert search.best_params_["steps"] in (1, 2)
    assert search.predict(X[:5]).shape == (5,)
    assert cross_val_score(make(steps=1), X[:30], Y[:30], cv=2).shape == (2,)
    copied = clone(search.best_estimator_)
    assert copied.get_params() == search.best_estimator_.get_params()
    with pytest.raises(NotFittedError):
        copied.predict(X)
    pipeline = make_pipeline(fastbert.TextEmbedder(folder, normalize_embeddings=True, **CPU), LogisticRegression())
    pipeline.set_params(textembedder__truncate_dim=4).fit(X, Y)
    assert pipeline[-1].n_features_in_ == 4
    again = pickle.loads(pickle.dumps(pipeline))
    assert np.array_equal(again.predict_proba(X), pipeline.predict_proba(X))


def test_searches_over_arrays_give_scalars_of_numpy(make: Any, folder: Path) -> None:
    grids: list[dict[str, Any]] = [
        {"batch_size": np.array([8, 16]), "frozen": np.array([True, False])},
        {"epochs": np.arange(1, 3), "steps": [None]},
        {"max_length": np.array([9], dtype=np.int32), "steps": np.arange(1, 3), "lr": np.array([1e-3], np.float32)},
    ]
    options = {"class_weight": {0: np.float32(2), 1: np.int64(1)}}
    GridSearchCV(make(steps=1, **options), grids, cv=2, error_score="raise").fit(X[:32], Y[:32])
    for name, value in (("truncate_dim", 4), ("max_length", 9), ("batch_tokens", 16)):
        plain, scalar = (
            fastbert.TextEmbedder(folder, **{**CPU, name: each}).transform(X[:3]) for each in (value, np.int64(value))
        )
        assert np.array_equal(plain, scalar)


def test_vectors_are_those_of_the_embedder(folder: Path) -> None:
    transformer = fastbert.TextEmbedder(folder, max_length=8, **CPU)
    expected = fastbert.Embedder(folder, max_length=8, **CPU).encode(X)
    assert np.array_equal(transformer.transform(text for text in X), expected), "without fit"
    assert np.array_equal(transformer.fit_transform(X), expected)
    assert transformer.transform([]).shape == (0, 32)


def test_fitted_estimators_travel_without_their_folder(
    fitted: fastbert.TextClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fitted.predict_proba(X)
    state = pickle.dumps(fitted)
    for travel in (
        lambda: pickle.loads(state),
        lambda: copy.deepcopy(fitted),
        lambda: pickle.loads(pickle.dumps(pickle.loads(state))),
    ):
        other = travel()
        assert np.array_equal(other.predict_proba(X), expected)
        home = other._trained.home
        assert home.is_dir()
        assert home != fitted._trained.home
        del other
        assert not home.exists(), "removed with the estimator"
    fitted.save_pretrained(tmp_path / "saved")
    saved = fastbert.Classifier(tmp_path / "saved", **CPU)
    assert saved.classes_.tolist() == ["no", "yes"]
    assert np.array_equal(saved.predict_proba(X), expected)
    with pytest.raises(UserError, match="exists and is not an empty folder; name a new one"):
        fitted.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "README.md").read_text()


def _used(model: TrainedModel, state: Any) -> None:
    model.__setstate__(state)
    model.classifier("cpu", "fp32")


def test_damaged_states_are_refused(fitted: fastbert.TextClassifier) -> None:
    state = fitted._trained.__getstate__()
    weights = {**state["files"], "model.safetensors": state["files"]["model.safetensors"][:-8] + b"\0" * 8}
    for damaged, message in (
        ({}, "unknown format"),
        ({"format": 2, "files": {}}, "unknown format"),
        ({"format": 1, "files": None}, "it holds no files"),
        ({"format": 1, "files": {"../x": b""}}, r"'\.\./x' is not a file of it"),
        ({"format": 1, "files": {"config.json": "text"}}, "'config.json' is not a file of it"),
        ({"format": 1, "files": weights}, "model.safetensors has different content"),
        ({"format": 1, "files": {}}, "config.json"),
    ):
        model = TrainedModel.__new__(TrainedModel)
        with pytest.raises(UserError, match=message):
            _used(model, damaged)


def test_an_embedder_refuses_a_folder_that_changed_after_it_was_pickled(tmp_path: Path) -> None:
    folder = toy_folder(tmp_path / "model")
    transformer = fastbert.TextEmbedder(folder, **CPU).fit(X)
    state = pickle.dumps(transformer)
    assert len(state) < 10_000
    assert np.array_equal(pickle.loads(state).transform(X), transformer.transform(X))
    toy_folder(folder, seed=1)
    other = pickle.loads(state)
    with pytest.raises(UserError, match=f"{folder}: holds a different model than when this TextEmbedder was pickled"):
        other.transform(X)
    assert not np.array_equal(other.fit(X).transform(X), transformer.transform(X))


def test_mistakes_are_named_in_one_line(make: Any, fitted: Any, folder: Path, tmp_path: Path) -> None:
    cases: list[tuple[Any, Any, dict[str, Any], str]] = [
        (X, Y[:3], {}, "X has 120 texts and y 3 labels: give as many"),
        (X, [1] * 120, {}, "y has one class, 1: a classifier needs two classes or more"),
        (X, None, {}, "TextClassifier requires y to be passed, but the target y is None"),
        ([], [], {}, "X has no texts (0 samples)"),
        (["a", None], Y[:2], {}, "X[1] is missing (None): drop such rows first"),
        (["a", b"b"], Y[:2], {}, "X[1] is bytes: decode it first"),
        (["a", 3], Y[:2], {}, "X[1] must be a string, or a tuple of two, not int (3)"),
        (["a", ("b", "c")], Y[:2], {}, "X[1] is a pair, unlike X[0]"),
        ("ab", Y[:2], {}, "X is a single text: give a list of texts"),
        (X[:2], ["a", None], {}, "y[1] is missing (None)"),
        (X[:2], [1.0, float("nan")], {}, "y[1] is missing (nan)"),
        (X[:2], ["a", float("nan")], {}, "y[1] is missing (nan)"),
        (X[:3], np.array(["a", np.nan, "b"], dtype=object), {}, "y[1] is missing (nan)"),
        (X[:2], np.array([1, "a"], dtype=object), {}, "y holds labels of different types"),
        (X[:2], [1, "a"], {}, "y holds labels of different types"),
        (X[:2], [["a"], ["a", "b"]], {}, "y holds lists of labels: give one label per text"),
        (["a", "b\ud800"], Y[:2], {}, "X[1] holds a lone surrogate"),
        ([("a", "b"), ("a", "b\ud800")], Y[:2], {}, "X[1] holds a lone surrogate"),
        (X, Y, {"model": None}, "model=None must be the folder of a model"),
        (X, Y, {"model": tmp_path / "nothing"}, f"{tmp_path / 'nothing'}: no such folder"),
        (X, Y, {"lr": 0}, "lr=0 must be a number above 0"),
        (X, Y, {"epochs": "3"}, "epochs='3' must be a number above 0"),
        (X, Y, {"steps": 1.5}, "steps=1.5 must be a whole number, at least 1"),
        (X, Y, {"max_length": 65}, "max_length 65 is more than the 64 positions"),
        (X, Y, {"validation_fraction": 1}, "validation_fraction=1 must be a number above 0 and below 1"),
        (X, Y, {"validation_fraction": 0.001}, "validation_fraction 0.001: of 120 examples"),
        (X, Y, {"early_stopping": 1}, "early_stopping needs validation_fraction"),
        (X, Y, {"class_weight": {3: 1.0}}, "class_weight: 3 is not one of the classes 0, 1"),
        (X, Y, {"class_weight": {1: 0}}, "class_weight: the weight of 1 is 0; it must be above 0"),
        (X, Y, {"class_weight": "rare"}, "class_weight='rare' must be 'balanced', a dictionary"),
        (X, Y, {"frozen": 1}, "frozen=1 must be True or False"),
        (X, Y, {"device": "tpu"}, "device='tpu' must be 'auto', 'cpu' or 'cuda'"),
        (X, Y, {"dtype": "int8"}, "dtype='int8' is for prediction"),
        (X, Y, {"show_progress_bar": 3}, "show_progress_bar=3 must be True, False or None"),
    ]
    for texts, labels, options, message in cases:
        with pytest.raises(UserError, match=f"^{re.escape(message)}") as caught:
            make(steps=1).set_params(**options).fit(texts, labels)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        make().fit(X[:3], [0.1, 0.2, 0.35])
    for texts in ("ab", ["a", None], [b"a"]):
        for call in (fitted.predict, fastbert.TextEmbedder(folder, **CPU).transform):
            with pytest.raises(UserError, match=r"^X is a single text|^(X|texts)\[\d\] is"):
                call(texts)
    with pytest.raises(UserError, match=r"not an embedder: use fastbert\.Classifier"):
        fastbert.TextEmbedder(fitted._trained.folder, **CPU).fit(X)


def test_missing_labels_of_columns_are_no_classes(make: Any) -> None:
    pandas = pytest.importorskip("pandas")
    for labels in (["a", pandas.NA, "b"], pandas.Series(["a", None, "b"], dtype="string")):
        with pytest.raises(UserError, match=r"^y\[1\] is missing \((<NA>|nan|None)\): drop such rows first"):
            make(steps=1).fit(X[:3], labels)


def test_an_interrupted_fit_leaves_nothing(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals = iter((signal.SIGINT, signal.SIGTERM))

    def interrupted(config: Any, *others: Any) -> None:
        raise Stopped(next(signals), config.out)

    monkeypatch.setattr(training, "finetune", interrupted)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for error in (KeyboardInterrupt, SystemExit):
        classifier = make()
        with pytest.raises(error):
            classifier.fit(X, Y)
        with pytest.raises(NotFittedError):
            classifier.predict(X)
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_one_of_several_processes_is_refused(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError, match=r"^TextClassifier trains in one process: with torchrun use"):
        make().fit(X, Y)


def test_without_scikit_learn_an_estimator_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name in sys.modules if name.partition(".")[0] == "sklearn" or ".integrations.sklearn" in name]
    for name in names:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    for name in ("TextClassifier", "TextEmbedder"):
        monkeypatch.delitem(vars(fastbert), name, raising=False)
        kind = getattr(fastbert, name)
        with pytest.raises(UserError, match=f"^{re.escape(bases.MISSING)}$"):
            kind("runs/mine/model")
        monkeypatch.delitem(vars(fastbert), name)
    assert bases.MISSING.endswith("`pip install scikit-learn`")
