"""SQuAD's files: both versions, answers that are not where they should be, and what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from task_data import task_file

from fastbert.errors import UserError
from fastbert.tasks.examples import Answer, Dataset, QuestionExample
from fastbert.tasks.readers.squad import read_squad

CONTEXT = "The  Rhine (1998)\nis a long\u00a0river."


def question(name: object, *answers: tuple[str, object], **more: Any) -> dict[str, Any]:
    records = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": f"What is {name}?", "answers": records, **more}


def written(folder: Path, *questions: dict[str, Any], context: object = CONTEXT) -> str:
    path = folder / "squad.json"
    path.write_text(json.dumps({"version": "x", "data": [{"paragraphs": [{"context": context, "qas": questions}]}]}))
    return str(path)


def read(path: str, *, labelled: bool = True, spans: bool = True) -> tuple[Dataset[QuestionExample], list[str]]:
    messages: list[str] = []
    return read_squad(path, labelled=labelled, report=messages.append, spans=spans), messages


def test_both_versions(tmp_path: Path) -> None:
    path = written(
        tmp_path, question("a", ("Rhine", 5)), question("b", ("x", 0), is_impossible=True), question(3, ("1998", 12))
    )
    dataset, messages = read(path)
    assert [(e.id, e.location, e.answers) for e in dataset] == [
        ("a", "question a", (Answer("Rhine", 5),)), ("b", "question b", ()), ("3", "question 3", (Answer("1998", 12),)),
    ]  # fmt: skip
    assert not messages
    assert [example.answers for example in read(path, labelled=False)[0]] == [None] * 3


@pytest.mark.parametrize(
    ("text", "start", "result"),
    [
        ("The Rhine", 0, Answer("The  Rhine", 0)),
        (" Rhine ", 4, Answer("Rhine", 5)),
        ("(1998) is", 11, Answer("(1998)\nis", 11)),
        ("long river", 23, Answer("long\u00a0river", 23)),
        ("1998", 11, Answer("1998", 12)),
        ("river", 26, Answer("river", 28)),
    ],
)
def test_answers_are_the_text_of_the_context(tmp_path: Path, text: str, start: int, result: Answer) -> None:
    dataset, messages = read(written(tmp_path, question("a", (text, start))))
    assert dataset[0].answers == (result,)
    assert dataset[0].context[result.start : result.start + len(result.text)] == result.text
    assert not messages


def test_answers_that_are_nowhere_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    questions = (
        question("a", ("Rhine", 5)),
        question("b", ("Rhine", 20), ("Rhine", 5)),
        question("c", ("Elbe", 5)),
        question("d", ("Rhine", -1), ("Rhine", 4000)),
    )
    path = written(tmp_path, *questions)
    dataset, messages = read(path)
    assert [(e.id, e.answers) for e in dataset] == [("a", (Answer("Rhine", 5),)), ("b", (Answer("Rhine", 5),))]
    assert messages == [
        f"{path}: 4 answers are not in their context where `answer_start` says, the first that of question b: 'Rhine'"
        " at 20; left out, with 2 questions that have no other answer"
    ]
    dataset, messages = read(path, spans=False)
    assert [len(e.answers or ()) for e in dataset] == [1, 2, 1, 2]
    assert not messages

    def strict(message: str) -> None:
        raise UserError(message)

    with pytest.raises(UserError, match="4 answers"):
        read_squad(path, labelled=True, report=strict)
    with pytest.raises(UserError, match=r"question c ff.: no answer is in its context"):
        read(written(tmp_path, question("c", ("Elbe", 5))))


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    flat = {"id": "a", "question": "What?", "context": "The Rhine", "answers": {"text": ["Rhine"], "answer_start": [4]}}
    none = flat | {"id": "b", "answers": {"text": [], "answer_start": []}}
    path.write_text("\n".join(map(json.dumps, (flat, none))))
    assert [example.answers for example in read(str(path))[0]] == [(Answer("Rhine", 4),), ()]
    path.write_text(json.dumps(flat) + "\n" + json.dumps(flat | {"context": None}))
    with pytest.raises(UserError, match=r"q.jsonl, line 2: has no string under 'context'"):
        read(str(path))


@pytest.mark.parametrize(
    ("questions", "words"),
    [
        pytest.param([question("a", ("Rhine", 5)), question("a", ("Rhine", 5))], r"question 2: the id a is also that of"
                     r" article 1, paragraph 1, question 1", id="same-id"),
        pytest.param([question("", ("Rhine", 5))], r"article 1, paragraph 1, question 1: has no id", id="empty-id"),
        pytest.param([question(None, ("Rhine", 5))], r"question 1: has no id", id="no-id"),
        pytest.param([question("a")], r"question a: has no answers", id="no-answer"),
        pytest.param([question("a", ("Rhine", "5"))], r"question a: an answer must have .* whole number", id="start"),
        pytest.param([question("a", ("Rhine", True))], r"question a: an answer must have", id="bool-start"),
        pytest.param([question("a", (" ", 3))], r"question a: an answer's text is empty", id="empty-answer"),
        pytest.param([question("a", ("Rhine", 5), question=" ")], r"question a: has no text under", id="no-question"),
        pytest.param(["a"], r"paragraph 1, question 1: must be a JSON object, not str", id="no-object"),
        pytest.param([], r"line 1: has no questions", id="none"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, questions: list[Any], words: str) -> None:
    with pytest.raises(UserError, match=rf"squad.json, .*{words}" if not words.startswith("line") else words):
        read(written(tmp_path, *questions))


def test_contexts_and_documents_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"squad.json, question a: its context is empty"):
        read(written(tmp_path, question("a", ("Rhine", 5)), context=" \n"))
    with pytest.raises(UserError, match=r"article 1, paragraph 1: has no string under 'context'"):
        read(written(tmp_path, question("a", ("Rhine", 5)), context=7))
    path = tmp_path / "x.json"
    for content, words in (
        ("[1]", "line 1: is not SQuAD's JSON"),
        ('{"data": [{}]}', "article 1: has no list under 'para"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=rf"x.json, {words}"):
            read(str(path))


@pytest.mark.parametrize(("name", "count"), [("train-v1.1.prefix.json", 4370), ("dev-v1.1.rebuilt.json", 10570)])
def test_real_files(tmp_path: Path, data_dir: Path, name: str, count: int) -> None:
    dataset, messages = read(task_file(data_dir, "squad", name, tmp_path))
    assert len(dataset) == count
    assert not messages
    for example in dataset:
        assert all(example.context.startswith(answer.text, answer.start) for answer in example.answers or ())
