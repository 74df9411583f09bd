"""Corpora behind URLs: fsspec's memory file system, a local HTTP server, and a local S3."""

import gzip
import io
import json
import sys

import pytest

from fastbert.data.corpus import Corpus, read_documents
from fastbert.errors import CorpusError
from fastbert.io.remote_files import is_url, shown_url

fsspec = pytest.importorskip("fsspec", reason="needs the extra [remote]")

TEXT = b"The first one.\nThe second one.\n\nAnother document.\n"
DOCUMENTS = [["The first one.", "The second one."], ["Another document."]]
LONG = b"".join(b"Sentence number %d of a long text.\n" % i for i in range(200_000))


def read(*urls, **options):
    return list(read_documents(urls, **options))


def refused(url, message, **options):
    with pytest.raises(CorpusError, match=message) as caught:
        read(url, **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(shown_url(url))


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def test_memory_file_system(memory):
    files = {
        "a.txt": TEXT,
        "b.txt.gz": gzip.compress(TEXT),
        "deep/c.jsonl": b'{"text": "One."}',
        ".hidden/x.txt": b"x",
        "d.md": b"x",
    }
    for name, data in files.items():
        memory.pipe(f"/corpus/{name}", data)
    assert read("memory://corpus/a.txt") == DOCUMENTS
    assert read("memory://corpus/*.txt*") == DOCUMENTS * 2
    assert read("memory://corpus") == [*DOCUMENTS, *DOCUMENTS, ["One."]]
    assert read("memory://corpus/a.txt", "memory://corpus/") == [*DOCUMENTS, *DOCUMENTS, ["One."]]
    corpus = Corpus.find("memory://corpus/a.txt")
    assert corpus.total_bytes == len(TEXT)
    seen = []
    assert list(corpus.documents(seen.append)) == list(corpus.documents()) == DOCUMENTS
    assert seen[-1] == len(TEXT)
    refused("memory://corpus/none.txt", "no such file or folder")
    refused("memory://nothing", "no such file or folder")
    refused("memory://corpus/*.none", "no such file or folder")
    refused("memory://corpus/d.md", r"holds no \.txt")
    memory.pipe("/bad.txt", b"x\n\xff")
    with pytest.raises(CorpusError, match=r"bad\.txt is not UTF-8: byte 0xff at offset 2"):
        read("memory://bad.txt")
    refused("nothing://x.txt", "an unknown protocol")


def test_tables_and_saved_data_sets(memory):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra [data]")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"text": ["One.", "Two."]})
    stored = io.BytesIO()
    parquet.write_table(table, stored)
    memory.pipe("/t/a.parquet", stored.getvalue())
    assert read("memory://t/a.parquet") == [["One."], ["Two."]]
    for split, text in (("train", "Train."), ("test", "Test.")):
        stream = io.BytesIO()
        with pyarrow.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(pyarrow.table({"text": [text]}))
        memory.pipe(f"/set/{split}/data-00000-of-00001.arrow", stream.getvalue())
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        memory.pipe(f"/set/{split}/state.json", json.dumps(state).encode())
    memory.pipe("/set/dataset_dict.json", b'{"splits": ["train", "test"]}')
    assert read("memory://set") == [["Train."]]
    assert read("memory://set#test") == [["Test."]]
    assert read("memory://set/test") == [["Test."]]
    with pytest.raises(CorpusError, match="memory:///set/: has no split 'dev'; it holds train, test"):
        read("memory://set#dev")


def test_http(monkeypatch):
    pytest.importorskip("aiohttp", reason="needs the extra [remote]")
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra [data]")
    parquet = pytest.importorskip("pyarrow.parquet")
    stored = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": ["One.", "Two."]}), stored)
    files = {
        "a.txt": TEXT,
        "b.txt.gz": gzip.compress(LONG),
        "t.parquet": stored.getvalue(),
        "unsized.txt": LONG,
        "breaking.txt": LONG,
        "forbidden.txt": TEXT,
    }
    from object_server import serving

    with serving(files) as address:
        assert read(f"{address}/a.txt", f"{address}/t.parquet") == [*DOCUMENTS, ["One."], ["Two."]]
        corpus = Corpus.find([f"{address}/b.txt.gz", f"{address}/unsized.txt"])
        seen = []
        assert [len(document) for document in corpus.documents(seen.append)] == [200_000] * 2
        assert seen == sorted(seen)
        assert seen[-1] == corpus.total_bytes == len(files["b.txt.gz"])
        assert read(f"{address}/a.txt?token=secret#x") == DOCUMENTS
        refused(f"{address}/none.txt?token=secret", "no such file or folder")
        refused(f"{address}/forbidden.txt", "no permission")
        refused(f"{address}/breaking.txt", "cannot be read .*; repeat the command, or copy the file to a disk")
        refused(f"{address}/folder", "has an unknown extension; over HTTP a corpus consists of")
    refused(f"{address}/a.txt", "cannot be read .*Cannot connect")
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    refused("https://example.invalid/a.txt", r"needs the package aiohttp: `pip install 'fastbert-engine\[remote\]'`")


def test_s3(monkeypatch):
    pytest.importorskip("s3fs", reason="needs the extra [remote]")
    from object_server import serving

    files = {
        "bucket/corpus/a.txt": TEXT,
        "bucket/corpus/deep/b.txt": LONG,
        "bucket/corpus/forbidden.txt": b"x",
        "bucket/breaking/breaking.txt": LONG,
    }
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with serving(files) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        fsspec.filesystem("s3").clear_instance_cache()
        assert read("s3://bucket/corpus/a.txt") == DOCUMENTS
        corpus = Corpus.find("s3://bucket/corpus/**/[ab].txt")
        assert [file.name for file in corpus.files] == ["a.txt", "b.txt"]
        assert corpus.total_bytes == len(TEXT) + len(LONG)
        assert sum(1 for document in corpus.documents() for _ in document) == 200_003
        assert len(Corpus.find("s3://bucket/corpus").files) == 3
        refused("s3://bucket/corpus/none.txt", "no such file or folder")
        refused("s3://bucket/nothing/", "no such file or folder")
        refused("s3://bucket/corpus/forbidden.txt", "no permission")
    fsspec.filesystem("s3").clear_instance_cache()


def test_urls_are_told_from_paths():
    assert is_url("s3://bucket/a.txt")
    assert is_url("HTTPS://host/a.txt")
    assert not is_url("C:/a.txt")
    assert not is_url("folder/a.txt")
    assert not is_url("s3:/a.txt")
    assert shown_url("https://user:password@host:80/a.txt?signature=x#y") == "https://host:80/a.txt"
    assert shown_url("memory://a?b.txt") == "memory://a"
