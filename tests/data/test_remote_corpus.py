"""Corpora behind URLs: fsspec's memory file system, a local HTTP server, and a local S3."""

import gzip
import io
import json
import sys
from pathlib import Path

import pytest
from data_servers import serving

from fastbert.data.corpus import Corpus, read_documents
from fastbert.errors import CorpusError
from fastbert.io.remote_sources import shown_url

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
    refused("memory://corpus/none.txt", "not found")
    refused("memory://nothing", "not found")
    refused("memory://corpus/*.none", "not found")
    refused("memory://corpus/d.md", r"holds no \.txt")
    memory.pipe("/bad.txt", b"x\n\xff")
    with pytest.raises(CorpusError, match=r"bad\.txt is not UTF-8: byte 0xff at offset 2"):
        read("memory://bad.txt")
    refused("nothing://x.txt", "fsspec knows no nothing://; check the address")


def test_tables_and_saved_data_sets(memory):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra [data]")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"text": ["One.", "Two."]})
    stored = io.BytesIO()
    parquet.write_table(table, stored)
    memory.pipe("/t/a.parquet", stored.getvalue())
    assert read("memory://t/a.parquet") == [["One."], ["Two."]]
    for split, text in (("train", "Train."), ("a test", "Test.")):  # one before and one behind dataset_dict.json
        stream = io.BytesIO()
        with pyarrow.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(pyarrow.table({"text": [text]}))
        memory.pipe(f"/set/{split}/data-00000-of-00001.arrow", stream.getvalue())
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        memory.pipe(f"/set/{split}/state.json", json.dumps(state).encode())
    memory.pipe("/set/dataset_dict.json", b'{"splits": ["train", "a test"]}')
    assert read("memory://set") == [["Train."]]
    assert read("memory://set#a test") == [["Test."]]
    assert read("memory://set/a test") == [["Test."]]
    with pytest.raises(CorpusError, match="memory:///set/: has no split 'dev'; it holds train, a test"):
        read("memory://set#dev")


def write(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def test_http(tmp_path, monkeypatch):
    pytest.importorskip("aiohttp", reason="needs the extra [remote]")
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra [data]")
    parquet = pytest.importorskip("pyarrow.parquet")
    stored = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": ["One.", "Two."]}), stored)
    packed = gzip.compress(LONG)
    write(tmp_path, {"a.txt": TEXT, "b.txt.gz": packed, "t.parquet": stored.getvalue(), "long.txt": LONG})
    with serving(tmp_path) as (address, faults):
        assert read(f"{address}/a.txt", f"{address}/t.parquet") == [*DOCUMENTS, ["One."], ["Two."]]
        faults.tells_size = lambda name: name != "long.txt"
        corpus = Corpus.find([f"{address}/b.txt.gz", f"{address}/long.txt"])
        seen = []
        assert [len(document) for document in corpus.documents(seen.append)] == [200_000] * 2
        assert seen == sorted(seen)
        assert seen[-1] == corpus.total_bytes == len(packed)
        assert read(f"{address}/a.txt?token=secret#x") == DOCUMENTS
        refused(f"{address}/none.txt?token=secret", "none.txt: not found; correct the URL")
        refused(f"{address}/folder", "has an unknown extension; over HTTP a corpus consists of")
        faults.tells_size = lambda name: True
        faults.is_cut = lambda name: True
        refused(f"{address}/long.txt", "long.txt: ClientPayloadError: .*, repeat the command, or copy the file")
        faults.is_cut = lambda name: False
        for status, reason in ((403, "access denied"), (503, "the server answered with status 503")):
            faults.status = lambda name, status=status: status
            refused(f"{address}/a.txt", reason)
    refused(f"{address}/a.txt", "Cannot connect")
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    refused("https://example.invalid/a.txt", "needs the package aiohttp")


def test_s3(tmp_path, monkeypatch):
    pytest.importorskip("s3fs", reason="needs the extra [remote]")
    write(tmp_path, {"corpus/a.txt": TEXT, "corpus/deep/b.txt": LONG, "corpus/c.txt": TEXT})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with serving(tmp_path, "/bucket/") as (address, faults):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address.removesuffix("/bucket"))
        fsspec.filesystem("s3").clear_instance_cache()
        assert read("s3://bucket/corpus/a.txt") == DOCUMENTS
        corpus = Corpus.find("s3://bucket/corpus/**/[ab].txt")
        assert [file.name for file in corpus.files] == ["a.txt", "b.txt"]
        assert corpus.total_bytes == len(TEXT) + len(LONG)
        assert sum(1 for document in corpus.documents() for _ in document) == 200_003
        assert len(Corpus.find("s3://bucket/corpus").files) == 3
        refused("s3://bucket/corpus/none.txt", "not found")
        refused("s3://bucket/nothing/", "not found")
        faults.status = lambda name: 403 if name == "c.txt" else 200
        refused("s3://bucket/corpus/c.txt", "access denied")
    fsspec.filesystem("s3").clear_instance_cache()


def test_urls_are_shown_without_secrets():
    assert shown_url("https://user:password@host:80/a.txt?signature=x#y") == "https://host:80/a.txt"
    assert shown_url("memory://a?b.txt") == "memory://a"


def test_local_urls_and_collapsed_ones(tmp_path):
    (tmp_path / "a.txt").write_bytes(TEXT)
    assert read(f"file://{tmp_path}/a.txt") == DOCUMENTS
    with pytest.raises(CorpusError, match=r"s3:/bucket/a\.txt: is a URL with one slash; write two"):
        read(Path("s3://bucket/a.txt"))
