"""Exact match and F1 of answers by the rules of SQuAD 1.1 and 2.0."""

import json
import random
from pathlib import Path

import pytest
from task_data import task_file

from fastbert.tasks.examples import Answer, Dataset, QuestionExample
from fastbert.tasks.metrics.questions import exact_match, normalized, squad_scores, word_f1
from fastbert.tasks.readers.squad import read_squad


def questions(**answers: tuple[str, ...]) -> Dataset[QuestionExample]:
    return Dataset(
        "dev.json",
        tuple(
            QuestionExample(
                id=name,
                location=f"question {name}",
                question="?",
                context="c",
                answers=tuple(Answer(text, 0) for text in texts),
            )
            for name, texts in answers.items()
        ),
    )


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The  Rhine!", "rhine"), ("an A-team the", "ateam"), ("\tU.S.A.\n", "usa"), ("theory of a", "theory of"),
        ("50 %", "50"), ("«a»", "« »"), ("“the” end", "“ ” end"), ("", ""), ("THE", ""),
    ],
)  # fmt: skip
def test_what_is_compared(answer: str, expected: str) -> None:
    assert normalized(answer) == expected


def test_one_answer_with_another() -> None:
    assert exact_match("The Rhine.", "rhine") == 1
    assert exact_match("Rhine river", "rhine") == 0
    assert word_f1("the Rhine river", "a rhine") == pytest.approx(2 / 3)
    assert word_f1("x x y", "x x x") == pytest.approx(2 / 3), "words count as often as they stand"
    assert word_f1("x", "y") == 0
    assert (word_f1("the", "a"), word_f1("the", "a", empty_equals_empty=True)) == (0, 1)
    assert (word_f1("x", ""), word_f1("x", "", empty_equals_empty=True)) == (0, 0)


def test_the_best_of_several_answers(caplog: pytest.LogCaptureFixture) -> None:
    dataset = questions(a=("the Rhine", "Rhine river"), b=("x y",), c=("z",))
    scores = squad_scores(dataset, {"a": "Rhine", "b": "x"})
    assert scores == pytest.approx({"exact_match": 100 / 3, "f1": 100 * (1 + 2 / 3) / 3})
    assert caplog.messages == ["dev.json: 1 of 3 questions have no prediction and count as wrong, the first c"]


def test_questions_without_answer() -> None:
    dataset = questions(a=("x y",), b=(), c=(), d=("the",))
    scores = squad_scores(dataset, {"a": "x", "b": "", "c": "z", "d": ""})
    assert scores == pytest.approx({
        "f1": 100 * (2 / 3 + 1 + 0 + 1) / 4, "exact_match": 50,
        "HasAns_f1": 100 * (2 / 3 + 1) / 2, "HasAns_exact": 50, "NoAns_f1": 50, "NoAns_exact": 50,
    })  # fmt: skip


def test_thresholds_of_having_no_answer() -> None:
    dataset = questions(a=("x",), b=(), c=(), d=("y",))
    predictions = {"a": "x", "b": "z", "c": "z", "d": "y"}
    scores = squad_scores(dataset, predictions, {"a": 0.1, "b": 0.9, "c": 0.3, "d": 0.5}, threshold=0.8)
    assert scores["exact_match"] == 75
    # From two right by silence: a gains, c loses, d gains again, b loses. The best is at a, the first of equals.
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (75, 0.1)
    silent = squad_scores(dataset, dict.fromkeys("abcd", "wrong"), dict.fromkeys("abcd", 0.5))
    assert (silent["best_f1"], silent["best_f1_thresh"]) == (50, 0)


def test_random_thresholds_against_trying_each(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(50):
        names = [str(i) for i in range(draw.randrange(1, 12))]
        dataset = questions(**{name: draw.choice([(), ("x",), ("x y",)]) for name in names}, z=())
        predictions = {example.id: draw.choice(["", "x", "y"]) for example in dataset}
        # All different, so that every threshold lets one more answer through.
        values = draw.sample(range(100), len(dataset))
        probabilities = {example.id: value / 100 for example, value in zip(dataset, values)}
        tried = [
            squad_scores(dataset, predictions, probabilities, threshold=t)["f1"] for t in [-1, *probabilities.values()]
        ]
        best = squad_scores(dataset, predictions, probabilities)
        assert best["best_f1"] == pytest.approx(max(tried))
        if best["best_f1_thresh"]:
            at = squad_scores(dataset, predictions, probabilities, threshold=best["best_f1_thresh"])
            assert at["f1"] == pytest.approx(best["best_f1"])


def test_published_predictions_have_their_published_scores(tmp_path: Path, data_dir: Path) -> None:
    gold = task_file(data_dir, "squad", "dev-v1.1.rebuilt.json", tmp_path)
    predictions = json.loads(Path(task_file(data_dir, "squad", "bert_ensemble_predictions.json", tmp_path)).read_text())
    dataset = read_squad(gold, labelled=True, report=lambda message: None, spans=False)
    scores = squad_scores(dataset, predictions)
    assert {name: round(value, 2) for name, value in scores.items()} == {"exact_match": 86.21, "f1": 92.20}
