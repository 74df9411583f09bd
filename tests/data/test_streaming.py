"""Token shards behind a URL: the batches of a local copy bit for bit, and what happens when something fails.

One file: every failure is that of one server, and is met by a stream that the tests share.
"""

import errno
import json
import os
import pickle
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import numpy as np
import pytest
from data_servers import Faults, serving

from fastbert.data import block_cache, block_files, streamed_shards, token_stream
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import PretrainingData, unigram_counts
from fastbert.data.shards import TokenShards
from fastbert.data.streamed_shards import StreamedShards, StreamOptions, open_shards, tokenizer_folder
from fastbert.errors import UserError
from fastbert.io import remote_files

FIELDS = ("input_ids", "token_type_ids", "cu_seqlens", "masked_positions", "labels", "dropout_key")
VOCABULARY = 2000


def needs(package: str):
    try:
        __import__(package)
    except ImportError:
        return pytest.mark.skip(reason=f"needs the package {package}")
    return ()


HTTP = needs("aiohttp")


@pytest.fixture(scope="module")
def documents() -> list[list[str]]:
    random = np.random.default_rng(0)
    return [
        [" ".join(map(str, random.integers(6, VOCABULARY, size=length))) for length in random.integers(1, 50, size=25)]
        for _ in range(350)
    ]


@pytest.fixture(scope="module")
def local(tmp_path_factory, id_tokenizer, documents) -> TokenShards:
    """A corpus of three shards, 220,000 tokens in nine blocks."""
    folder = tmp_path_factory.mktemp("prepared") / "shards"
    return prepare(documents, id_tokenizer(VOCABULARY), folder, shard_tokens=100_000)


@contextmanager
def at(kind: str, folder: Path, monkeypatch) -> Iterator[tuple[str, Faults | None]]:
    """The URL of a folder in a file system, and the faults of its server."""
    if kind == "memory":
        memory = fsspec.filesystem("memory")
        memory.put(str(folder), "/bucket/shards", recursive=True)
        try:
            yield "memory://bucket/shards/", None
        finally:
            memory.rm("/bucket", recursive=True)
        return
    with serving(folder, "/bucket/shards/") as (address, faults):
        if kind == "s3":
            endpoint = address.removesuffix("/bucket/shards")
            monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": endpoint, "anon": True})
            address = "s3://bucket/shards"
        yield address, faults


def options(folder: Path, **values) -> StreamOptions:
    return StreamOptions(**{"cache_dir": folder / "cache", "patience": 2.0, **values})


def assert_equal_batches(local: TokenShards, streamed: TokenShards, samples: int = 200, **recipe) -> None:
    for split in ("train", "validation"):
        first, second = (PretrainingData(shards, max_length=64, split=split, **recipe) for shards in (local, streamed))
        for expected, found in zip(first.plan(1).columns(), second.plan(1).columns(), strict=True):
            assert np.array_equal(expected, found)
        start = first.samples_per_epoch(0) - 20  # from one epoch into the next
        second.read_ahead(range(start, start + samples))
        expected, found = (data.samples(range(start, start + samples)) for data in (first, second))
        for name in FIELDS:
            assert np.array_equal(getattr(expected, name), getattr(found, name)), name


