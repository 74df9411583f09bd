"""Runs of --engine ray that write to URLs: fsspec's memory file system and a local S3, without Ray."""

import json
import pickle
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from data_servers import Faults, serving
from embedding import saved

from fastbert.embeddings.arrow import ArrowEmbedder
from fastbert.errors import UserError
from fastbert.integrations.ray.inputs import divide, find_files, read_inputs, refuse_inside
from fastbert.integrations.ray.places import opened_place
from fastbert.integrations.ray.shard_records import MANIFEST, MOST_STARTS, RunRecord, ShardPlace, ShardRecord
from fastbert.integrations.ray.shard_store import RECORDS, TOKEN
from fastbert.integrations.ray.worker import ERROR, RECORD, ShardWriter, shard_table
from fastbert.io import remote_store

fsspec = pytest.importorskip("fsspec", reason="needs fsspec")
pytest.importorskip("pyarrow", reason="needs pyarrow")

from ray_runs import RUN, record, write  # noqa: E402

OUT = "memory://bulk/out"


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def names(memory: Any) -> list[str]:
    return [name.removeprefix("/bulk/out/") for name in memory.find("/bulk/out")]


def opened(
    run: RunRecord = RUN, *, resume: bool = False, overwrite: bool = False
) -> AbstractContextManager[ShardPlace]:
    return opened_place(OUT, run, resume=resume, overwrite=overwrite)


def shards(*numbers: int) -> list[str]:
    return [f"part-0000{number}.parquet" for number in numbers]


def complete(place: ShardPlace, shard: int, content: str = "abc", *, is_begun: bool = False) -> None:
    """As a worker does, in a process of its own."""
    target = pickle.loads(pickle.dumps(place.target))
    assert is_begun or target.begin(place.name(shard))
    with target.partial(place.name(shard)) as partial:
        partial.write_text(content)
        place.append(target.complete(partial, record(shard, size=len(content))))


def test_a_run_continues_with_the_shards_that_have_records(memory: Any) -> None:
    with opened(resume=True) as place:
        for shard in (0, 1):
            complete(place, shard)
        memory.pipe("/bulk/out/part-00001.parquet", b"abcd")  # replaced
        memory.pipe("/bulk/out/part-00002.parquet", b"abc")  # a kill before its record
        assert place.target.begin("part-00002.parquet")
        left = [name for name in names(memory) if name.startswith("_partial-")]
        assert len(left) == 2
        ended = place.records[0].ended
    memory.pipe("/bulk/out/" + left[0], b"")  # as if it had been killed
    assert ended > 2.0
    with opened(resume=True) as place:
        assert list(place.records) == [0]
        assert place.records[0] == replace(record(0), ended=ended)
        (begun,) = (name for name in names(memory) if name.startswith("_partial-"))
        assert begun != left[0]
        files = [MANIFEST, begun, f"{RECORDS}00000.json", "part-00000.parquet"]
        assert names(memory) == sorted(files)
        for shard in (1, 2):
            complete(place, shard)
        memory.pipe("/bulk/out/part-00003.parquet", b"abc")  # of a process that outlived a run with more shards
        assert place.finish() == {"rows": 9, "tokens": 27, "truncated": 0, "width": 2}
    assert json.loads(memory.cat("/bulk/out/" + MANIFEST))["complete"]["rows"] == 9
    assert [name for name in names(memory) if not name.startswith(RECORDS)] == [MANIFEST, *shards(0, 1, 2)]
    with opened(resume=True) as place:
        assert sorted(place.records) == [0, 1, 2]
        other = json.loads(memory.cat(f"/bulk/out/{RECORDS}00001.json"))  # of another process of this run
        memory.pipe(f"/bulk/out/{RECORDS}00001.json", json.dumps({**other, "worker": "host:2"}).encode())
        memory.rm("/bulk/out/part-00002.parquet")
        for shard in (1, 2):
            words = f"out/part-0000{shard}.parquet: was changed or removed after it was written; let no other process"
            with pytest.raises(UserError, match=words):
                place.finish()
            complete(place, shard)
        place.finish()


