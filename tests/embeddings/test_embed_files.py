"""Texts out of files, vectors into files: kinds, damage, and nothing that is half written."""

import gzip
import json
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from embedding import random_texts, small_model, small_tokenizer

from fastbert.embeddings import embed
from fastbert.embeddings.vector_files import VectorFile, embed_file
from fastbert.errors import UserError
from fastbert.tasks.text_files import TextFile

TEXTS = ["a", "", 'b, "c"', "é\u2028x", "  d "]


def write(path: Path, content: bytes) -> Path:
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wb") as file:
        file.write(content)
    return path


def table(separator: str) -> bytes:
    rows = [[str(i), '"' + text.replace('"', '""') + '"'] for i, text in enumerate(TEXTS)]
    return "\n".join(separator.join(row) for row in [["id", "text"], *rows]).encode()


CONTENTS = {
    "t.txt": "\n".join(TEXTS).encode() + b"\n",
    "t.TXT": b"\xef\xbb\xbf" + "\r\n".join(TEXTS).encode(),
    "t.txt.gz": "\n".join(TEXTS).encode() + b"\n",
    "t.txt.xz": "\n".join(TEXTS).encode() + b"\n",
    "t.jsonl": "\n\n".join(json.dumps({"id": 1, "text": text}) for text in TEXTS).encode(),
    "t.jsonl.gz": "\n".join(json.dumps({"text": text}) for text in TEXTS).encode(),
    "t.csv": b"\xef\xbb\xbf" + table(","),
    "t.tsv.xz": table("\t"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_texts_of_every_kind_of_file(tmp_path: Path, name: str) -> None:
    file = TextFile(write(tmp_path / name, CONTENTS[name]))
    assert list(file) == TEXTS
    assert list(file) == TEXTS, "a second time"
    assert file.total_bytes == (tmp_path / name).stat().st_size


def test_a_column_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", b"text,other\n1,2\n3,4\n")
    assert list(TextFile(path, "other")) == ["2", "4"]
    path = write(tmp_path / "t.jsonl", b'{"other": "\\ud83d!"}')
    assert list(TextFile(path, "other")) == ["\ufffd!"]


def test_a_large_cell(tmp_path: Path) -> None:
    text = "a" * 200_000
    assert list(TextFile(write(tmp_path / "t.csv", f"text\n{text}\n".encode()))) == [text]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        pytest.param("t.txt", b"a\nb\n\xff\n", "line 3, byte 1: not UTF-8", id="utf-8"),
        pytest.param("t.jsonl", b'{"text": "a"}\n{"text": 3}\n', "line 2: 'text' must be a string, not int", id="int"),
        pytest.param("t.jsonl", b'{"x": 1, "y": 2}', r"line 1: no key 'text' \('x', 'y'\)", id="no-key"),
        pytest.param("t.jsonl", b"[1]\n", "line 1: no key", id="no-object"),
        pytest.param("t.jsonl", b"{\n", "line 1: not JSON", id="no-json"),
        pytest.param("t.jsonl", b"[" * 100_000, "line 1: not JSON", id="deep-json"),
        pytest.param("t.csv", b"a,b\n1,2\n", r"no column 'text' \(columns: a, b\)", id="no-column"),
        pytest.param("t.csv", b"", "columns: none", id="empty-table"),
        pytest.param("t.csv", b"a,text\n1\n", "line 2: has 1 cells, not 2", id="short-row"),
        pytest.param("t.csv", b'text\n"a\n', "not a table", id="open-quote"),
        pytest.param("t.csv", b"text\n\xff\n", "not UTF-8", id="table-utf-8"),
        pytest.param("t.pdf", b"", r"must be a \.txt, \.jsonl", id="kind"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    with pytest.raises(UserError, match=words):
        list(TextFile(write(tmp_path / name, content)))


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("damage", ["cut", "noise"])
def test_damaged_archives_are_named(tmp_path: Path, suffix: str, damage: str) -> None:
    path = write(tmp_path / f"t.txt{suffix}", " ".join(random_texts(3, 500)).encode())
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"noise" * 20)
    with pytest.raises(UserError, match=r"t\.txt"):
        list(TextFile(path))


def test_paths_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        TextFile(tmp_path / "none.txt")
    with pytest.raises(UserError, match="no column"):
        TextFile(write(tmp_path / "t.txt", b""), "x")


def read(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    if path.suffix == ".jsonl":
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert [record["index"] for record in records] == list(range(len(records)))
        return np.array([record["embedding"] for record in records], dtype=np.float32)
    parquet = pytest.importorskip("pyarrow.parquet")
    result = parquet.read_table(path)
    assert result["index"].to_pylist() == list(range(result.num_rows))
    return np.array(result["embedding"].to_pylist(), dtype=np.float32)


@pytest.mark.parametrize("suffix", [".npy", ".jsonl", ".parquet"])
def test_vectors_come_back_bit_for_bit(tmp_path: Path, suffix: str, seed: int) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    vectors = np.random.default_rng(seed).standard_normal((20, 3)).astype(np.float32) * np.float32(1e-5)
    vectors[7] = [np.nan, np.inf, -np.inf]
    vectors[8] = [0, -0.0, 1e-42]
    path = tmp_path / f"v{suffix}"
    with VectorFile(path) as file:
        file.append(vectors[:12])
        assert not path.exists()
        file.append(vectors[12:].astype(np.float64))
    np.testing.assert_array_equal(read(path), vectors)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", [".npy", ".jsonl", ".parquet"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_nothing_is_left_of_what_was_interrupted(tmp_path: Path, suffix: str, error: type[BaseException]) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"v{suffix}"
    path.write_text("before")

    def interrupted() -> None:
        with VectorFile(path, overwrite=True) as file:
            file.append(np.zeros((2, 3)))
            raise error

    with pytest.raises(error):
        interrupted()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    path = tmp_path / "v.npy"
    file = VectorFile(path)
    file.partial.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space") as raised, file:
        file.append(np.zeros((1000, 300)))
    assert raised.value.filename == str(path), "the message names the file"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v.txt", "must end in"),
        ("none/v.npy", "its folder is missing"),
        ("old.npy", "exists"),
        ("folder.npy", "folder"),
    ],
)
def test_places_where_nothing_can_be_written(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "old.npy").touch()
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(UserError, match=words):
        VectorFile(tmp_path / name)


def test_parquet_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"fastbert-engine\[data\]"):
        VectorFile(tmp_path / "v.parquet")


