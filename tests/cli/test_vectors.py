"""`fastbert vectors` from flags to files and printed words."""

import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert import cli
from fastbert.vectors import WordVectors


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    draw = random.Random(0)
    path = tmp_path / "corpus.txt"
    words = ["One", "two", "three", "four", "five", "six"]
    path.write_text("".join(" ".join(draw.choices(words, k=9)) + ".\n" for _ in range(90)))
    return path


def vectors(*flags: object) -> int:
    return cli.main(["vectors", *map(str, flags)])


def test_vectors_are_trained_saved_and_looked_up(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus.write_text(corpus.read_text() + "a b c d e f g h\n" * 3)
    out = corpus.with_name("v.txt")
    flags = ("--kind", "glove", "--corpus", corpus, "--out", out, "--size", 8, "--epochs", 2, "--lower-case")
    assert vectors(*flags, "--neighbours", "one", "two", "--top-k", 3) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("vectors of 15 words out of 15 that occur at least 2 times, 8 numbers each; 2 epochs on")
    assert lines[1::2] == ["one", "two"]
    trained = WordVectors.load(out)
    nearest = "   ".join(f"{word} {cosine:.3f}" for word, cosine in trained.neighbours("one", 3))
    assert lines[2] == f"   {nearest}"
    assert vectors(*flags) == 2
    assert f"--out {out} exists" in capsys.readouterr().err
    assert vectors("--vectors", out, "--analogy", "one", "two", "three", "--top-k", 1) == 0
    shown = capsys.readouterr().out.splitlines()
    word, cosine = trained.analogy("one", "two", "three", 1)[0]
    assert shown == ["one : two = three : ?", f"   {word} {cosine:.3f}"]
    assert vectors("--vectors", out, "--neighbours", "One", "one", "--top-k", 3) == 2
    shown = capsys.readouterr()
    assert "error: --neighbours: the word 'One' has no vector; did you mean 'one'?\n" in shown.err
    assert shown.out.splitlines() == ["one", f"   {nearest}"]
    assert vectors("--vectors", out, "--neighbours", "one", "--size", 7) == 2
    assert "--vectors names trained vectors, and --size trains new ones; leave one out" in capsys.readouterr().err


def test_mistakes_are_one_line_and_leave_no_file(
    corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = corpus.with_name("v.txt")
    monkeypatch.setitem(sys.modules, "gensim", None)
    mistakes = {
        ("--corpus", corpus, "--out", out): "need the package gensim: `pip install gensim`",
        (
            "--corpus",
            corpus,
            "--out",
            out,
            "--kind",
            "glove",
        ): "is too small: of its 7 different words 7 occur",
        ("--corpus", corpus, "--out", out, "--x-max", 5): "--x-max has no effect with --kind skipgram; leave it out",
        ("--corpus", corpus, "--out", out, "--kind", "glove", "--negative", 3): "--negative has no effect with --kind",
        ("--corpus", corpus, "--vectors", corpus, "--neighbours", "a"): "--corpus trains new ones; leave one out",
        ("--vectors", corpus, "--neighbours", "a"): "is not a text file of word vectors",
    }
    for flags, message in mistakes.items():
        assert vectors(*flags) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.startswith("fastbert: error: ")
        assert error.count("\n") == 1
    assert [path.name for path in corpus.parent.iterdir()] == [corpus.name]
