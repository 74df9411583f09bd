"""Reports of errors, on predictions small enough to count by hand."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from report_data import labelled, tagged, texts

pytest.importorskip("sklearn", reason="metrics need scikit-learn")
pytest.importorskip("seqeval", reason="metrics need seqeval")

from fastbert.tasks.examples import (
    Answer,
    ChoiceExample,
    Dataset,
    QuestionExample,
    SequenceExample,
)
from fastbert.tasks.registry import make_task
from fastbert.tasks.reports import classes
from fastbert.tasks.reports.files import contents
from fastbert.tasks.reports.report import Baseline, by_key
from fastbert.tasks.reports.summary import class_lines
from fastbert.tasks.reports.tags import align, kind_of


def test_classes_are_counted_one_by_one() -> None:
    task = make_task("classification", labels=("a", "b", "c"))
    dataset = texts(["a", "a", "b", "b", "b", "c"])
    report = task.report(dataset, labelled(["a", "b", "b", "a", "b", "b"], [0.9, 0.6, 0.8, 0.95, 0.7, 0.5]))
    assert report.per_class is not None
    assert report.per_class.columns == ("class", "precision", "recall", "f1", "support", "predicted")
    assert [tuple(row) for row in report.per_class.rows] == [
        ("a", pytest.approx(50), pytest.approx(50), pytest.approx(50), 2, 2),
        ("b", pytest.approx(50), pytest.approx(200 / 3), pytest.approx(400 / 7), 3, 4),
        ("c", 0, 0, 0, 1, 0),
    ]
    assert report.confusion is not None
    assert report.confusion.to_table().to_tsv() == "gold / predicted\ta\tb\tc\na\t1\t1\t0\nb\t1\t2\t0\nc\t0\t1\t0\n"
    assert [row[:4] for row in report.confusion.pairs().rows] == [("a", "b", 1, 2), ("b", "a", 1, 3), ("c", "b", 1, 1)]
    # The most confident error comes first.
    assert report.errors.columns == ("text", "gold", "predicted", "score", "location")
    assert [row[1:] for row in report.errors.rows] == [
        ("b", "a", 0.95, "line 4"),
        ("a", "b", 0.6, "line 2"),
        ("c", "b", 0.5, "line 6"),
    ]
    assert report.warnings == ()
    pairs = task.report(texts(["a", "b"], "other"), labelled(["b", "b"]))
    assert pairs.errors.rows == [("text 0", "other", "a", "b", None, "line 1")]


def test_label_sets_have_the_same_table() -> None:
    gold, predicted = [{"x", "y"}, {"y"}, set(), {"x"}], [{"x"}, {"y"}, {"y"}, {"z"}]
    rows = classes.per_label(gold, predicted, ("x", "y", "z")).rows
    assert rows == [("x", 100, 50, pytest.approx(200 / 3), 2, 1), ("y", 50, 50, 50, 2, 2), ("z", 0, 0, 0, 0, 1)]


def test_wrong_sets_of_labels_come_with_what_is_missed_and_spurious() -> None:
    dataset = texts([("a", "b"), ("a",), ()])
    task = make_task("multilabel", None, ("a", "b"))
    predictions = [
        {"id": "0", "labels": ["a"], "probabilities": {"a": 0.9, "b": 0.3}},
        {"id": "1", "labels": ["a"], "probabilities": {"a": 0.8, "b": 0.1}},
        {"id": "2", "labels": ["a", "b"], "probabilities": {"a": 0.6, "b": 0.95}},
    ]
    report = task.report(dataset, predictions)
    assert report.errors.columns == ("text", "gold", "predicted", "missed", "spurious", "score", "location")
    assert report.errors.rows == [
        ("text 2", "", "a | b", "", "a | b", 0.95, "line 3"),
        ("text 0", "a | b", "a", "b", "", 0.7, "line 1"),
    ]
    assert report.per_class is not None
    assert [(row[0], row[4]) for row in report.per_class.rows] == [("a", 2), ("b", 1)]
    assert report.per_class.columns[-4:] == ("true_positive", "false_positive", "false_negative", "true_negative")
    assert [row[-4:] for row in report.per_class.rows] == [(2, 1, 0, 0), (0, 1, 1, 1)]
    assert report.warnings == ()
    nothing = task.report(dataset, [{**prediction, "labels": ["a"]} for prediction in predictions])
    assert "1 of 2 labels in the file is never predicted: 'b'" in nothing.warnings[-1]
    # One of three labels right in three sets; every label: three of six right, none missed.
    majority, every = task.baselines(dataset)
    # The same set in any order.
    reordered = task.baselines(texts([("a", "b"), ("a",), ("b", "a")]))[0]
    assert reordered.scores["subset_accuracy"] == pytest.approx(200 / 3)
    assert majority.scores["micro_recall"] == pytest.approx(100)
    assert every.scores["micro_f1"] == pytest.approx(100 * 2 * 0.5 / 1.5)


def test_a_score_below_a_baseline_is_a_warning() -> None:
    dataset, task = texts(["a", "a", "a", "b"]), make_task("classification", None, ("a", "b"))
    for names, warned in ((["b", "a", "b", "b"], True), (["a", "a", "a", "b"], False), (["a", "a", "a", "a"], False)):
        predictions = labelled(names)
        report, scores = task.report(dataset, predictions), task.score(dataset, predictions)
        values = contents(task, report, len(dataset), scores, task.baselines(dataset))
        said = [line for line in values["warnings"] if "below" in line]
        assert said == (["accuracy 50.00 is below that of a baseline, majority class (75.00); train for more --epochs,"
                         " or with a different --lr"] if warned else [])  # fmt: skip
    # A linear baseline's scores are stored with four digits.
    thirds = [Baseline("linear", "linear", {"accuracy": 66.6667})]
    assert contents(task, report, 3, {"accuracy": 200 / 3}, thirds)["warnings"] == list(report.warnings)


@pytest.mark.parametrize(
    ("gold", "predicted", "warned"),
    [
        (["a"] * 10 + ["b"] * 10, ["a"] * 20, True),
        (["a"] * 10 + ["b"] * 10, ["a"] * 19 + ["b"], True),
        (["a"] * 10 + ["b"] * 10, ["a"] * 18 + ["b"] * 2, False),
        (["a"] * 190 + ["b"] * 10, ["a"] * 200, True),
        (["a"] * 190 + ["b"] * 10, ["a"] * 199 + ["b"], False),
        (["a"] * 20, ["a"] * 20, False),
        (["a"] * 20, ["b"] * 20, True),
        (["a"], ["b"], False),
    ],
    ids=[
        "all",
        "95-percent",
        "90-percent",
        "all-of-a-common-class",
        "nearly-all-of-a-common-class",
        "one-class",
        "a-different-class",
        "one-example",
    ],
)
def test_collapse_to_a_class_is_a_warning(gold: list[str], predicted: list[str], warned: bool) -> None:
    assert bool(classes.collapse(gold, predicted)) == warned


def test_collapses_are_described() -> None:
    (line,) = classes.collapse(["a"] * 190 + ["b"] * 10, ["a"] * 200)
    assert line.startswith("all predictions are 'a', the class of 95.0 % of the examples; train ")
    (line,) = classes.collapse(["a\x1b" * 20, "b", "c"], ["a\x1b" * 20] * 3)
    assert line.startswith(r"all predictions are 'a\x1ba\x1ba\x1ba\x1ba…', the class of 33.3 %")
    (line,) = classes.never_predicted([{"a", "b"}, {"c", "d"}, {"d", "e", "f"}], [{"a"}, set(), {"a"}])
    assert line.startswith("5 of 6 labels in the file are never predicted: 'd', 'b', 'c', ...; ")
    assert classes.never_predicted([{"a"}], [{"a", "b"}]) == ()


def test_numbers_are_sorted_by_their_error() -> None:
    task = make_task("regression")
    dataset = texts([0.0, 1.0, 2.0, 5.0])
    report = task.report(dataset, [{"id": str(i), "score": score} for i, score in enumerate((0.5, 1.0, 4.0, 4.0))])
    assert [row[1:4] for row in report.errors.rows] == [(2.0, 4.0, 2.0), (5.0, 4.0, -1.0), (0.0, 0.5, 0.5)]
    assert report.groups is not None
    assert [row[1:3] for row in report.groups.rows] == [("0 to 1", 1), ("1 to 2", 1), ("2 to 3", 1), ("4 to 5", 1)]
    assert report.groups.rows[2][-1] == pytest.approx(4)
    same = task.report(dataset, [{"id": str(i), "score": 1.0} for i in range(4)])
    assert "all predictions are between 1 and 1" in same.warnings[0]


@pytest.mark.parametrize(
    ("gold", "predicted", "kinds"),
    [
        ([(0, 2, "P")], [(0, 2, "P")], [None]),
        ([(0, 2, "P")], [], ["missed"]),
        ([], [(0, 2, "P")], ["spurious"]),
        ([(0, 2, "P")], [(0, 2, "L")], ["wrong type"]),
        ([(0, 2, "P")], [(1, 2, "P")], ["wrong boundary"]),
        ([(0, 2, "P")], [(1, 3, "L")], ["wrong type and boundary"]),
        ([(0, 2, "P")], [(2, 3, "P")], ["missed", "spurious"]),
        # One long prediction over two entities: the larger overlap is paired, the other is missed.
        ([(0, 1, "P"), (1, 3, "L")], [(0, 3, "P")], ["wrong type and boundary", "missed"]),
        ([(0, 1, "P"), (2, 3, "P")], [(2, 3, "P"), (0, 1, "L")], [None, "wrong type"]),
    ],
    ids=["equal", "missed", "spurious", "type", "boundary", "both", "neighbours", "merged", "two"],
)
def test_kinds_of_entity_errors(gold: list[Any], predicted: list[Any], kinds: list[str | None]) -> None:
    assert [kind_of(pair) for pair in align(gold, predicted)] == kinds


def test_entities_by_type_length_and_training_set() -> None:
    gold = tagged("Ann/B-P met/O Bo/B-P Li/I-P", "in/O Rome/B-L and/O Oslo/B-L")
    train = tagged("Ann/B-P saw/O Rome/B-L")
    tags = [["B-P", "O", "B-P", "O"], ["O", "B-P", "B-L", "B-L"]]
    probability = [[0.9, 0.9, 0.8, 0.7], [0.9, 0.6, 0.5, 0.9]]
    predictions = [{"id": str(i), "tags": tags[i], "probability": probability[i]} for i in range(2)]
    report = make_task("tagging").report(gold, predictions, train)
    assert report.errors.rows == [
        ("wrong boundary", "P", "Bo Li", "P", "Bo", 0.8, "Ann met [Bo Li]", "line 0"),
        ("wrong type", "L", "Rome", "P", "Rome", 0.6, "in [Rome] and Oslo", "line 1"),
        ("spurious", None, None, "L", "and", 0.5, "in Rome [and] Oslo", "line 1"),
    ]
    assert report.per_class is not None
    assert [row[0] for row in report.per_class.rows] == ["L", "P"]
    assert report.per_class.rows[0][1:] == (pytest.approx(50), pytest.approx(50), pytest.approx(50), 2, 2)
    assert report.per_class.rows[1][1:] == (pytest.approx(100 / 3), pytest.approx(50), pytest.approx(40), 2, 3)
    assert report.confusion is not None
    matrix = ["gold / predicted\tL\tP\tO", "L\t1\t1\t0", "P\t0\t2\t0", "O\t1\t0\t0"]
    assert report.confusion.to_table().to_tsv().splitlines() == matrix
    assert report.groups is not None
    rows = {row[:2]: row[2:] for row in report.groups.rows}
    assert rows["words", "1"] == (pytest.approx(40), pytest.approx(200 / 3), pytest.approx(50), 3, 5)
    assert rows["words", "2"] == (0, 0, 0, 1, 0)
    assert rows["in training set", "yes"] == (pytest.approx(50), pytest.approx(50), pytest.approx(50), 2, 2)
    task = make_task("tagging")
    assert class_lines(contents(task, report, 2, {}, ()))[-1].endswith("1 of 2 'L' predicted as 'P'")
    spurious = [{"id": "0", "tags": ["B-P", "B-L", "B-P", "I-P"]}, {"id": "1", "tags": ["B-L", "B-L", "O", "B-L"]}]
    lines = class_lines(contents(task, task.report(gold, spurious), 2, {}, ()))
    assert lines[-1] == "  most frequent error: 2 of 2 spurious entities are 'L'"
    missed = [{"id": "0", "tags": ["O"] * 4}, {"id": "1", "tags": ["O", "B-L", "O", "B-L"]}]
    lines = class_lines(contents(task, task.report(gold, missed), 2, {}, ()))
    assert lines[-1] == "  most frequent error: 2 of 2 'P' are missed"
    nothing = [{"id": str(i), "tags": ["O"] * 4} for i in range(2)]
    assert "no entity is predicted, and there are 4" in make_task("tagging").report(gold, nothing).warnings[0]


def test_words_in_their_sentence() -> None:
    gold = tagged("a/DET cat/NOUN runs/VERB", "a/DET run/NOUN")
    predictions = [{"id": "0", "tags": ["DET", "NOUN", "NOUN"]}, {"id": "1", "tags": ["DET", "VERB"]}]
    report = make_task("tagging").report(gold, predictions, tagged("a/DET cat/NOUN"))
    assert [row[:5] for row in report.errors.rows] == [
        ("runs", "VERB", "NOUN", None, "a cat [runs]"),
        ("run", "NOUN", "VERB", None, "a [run]"),
    ]
    assert report.groups is not None
    assert list(report.groups.rows) == [("in training set", "no", 0, 2), ("in training set", "yes", 100, 3)]


def question(number: int, text: str, answers: tuple[str, ...], context: str = "the red house by the sea") -> Any:
    spans = tuple(Answer(answer, context.index(answer)) for answer in answers)
    return QuestionExample(
        id=f"q{number}", location=f"question q{number}", question=text, context=context, answers=spans
    )


def test_answers_by_question_word_and_length() -> None:
    dataset = Dataset(
        "dev.json", (question(0, "What is it?", ("red house", "house")), question(1, "Where ?", ("by the sea",)))
    )
    task = make_task("span")
    report = task.report(dataset, [{"id": "q0", "text": "house"}, {"id": "q1", "text": "sea", "probability": 0.5}])
    assert report.errors.rows == [("Where ?", "by the sea", "sea", pytest.approx(200 / 3), 0.5, "question q1")]
    assert report.groups is not None
    rows = {row[:2]: row[2:] for row in report.groups.rows}
    assert rows["first word of the question", "what"] == (100, 100, 1)
    assert rows["words of the answer", "3 to 5"] == (pytest.approx(200 / 3), 0, 1)
    assert rows["words of the context", "0 to 50"][2] == 2
    assert report.per_class is None
    assert class_lines(contents(task, report, 2, {}, ())) == [
        "  questions  exact_match      f1  support",
        "  where             0.00   66.67        1",
        "  what            100.00  100.00        1",
    ]
    (baseline,) = task.baselines(dataset)
    assert (baseline.name, baseline.scores["exact_match"]) == ("first words", 0)
    none = Dataset("dev.json", (*dataset, question(2, "Who?", ())))
    report = task.report(none, [{"id": f"q{i}", "text": text} for i, text in enumerate(("house", "", "sea"))])
    assert report.confusion is not None
    assert report.confusion.counts.tolist() == [[1, 1], [1, 0]]
    assert task.baselines(none)[0].scores["exact_match"] == pytest.approx(100 / 3)
    # A file's confidence may be any numbers.
    several = [{"id": f"q{i}", "text": "sea", "probability": [0.5] if i else 0.5} for i in range(3)]
    assert [row[4] for row in task.report(none, several).errors.rows] == [0.5, None, None]


def test_reports_on_answers_need_no_packages_of_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose metrics need none must not fail at its end."""
    for name in ("sklearn", "sklearn.metrics", "scipy", "seqeval"):
        monkeypatch.setitem(sys.modules, name, None)
    dataset = Dataset("dev.json", (question(0, "What?", ("house",)), question(1, "Who?", ())))
    report = make_task("span").report(dataset, [{"id": "q0", "text": "house"}, {"id": "q1", "text": "sea"}])
    assert report.per_class is not None
    assert [row[0] for row in report.per_class.rows] == ["answer", "no answer"]


