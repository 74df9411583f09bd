"""scikit-learn's own checks of estimators, on texts.

The checks that scikit-learn yields make numbers, and it yields none for estimators of texts. Here each number becomes
a word, so that every check runs on texts; those in `EXPECTED` do not apply to them.
"""

from __future__ import annotations

import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from toy_tasks import BAD, GOOD, PLAIN, toy_folder

pytest.importorskip("sklearn", minversion="1.6", reason="the checks of older releases differ")

from sklearn.utils import check_array
from sklearn.utils.estimator_checks import estimator_checks_generator

import fastbert

WORDS = [*PLAIN, *GOOD, *BAD]
EXPECTED = {
    "check_n_features_in": "texts have no number of features",
    "check_n_features_in_after_fitting": "texts have no number of features",
    "check_classifiers_train": "asks for an accuracy that takes more than the two steps of this test",
}
FAST: dict[str, Any] = {"device": "cpu", "dtype": "fp32", "max_length": 16}


def words(X: Any) -> list[str]:
    """Rows of numbers as texts: the word of a number's half unit."""
    numbers = np.floor(2 * check_array(X, dtype="numeric").astype(float)) + len(WORDS) // 2
    return [" ".join(WORDS[int(number)] for number in row) for row in np.clip(numbers, 0, len(WORDS) - 1)[:, :8]]


def takes_numbers(tags: Any) -> Any:
    tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, False, True
    return tags


class EmbedderOfNumbers(fastbert.TextEmbedder):
    def fit(self, X: Any, y: Any = None) -> EmbedderOfNumbers:
        return super().fit(words(X), y)

    def transform(self, X: Any) -> Any:
        return super().transform(words(X))

    def __sklearn_tags__(self) -> Any:
        return takes_numbers(super().__sklearn_tags__())


class ClassifierOfNumbers(fastbert.TextClassifier):
    def fit(self, X: Any, y: Any) -> ClassifierOfNumbers:
        return super().fit(words(X), y)

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(words(X))

    def __sklearn_tags__(self) -> Any:
        return takes_numbers(super().__sklearn_tags__())


def name_of(check: Any) -> str:
    return str(check.func.__name__)


def run(estimator: Any, least: int) -> None:
    """Run the checks, each once: others of a name differ in the memory that numbers are in."""
    done: set[str] = set()
    wrong: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for instance, check in estimator_checks_generator(estimator):
            name = name_of(check)
            if name in done or name in EXPECTED:
                continue
            done.add(name)
            try:
                cast(partial[None], check)(instance)
            except pytest.skip.Exception:
                pass
            except Exception as error:  # noqa: BLE001 - of any check; all of them are shown
                if type(error).__name__ != "SkipTest":
                    wrong.append(f"{name}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)
    assert len(done) >= least


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "fsync", lambda file: None)  # nothing is kept
    return toy_folder(tmp_path / "model", hidden_size=16, num_hidden_layers=1, intermediate_size=16)


def test_the_embedder_passes(folder: Path) -> None:
    run(EmbedderOfNumbers(folder, **FAST), least=38)


def test_the_classifier_passes(folder: Path) -> None:
    run(ClassifierOfNumbers(folder, steps=2, lr=1e-2, batch_size=16, **FAST), least=45)
