"""Metrics of classes, numbers, tags and written text, against values worked out by hand."""

import math
import sys
from collections import Counter
from statistics import fmean

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="metrics need scikit-learn")
pytest.importorskip("seqeval", reason="metrics need seqeval")

from fastbert.errors import UserError
from fastbert.tasks.metrics.classification import (
    choice_scores,
    classification_scores,
    positive_class,
    regression_scores,
)
from fastbert.tasks.metrics.generation import generation_scores
from fastbert.tasks.metrics.tagging import tagging_scores


def test_two_classes() -> None:
    # Of the positive class: 2 found of 3, 2 right of 3 said; of the other 4 of 5.
    gold, predicted = list("11100000"), list("11010000")
    scores = classification_scores(gold, predicted, ["0", "1"])
    f1, other = 2 / 3, 4 / 5
    matthews = (2 * 4 - 1 * 1) / math.sqrt(3 * 3 * 5 * 5)
    expected = {"accuracy": 75, "f1": 100 * f1, "macro_f1": 50 * (f1 + other), "matthews": 100 * matthews}
    assert scores == pytest.approx(expected)


@pytest.mark.parametrize(
    ("labels", "positive"),
    [
        (("0", "1"), "1"), (("1", "0"), "1"), (("entailment", "not_entailment"), "entailment"), (("No", "Yes"), "Yes"),
        (("negative", "positive"), "positive"), (("false", "true"), "true"), (("ham", "spam"), "spam"),
        (("1", "yes"), "yes"),
    ],
)  # fmt: skip
def test_the_class_that_f1_is_about(labels: tuple[str, str], positive: str) -> None:
    assert positive_class(labels) == positive
    first, second = labels
    gold, predicted = [positive, positive, first, second], [positive, positive, first, second]
    predicted[0] = second if positive == first else first
    right = gold[1:].count(positive)
    precision, recall = 1.0, right / gold.count(positive)
    assert classification_scores(gold, predicted, labels)["f1"] == pytest.approx(
        200 * precision * recall / (precision + recall)
    )


def test_more_classes_and_one_without_example(caplog: pytest.LogCaptureFixture) -> None:
    scores = classification_scores(list("aabb"), list("abbb"), list("abc"), where="dev.tsv")
    assert scores["f1"] == scores["macro_f1"] == pytest.approx(50 * (2 / 3 + 4 / 5))
    assert caplog.messages == ["dev.tsv: 1 class has no example: c"]


def test_one_class_has_no_matthews_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    scores = classification_scores(list("aaa"), list("aab"), list("ab"), where="dev.tsv")
    assert scores["accuracy"] == pytest.approx(200 / 3)
    assert "matthews" not in scores
    assert all(map(math.isfinite, scores.values()))
    message = "dev.tsv: all 3 examples are of the class 'a': Matthews' correlation is not defined and left out"
    assert caplog.messages == ["dev.tsv: 1 class has no example: b", message]


def test_a_model_that_says_one_class_has_matthews_0() -> None:
    assert classification_scores(list("aabb"), list("aaaa"), list("ab"))["matthews"] == 0


def test_numbers(seed: int) -> None:
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=50), draw.normal(size=50)
    scores = regression_scores(list(x), list(y))
    pearson, ranks = np.corrcoef(x, y)[0, 1], [values.argsort().argsort() for values in (x, y)]
    assert scores["pearson"] == pytest.approx(100 * pearson)
    assert scores["spearman"] == pytest.approx(100 * np.corrcoef(*ranks)[0, 1])
    assert scores["pearson_spearman"] == pytest.approx((scores["pearson"] + scores["spearman"]) / 2)
    assert scores["mse"] == pytest.approx(((x - y) ** 2).mean())


