"""Reading corpus files: layouts, compression, errors, bounded memory."""

import errno
import gzip
import json
import lzma
import os
import subprocess
import sys
import textwrap
import tracemalloc

import pytest

from fastbert.data import corpus as corpus_module
from fastbert.data import json_lines, text_lines
from fastbert.data.corpus import Corpus, detect_layout, read_documents
from fastbert.errors import CorpusError

LINES = "The first one.\nThe second one.\n\nAnother document.\n"
DOCUMENTS = [["The first one.", "The second one."], ["Another document."]]


def write(path, data):
    data = data.encode() if isinstance(data, str) else data
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    path.parent.mkdir(parents=True, exist_ok=True)
    with opener(path, "wb") as file:
        file.write(data)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_lines_plain_and_compressed(tmp_path, suffix):
    assert list(read_documents(write(tmp_path / f"a.txt{suffix}", LINES))) == DOCUMENTS


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("\ufeff" + LINES, id="byte-order-mark"),
        pytest.param(LINES.replace("\n", "\r\n"), id="crlf"),
        pytest.param(LINES.replace("\n", "\r"), id="cr"),
        pytest.param("\n\n" + LINES.replace("\n\n", "\n \t\n\n\u00a0\n") + "\n\n\n", id="blank-lines-with-spaces"),
        pytest.param(LINES.rstrip(), id="no-final-newline"),
    ],
)
def test_line_ends_and_marks(tmp_path, data):
    assert list(read_documents(write(tmp_path / "a.txt", data), text_format="lines")) == DOCUMENTS


def test_prose_is_joined_and_split(tmp_path):
    text = "The first one is\nlong. The\nsecond one.\n\nA new paragraph.\n\n\nAnother\ndocument.\n\n\n\n"
    documents = list(read_documents(write(tmp_path / "a.txt", text), text_format="prose"))
    assert documents == [["The first one is long.", "The second one.", "A new paragraph."], ["Another document."]]
    joined = next(read_documents(write(tmp_path / "b.txt", "一二三\n四五。六\n"), text_format="prose"))
    assert joined == ["一二三四五。", "六"]


def test_a_paragraph_a_line(tmp_path):
    text = "One is. Two is.\nThree is.\n\nFour is. Five is.\n"
    documents = list(read_documents(write(tmp_path / "a.txt", text), text_format="paragraphs"))
    assert documents == [["One is.", "Two is.", "Three is."], ["Four is.", "Five is."]]


WORDS = "some words that go on and on until the line is full and longer than that"
SENTENCES = [f"Sentence number {i} has {' '.join(WORDS.split()[: i % 14 + 1])}." for i in range(60)]
PARAGRAPHS = [" ".join(SENTENCES[i : i + 4]) for i in range(0, 60, 4)]


@pytest.mark.parametrize(
    ("lines", "layout"),
    [
        pytest.param(SENTENCES, "lines", id="sentences"),
        pytest.param([line.lower().rstrip(".") for line in SENTENCES], "lines", id="lower-case-without-stops"),
        pytest.param([w for p in PARAGRAPHS for w in [*textwrap.wrap(p, 70), ""]], "prose", id="wrapped"),
        pytest.param([w for p in PARAGRAPHS for w in textwrap.wrap(p, 40)], "prose", id="wrapped-without-blank-lines"),
        pytest.param(PARAGRAPHS, "paragraphs", id="paragraphs"),
        pytest.param([x for p in PARAGRAPHS for x in (p, "")], "prose", id="paragraphs-between-blank-lines"),
        pytest.param([], "lines", id="empty"),
        pytest.param(["One sentence."], "lines", id="one-line"),
        pytest.param([PARAGRAPHS[0]], "paragraphs", id="one-paragraph"),
    ],
)
def test_auto_detects(lines, layout):
    assert detect_layout(lines) == layout


@pytest.mark.parametrize(
    ("path", "layout", "documents"),
    [
        pytest.param("wiki-en/wiki_en.sent.txt.xz", "lines", 13_864, id="wiki-en"),
        pytest.param("books-en/books_en.sent.txt.xz", "lines", 1_348, id="books-en"),
        pytest.param("multilingual/wiki-zh.txt.xz", "paragraphs", 454, id="wiki-zh"),
    ],
)
def test_auto_reads_published_corpora(data_dir, path, layout, documents):
    blocks = text_lines.line_blocks(data_dir / path, corpus_module._SAMPLE_BYTES)
    assert detect_layout(next(blocks)) == layout
    assert sum(1 for _ in read_documents(data_dir / path)) == documents


