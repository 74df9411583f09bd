"""Files of vectors: word2vec's text format and GloVe's, exact both ways; wrong files are errors with the line."""

import gzip
import random
from pathlib import Path

import numpy as np
import pytest

from fastbert.errors import UserError
from fastbert.vectors import WordVectors


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vectors.txt"


def test_files_keep_every_bit(path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    array = draw.integers(0, 1 << 32, (9000, 5), dtype=np.uint32).view(np.float32)  # all exponents, denormals
    array[~np.isfinite(array)] = -0.0
    words = [f"w{row}" for row in range(8996)] + ["ü", "中", "#", "2"]
    WordVectors(words, array).save(path)
    assert path.read_text(encoding="utf-8").startswith("9000 5\nw0 ")
    read = WordVectors.load(path)
    assert read.words == tuple(words)
    assert (read.array.view(np.uint32) == array.view(np.uint32)).all()
    with pytest.raises(UserError, match="exists"):
        read.save(path)
    read.save(path, overwrite=True)
    assert len(WordVectors.load(path, limit=17)) == 17
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_gensim_reads_what_is_written(path: Path) -> None:
    models = pytest.importorskip("gensim.models", reason="needs gensim")
    array = np.array([[0.1, -2.5e-7], [3.0, 1 / 3]], np.float32)
    WordVectors(["a", "b"], array).save(path)
    assert (models.KeyedVectors.load_word2vec_format(str(path))["b"] == array[1]).all()
    models.KeyedVectors.load_word2vec_format(str(path)).save_word2vec_format(str(path))
    assert (WordVectors.load(path).array == array).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("2 3\na 1 2 3\nb 4 5 6\n", ("a", "b"), id="word2vec"),
        pytest.param("2 3\na 1 2 3 \nb 4 5 6 ", ("a", "b"), id="spaces-at-ends"),
        pytest.param("a 1 2 3\nb 4 5 6\n", ("a", "b"), id="glove"),
        pytest.param("\ufeffa 1 2 3\r\nb 4e0 5. 6\r\n\r\n", ("a", "b"), id="windows"),
        pytest.param("a 1 2 3\t\nb 4 5 6\t\n", ("a", "b"), id="tabs-at-ends"),
        pytest.param(". . 1 2 3\n1 4 5 6\n", (". .", "1"), id="words-with-spaces"),
        pytest.param("1 1 2 3\n2 4 5 6\n", ("1", "2"), id="numbers-as-words"),
        pytest.param("a\u00a0b 1 2 3\nb 4 5 6\n", ("a\u00a0b", "b"), id="other-spaces"),
    ],
)
def test_both_formats_are_read(text: str, words: tuple[str, ...], path: Path) -> None:
    path.write_bytes(text.encode())
    vectors = WordVectors.load(path)
    assert vectors.words == words
    assert vectors.array.tolist() == [[1, 2, 3], [4, 5, 6]]
    packed = path.with_suffix(".txt.gz")
    packed.write_bytes(gzip.compress(text.encode()))
    assert WordVectors.load(packed).words == words


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "line 1 is ''"),
        (b"2 3\n", "has a header and no word vectors"),
        (b"2 0\na\n", "line 1: vectors of 0 numbers"),
        (b"2 99999\na 1\n", "line 1: vectors of 99,999 numbers"),
        (b"2 2\na 1 2\nb 1\n", "line 3: 1 fields after the word, and line 1 announces 2"),
        (b"2 2\na 1 2\nb 1 2 3\n", "line 3: 3 fields after the word, and line 1 announces 2"),
        (b"a 1 2\n\nb 1 2 3\n", "line 3: 3 fields after the word, and the first line has 2"),
        (b"a 1 2\nb 1 x\n", "line 2: 'x' is not a number"),
        (b"a 1 2\nb 1 1_0\n", "line 2: '1_0' is not a number"),
        (b"a 1 2\nb 1 0x1\n", "line 2: '0x1' is not a number"),
        (b"a 1 2\nb  1\n", "line 2: '' is not a number"),
        (b"a 1\nb \t\n", "line 2: '\\t' is not a number"),
        (b"a 1 2\nb 1\t2 3\nc 4 \t\n", "line 2: '1\\t2' is not a number"),
        (b"a 1 2\n 1 2\n", "line 2: begins with a space"),
        (b"a 1 2\nb nan 2\n", "line 2: holds nan"),
        (b"a 1 2\nb 1 1e39\n", "line 2: holds inf"),
        (b"a 1 2\nb 1 2\na 1 2\n", "line 3: the word 'a' occurs twice, first in line 1"),
        (b"3 2\na 1 2\nb 1 2\n", "line 1: announces 3 words, and the file has 2"),
        (b"1 2\na 1 2\nb 1 2\n", "line 1: announces 1 words, and the file has 2"),
        (b"The cat sat on the mat.\n", "numbers per line; line 1 is 'The cat sat on the mat.'"),
        (b'{"a": [1, 2]}\n', "is not a text file of word vectors"),
        (b"2 2\na " + np.float32([0.1, 9]).tobytes() + b"\n", "is not a text file of word vectors"),
        (b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}", "is not a text file of word vectors"),
        (b"a 1 2\nb \xff 2\n", "is not a text file of word vectors"),
        (b"a 1 2\n" + b"b" * (1 << 21), "longer than 1 MiB"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_wrong_files_are_errors_with_the_line(data: bytes, message: str, path: Path) -> None:
    path.write_bytes(data)
    with pytest.raises(UserError) as error:
        WordVectors.load(path)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_damaged_files_give_vectors_or_a_user_error(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    whole = b"4 3\nthe 0.5 -1e-3 2\nof 1 2 3\n. . 1 2 3\n7 0.25 0 1\n"
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(len(data))] = draw.choice(b" \n\r.e-0127x\x00\xff\xc3")
        path.write_bytes(bytes(data[: draw.randint(1, len(data))] if draw.random() < 0.5 else data))
        message = ""
        try:
            vectors = WordVectors.load(path)
        except UserError as error:
            message = str(error)
        assert message.startswith(str(path)) if message else np.isfinite(vectors.array).all()
        assert "\n" not in message


def test_words_that_the_format_cannot_hold_leave_no_file(path: Path) -> None:
    for word in ("a b", "", "a\n", "\u00a0"):
        with pytest.raises(UserError, match="white space"):
            WordVectors(["x", word], np.ones((2, 2))).save(path)
    assert not list(path.parent.iterdir())
