"""Corpora in other files than text: compressed by zstandard and bzip2, parquet, Arrow, saved data sets, Wikipedia."""

import bz2
import io
import json
import random
import sys
import tracemalloc
from xml.sax.saxutils import escape

import pytest

from fastbert.data.corpus import Corpus, read_documents
from fastbert.errors import CorpusError
from fastbert.io.text import decompressor

LINES = "The first one.\nThe second one.\n\nAnother document.\n"
DOCUMENTS = [["The first one.", "The second one."], ["Another document."]]
TEXTS = ["One is. Two is.\nThree.", "", "Four.", None, "Five."]
READ = [["One is.", "Two is.", "Three."], ["Four."], ["Five."]]


@pytest.fixture
def pyarrow():
    return pytest.importorskip("pyarrow", reason="needs the extra [data]")


@pytest.fixture
def parquet(pyarrow):
    return pytest.importorskip("pyarrow.parquet", reason="needs the extra [data]")


def read(path, **options):
    return list(read_documents(path, **options))


def refused(path, message, **options):
    with pytest.raises(CorpusError, match=message) as caught:
        read(path, **options)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


# Compression


@pytest.fixture(params=[".zst", ".bz2"])
def compress(request):
    if request.param == ".bz2":
        return request.param, bz2.compress
    zstandard = pytest.importorskip("zstandard", reason="needs the extra [data]")
    return request.param, zstandard.ZstdCompressor(write_checksum=True).compress


def test_frames_follow_each_other(tmp_path, compress, seed):
    suffix, pack = compress
    draw = random.Random(seed)
    text = "".join(draw.choice("abc \n") for _ in range(300_000)).encode()
    cuts = sorted(draw.randrange(len(text)) for _ in range(5))
    frames = [pack(text[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(text)])]
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(b"".join(frames))
    with path.open("rb") as raw, decompressor(raw, path) as stream:
        assert stream.read() == text
    path.write_bytes(pack(LINES.encode()))
    assert read(path) == DOCUMENTS
    path.write_bytes(b"")
    refused(path, "corpus is empty")


def test_damaged_compressed_files_are_one_line(tmp_path, compress):
    suffix, pack = compress
    path = tmp_path / f"a.txt{suffix}"
    whole = pack(random.Random(0).randbytes(50_000).hex().encode())
    for data, message in [
        (whole[:-30], "is truncated: its data ends too early; copy or download it again"),
        (whole[: len(whole) // 2], "is truncated"),
        (b"plain text", f"is not an intact {suffix} file"),
        (whole[:9000] + b"\xff" * 99 + whole[9099:], f"is not an intact {suffix} file|is not UTF-8"),
    ]:
        path.write_bytes(data)
        refused(path, message)


def test_bz2_is_expanded_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("fastbert.io.text._MOST_BYTES", 1 << 16)
    data = bz2.compress(b"word " * 400_000 + b"\n") + bz2.compress(b"last\n")
    stream = decompressor(io.BytesIO(data), "a.bz2")
    tracemalloc.start()
    size = sum(len(part) for part in iter(lambda: stream.read(1000), b""))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size == 2_000_006
    assert peak < 1e6


def test_zstandard_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "a.txt.zst").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"a\.txt\.zst: reading \.zst needs the package zstandard: `pip install"):
        read(tmp_path / "a.txt.zst")


# Tables


def test_columns_of_parquet_and_arrow(tmp_path, pyarrow, parquet):
    for name, kind in [("plain", pyarrow.string()), ("large", pyarrow.large_string()), ("view", pyarrow.string_view())]:
        table = pyarrow.table({"id": range(5), "body": pyarrow.array(TEXTS, kind)})
        parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=2)
        assert read(tmp_path / f"{name}.parquet", text_key="body") == READ
        for suffix, new in [("stream", pyarrow.ipc.new_stream), ("file", pyarrow.ipc.new_file)]:
            path = tmp_path / f"{name}-{suffix}.arrow"
            with new(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=2)
            assert read(path, text_key="body") == READ
    words = pyarrow.array(["a", "b", "a"]).dictionary_encode()
    parquet.write_table(pyarrow.table({"text": words}), tmp_path / "words.parquet")
    assert read(tmp_path / "words.parquet") == [["a"], ["b"], ["a"]]
    wrapped = "A line that goes on and\non and on to the end of\nthe page. And so forth.\n"
    parquet.write_table(pyarrow.table({"text": [wrapped] * 9}), tmp_path / "wrapped.parquet")
    sentence = "A line that goes on and on and on to the end of the page."
    assert read(tmp_path / "wrapped.parquet")[0] == [sentence, "And so forth."]


