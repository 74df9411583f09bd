"""Tables of every kind, with the line of each row, and what is wrong with one."""

import gzip
import json
import lzma
import re
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from fastbert.errors import UserError
from fastbert.tasks.readers.choices import read_choices
from fastbert.tasks.readers.conll import read_conll
from fastbert.tasks.readers.sequences import read_sequences
from fastbert.tasks.readers.squad import read_squad
from fastbert.tasks.readers.tables import json_values, read_json, read_table
from fastbert.tasks.readers.texts import read_texts
from fastbert.tasks.settings import Columns

ROWS = [("1", 'He said "no'), ("0", '"all" quoted"'), ("1", "a\u2028b \x85 c\x0b")]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


CONTENTS = {
    "t.tsv": b"\xef\xbb\xbflabel\tsentence\n" + "".join(f"{a}\t{b}\n" for a, b in ROWS).encode(),
    "t.TSV": b"label\tsentence\r\n" + "\r\n\r\n".join(f"{a}\t{b}" for a, b in ROWS).encode(),
    "t.tsv.gz": gzip.compress(b"label\tsentence\n" + "\n".join(f"{a}\t{b}" for a, b in ROWS).encode()),
    "t.csv.xz": lzma.compress(
        b"label,sentence\n" + "".join('{},"{}"\n'.format(a, b.replace('"', '""')) for a, b in ROWS).encode()
    ),
    "t.jsonl": "\n\n".join(json.dumps({"label": a, "sentence": b}) for a, b in ROWS).encode(),
    "list.json": json.dumps([{"label": a, "sentence": b} for a, b in ROWS], indent=2).encode(),
    "stream.json": " ".join(json.dumps({"label": a, "sentence": b}, indent=1) for a, b in ROWS).encode(),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_the_same_rows_from_every_kind(tmp_path: Path, name: str) -> None:
    table = read_table(write(tmp_path / name, CONTENTS[name]))
    assert table.names == ("label", "sentence")
    assert [row.cells for row in table.rows] == ROWS


@pytest.mark.parametrize(
    ("name", "lines"),
    [("t.tsv", [2, 3, 4]), ("t.TSV", [2, 4, 6]), ("t.jsonl", [1, 3, 5]), ("list.json", [2, 6, 10])],
)
def test_lines_are_those_of_an_editor(tmp_path: Path, name: str, lines: list[int]) -> None:
    table = read_table(write(tmp_path / name, CONTENTS[name]))
    assert [row.line for row in table.rows] == lines
    assert table.where(table.rows[1]) == f"{tmp_path / name}, line {lines[1]}"


def test_a_row_of_csv_begins_where_its_first_cell_does(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "t.csv", 'a,b\n1,"x\ny"\n\n2,z\n'))
    assert [(row.line, row.cells) for row in table.rows] == [(2, ("1", "x\ny")), (5, ("2", "z"))]