@pytest.mark.parametrize(
    ("kind", "objective"),
    [
        pytest.param("memory", "mlm+nsp"),
        pytest.param("http", "mlm", marks=HTTP),
        pytest.param("s3", "mlm+sop", marks=needs("s3fs")),
    ],
)
def test_batches_are_those_of_a_local_copy(local, tmp_path, monkeypatch, kind, objective):
    with at(kind, local.folder, monkeypatch) as (url, _):
        assert (tokenizer_folder(url, options(tmp_path)) / "vocab.txt").read_bytes() == (
            local.folder / "vocab.txt"
        ).read_bytes()
        stages = []
        streamed = open_shards(
            url, options(tmp_path), on_stage=lambda name, size: stages.append((name, size)) or (lambda done: None)
        )
        assert isinstance(streamed, StreamedShards)
        assert [name for name, _ in stages] == ["downloading"]
        assert not list(tmp_path.glob("**/*.tokens.bin"))
        for shards in (streamed, pickle.loads(pickle.dumps(streamed))):
            assert_equal_batches(local, shards, objective=objective)
        assert_equal_batches(local, streamed, objective=objective, whole_word=True, shuffle_window=30_000)
        for expected, found in zip(unigram_counts(local), unigram_counts(streamed), strict=True):
            assert np.array_equal(expected, found)
        for number in (0, 4000, streamed.num_sentences - 1):
            assert np.array_equal(local.sentence(number), streamed.sentence(number))
        assert streamed.num_tokens == local.num_tokens
        assert streamed.stats.fetched_bytes == 2 * local.num_tokens  # each block once
        assert "holds all of them" in streamed.described(None)
        assert "MB in" in streamed.described_stats()


@pytest.fixture
def small_blocks(monkeypatch) -> None:
    """Blocks of 1 KiB, of which one fits into memory and 16 into the smallest cache."""
    for module in (block_files, token_stream, streamed_shards):
        monkeypatch.setattr(module, "BLOCK_BYTES", 1024)
    monkeypatch.setattr("fastbert.data.prepare.BLOCK_BYTES", 1024)
    monkeypatch.setattr(token_stream, "MEMORY_BLOCKS", 1)
    monkeypatch.setattr(streamed_shards, "LEAST_BLOCKS", 16)


def test_a_cache_smaller_than_the_corpus_keeps_its_bound(tmp_path, monkeypatch, small_blocks, id_tokenizer, documents):
    local = prepare(documents, id_tokenizer(VOCABULARY), tmp_path / "shards", shard_tokens=100_000)
    with at("memory", local.folder, monkeypatch) as (url, _):
        with pytest.raises(UserError, match=r"--cache-size 1e-05 is too small .* give at least 0\.001") as caught:
            open_shards(url, options(tmp_path, cache_bytes=10_000))
        assert "\n" not in str(caught.value)
        side = sum(file.stat().st_size for file in local.folder.iterdir() if ".tokens." not in file.name)
        bound = side + 60_000
        streamed = open_shards(url, options(tmp_path, cache_bytes=bound))
        assert "raise --cache-size" in streamed.described(None)
        for objective in ("mlm", "mlm+nsp"):
            assert_equal_batches(local, streamed, objective=objective)
        cached = [file for file in tmp_path.glob("cache/**/*") if file.is_file()]
        assert 40_000 < sum(file.stat().st_size for file in cached if file.name.startswith("blocks")) <= 60_000
        assert sum(file.stat().st_size for file in cached) <= bound
        assert streamed.stats.fetched_bytes > 2 * local.num_tokens  # some again
        assert streamed.stats.cached_blocks > 0
        whole = open_shards(url, options(tmp_path, cache_bytes=10**8))  # another size has files of its own
        assert_equal_batches(local, whole, objective="mlm")
        fetched = whole.stats.fetched_blocks
        assert_equal_batches(local, whole, objective="mlm")
        assert whole.stats.fetched_blocks == fetched


def test_a_damaged_cache_is_repaired(local, tmp_path, monkeypatch):
    monkeypatch.setattr(token_stream, "MEMORY_BLOCKS", 1)
    with at("memory", local.folder, monkeypatch) as (url, _):
        first = open_shards(url, options(tmp_path))
        assert_equal_batches(local, first)
        [blocks], [vocabulary] = tmp_path.glob("cache/*/blocks-*.bin"), tmp_path.glob("cache/*/files/vocab.txt")
        content = bytearray(blocks.read_bytes())
        for position in range(100, len(content), 1000):
            content[position] ^= 1
        blocks.write_bytes(content[:-70_000])  # and the last ones are missing
        vocabulary.write_text("nothing")
        again = open_shards(url, options(tmp_path))
        assert_equal_batches(local, again)
        assert again.stats.fetched_blocks == first.stats.fetched_blocks == 9
        third = open_shards(url, options(tmp_path))
        assert_equal_batches(local, third)
        assert third.stats.fetched_blocks == 0