@pytest.mark.parametrize(
    ("gold", "predicted", "words"),
    [
        ([2.0, 2.0], [1.0, 2.0], "all 2 gold numbers are 2"),
        ([1.0, 2.0], [3.0, 3.0], "all 2 predicted numbers are 3"),
        ([1.0], [1.5], "there is one example"),
    ],
)
def test_constants_have_no_correlation_and_the_log_says_so(
    gold: list[float], predicted: list[float], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    scores = regression_scores(gold, predicted, where="dev.tsv")
    assert list(scores) == ["mse"]
    assert caplog.messages == [f"dev.tsv: {words}: correlations are not defined and left out"]


def test_entities() -> None:
    gold = [("B-X", "I-X", "O", "B-Y"), ("O", "B-X")]
    predicted = [("B-X", "I-X", "O", "B-X"), ("B-Y", "B-X")]
    # Two of the four that were said are two of the three that there are.
    scores = tagging_scores(gold, predicted)
    expected = {"f1": 400 / 7, "precision": 50, "recall": 200 / 3, "f1_X": 80, "f1_Y": 0, "accuracy": 400 / 6}
    assert scores == pytest.approx(expected)


@pytest.mark.parametrize(
    ("gold", "predicted"),
    [
        ([("B-X", "I-X", "B-X")], [("I-X", "I-X", "B-X")]),
        ([("I-X", "I-X", "B-X", "O", "I-X")], [("I-X", "I-X", "B-X", "O", "B-X")]),
        ([("B-X", "E-X", "S-X")], [("B-X", "L-X", "U-X")]),
    ],
    ids=["bio-lenient", "iob1", "bioes"],
)
def test_entities_count_whole_however_they_are_spelled(
    gold: list[tuple[str, ...]], predicted: list[tuple[str, ...]]
) -> None:
    scores = tagging_scores(gold, predicted)
    assert scores["f1"] == scores["precision"] == scores["recall"] == 100
    assert scores["accuracy"] < 100


def test_tags_that_are_no_entities_and_none_at_all(caplog: pytest.LogCaptureFixture) -> None:
    assert tagging_scores([("NN", "DT"), ("NN",)], [("NN", "NN"), ("NN",)]) == pytest.approx({"accuracy": 200 / 3})
    expected = {"f1": 0, "precision": 0, "recall": 0, "accuracy": 100}
    assert tagging_scores([("O", "O")], [("O", "O")], where="dev.conll") == expected
    assert caplog.messages == ["dev.conll: has no entity: recall and F1 are 0 by convention"]


def character_f(reference: str, text: str) -> float:
    """chrF (Popovic 2015) of one text, in percent: of its 1- to 6-grams, mean recall weighs twice mean precision."""
    recalls, precisions = [], []
    for n in range(1, 7):
        gold, found = (Counter(each[i : i + n] for i in range(len(each) - n + 1)) for each in (reference, text))
        common = (gold & found).total()
        recalls.append(common / gold.total())
        precisions.append(common / found.total())
    recall, precision = fmean(recalls), fmean(precisions)
    return 100 * 5 * precision * recall / (4 * precision + recall)


def test_written_text() -> None:
    pytest.importorskip("sacrebleu")
    pytest.importorskip("rouge_score")
    # Six of seven words, four of six pairs, in order.
    scores = generation_scores(["the cat sat on the mat today"], ["the cat sat on a mat today"])
    bleu = 100 * (6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25
    rouges = {"rougeL": 600 / 7, "rouge1": 600 / 7, "rouge2": 400 / 6}
    chrf = character_f("thecatsatonthemattoday", "thecatsatonamattoday")
    assert scores == pytest.approx({**rouges, "bleu": bleu, "chrf": chrf, "exact_match": 0})
    assert generation_scores(["a b c d e"] * 2, ["a b c  d e"] * 2) == pytest.approx(dict.fromkeys(scores, 100))
    assert generation_scores(["a b", "c"], ["a b", "d"])["exact_match"] == 50
    assert generation_scores(["a b"], [""]) == pytest.approx(dict.fromkeys(scores, 0))


def test_predictions_must_be_as_many() -> None:
    for wrong in (
        lambda: classification_scores(["a"], [], ["a"]),
        lambda: regression_scores([], []),
        lambda: tagging_scores([("O",)], [("O", "O")]),
        lambda: generation_scores(["a"], []),
    ):
        with pytest.raises(ValueError, match=r"there must be one for each|each as many tags"):
            wrong()


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(UserError, match="needs the package scikit-learn: `pip install scikit-learn`"):
        classification_scores(["a"], ["a"], ["a"])


def test_endings_are_right_or_wrong() -> None:
    assert choice_scores([0, 3, 1, 1], [0, 2, 1, 0]) == {"accuracy": 50.0}
    with pytest.raises(ValueError, match="2 predictions for 1 examples"):
        choice_scores([0], [0, 1])
