"""Files of predictions: what is written is read again, what others write is read, what is wrong is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from fastbert.errors import UserError
from fastbert.tasks.examples import (
    Answer,
    ChoiceExample,
    Dataset,
    QuestionExample,
    SequenceExample,
    TaggedExample,
    TextExample,
)
from fastbert.tasks.prediction_files import (
    read_no_answer_probabilities,
    read_predictions,
    write_predictions,
)

TEXTS = Dataset(
    "dev.tsv", tuple(TextExample(id=name, location=f"line {i + 2}", text=name) for i, name in enumerate("abc"))
)
TAGGED = Dataset(
    "dev.conll",
    (
        TaggedExample(id="0", location="line 1", words=("#", "x")),
        TaggedExample(id="1", location="line 4", words=("y",)),
    ),
)
QUESTIONS = Dataset(
    "dev.json",
    tuple(
        QuestionExample(id=name, location=f"question {name}", question="?", context="x", answers=(Answer("x", 0),))
        for name in ("q1", "q2")
    ),
)
CHOICES = Dataset(
    "dev.csv",
    tuple(ChoiceExample(id=str(i), location=f"line {i + 2}", prompt="p", endings=("a", "b", "c")) for i in range(2)),
)
SEQUENCES = Dataset("dev.en", tuple(SequenceExample(id=str(i), location=f"line {i + 1}", source="s") for i in range(2)))
EVERY: dict[str, tuple[Dataset[Any], str, list[Any], tuple[str, ...]]] = {
    "classification": (TEXTS, "label", ["1", "not so", "ü"], (".jsonl", ".tsv", ".txt")),
    "multilabel": (TEXTS, "labels", [["a", "b, c"], [], ["d"]], (".jsonl", ".tsv", ".txt")),
    "regression": (TEXTS, "score", [0.1, -3.0, 1e-7], (".jsonl", ".tsv", ".txt")),
    "tagging": (TAGGED, "tags", [["O", "B-X"], ["O"]], (".jsonl", ".conll", ".txt")),
    "span": (QUESTIONS, "text", ["x\ty\nz", ""], (".jsonl", ".json")),
    "choice": (CHOICES, "label", [2, 0], (".jsonl", ".tsv", ".txt")),
    "seq2seq": (SEQUENCES, "text", ["a b", ""], (".jsonl", ".txt")),
}


@pytest.mark.parametrize(("task", "kind"), [(task, kind) for task, (*_, kinds) in EVERY.items() for kind in kinds])
def test_what_is_written_is_read_again(tmp_path: Path, task: str, kind: str) -> None:
    dataset, key, values, _ = EVERY[task]
    predictions = [{"id": example.id, key: value} for example, value in zip(dataset, values)]
    path = tmp_path / f"predictions{kind}"
    write_predictions(path, task, dataset, predictions)
    assert read_predictions(path, task, dataset) == predictions


def test_all_that_predictions_say_is_in_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predictions = [{"id": name, "label": "x", "probabilities": {"x": 0.75}} for name in "abc"]
    write_predictions("-", "classification", TEXTS, predictions)
    assert list(map(json.loads, capsys.readouterr().out.splitlines())) == predictions


def test_squad_with_probabilities(tmp_path: Path) -> None:
    predictions = [{"id": name, "text": "x", "null_score_difference": p} for name, p in (("q1", 0.25), ("q2", 1.0))]
    write_predictions(tmp_path / "p.jsonl", "span", QUESTIONS, predictions)
    assert read_predictions(tmp_path / "p.jsonl", "span", QUESTIONS) == predictions
    (tmp_path / "n.json").write_text('{"q1": 0.25, "q2": 1.0}')
    assert read_no_answer_probabilities(tmp_path / "n.json", QUESTIONS) == {"q1": 0.25, "q2": 1.0}


def test_the_order_of_ids_is_free(tmp_path: Path) -> None:
    path = tmp_path / "p.tsv"
    path.write_text("index\tprediction\nc\tz\na\tx\nb\ty\n")
    expected = [{"id": name, "label": label} for name, label in zip("abc", "xyz")]
    assert read_predictions(path, "classification", TEXTS) == expected
    path.write_text("c\tz\na\tx\nb\ty\n")
    assert read_predictions(path, "classification", TEXTS) == expected
    path = tmp_path / "p.jsonl"
    path.write_text('{"prediction": "x"}\n{"prediction": "y"}\n\n{"prediction": "z"}')
    assert read_predictions(path, "classification", TEXTS) == expected


def test_the_last_column_of_conll_is_the_prediction(tmp_path: Path) -> None:
    path = tmp_path / "p.conll"
    path.write_text("#\tO\tB-X\nx\tB-X\tI-X\n\ny\tO\tO\n")
    assert [item["tags"] for item in read_predictions(path, "tagging", TAGGED)] == [["B-X", "I-X"], ["O"]]


@pytest.mark.parametrize(
    ("task", "name", "content", "words"),
    [
        pytest.param(
            "classification", "p.txt", "x\ny\n", r"p.txt, line 2: 2 predictions for the 3 examples of dev.tsv", id="few"
        ),
        pytest.param("classification", "p.txt", "x\ny\nz\nx\n", r"p.txt, line 4: 4 predictions for the 3", id="many"),
        pytest.param("classification", "p.txt", "x\n\nz\n", r"p.txt, line 2: the predicted label is empty", id="blank"),
        pytest.param(
            "classification",
            "p.tsv",
            "id\tprediction\na\tx\na\ty\n",
            r"p.tsv, line 3: the id 'a' is also that of "
            r".*p.tsv, line 2",
            id="twice",
        ),
        pytest.param(
            "classification",
            "p.tsv",
            "id\tprediction\na\tx\nd\ty\n",
            r"p.tsv, line 3: dev.tsv has no example 'd'",
            id="unknown",
        ),
        pytest.param(
            "classification",
            "p.tsv",
            "id\tprediction\na\tx\n",
            r"p.tsv: no prediction for 2 of 3 examples, the"
            r" first: 'b' \(dev.tsv, line 3\)",
            id="missing",
        ),
        pytest.param(
            "classification", "p.tsv", "a\tb\tc\n", r"p.tsv, line 1: must have the columns id and pred", id="wide"
        ),
        pytest.param(
            "classification", "p.jsonl", '{"id": "a", "x": 1}', r"p.jsonl, line 1: has no 'label' \(id, x\)", id="key"
        ),
        pytest.param(
            "classification",
            "p.jsonl",
            '{"id": "a", "label": "x"}\n{"label": "x"}',
            r"p.jsonl, line 2: has no id,"
            " unlike others",
            id="some-ids",
        ),
        pytest.param(
            "classification", "p.jsonl", '{"id": [1], "label": "x"}', r"line 1: 'id' must be a string", id="id"
        ),
        pytest.param(
            "classification",
            "p.json",
            "{}",
            r"p.json: predictions of classification are in .jsonl, .tsv, .txt",
            id="kind",
        ),
        pytest.param(
            "regression", "p.txt", "1\nx\n3\n", r"p.txt, line 2: the predicted score must be a finite", id="number"
        ),
        pytest.param(
            "regression",
            "p.jsonl",
            '{"id": "a", "score": NaN}\n{"id": "b", "score": 1}\n{"id": "c", "score": 1}',
            r"p.jsonl, line 1: the predicted score must be a finite number",
            id="nan",
        ),
        pytest.param(
            "choice", "p.txt", "1\n3\n", r"p.txt, line 2: the predicted choice must be .* from 0 to 2", id="choice"
        ),
        pytest.param(
            "tagging",
            "p.conll",
            "#\tO\ny\tO\n\ny\tO\n",
            r"p.conll, line 1: word 2 is not that of dev.conll, line 1",
            id="words",
        ),
        pytest.param(
            "tagging",
            "p.conll",
            "#\tO\nx\tO\n",
            r"p.conll, line 1: ends after 1 sentences, dev.conll has 2",
            id="sentences",
        ),
        pytest.param("tagging", "p.conll", "#\tO\nx\n", r"p.conll, line 2: has 1 columns", id="ragged"),
        pytest.param(
            "tagging",
            "p.jsonl",
            '{"id": 0, "tags": ["O"]}\n{"id": 1, "tags": ["O"]}',
            r"p.jsonl, line 1: has 1 tags"
            " for the 2 words of line 1",
            id="tags",
        ),
        pytest.param(
            "span", "p.json", '{"q1": "x"}', r"p.json: no prediction for 1 of 2 examples, the first: 'q2'", id="q"
        ),
        pytest.param("span", "p.json", '{"q1": "x",\n "q1": "y"}', r"p.json, key q1: is repeated", id="same-key"),
        pytest.param(
            "span", "p.json", '{"q1": "x", "q2": 3}', r"p.json, key q2: the predicted text must be a string", id="int"
        ),
        pytest.param("span", "p.json", '{"q1": "x",\n b}', r"p.json, line 2: not JSON", id="cut"),
        pytest.param("span", "p.json", "[]", r"p.json, line 1: must be a JSON object of predictions", id="list"),
        pytest.param(
            "seq2seq", "p.txt", "a\n", r"p.txt, line 1: 1 predictions for the 2 examples of dev.en", id="lines"
        ),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(
    tmp_path: Path, task: str, name: str, content: str, words: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError, match=words) as error:
        read_predictions(path, task, EVERY[task][0])
    assert "\n" not in str(error.value)


def test_predictions_of_another_dataset_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="in its order"):
        write_predictions(tmp_path / "p.tsv", "choice", CHOICES, [{"id": "1", "label": 0}, {"id": "0", "label": 0}])
    assert not list(tmp_path.iterdir())
