"""Prompts with endings: SWAG, CODAH and others, and what is wrong with one."""

import json
from pathlib import Path

import pytest
from task_data import task_file

from fastbert.errors import UserError
from fastbert.tasks.readers.choices import read_choices
from fastbert.tasks.settings import Columns

SWAG = ",video-id,sent1,sent2,ending0,ending1,ending2,ending3,label\n"


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_swag(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", SWAG + '0,v,He runs.,He,"walks, too.",b,c,d,2\n1,v,She runs.,,a,b,c,d,0\n')
    first, second = read_choices(path, Columns(), labelled=True)
    assert (first.prompt, first.start, first.endings, first.label) == (
        "He runs.",
        "He",
        ("walks, too.", "b", "c", "d"),
        2,
    )
    assert (second.start, second.label, second.id, second.location) == ("", 0, "1", "line 3")
    assert read_choices(path, Columns(), labelled=False)[0].label is None


def test_codah(tmp_path: Path) -> None:
    path = write(tmp_path, "t.tsv", 'o\tI "go". I\ta\tb\tc\td\t3\n\tYou\te\tf\tg\th\t0\n')
    dataset = read_choices(path, Columns(), labelled=True)
    assert [(e.prompt, e.endings, e.label) for e in dataset] == [
        ('I "go". I', tuple("abcd"), 3),
        ("You", tuple("efgh"), 0),
    ]


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "P", "endings": ["a", "b"], "label": 1},
        {"premise": "P", "choice1": "a", "choice2": "b", "label": "1", "idx": 0},
        {"ctx": "P", "choices": ["a", "b"], "label": 1},
    ],
    ids=["endings", "copa", "hellaswag"],
)
def test_objects(tmp_path: Path, record: dict[str, object]) -> None:
    path = write(tmp_path, "t.jsonl", json.dumps(record))
    example = read_choices(path, Columns(), labelled=True)[0]
    assert (example.prompt, example.endings, example.label) == ("P", ("a", "b"), 1)


def test_columns_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "q,begin,ending0,ending1,gold,name\nP,B,a,b,1,k\n")
    example = read_choices(path, Columns(text="q", pair="begin", label="gold", id="name"), labelled=True)[0]
    assert (example.prompt, example.start, example.endings, example.label, example.id) == ("P", "B", ("a", "b"), 1, "k")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        pytest.param(
            "t.csv", SWAG + "0,v,P,,a,b,c,d,4\n", "line 2: 'label' must be a number from 0 to 3, not '4'", id="label"
        ),
        pytest.param("t.csv", SWAG + "0,v,P,,a,b,c,d,\n", "line 2: 'label' must be a number", id="no-label"),
        pytest.param("t.csv", SWAG + "0,v,P,,a,,c,d,1\n", "line 2: 'ending1' is empty", id="no-ending"),
        pytest.param("t.csv", SWAG + "0,v,,,a,b,c,d,1\n", "line 2: 'sent1' is empty", id="no-prompt"),
        pytest.param("t.csv", SWAG, "line 1: has a header and no rows", id="no-rows"),
        pytest.param("t.csv", "a,b,label\n1,2,0\n", r"line 1: .*prompt is not clear \(columns: a, b, label\)", id="p"),
        pytest.param(
            "t.csv", "prompt,b,label\n1,2,0\n", r"line 1: no endings \(columns: prompt, b, label\)", id="endings"
        ),
        pytest.param("t.csv", "prompt,ending0,ending1\n1,2,0\n", r"line 1: no column 'label'", id="no-label-column"),
        pytest.param(
            "t.tsv", "o\tP\ta\tb\tc\td\t3\no\tP\ta\t\tc\td\t3\n", "line 2: column 4 is empty", id="codah-ending"
        ),
        pytest.param(
            "t.jsonl", '{"prompt": "P", "endings": ["a"], "label": 0}', "line 1: 'endings' must be a list", id="one"
        ),
        pytest.param(
            "t.jsonl",
            '{"prompt": "P", "endings": ["a", "b"], "label": 0}\n{"prompt": "P", "endings": ["a", "b", "c"]}',
            "line 2: has 3 endings, not 2 as the first example",
            id="number",
        ),
        pytest.param(
            "t.jsonl",
            '{"prompt": "P", "endings": ["a", "b"], "label": true}',
            "line 1: 'label' must be a number",
            id="bool",
        ),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(UserError, match=rf"{name}, {words}"):
        read_choices(write(tmp_path, name, text), Columns(), labelled=True)


@pytest.mark.parametrize(
    ("archive", "name", "count"),
    [("CODAH", "full_data.tsv", 2776), ("SWAG-sample", "swag.csv", 11), ("SWAG-sample", "sample.json", 10)],
)
def test_real_files(tmp_path: Path, data_dir: Path, archive: str, name: str, count: int) -> None:
    dataset = read_choices(task_file(data_dir, archive, name, tmp_path), Columns(), labelled=True)
    assert len(dataset) == count
    assert all(len(example.endings) == 4 for example in dataset)
    assert {bool(example.start) for example in dataset} == {archive != "CODAH"}
