"""Minimal pairs: every form of the files, what is refused, accuracies and their table."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from pathlib import Path

import numpy as np
import pytest
from language_models import tokenizer

from fastbert.errors import UserError
from fastbert.scoring.blimp import accuracies, read_pairs, score_pairs, table
from fastbert.scoring.tokenized_texts import Progress, TokenizedTexts

PAIRS = [("the cats run", "the cat run"), ("a dog sees", "a dog see"), ("cat .", "cat .")]


def lines(uid: str, term: str) -> str:
    records = [
        {"sentence_good": good, "sentence_bad": bad, "UID": uid, "linguistics_term": term, "field": "syntax"}
        for good, bad in PAIRS
    ]
    return "\n".join(map(json.dumps, records)) + "\n"


class ByLength:
    """A scorer that prefers longer texts."""

    max_tokens = None
    tokenizer = tokenizer()

    def log_probabilities(self, texts: TokenizedTexts, progress: Progress | None = None) -> np.ndarray:
        return np.ones(len(texts.ids))


def test_every_form_of_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "one.jsonl").write_text(lines("one", "binding"))
    (folder / "two.jsonl").write_text(lines("two", "s-selection"))
    (folder / "notes.md").write_text("ignored")
    rows = [f"{term}\t{name}\t{good}\t{bad}" for name, term in (("one", "binding"), ("two", "s-selection"))
            for good, bad in PAIRS]  # fmt: skip
    with lzma.open(tmp_path / "pairs.tsv.xz", "wt") as file:
        file.write("\n".join(["phenomenon\tparadigm\tgood\tbad", *rows]))
    with tarfile.open(tmp_path / "pairs.tar.xz", "w:xz") as archive:
        for name in ("one", "two"):
            content = (folder / f"{name}.jsonl").read_bytes()
            info = tarfile.TarInfo(f"data/{name}.jsonl")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    for source in (folder, tmp_path / "pairs.tsv.xz", tmp_path / "pairs.tar.xz"):
        paradigms = read_pairs(source)
        assert [(each.name, each.phenomenon) for each in paradigms] == [
            ("one", "binding"), ("two", "argument_structure"),
        ]  # fmt: skip
        assert all(each.pairs == tuple(PAIRS) for each in paradigms)
        assert [len(each.pairs) for each in read_pairs(source, limit=2)] == [2, 2]
    (tmp_path / "mine.jsonl").write_text('{"sentence_good": "a", "sentence_bad": "b"}\n')
    assert [(each.name, each.phenomenon) for each in read_pairs(tmp_path / "mine.jsonl")] == [("mine", "mine")]


def test_what_is_not_minimal_pairs(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, content, problem in (
        ("a.jsonl", '{"text": "a"}', r"line 1: not minimal pairs: sentence_good .* \(has 'text'\)"),
        ("b.jsonl", "[1]", r"line 1: not minimal pairs"),
        ("c.jsonl", lines("x", "y") + "{", r"line 4: not JSON"),
        ("d.tsv", "a\tb\n1\t2\n", r"line 1: not minimal pairs: no column 'phenomenon' \(has a, b\)"),
        ("e.tsv", "phenomenon\tparadigm\tgood\tbad\nx\ty\tz\n", r"line 2: has 3 cells, not 4"),
        ("f.tsv", "phenomenon\tparadigm\tgood\tbad\nx\ty\tz\t \n", r"line 2: a sentence is empty"),
        ("g.tsv", "phenomenon\tparadigm\tgood\tbad\np\tx\ta\tb\nq\tx\ta\tb\n", r"line 3: x is of p in an earlier line"),
        ("h.jsonl", "\n", "holds no pairs"),
        ("i.txt", "a", r"is not of a kind that holds minimal pairs"),
        ("j.tsv.xz", "no xz", r"not an intact .xz file"),
        ("k.tar.xz", "no tar", r"not an intact archive"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=f"{name}.*{problem}"):
            read_pairs(tmp_path / name)
    with pytest.raises(UserError, match=r"holds no \.jsonl or \.tsv files"):
        read_pairs(tmp_path / "empty")
    with pytest.raises(UserError, match="no such file or folder"):
        read_pairs(tmp_path / "missing")


def test_too_much_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastbert.scoring.blimp.MOST_BYTES", 1 << 16)
    with lzma.open(tmp_path / "zeros.jsonl.xz", "wb") as file:
        file.write(b"0" * (1 << 20))  # one line
    with pytest.raises(UserError, match=r"zeros.jsonl.xz: more than .* MB of text"):
        read_pairs(tmp_path / "zeros.jsonl.xz")


def test_accuracies_are_means_of_paradigms(tmp_path: Path) -> None:
    rows = [("p", "one", *pair) for pair in PAIRS] + [("p", "two", "a cat", "a")] + [("q", "q", "a", "a b")]
    (tmp_path / "x.tsv").write_text("\n".join(map("\t".join, [("phenomenon", "paradigm", "good", "bad"), *rows])))
    paradigms = read_pairs(tmp_path / "x.tsv")
    scores = score_pairs(ByLength(), paradigms)
    result = accuracies(scores)
    assert result["paradigms"] == pytest.approx({"one": 100 / 3, "two": 100.0, "q": 0.0})  # a tie is wrong
    assert result["phenomena"] == pytest.approx({"p": 200 / 3, "q": 0.0})
    assert result["overall"] == pytest.approx(400 / 9)
    assert (result["pairs"], result["ties"]) == (5, sum(each.ties for each in scores))
    shown = table({"model": result, "ngram": result}, paradigms).splitlines()
    assert shown[0].split() == ["accuracy,", "%", "model", "ngram"]
    assert [line.split()[0] for line in shown[1:]] == ["p", "one", "two", "q", "overall"]
    assert shown[-1].split()[1:] == ["44.4", "44.4"]
    assert len({len(line) for line in shown}) == 1

    limited = ByLength()
    limited.max_tokens = 2  # type: ignore[assignment]
    with pytest.raises(UserError, match="one, pair 1 has"):
        score_pairs(limited, paradigms)


def test_blimp_itself(data_dir: Path) -> None:
    paradigms = read_pairs(data_dir / "blimp" / "blimp.tsv.xz")
    assert len(paradigms) == 67
    assert len({each.phenomenon for each in paradigms}) == 12
    assert {len(each.pairs) for each in paradigms} == {1000}