def test_a_file_in_a_file_out(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer, texts = small_model(seed), small_tokenizer(), random_texts(seed, 30, most=50)
    path = write(tmp_path / "t.txt", "".join(f"{text}\n" for text in texts).encode())
    monkeypatch.setitem(embed.CHUNK_TEXTS, "cpu", 9)
    told: list[tuple[int, int]] = []
    report = embed_file(
        model,
        tokenizer,
        TextFile(path),
        VectorFile(tmp_path / "v.npy"),
        progress=lambda at, done: told.append((at, done)),
    )
    np.testing.assert_array_equal(read(tmp_path / "v.npy"), model.embed(texts, tokenizer).numpy())
    assert [texts for _, texts in told] == [9, 18, 27, 30]
    assert report.counts.texts == 30
    assert f"{report.counts.tokens:,} tokens" in str(report)
    assert f"{report.counts.truncated} of 30 texts" in str(report) or not report.counts.truncated
    with pytest.raises(UserError, match="holds no text"):
        embed_file(model, tokenizer, TextFile(write(tmp_path / "e.txt", b"")), VectorFile(tmp_path / "e.npy"))
    assert not (tmp_path / "e.npy").exists()


def test_a_bad_text_in_the_middle_leaves_nothing(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(embed.CHUNK_TEXTS, "cpu", 4)
    path = write(tmp_path / "t.txt", b"a\n" * 20 + b"\xff\n")
    with pytest.raises(UserError, match="line 21"):
        embed_file(small_model(seed), small_tokenizer(), TextFile(path), VectorFile(tmp_path / "v.npy"))
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture(autouse=True)
def _cells() -> Iterator[None]:
    """Restores the largest cell of a table."""
    import csv

    before = csv.field_size_limit()
    yield
    csv.field_size_limit(before)