def test_a_table_that_is_one_batch_is_not_read_as_a_whole(tmp_path, pyarrow):
    """Nor are its other columns."""
    rows = 4000
    texts, images = [f"Text {i} " + "x" * 4000 for i in range(rows)], [bytes(8000)] * rows
    table = pyarrow.table({"image": images, "text": texts})
    with pyarrow.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    del table
    before, most = pyarrow.total_allocated_bytes(), 0
    for number, (first, *_) in enumerate(read_documents(tmp_path / "a.arrow")):
        assert first.startswith(f"Text {number} ")
        most = max(most, pyarrow.total_allocated_bytes() - before)
    assert number == rows - 1
    assert most < 4 << 20


def test_progress_of_tables_ends_at_their_size(tmp_path, pyarrow, parquet):
    table = pyarrow.table({"text": [f"Text {i}." for i in range(5000)]})
    parquet.write_table(table, tmp_path / "a.parquet")
    for name, new in (("b", pyarrow.ipc.new_stream), ("c", pyarrow.ipc.new_file)):
        with new(tmp_path / f"{name}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=700)
    corpus = Corpus.find(tmp_path)
    seen = []
    assert sum(1 for _ in corpus.documents(seen.append)) == 15_000
    assert seen == sorted(seen)
    assert seen[-1] == corpus.total_bytes


def test_wrong_tables_are_one_line(tmp_path, pyarrow, parquet):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"body": ["x"], "id": [1], "words": [["a"]]}), path)
    refused(path, r"has no column 'text' \(columns: body, id, words\); name the one that holds the text")
    refused(path, "the column 'id' holds int64, not text", text_key="id")
    refused(path, "the column 'words' holds list<.*>, not text", text_key="words")
    parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array(["x"])] * 2, names=["text", "text"]), path)
    refused(path, "has several columns 'text'")
    parquet.write_table(pyarrow.table({"text": [f"Text {i}." for i in range(9999)]}), path)
    whole = path.read_bytes()
    for data in (whole[:-20], whole[: len(whole) // 2], b"", b"PAR1", whole[:4] + b"\xff" * 3000 + whole[3004:]):
        path.write_bytes(data)
        refused(path, r"is not an intact \.parquet file")
    stream = tmp_path / "a.arrow"
    table = pyarrow.table({"text": [f"Text {i}." for i in range(9999)]})
    with pyarrow.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    whole = stream.read_bytes()
    for data in (whole[: len(whole) // 2], b"", b"ARROW1", b"text"):
        stream.write_bytes(data)
        refused(stream, r"is not an intact \.arrow file")
    invalid = pyarrow.Array.from_buffers(
        pyarrow.string(), 1, [None, pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0"), pyarrow.py_buffer(b"\xff")]
    )
    parquet.write_table(pyarrow.table({"text": invalid}), path)
    refused(path, "a text is not UTF-8")


def test_pyarrow_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"needs the package pyarrow: `pip install 'fastbert-engine\[data\]'`"):
        read(tmp_path / "a.parquet")


# Folders of `datasets`


def save(folder, pyarrow, files):
    """A folder as save_to_disk writes it."""
    folder.mkdir(parents=True)
    for name, texts in files.items():
        table = pyarrow.table({"text": texts})
        with pyarrow.ipc.new_stream(folder / name, table.schema) as writer:
            writer.write_table(table)
    listed = [{"filename": name} for name in files]
    (folder / "state.json").write_text(json.dumps({"_data_files": listed, "_split": "train"}))
    (folder / "dataset_info.json").write_text("{}")


def test_saved_data_sets(tmp_path, pyarrow, caplog):
    names = [f"data-0000{i}-of-00002.arrow" for i in range(2)]
    save(tmp_path / "set", pyarrow, {names[0]: ["A."], names[1]: ["B."]})
    (tmp_path / "set" / "cache-0123.arrow").write_bytes(b"left by map")
    assert read(tmp_path / "set") == [["A."], ["B."]]
    splits = tmp_path / "more" / "splits"
    for split in ("train", "test"):
        save(splits / split, pyarrow, {"data-00000-of-00001.arrow": [split]})
    (splits / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    assert read(splits) == [["train"]]
    assert f"{splits}: the split train is read; it also holds test" in caplog.text
    assert read(f"{splits}#test") == [["test"]]
    assert read(tmp_path) == [["train"], ["A."], ["B."]]
    with pytest.raises(CorpusError, match=r"splits: has no split 'dev'; it holds train, test"):
        read(f"{splits}#dev")
    with pytest.raises(CorpusError, match=r"set#train: the folder has no dataset_dict\.json"):
        read(f"{tmp_path / 'set'}#train")
    (splits / "dataset_dict.json").write_text(json.dumps({"splits": ["a", "test"]}))
    with pytest.raises(CorpusError, match=r"a/state\.json: no such file, so the data set is incomplete"):
        read(splits)
    (tmp_path / "set" / "state.json").write_text('{"_data_files": [{"filename": "../x.arrow"}]}')
    with pytest.raises(CorpusError, match="holds no list of files under '_data_files'"):
        read(tmp_path / "set")


# Wikipedia


ARTICLE = """{{Short description|nothing}}
'''Anarchism''' is a [[political philosophy|philosophy]] and [[movement]] ({{lang|la|x}}) that is
sceptical<ref name="a">{{cite|url=x}}</ref> of ''all''.<ref name=b /> See [http://x.org the site], A&nbsp;B.
[[File:Foo.jpg|thumb|A [[caption]]]] [[Datei:Bar.jpg|x]] [[Category:Foo]] [[de:Anarchismus]]

== Etymology ==
The word comes from Greek. <!-- hidden -->It is <math>x^2</math>old.
* an item
: indented
{| class="wikitable"
! head
|-
| cell
|}
<blockquote>Quoted text.</blockquote> __NOTOC__
{{reflist}}
"""
SENTENCES = [
    "Anarchism is a philosophy and movement that is",
    "sceptical of all.",
    "See the site, A B.",
    "The word comes from Greek.",
    "It is old.",
    "Quoted text.",
]


def page(text, ns="0", extra="", model="wikitext"):
    revision = f"<revision><id>1</id><model>{model}</model><text xml:space='preserve'>{escape(text)}</text></revision>"
    return f"<page><title>T</title><ns>{ns}</ns><id>1</id>{extra}{revision}</page>\n"


def dump(*pages):
    info = "<siteinfo><namespaces><namespace key='0'/><namespace key='6'>Datei</namespace></namespaces></siteinfo>"
    return f"<mediawiki xmlns='http://www.mediawiki.org/xml/export-0.11/'>{info}\n{''.join(pages)}</mediawiki>\n"


def test_wikipedia(tmp_path, monkeypatch):
    pytest.importorskip("mwparserfromhell", reason="needs the extra [data]")
    monkeypatch.setattr("fastbert.data.wikipedia._BLOCK_BYTES", 100)
    others = [page("Talk.", ns="1"), page("#REDIRECT [[A]]"), page("x", extra="<redirect title='A'/>"), page("{{x}}")]
    twice = "<page><ns>0</ns><revision><text>Old.</text></revision><revision><text>New.</text></revision></page>"
    half = page("Half a &#xD83D; character.")
    text = dump(page(ARTICLE), *others, page("a { color: red }", model="css"), twice, half, page("Last & least."))
    (tmp_path / "wiki-pages-articles.xml.bz2").write_bytes(
        bz2.compress(text[:99].encode()) + bz2.compress(text[99:].encode())
    )
    expected = [SENTENCES, ["New."], ["Half a \ufffd character."], ["Last & least."]]
    assert read(tmp_path / "wiki-pages-articles.xml.bz2") == expected
    (tmp_path / "settings.xml").write_text("<settings/>")  # of something else in the folder
    assert read(tmp_path) == expected


def test_wrong_dumps_are_one_line(tmp_path):
    pytest.importorskip("mwparserfromhell", reason="needs the extra [data]")
    whole = dump(page("An article."), page("Another."))
    path = tmp_path / "a.xml"
    for text, message in [
        (whole[: len(whole) - 40], r", line \d+: not an intact XML file \(.*\); copy or download it again"),
        (whole.replace("</ns>", "</xs>", 1), ", line 2: not an intact XML file"),
        ("<feed><entry/></feed>", "is XML of <feed>, not a Wikipedia dump"),
        ("plain text", ", line 1: not an intact XML file"),
        ("<!DOCTYPE x [<!ENTITY a 'b'>]>" + whole, "declares a document type"),
        (dump(), "corpus is empty"),
        ("", "corpus is empty|not an intact XML"),
        (whole.replace("An article", "\x00"), "not an intact XML file"),
    ]:
        path.write_text(text)
        refused(path, message)
    path.write_text(dump(page("&#99999999; [[a|[[b]] {{" * 50 + "Still text.\n" + "[" * 500)))
    assert read(path)


def test_mwparserfromhell_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mwparserfromhell", None)
    (tmp_path / "a.xml").write_text(dump(page("x")))
    with pytest.raises(ValueError, match=r"a\.xml: .*needs the package mwparserfromhell: `pip install"):
        read(tmp_path / "a.xml")