def test_a_start_ends_earlier_ones(memory: Any) -> None:
    """Two runs at a time, and workers that outlive a killed run: a shard and its record are of the last start."""
    message = "^--out memory://bulk/out: another run has begun to write there; let one of them end"
    with opened() as first:
        complete(first, 0)
        with opened(resume=True) as second:
            assert list(second.records) == [0]
            with pytest.raises(UserError, match=message):
                complete(first, 1, "abcde", is_begun=True)
            complete(second, 1)
        before = names(memory)
        assert before == [MANIFEST, *(f"{RECORDS}0000{shard}.json" for shard in (0, 1)), *shards(0, 1)]
        for is_begun in (False, True):
            with pytest.raises(UserError, match=message):
                complete(first, 2, is_begun=is_begun)
        assert names(memory) == before
    # A record of a run that was replaced does not count, even where its object has come back.
    old = {name: memory.cat(f"/bulk/out/{name}") for name in ("part-00000.parquet", f"{RECORDS}00000.json")}
    with opened(overwrite=True) as third:
        complete(third, 1)
        for name, content in old.items():
            memory.pipe(f"/bulk/out/{name}", content)
    with opened(resume=True) as place:
        assert list(place.records) == [1]
        assert "part-00000.parquet" not in names(memory)


def test_other_runs_and_files_are_refused_and_nothing_changes(memory: Any) -> None:
    with opened() as place:
        complete(place, 0)
    before = {name: memory.cat(f"/bulk/out/{name}") for name in names(memory)}
    other = replace(RUN, options={**RUN.options, "dtype": "bf16"})
    for run, flags, words in (
        (other, {"resume": True}, "--out memory://bulk/out: its run was begun with --dtype fp32, and it is now bf16"),
        (replace(RUN, model_sha256="1" * 64), {"resume": True}, "another model, 'm', or other files of it"),
        (RUN, {}, "--out memory://bulk/out: already holds a run; continue it with --resume or replace it with"),
    ):
        with pytest.raises(UserError, match=words):
            opened(run, **flags).__enter__()
        assert {name: memory.cat(f"/bulk/out/{name}") for name in names(memory)} == before
    token = json.loads(before[MANIFEST])[TOKEN]
    memory.pipe(f"/bulk/out/{RECORDS}00001.json", json.dumps({TOKEN: token}).encode())
    with pytest.raises(UserError, match=r"--out memory://bulk/out/_shards/00001.json: is not the record of a shard"):
        opened(resume=True).__enter__()
    with opened(other, overwrite=True) as place:
        assert place.records == {}
        assert [name for name in names(memory) if not name.startswith("_partial-")] == [MANIFEST]
    with opened(other, resume=True):
        pass
    memory.rm("/bulk/out/" + MANIFEST)
    memory.pipe("/bulk/out/notes.txt", b"x")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="--out memory://bulk/out: holds other files; name a new or empty folder"):
            opened(overwrite=overwrite).__enter__()
    assert names(memory) == ["notes.txt"]
    memory.rm("/bulk/out", recursive=True)
    memory.pipe("/bulk/out", b"x")
    with pytest.raises(UserError, match="--out memory://bulk/out: is a file; name a folder"):
        opened().__enter__()


def test_a_shard_that_ends_its_worker_is_given_up(memory: Any) -> None:
    with opened() as place:
        assert [place.target.begin("x.parquet") for _ in range(MOST_STARTS + 1)] == [True] * MOST_STARTS + [False]
        complete(place, 1)
        assert place.target.begin(place.name(1))  # its starts are forgotten


