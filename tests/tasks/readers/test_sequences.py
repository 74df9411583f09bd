"""Sources and targets: tables, JSON lines, two files, and what is wrong."""

import io
from pathlib import Path

import pytest

from fastbert.errors import UserError
from fastbert.tasks.readers.sequences import read_sequences
from fastbert.tasks.settings import Columns


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("t.tsv", "source\ttarget\na b\tc\n", Columns()),
        ("t.csv", 'id,article,highlights\n0,"a b",c\n', Columns()),
        ("t.jsonl", '{"document": "a b", "summary": "c", "id": "0"}\n', Columns()),
        ("t.jsonl", '{"en": "a b", "de": "c"}', Columns(text="en", label="de")),
        ("t.jsonl", '{"translation": {"en": "a b", "de": "c"}}', Columns(text="en", label="de")),
        ("t.tsv", "a b\tc\n", Columns(text="1", label="2")),
    ],
)
def test_tables(tmp_path: Path, name: str, text: str, columns: Columns) -> None:
    path = write(tmp_path, name, text)
    example = read_sequences(path, columns, labelled=True)[0]
    assert (example.source, example.target, example.id) == ("a b", "c", "0")
    assert read_sequences(path, columns, labelled=False)[0].target is None


def test_two_files(tmp_path: Path) -> None:
    paths = ",".join((write(tmp_path, "a.en", "one\u2028 x\ntwo\n"), write(tmp_path, "a.de", "eins\nzwei\n")))
    dataset = read_sequences(paths, Columns(), labelled=True)
    assert [(e.source, e.target, e.location) for e in dataset] == [
        ("one\u2028 x", "eins", "line 1"),
        ("two", "zwei", "line 2"),
    ]
    write(tmp_path, "a.de", "eins\n")
    with pytest.raises(UserError, match=r"a.en has 2 lines and .*a.de 1: from line 2 on there is no pair"):
        read_sequences(paths, Columns(), labelled=True)
    write(tmp_path, "a.de", "eins\n \n")
    with pytest.raises(UserError, match=r"a.de, line 2: is empty"):
        read_sequences(paths, Columns(), labelled=True)
    with pytest.raises(UserError, match="must be one file, or two with a comma"):
        read_sequences(f"{paths},x", Columns(), labelled=True)


def test_plain_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [e.source for e in read_sequences(write(tmp_path, "t.txt", "a b\n\nc\n"), Columns(), labelled=False)] == [
        "a b",
        "",
        "c",
    ]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x y\nz")))
    assert [e.source for e in read_sequences("-", Columns(), labelled=False)] == ["x y", "z"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\tb\n1\t2\n", r"line 1: which columns hold source and target is not clear \(columns: a, b\)"),
        ("source\ttarget\na\tb\n\tc\n", r"line 3: 'source' is empty"),
        ("source\ttarget\na\tb\nc\t\n", r"line 3: 'target' is empty"),
        ("source\ttarget\na\tb\nc\n", r"line 3: has 1 cells, not 2"),
        ("source\ttarget\n", r"line 1: has a header and no rows"),
        ("source\nx\n", r"line 1: which columns hold source and target is not clear"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=rf"t.tsv, {words}"):
        read_sequences(write(tmp_path, "t.tsv", text), Columns(), labelled=True)