def test_keys_of_json_may_differ(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "t.jsonl", '{"a": 1}\n{"b": [2], "a": null}\n'))
    assert table.names == ("a", "b")
    assert [row.cells for row in table.rows] == [(1, None), (None, [2])]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        pytest.param("t.tsv", "a\tb\n1\t2\n1\n1\n", r"t.tsv, line 3: has 1 cells, not 2 .*2 bad rows", id="short"),
        pytest.param("t.csv", "a,b\n1,2,3\n", r"t.csv, line 2: has 3 cells, not 2", id="long"),
        pytest.param("t.csv", 'a,b\n1,2\n1,"2\n', r"t.csv, line 3: not a table", id="open-quote"),
        pytest.param("t.csv", 'a,b\n1,"2"3\n', r"t.csv, line 2: not a table", id="after-quote"),
        pytest.param("t.csv", b"a,b\n1,\xff\n", r"t.csv, line 2: not UTF-8", id="csv-utf-8"),
        pytest.param("t.csv", b"a,b\n" + b"1,2\n" * 9_998 + b"1,\xff\n", "line 10000: not UTF-8", id="late-csv-utf-8"),
        pytest.param("t.tsv", b"a\tb\n1\t\xff\n", r"t.tsv, line 2, byte 3: not UTF-8 \(0xff\)", id="tsv-utf-8"),
        pytest.param("t.tsv", "a\ta\n1\t2\n", r"t.tsv, line 1: two columns are named 'a'", id="twice"),
        pytest.param("t.tsv", "", r"t.tsv, line 1: the file is empty", id="empty"),
        pytest.param("t.jsonl", "\n\n", r"t.jsonl, line 1: the file is empty", id="no-json"),
        pytest.param("t.jsonl", '{"a": 1}\n{"a": \n', r"t.jsonl, line 2: not JSON", id="cut-json"),
        pytest.param("t.jsonl", '{"a": 1}\n[2]\n', r"t.jsonl, line 2: must be a JSON object, not list", id="list"),
        pytest.param("t.jsonl", "[" * 100_000, r"t.jsonl, line 1: not JSON", id="deep"),
        pytest.param("t.jsonl", '{"a": ' + "9" * 5000 + "}", r"t.jsonl, line 1: not JSON", id="digits"),
        pytest.param(
            "t.jsonl", "".join(f'{{"k{i}": 1}}\n' for i in range(1500)), "line 1001: .* 1001 different keys", id="keys"
        ),
        pytest.param("t.json", '[{"a": 1},\n{"a": 2}', r"t.json, line 2: the JSON array does not end", id="open-array"),
        pytest.param("t.json", '[{"a": 1}\n{"a": 2}]', r"t.json, line 2: not JSON \(a comma", id="no-comma"),
        pytest.param("t.json", '[{"a": 1}]\n3', r"t.json, line 2: something follows", id="after-array"),
        pytest.param("t.json", "[" * 100_000, r"t.json, line 1: not JSON", id="deep-array"),
        pytest.param("t.pdf", "", r"t.pdf: must be a .tsv, .csv", id="kind"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        read_table(write(tmp_path / name, content))
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.tsv: no such file"):
        read_table(tmp_path / "none.tsv")


def test_a_cut_archive(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv.xz", lzma.compress(b"a\tb\n" * 5000)[:-20])
    with pytest.raises(UserError, match=r"t.tsv.xz: ends too early"):
        read_table(path)


def test_streams_of_an_archive(tmp_path: Path) -> None:
    """xz files may have several streams, and zeros between and behind them; a dictionary has a limit."""
    table = lzma.compress(b"a\tb\n" * 5000) + bytes(8) + lzma.compress(b"c\td\n") + bytes(1 << 17)
    path = write(tmp_path / "t.tsv.xz", table)
    assert [row.cells for row in read_table(path).rows][-2:] == [("a", "b"), ("c", "d")]
    large = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]
    damaged = {
        "not an intact .xz file (Input format": lzma.compress(b"a\tb\n") + b"rest",
        "t.tsv.xz: takes more than 128 MiB of memory to decompress; run `xz -d` first": lzma.compress(
            b"a\tb\n", filters=large
        ),
    }
    for message, content in damaged.items():
        with pytest.raises(UserError, match=re.escape(message)):
            read_table(write(tmp_path / "t.tsv.xz", content))


@pytest.mark.parametrize("text", ["[]", " [ ] ", "", "[1]", "[1, [2, 3], {}]", "1 2 3", '"a" "b"', "[1,2,]"])
def test_values_of_json(text: str) -> None:
    expected = {"": [], "1 2 3": [1, 2, 3], '"a" "b"': ["a", "b"], "[1,2,]": [1, 2]}
    assert [value for _, value in json_values(text, "t")] == (expected[text] if text in expected else json.loads(text))


def test_a_wrong_document_is_named_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"t.json, line 3: not JSON"):
        read_json(write(tmp_path / "t.json", '{"a":\n 1,\n b}'))


READERS: dict[str, Callable[[str, bool], object]] = {
    "texts": lambda path, labelled: read_texts(path, Columns(), labelled=labelled, regression=False),
    "numbers": lambda path, labelled: read_texts(path, Columns(), labelled=labelled, regression=True),
    "conll": lambda path, labelled: read_conll(path, Columns(), labelled=labelled),
    "squad": lambda path, labelled: read_squad(path, labelled=labelled, report=lambda message: None),
    "choices": lambda path, labelled: read_choices(path, Columns(), labelled=labelled),
    "sequences": lambda path, labelled: read_sequences(path, Columns(), labelled=labelled),
}
HALF = "\ud83d".encode("utf-8", "surrogatepass")  # of a character
PIECES = (
    *'{}[]":,\t\n# -1\\\x00"',
    "\r\n", "text", "label", "sentence", "sentence1\tsentence2", '{"text": "a", "label": "b"}', '"words": ["a"]',
    '"tags"', "B-X", "O", "1\t2", '{"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "1"}]}]}]}',
    "-DOCSTART-",
    "source\ttarget\n", "prompt,ending0,ending1,label\n", "null", "NaN", HALF, b"\xff",
)  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=25),
    kind=st.sampled_from([".tsv", ".csv", ".jsonl", ".json", ".txt", ".conll"]),
    labelled=st.booleans(),
)
def test_whatever_a_file_holds_it_is_read_or_refused_in_a_line(
    tmp_path: Path, reader: str, pieces: list[str | bytes], kind: str, labelled: bool
) -> None:
    content = b"".join(piece if isinstance(piece, bytes) else piece.encode() for piece in pieces)
    path = write(tmp_path / f"f{kind}", content)
    message = f"{path}, line 1"
    try:
        READERS[reader](str(path), labelled)
    except UserError as error:
        message = str(error)
    assert str(path) in message
    assert "\n" not in message