@pytest.mark.parametrize("kind", [pytest.param("http", marks=HTTP)])
def test_processes_share_a_cache(tmp_path, monkeypatch, small_blocks, id_tokenizer, documents, kind):
    """Forked processes, as workers of a loader are, on a cache in which they replace each other's blocks."""
    local = prepare(documents, id_tokenizer(VOCABULARY), tmp_path / "shards", shard_tokens=100_000)
    side = sum(file.stat().st_size for file in local.folder.iterdir() if ".tokens." not in file.name)
    with at(kind, local.folder, monkeypatch) as (url, _):
        shards = open_shards(url, options(tmp_path, cache_bytes=side + 80_000))
        shards.sentence(0)
        children = []
        for child in range(3):
            if not (process := os.fork()):
                status = 1
                try:
                    # The parent's stream goes on in the child; another opening has a stream of its own.
                    opened = shards if child else open_shards(url, shards.options)
                    assert_equal_batches(local, opened, samples=60, objective="mlm")
                    status = 0
                finally:
                    os._exit(status)
            children.append(process)
        assert_equal_batches(local, shards, samples=60, objective="mlm")
        assert [os.waitpid(process, 0)[1] for process in children] == [0, 0, 0]


def edited_index(folder: Path, change) -> None:
    index = json.loads((folder / "index.json").read_text())
    change(index)
    index.pop("sha256", None)
    (folder / "index.json").write_text(json.dumps(index))