def test_choices_and_written_texts() -> None:
    endings = ("one", "two", "three")
    choices = Dataset(
        "dev.jsonl",
        tuple(ChoiceExample(id=str(i), location="", prompt="p", endings=endings, label=i) for i in range(3)),
    )
    task = make_task("choice")
    predictions = [{"id": str(i), "label": 1, "probabilities": [0.1, 0.5 + i / 10, 0.2]} for i in range(3)]
    report = task.report(choices, predictions)
    assert report.errors.rows == [("p", "three", "two", 0.7, ""), ("p", "one", "two", 0.5, "")]
    assert "all predictions are '1'" in report.warnings[0]
    assert report.groups is not None
    assert [row[1:] for row in report.groups.rows] == [("0", 0, 1, 0), ("1", 100, 1, 3), ("2", 0, 1, 0)]
    assert by_key(task.baselines(choices)) == {"majority": {"accuracy": 33.3333}, "chance": {"accuracy": 33.3333}}
    pytest.importorskip("rouge_score")
    source = tuple(SequenceExample(id=str(i), location="", source="s", target=f"a b {i}") for i in range(3))
    written = [{"id": str(i), "text": text} for i, text in enumerate(("a b 0", "a", "x"))]
    report = make_task("seq2seq").report(Dataset("dev.tsv", source), written)
    assert [row[1:4] for row in report.errors.rows] == [("a b 2", "x", 0), ("a b 1", "a", pytest.approx(50))]
    copied = Dataset("dev.tsv", (SequenceExample(id="0", location="", source="a b c d", target="a b"),))
    stored = by_key(make_task("seq2seq").baselines(copied))
    assert stored["copy"]["rouge1"] == pytest.approx(200 / 3, abs=1e-4)
    assert stored["lead"]["rouge1"] == 100
    longer = Dataset("train.tsv", tuple(replace(example, target="a b c") for example in copied))
    assert by_key(make_task("seq2seq").baselines(copied, longer))["lead"]["rouge1"] == pytest.approx(80)