@pytest.mark.parametrize(
    ("text", "out", "is_inside"),
    [
        ("memory://in", "memory://in/out", True),
        ("memory://in/", "memory://in", True),
        ("memory://in", "memory://in/_out", False),
        ("memory://in", "memory://into/out", False),
        ("memory://in/*.parquet", "memory://in", True),
        ("memory://in/*.parquet", "memory://in/out", False),
        ("memory://in/**/*.parquet", "memory://in/out", True),
        ("memory://in/**/*.parquet", "memory://in/_out", False),
        ("memory://in", "in/out", False),
        ("in", "memory://in/out", False),
    ],
)
def test_vectors_below_the_texts_are_refused(text: str, out: str, is_inside: bool) -> None:
    if not is_inside:
        refuse_inside(text, out)
        return
    with pytest.raises(
        UserError, match=rf"^--out {out}: lies in --text [^ ]*, whose files are all read; name a folder"
    ):
        refuse_inside(text, out)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://host/out", "^--out https://host/out: web servers take no files; name a folder, or a URL such as s3:"),
        ("simplecache::s3://bucket/out", "is a chain of URLs; name the one that the files are written to"),
        ("memory://", "names no folder; add its name"),
        ("gibberish://user:secret@host/out", "^--out gibberish://host/out: fsspec knows no gibberish://; check the"),
    ],
)
def test_urls_that_cannot_hold_a_run(url: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        opened_place(url, RUN, resume=False, overwrite=False).__enter__()


def test_a_file_system_that_cannot_be_written_to(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def put_file(*arguments: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(type(memory), "put_file", put_file)
    with pytest.raises(UserError, match=f"^--out {OUT}: its file system cannot be written to; name another URL, or a"):
        opened().__enter__()
    assert names(memory) == []


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Faults]]:
    """The folder of s3://bucket, and the faults of its server."""
    pytest.importorskip("s3fs", reason="needs the extra [remote]")
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with serving(bucket, "/bucket/") as (address, faults):
        endpoint = address.removesuffix("/bucket")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        monkeypatch.setitem(
            fsspec.config.conf,
            "s3",
            {"endpoint_url": endpoint, "key": "key", "secret": "x", "use_listings_cache": True},
        )
        yield bucket, faults


def test_files_in_s3_are_those_of_a_folder(tmp_path: Path, s3: tuple[Path, Faults], seed: int) -> None:
    bucket, faults = s3
    embedder = ArrowEmbedder(model=saved(tmp_path / "model", seed), device="cpu", dtype="fp32")
    write(tmp_path / "in/a.parquet", 20)
    shards = divide(read_inputs(find_files(tmp_path / "in"), embedder), 8)
    run = replace(RUN, shards=len(shards))
    failures = [503]  # of the first attempt; it is repeated
    faults.write_status = lambda path: failures.pop() if failures and "part-" in path else 200
    for out in (tmp_path / "out", "s3://bucket/a/out"):
        with opened_place(out, run, resume=False, overwrite=False) as place:
            writer = pickle.loads(pickle.dumps(ShardWriter(embedder, place.target)))
            for shard in shards:
                answer = writer(shard_table(shard, place.name(shard.number))).to_pylist()[0]
                assert answer[ERROR] == ""
                place.append(ShardRecord(**json.loads(answer[RECORD])))
            totals = place.finish()
    assert totals["rows"] == 20
    expected = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("part-*")}
    assert len(expected) == 3
    assert {path.name: path.read_bytes() for path in (bucket / "a/out").glob("part-*")} == expected
    assert not failures
    written = [name.removeprefix("a/out/") for name in faults.written if "_partial-" not in name]
    per_shard = [name for number in range(3) for name in (f"part-0000{number}.parquet", f"{RECORDS}0000{number}.json")]
    assert written == [MANIFEST, *per_shard, MANIFEST]
    assert sorted(path.name for path in (bucket / "a/out").iterdir()) == sorted([MANIFEST, "_shards", *expected])


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (403, r"^--out s3://bucket/out/_partial-\w+/begun: access denied.*; check the credentials$"),
        (404, r"^--out s3://bucket/out: not found; make the bucket or the disk first, or correct the URL$"),
        (
            503,
            r"^--out s3://bucket/out/_partial-\w+/begun: cannot be written, after \d tries .*; check the server",
        ),
    ],
)
def test_what_s3_refuses_is_one_line(
    s3: tuple[Path, Faults], status: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, faults = s3
    monkeypatch.setattr(remote_store, "PATIENCE", 0.0)
    faults.write_status = lambda path: status
    with pytest.raises(UserError, match=words):
        opened_place("s3://bucket/out", RUN, resume=False, overwrite=False).__enter__()
    assert list(bucket.iterdir()) == []


def test_a_failing_upload_is_the_error_of_the_worker(
    tmp_path: Path, s3: tuple[Path, Faults], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, faults = s3
    embedder = ArrowEmbedder(model=saved(tmp_path / "model", seed), device="cpu", dtype="fp32")
    write(tmp_path / "in/a.parquet", 3)
    (shard,) = divide(read_inputs(find_files(tmp_path / "in"), embedder), 8)
    faults.write_status = lambda path: 403 if "part-00000.parquet" in path and "_partial" not in path else 200
    with opened_place("s3://bucket/out", RUN, resume=False, overwrite=False) as place:
        answer = ShardWriter(embedder, place.target)(shard_table(shard, place.name(0))).to_pylist()[0]
    assert answer[ERROR].startswith("--out s3://bucket/out/part-00000.parquet: access denied")
    assert [path.name for path in (bucket / "out").iterdir()] == [MANIFEST]