def test_jsonl(tmp_path):
    records = [{"body": "One is. Two is.\nThree\n\nFour."}, {"body": "\ud800x"}, {"body": ""}, {"body": "Five."}]
    text = "\n".join(json.dumps(record) for record in records).replace("\n", "\n\n", 1)
    documents = list(read_documents(write(tmp_path / "a.jsonl.gz", text), text_key="body"))
    assert documents == [["One is.", "Two is.", "Three", "Four."], ["\ufffdx"], ["Five."]]


def test_jsonl_with_wrapped_text(tmp_path):
    text = "\n\n".join("\n".join(textwrap.wrap(paragraph, 60)) for paragraph in PARAGRAPHS)
    (document,) = read_documents(write(tmp_path / "a.jsonl", json.dumps({"text": text})))
    assert document == SENTENCES


def test_folders_and_patterns_are_sorted_and_read_once(tmp_path):
    for name in ("b.txt", "a/z.txt.xz", "a/deep/y.jsonl", "c.md", ".hidden/x.txt"):
        write(tmp_path / name, json.dumps({"text": name}) if name.endswith("l") else name)
    assert [file.name for file in Corpus.find(tmp_path).files] == ["y.jsonl", "z.txt.xz", "b.txt"]
    assert [file.name for file in Corpus.find(tmp_path / "**" / "*.txt*").files] == ["z.txt.xz", "b.txt"]
    both = Corpus.find([tmp_path / "b.txt", tmp_path, tmp_path / "*.txt"])
    assert [file.name for file in both.files] == ["b.txt", "y.jsonl", "z.txt.xz"]
    assert list(both.documents()) == list(both.documents())


def test_folders_behind_links_are_read_once_and_unreadable_ones_refused(tmp_path, monkeypatch):
    write(tmp_path / "a" / "x.txt", "A.")
    write(tmp_path / "elsewhere" / "y.txt", "B.")
    (tmp_path / "a" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "a" / "again").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "a" / "linked" / "up").symlink_to(tmp_path / "a")
    assert [file.name for file in Corpus.find(tmp_path / "a").files] == ["y.txt", "x.txt"]

    def fails(folder):
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(os, "scandir", fails)
    with pytest.raises(CorpusError, match="a cannot be read: Permission denied; make it readable, or move it away"):
        Corpus.find(tmp_path / "a")


def test_progress_counts_the_bytes_on_disk(tmp_path):
    for i in range(3):
        write(tmp_path / f"{i}.txt.xz", "A sentence here.\n" * 200_000)
    corpus = Corpus.find(tmp_path)
    seen = []
    for _ in corpus.documents(seen.append):
        pass
    assert seen == sorted(seen)
    assert seen[-1] == corpus.total_bytes == sum(file.stat().st_size for file in corpus.files)


def damaged_xz(data: bytes, flip: int) -> bytes:
    packed = bytearray(lzma.compress(data))
    packed[flip] ^= 0xFF
    return bytes(packed)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        pytest.param("a.txt", b"", "corpus is empty: no text in .*a.txt", id="empty"),
        pytest.param("a.txt", b" \n\n\t\n", "corpus is empty", id="blank"),
        pytest.param("a.txt.xz", b"", "corpus is empty", id="empty-xz"),
        pytest.param("a.md", b"x", "a.md has an unknown extension", id="extension"),
        pytest.param("a.txt", b"fine\nna\xefve\n", "a.txt is not UTF-8: byte 0xef at offset 7;", id="latin-1"),
        pytest.param("a.txt", b"\xef\xbb\xbffine\xff\n", "byte 0xff at offset 7", id="offset-counts-the-mark"),
        pytest.param("a.txt", b"x" * 3_000_000 + b"\n\xff", "byte 0xff at offset 3000001", id="far-offset"),
        pytest.param("a.txt", "fine".encode("utf-16"), "UTF-16", id="utf-16"),
        pytest.param("a.txt", b"cut \xe4\xbd", "byte 0xe4 at offset 4", id="character-cut-off"),
        pytest.param("a.txt.xz", lzma.compress(b"ok\n\xff"), "0xff at offset 3 of the decompressed", id="xz-offset"),
        pytest.param("a.txt.xz", lzma.compress(b"text\n" * 99)[:-20], "a.txt.xz is truncated", id="truncated-xz"),
        pytest.param("a.txt.gz", gzip.compress(b"text\n" * 99)[:-9], "a.txt.gz is truncated", id="truncated-gz"),
        pytest.param("a.txt.xz", damaged_xz(b"text\n" * 99, 30), "not an intact .xz file", id="damaged-xz"),
        pytest.param("a.txt.xz", b"plain text", "not an intact .xz file", id="not-xz"),
        pytest.param("a.txt.gz", b"plain text", "not an intact .gz file", id="not-gz"),
        pytest.param("a.jsonl", b'{"text": "x"}\n\n{"text"\n', "a.jsonl, line 3: not valid JSON", id="json"),
        pytest.param("a.jsonl", b'["text"]', "line 1: must be a JSON object", id="json-list"),
        pytest.param("a.jsonl", b'{"body": "x", "id": 1}', r"no key 'text' \(keys: body, id\)", id="json-key"),
        pytest.param(
            "a.jsonl", b'{"text": 3}', "line 1: the value of 'text' must be a string, not int", id="json-type"
        ),
        pytest.param("a.jsonl", b'{"text": ' + b"[" * 100_000, "line 1: not valid JSON", id="json-depth"),
    ],
)
def test_errors_name_the_place(tmp_path, name, data, message):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(CorpusError, match=message) as caught:
        list(read_documents(path))
    assert "\n" not in str(caught.value)