def flipped(name: str, content: bytes, file: str) -> bytes:
    return bytes([content[0] ^ 1, *content[1:]]) if file in name else content


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param(
            lambda faults, folder: (folder / "index.json").unlink(),
            "holds no token shards: there is no index.json; check the address",
            id="no-index",
        ),
        pytest.param(
            lambda faults, folder: setattr(faults, "status", lambda name: 403),
            r"index.json: access denied \(status 403\); check the credentials",
            id="index-403",
        ),
        pytest.param(
            lambda faults, folder: setattr(faults, "status", lambda name: 503),
            r"index.json: cannot be read, after \d+ tries in \d+ s \(the server answered with status 503\); check the",
            id="index-503",
        ),
        pytest.param(
            lambda faults, folder: (folder / "index.json").write_text("<html>Welcome</html>"),
            "index.json is not valid JSON",
            id="page",
        ),
        pytest.param(
            lambda faults, folder: setattr(faults, "supports_ranges", False),
            "the server does not support byte ranges, which streaming needs; use another server",
            id="no-ranges",
        ),
        pytest.param(
            lambda faults, folder: edited_index(folder, lambda index: index.pop("block_bytes")),
            "has no checksums of blocks, which streaming needs: prepare the shards again with this",
            id="older",
        ),
        pytest.param(
            lambda faults, folder: edited_index(folder, lambda index: index.update(block_bytes=4096)),
            "has block_bytes=4096, not 65536; update fastbert",
            id="other-blocks",
        ),
        pytest.param(
            lambda faults, folder: edited_index(folder, lambda index: index.update(version=2)),
            "index.json has format version 2, newer than 1; update fastbert",
            id="newer",
        ),
        pytest.param(
            lambda faults, folder: edited_index(folder, lambda index: index["tokenizer"][0].update(name="../x")),
            "lists the file '../x' of the tokenizer, which is no plain file name",
            id="traversal",
        ),
        pytest.param(
            lambda faults, folder: edited_index(
                folder, lambda index: index["shards"][1]["files"]["checksums"].update(bytes=8)
            ),
            "gives shard-00001.checksums.bin 8 bytes, not 16",
            id="size",
        ),
        pytest.param(
            lambda faults, folder: setattr(faults, "change", lambda *part: flipped(*part, "sentences")),
            "sentences.bin: is damaged: its SHA-256 is not the one in the index; copy it again",
            id="side-file",
        ),
        pytest.param(
            lambda faults, folder: os.truncate(folder / "shard-00001.documents.bin", 40),
            r"documents.bin: is truncated: 40 of the bytes from 0 to \d+; copy it again",
            id="truncated-side-file",
        ),
        pytest.param(
            lambda faults, folder: (folder / "shard-00001.continuations.bin").unlink(),
            "shard-00001.continuations.bin: not found",
            id="no-side-file",
        ),
    ],
)
@pytest.mark.parametrize("kind", [pytest.param("http", marks=HTTP)])
def test_what_cannot_be_opened_is_one_line(local, tmp_path, monkeypatch, kind, fault, message):
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE", 0.01)
    folder = Path(shutil.copytree(local.folder, tmp_path / "shards"))
    with at(kind, folder, monkeypatch) as (url, faults):
        fault(faults, folder)
        with pytest.raises(UserError, match=message) as caught:
            open_shards(url, options(tmp_path, patience=0.1))
    assert "\n" not in str(caught.value)
    assert url in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param(
            lambda faults, folder: [file.unlink() for file in folder.glob("*.tokens.bin")], "not found", id="404"
        ),
        pytest.param(
            lambda faults, folder: setattr(faults, "status", lambda name: 403),
            r"access denied \(status 403\)",
            id="403",
        ),
        pytest.param(
            lambda faults, folder: [os.truncate(file, 1000) for file in folder.glob("*.tokens.bin")],
            r"is truncated: \d+ of the bytes from \d+ to \d+; copy it again|status 416",
            id="truncated",
        ),
        pytest.param(
            lambda faults, folder: setattr(faults, "change", lambda *part: flipped(*part, "tokens")),
            r"is damaged: the checksum of the bytes from \d+ to \d+ differs; copy the file again",
            id="damaged",
        ),
        pytest.param(
            lambda faults, folder: setattr(faults, "is_cut", lambda name: True),
            r"cannot be read, after \d+ tries in \d+ s \(ClientPayloadError.*\); check the server",
            id="cut",
        ),
        pytest.param(
            lambda faults, folder: setattr(faults, "status", lambda name: 500),
            r"cannot be read, after \d+ tries in \d+ s \(the server answered with status 500\)",
            id="500",
        ),
    ],
)
@pytest.mark.parametrize("kind", [pytest.param("http", marks=HTTP)])
def test_blocks_that_cannot_be_read_are_one_line(local, tmp_path, monkeypatch, kind, fault, message):
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE", 0.01)
    folder = Path(shutil.copytree(local.folder, tmp_path / "shards"))
    with at(kind, folder, monkeypatch) as (url, faults):
        data = PretrainingData(open_shards(url, options(tmp_path, patience=0.1)), max_length=64)
        fault(faults, folder)
        data.read_ahead(range(50))
        with pytest.raises(UserError, match=message) as caught:
            data.samples(range(50))
        assert "\n" not in str(caught.value)
        assert f"{url}/shard-0000" in str(caught.value)


