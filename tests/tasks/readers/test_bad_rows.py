"""Bad rows: all are counted and three described, in one error; `skip_bad` leaves them out and reports as much."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastbert.errors import UserError
from fastbert.tasks.readers.choices import read_choices
from fastbert.tasks.readers.conll import read_conll
from fastbert.tasks.readers.sequences import read_sequences
from fastbert.tasks.readers.squad import read_squad
from fastbert.tasks.readers.tables import read_table
from fastbert.tasks.readers.texts import read_texts
from fastbert.tasks.settings import Columns


def texts(path: str, skip_bad: bool) -> Any:
    return read_texts(path, Columns(), labelled=True, regression=False, skip_bad=skip_bad)


def numbers(path: str, skip_bad: bool) -> Any:
    return read_texts(path, Columns(), labelled=True, regression=True, skip_bad=skip_bad)


def words(path: str, skip_bad: bool) -> Any:
    return read_conll(path, Columns(), labelled=True, skip_bad=skip_bad)


def choices(path: str, skip_bad: bool) -> Any:
    return read_choices(path, Columns(), labelled=True, skip_bad=skip_bad)


def sequences(path: str, skip_bad: bool) -> Any:
    return read_sequences(path, Columns(), labelled=True, skip_bad=skip_bad)


def questions(path: str, skip_bad: bool) -> Any:
    return read_squad(path, labelled=True, report=lambda message: None, skip_bad=skip_bad)


QUESTION = {"id": "a", "question": "b?", "context": "c d", "answers": [{"text": "c", "answer_start": 0}]}
QUESTIONS = [
    QUESTION,
    QUESTION,
    QUESTION | {"id": "b", "context": " "},
    QUESTION | {"id": "c", "question": ""},
    QUESTION | {"id": "d", "answers": []},
    QUESTION | {"id": "e"},
]
# Reader, file, content, ids of the good examples, descriptions of the first bad ones, and their count or cure.
CASES: dict[str, tuple[Callable[[str, bool], Any], str, bytes, list[str], tuple[str, ...], str]] = {
    "tsv": (
        texts,
        "t.tsv",
        b"text\tlabel\nA\tx\nB\n\tx\nC\t\nD\xe9\tx\nE\ty\n",
        ["0", "5"],
        ("line 3: has 1 cells, not 2 as line 1 has", "line 4: 'text' is empty", "line 5: 'label' is empty"),
        "4 bad rows in all",
    ),
    "latin-1": (
        texts,
        "t.tsv",
        b"text\tlabel\nA\tx\nB\xe9\tx\nC\xe9\tx\n",
        ["0"],
        ("line 3, byte 2: not UTF-8 (0xe9)", "line 4, byte 2: not UTF-8 (0xe9)"),
        "2 bad rows in all); save the file as UTF-8",
    ),
    "csv": (
        texts,
        "t.csv",
        b'text,label\n"A\na",x\nB,x,y\n',
        ["0"],
        ("line 4: has 3 cells, not 2 as line 1 has",),
        "give each",
    ),
    "jsonl": (
        texts,
        "t.jsonl",
        b'{"text": "A", "label": 1}\n{"text": \n[1]\n{"text": "B", "label": [2]}\n{"text": 5}\n',
        ["0"],
        ("line 2: not JSON", "line 3: must be a JSON object, not list", "line 4: 'label' must be a string"),
        "4 bad rows",
    ),
    "numbers": (
        numbers,
        "t.tsv",
        b"text\tscore\nA\t1\nB\tx\nC\ty\n",
        ["0"],
        ("line 3: 'score' must be a finite number, and 'x' is not", "line 4: 'score' must be"),
        "2 bad rows in all); use --task classification",
    ),
    "conll": (
        words,
        "t.conll",
        b"A\tO\nB\n\tO\n\nC\tO\tO\n\nD\t\nE\tO\n",
        ["0", "1"],
        ("line 2: has 1 columns, not 2 as line 1 has", "line 3: column 1 is empty", "line 5: has 3 columns"),
        "4 bad lines in all",
    ),
    "conll-tags": (
        words,
        "t.conll",
        b"A\tB-X\nB\tO\n\nC\tB_X\n",
        ["0"],
        ("line 4 ff.: the tag 'B_X' is neither O nor B-",),
        "correct it",
    ),
    "tagged-jsonl": (
        words,
        "t.jsonl",
        b'{"words": ["A"], "tags": ["O"]}\n{"words": ["A", "B"], "tags": ["O"]}\n{"words": []}\n',
        ["0"],
        ("line 2: has 1 tags for 2 words", "line 3: 'words' must be a list"),
        "2 bad lines",
    ),
    "choices": (
        choices,
        "t.csv",
        b"prompt,ending0,ending1,label\nA,b,c,0\nA,b,c,2\nA,,c,0\n",
        ["0"],
        ("line 3: 'label' must be a number from 0 to 1, not '2'", "line 4: 'ending0' is empty"),
        "2 bad rows",
    ),
    "sequences": (
        sequences,
        "t.tsv",
        b"source\ttarget\n\tb\nA\tb\nC\t\n",
        ["1"],
        ("line 2: 'source' is empty", "line 4: 'target' is empty"),
        "2 bad rows",
    ),
    "questions": (
        questions,
        "t.jsonl",
        "".join(json.dumps(one) + "\n" for one in QUESTIONS).encode(),
        ["a", "e"],
        ("line 2: the id a is also that of line 1", "question b: its context is empty", "question c: has no text"),
        "4 bad questions in all",
    ),
    "clinc": (
        texts,
        "t.json",
        b'{"train": [["A", "x"], ["B"], ["", "y"], ["D", "z"]]}',
        ["0", "3"],
        ("train item 2: must be [text, class]", "train item 3: the text is empty"),
        "2 bad items",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_rows_are_counted_or_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture, case: str) -> None:
    read, name, content, ids, problems, rest = CASES[case]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        read(str(path), False)
    message = str(error.value)
    assert message.startswith(f"{path}, {problems[0]}")
    assert [problem for problem in problems if problem not in message] == []
    assert rest in message
    assert "with --skip-bad" in message
    assert "\n" not in message
    caplog.clear()
    assert [example.id for example in read(str(path), True)] == ids
    messages = next(one for one in caplog.messages if "skipped" in one)
    assert [problem for problem in problems if problem not in messages] == []
    assert f"{len(ids)} examples are left" in messages


def test_the_same_cure_of_several_rows_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("a\tb\n" + "1\n" * 5 + "1\t2\n")
    with pytest.raises(
        UserError, match=r"line 4: has 1 cells, not 2 as line 1 has \(5 bad rows in all\); give each row 2$"
    ):
        read_table(path)


def test_a_file_without_a_good_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("text\tlabel\n\tx\n\ty\n")
    with pytest.raises(UserError, match=r"line 2: 'text' is empty; .*2 bad rows in all, and no good one\)"):
        texts(str(path), True)


def test_two_files_of_lines(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("A\n\nC\n")
    (tmp_path / "b").write_text("D\nE\n\n")
    both = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    with pytest.raises(UserError, match=r"a, line 2: is empty.*b, line 3: is empty .*2 bad pairs"):
        sequences(both, False)
    assert [(one.source, one.target) for one in sequences(both, True)] == [("A", "D")]