def test_paths_that_give_nothing(tmp_path):
    write(tmp_path / "sub" / "a.md", "x")
    for path, message in [
        (tmp_path / "none.txt", "no such file or folder"),
        (tmp_path / "sub", "holds no .txt"),
        (tmp_path / "*.txt", "nothing matches"),
        (tmp_path / "sub" / "*", "matches no .txt"),
        ([], "no corpus was named"),
    ]:
        with pytest.raises(CorpusError, match=message):
            Corpus.find(path)
    with pytest.raises(CorpusError, match="text_format='poem'"):
        Corpus.find(tmp_path, text_format="poem")


def test_an_enormous_line_is_cut_at_spaces(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "_BLOCK_BYTES", 1000)
    words = [f"wörd{i}" for i in range(400_000)]
    path = write(tmp_path / "a.txt", " ".join(words))
    (document,) = read_documents(path, text_format="lines")
    assert len(document) > 3
    assert " ".join(document).split() == words
    assert max(len(sentence.encode()) for sentence in document) <= text_lines.MAX_LINE_BYTES
    unbroken = write(tmp_path / "b.txt", "€" * 1_000_000)
    (document,) = read_documents(unbroken, text_format="lines")
    assert "".join(document) == "€" * 1_000_000


def test_an_enormous_json_line_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "MAX_LINE_BYTES", 1 << 21)
    path = write(tmp_path / "a.jsonl", json.dumps({"text": "x"}) + "\n" + json.dumps({"text": "y" * (1 << 22)}))
    with pytest.raises(CorpusError, match=r"a\.jsonl, line 2: longer than 2 MiB"):
        list(read_documents(path))


def test_an_enormous_document_is_cut(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(corpus_module, "MAX_DOCUMENT_CHARS", 10_000)
    path = write(tmp_path / "a.txt", "Line after line.\n" * 3_000)
    documents = list(read_documents(path))
    assert len(documents) > 3
    assert sum(map(len, documents)) == 3_000
    assert "is split into several" in caplog.text


SHAPES = [
    pytest.param("A short sentence.\n", id="one-document"),
    pytest.param("A short sentence. ", id="one-line"),
    pytest.param("A short sentence.\n\n\n", id="many-documents"),
]


@pytest.mark.parametrize("line", SHAPES)
def test_memory_is_bounded(tmp_path, monkeypatch, line):
    monkeypatch.setattr(corpus_module, "_BLOCK_BYTES", 1 << 15)
    monkeypatch.setattr(text_lines, "MAX_LINE_BYTES", 1 << 15)
    monkeypatch.setattr(corpus_module, "MAX_DOCUMENT_CHARS", 1 << 15)
    path = write(tmp_path / "a.txt.gz", line * (1_500_000 // len(line)))
    tracemalloc.start()
    for _ in read_documents(path, text_format="prose"):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e6, f"{peak / 1e6:.2f} MB held of a stream of 1.5 MB, most of it as short strings"


@pytest.mark.slow
@pytest.mark.parametrize("line", SHAPES)
def test_memory_of_a_long_stream_is_bounded(tmp_path, line):
    path = tmp_path / "a.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(200):
            file.write((line * (1_000_000 // len(line))).encode())
    program = (
        "import resource, sys; from fastbert.data.corpus import read_documents\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for _ in read_documents(sys.argv[1]): pass\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3)"
    )
    run = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 180, f"{run.stdout} MB held of a stream of 200 MB in sentences of 17 characters"