@pytest.mark.parametrize("kind", [pytest.param("http", marks=HTTP)])
def test_transient_failures_are_repeated_and_counted(local, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE", 0.01)
    with at(kind, local.folder, monkeypatch) as (url, faults):
        faults.first(2, 503, "index")
        streamed = open_shards(url, options(tmp_path))
        assert streamed.retries == 2
        faults.first(1, 503, "index")
        streamed.tokens.remote.check_ranges("index.json", 100)
        assert streamed.retries == 3
        faults.first(3, 429)
        left = [2]

        def change(name: str, content: bytes) -> bytes:
            left[0] -= 1
            return flipped(name, content, "tokens") if left[0] >= 0 else content

        faults.change = change
        assert_equal_batches(local, streamed)
        assert streamed.retries == 6
        assert streamed.stats.damaged_blocks == 2
        assert "6 tries repeated, 2 damaged blocks fetched again" in streamed.described_stats()


@pytest.mark.parametrize("kind", [pytest.param("http", marks=HTTP)])
def test_a_failure_does_not_outlive_its_cause(local, tmp_path, monkeypatch, kind):
    with at(kind, local.folder, monkeypatch) as (url, faults):
        streamed = open_shards(url, options(tmp_path, patience=0.0))
        faults.status = lambda name: 500
        with pytest.raises(UserError, match="status 500"):
            PretrainingData(streamed, max_length=64).samples(range(50))
        while streamed.tokens._pending:  # further requests for the same batch, which fail too
            time.sleep(0.01)
        faults.status = lambda name: 200
        assert_equal_batches(local, streamed)


@pytest.mark.parametrize("kind", [pytest.param("http", marks=HTTP)])
def test_samples_that_were_read_ahead_are_not_waited_for(local, tmp_path, monkeypatch, kind):
    with at(kind, local.folder, monkeypatch) as (url, faults):
        streamed = open_shards(url, options(tmp_path))
        data = PretrainingData(streamed, max_length=64)
        data.plan(0)
        faults.seconds = 0.2
        began = time.perf_counter()
        data.read_ahead(range(data.samples_per_epoch(0) + 50))
        assert time.perf_counter() - began < 0.2  # it does not wait
        data.samples(range(100))  # this does
        waited = streamed.stats.seconds_waited
        assert 0.05 < waited < 5
        while streamed.stats.fetched_blocks < 9:
            time.sleep(0.01)
        requests = len(faults.requests)
        data.samples(range(100, 400))
        assert len(faults.requests) == requests
        assert streamed.stats.seconds_waited == waited


def test_a_full_cache_disk_is_reported_once_and_changes_no_batch(local, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(token_stream, "MEMORY_BLOCKS", 1)
    with at("memory", local.folder, monkeypatch) as (url, _):
        streamed = open_shards(url, options(tmp_path))
        write = os.pwrite

        def full(descriptor: int, data: bytes, offset: int) -> int:
            if offset >= 100_000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(descriptor, data[:1000], offset)

        monkeypatch.setattr(block_cache.os, "pwrite", full)
        with caplog.at_level("WARNING", logger="fastbert"):
            assert_equal_batches(local, streamed)
        [line] = [record.getMessage() for record in caplog.records]
        assert "No space left on device; blocks that do not fit are fetched whenever they are needed." in line


def test_a_cache_folder_that_cannot_be_written_is_one_line(local, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with at("memory", local.folder, monkeypatch) as (url, _):
        with pytest.raises(UserError, match=r"the cache cannot be written there .*; .* another --cache-dir") as caught:
            open_shards(url, StreamOptions(cache_dir=tmp_path / "file"))
        assert "\n" not in str(caught.value)


def test_windows_shuffle_the_samples_of_few_places(make_shards):
    shards = make_shards([[20] * 30 for _ in range(200)])

    def planned(window: int | None, epoch: int = 0) -> list[tuple[int, ...]]:
        data = PretrainingData(shards, objective="mlm", max_length=66, shuffle_window=window)
        return list(zip(*map(np.ndarray.tolist, data.plan(epoch).columns()), strict=True))

    # More windows than samples, when masks first repeat.
    static = PretrainingData(shards, objective="mlm", max_length=66, shuffle_window=16, static_masks=1)
    assert sorted(map(int, static.lengths(1))) == sorted(map(int, static.lengths(0)))

    whole, window = planned(None), 16_000
    for tokens in (1, 1000, window, 1 << 40):
        assert sorted(planned(tokens)) == sorted(whole)
    windowed = planned(window)
    assert windowed != planned(window, epoch=1) != whole
    # A window visits the places of its runs, a sixteenth of it each, and nothing else of the corpus.
    rows = window // 64
    places = [
        [len({begin // 1000 for begin, *_ in plan[start : start + rows]}) for start in range(0, len(plan) - rows, rows)]
        for plan in (windowed, whole)
    ]
    assert max(places[0]) < 65 < 80 < min(places[1])
    begins = [begin for begin, *_ in windowed[:rows]]
    assert np.ptp(begins) > shards.num_tokens / 2  # from all over the corpus
    assert np.abs(np.diff(begins)).min() < 2 * 64 < np.median(np.abs(np.diff(begins)))  # mixed
