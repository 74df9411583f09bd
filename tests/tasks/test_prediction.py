"""`fastbert.predict`: the predictions of a model's folder for files and for examples in memory."""

import json
from pathlib import Path
from typing import Any

import pytest
from toy_tasks import sentiment, toy_folder

import fastbert
from fastbert.errors import UserError
from fastbert.tasks.finetuned_model import save_task
from fastbert.tasks.prediction import dataset_of
from fastbert.tasks.registry import task_class
from fastbert.tasks.texts import Classification

CPU = {"device": "cpu", "dtype": "fp32"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    toy_folder(folder / "model")
    task = Classification(labels=["bad", "good"])
    config = task.head_config(task.base_config(folder / "model"))
    tokenizer = fastbert.WordPieceTokenizer.from_pretrained(folder / "model")
    head = task.head(config)(config)
    head.init_weights(seed=0)
    head.save_pretrained(folder / "trained")
    tokenizer.save_pretrained(folder / "trained")
    save_task(task, folder / "trained")
    return folder / "trained"


def test_a_file_and_a_list_have_the_same_predictions(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "texts.tsv"
    sentiment(file, 12, seed=1)
    header, *rows = [line.split("\t") for line in file.read_text().splitlines()]
    texts = [row[1 - header.index("label")] for row in rows]
    by_file = fastbert.predict(model, file, **CPU)
    assert [prediction["id"] for prediction in by_file] == [str(index) for index in range(12)]
    assert {prediction["label"] for prediction in by_file} <= {"bad", "good"}
    assert fastbert.predict(str(model), str(file), batch_tokens=16, **CPU) == by_file
    assert fastbert.predict(model, texts, **CPU) == by_file
    assert json.loads(json.dumps(by_file)) == by_file
    assert fastbert.predict(model, [], **CPU) == []


@pytest.mark.parametrize(
    ("task", "items", "fields"),
    [
        ("classification", ["a text"], {"text": "a text", "pair": None}),
        ("regression", [("a", "b")], {"text": "a", "pair": "b"}),
        ("tagging", ["two words", ["of", "three", "words"]], {"words": ("two", "words")}),
        ("span", [("who?", "a context")], {"question": "who?", "context": "a context"}),
        ("choice", [("it is", ["hot", "cold"])], {"prompt": "it is", "endings": ("hot", "cold")}),
        ("seq2seq", ["a source"], {"source": "a source"}),
    ],
)
def test_items_become_the_examples_of_a_task(task: str, items: list[Any], fields: dict[str, Any]) -> None:
    dataset = dataset_of(task_class(task)(), items)
    assert len(dataset) == len(items)
    assert {name: getattr(dataset[0], name) for name in fields} == fields


@pytest.mark.parametrize(
    ("task", "items", "message"),
    [
        ("classification", ["a", 3], r"item 1 is 3; classification needs a text, or a tuple of two texts"),
        ("regression", [("a", "b", "c")], r"item 0 is \('a', 'b', 'c'\); regression needs a text"),
        ("tagging", [""], "item 0 is ''; tagging needs a sentence"),
        ("span", ["who?"], r"item 0 is 'who\?'; span needs a tuple of a question and its context"),
        ("choice", [("it is", "hot")], "item 0 is .*; choice needs a tuple of a prompt and the list of its endings"),
        ("choice", [("a", ["b", "c"]), ("a", ["b"])], "item 1 has 1 endings, and item 0 has 2"),
        ("seq2seq", [("a", "b")], "seq2seq needs a text"),
    ],
)
def test_items_of_another_form_are_refused(task: str, items: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataset_of(task_class(task)(), items)


def test_a_text_that_is_no_path_is_refused(model: Path) -> None:
    with pytest.raises(UserError, match=r"good\.txt"):
        fastbert.predict(model, "this film is good.txt", **CPU)
