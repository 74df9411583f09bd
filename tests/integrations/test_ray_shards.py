"""Parquet files to shards of vectors, and the folder of a run, without Ray."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embedding import saved

from fastbert.embeddings.arrow import ArrowEmbedder
from fastbert.embeddings.folder import load_embedder
from fastbert.errors import UserError
from fastbert.integrations.ray.inputs import (
    InputFile,
    Shard,
    divide,
    find_files,
    read_inputs,
    read_shard,
    refuse_inside,
)
from fastbert.integrations.ray.shard_folder import JOURNAL, FolderTarget, opened_folder
from fastbert.integrations.ray.shard_records import MANIFEST, MOST_STARTS, RunRecord, ShardRecord
from fastbert.integrations.ray.worker import ERROR, RECORD, ShardWriter, shard_table

pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")

from ray_runs import RUN, record, write  # noqa: E402


@pytest.fixture
def embedder(tmp_path: Path, seed: int) -> ArrowEmbedder:
    return ArrowEmbedder(model=saved(tmp_path / "model", seed), device="cpu", dtype="fp32")


def test_files_are_found_in_order(tmp_path: Path) -> None:
    for name in ("b", "a/x", "a", "_partial/y", ".z", "_w"):
        write(tmp_path / f"in/{name}.parquet", 1)
    (tmp_path / "in/readme.txt").touch()

    def names(location: Any) -> list[str]:
        return [os.path.relpath(str(file), tmp_path / "in") for file in find_files(location)]

    assert names(tmp_path / "in") == ["a/x.parquet", "a.parquet", "b.parquet"]
    assert names(f"file://{tmp_path}/in/*.parquet") == ["a.parquet", "b.parquet"]
    assert names(tmp_path / "in/**/*.parquet") == ["a/x.parquet", "a.parquet", "b.parquet"]
    assert names(tmp_path / "in/_*.parquet") == ["_w.parquet"]
    assert names(tmp_path / "in/b.parquet") == ["b.parquet"]
    for location, words in (
        ("none", "no such file"),
        ("in/readme.txt", "must be a .parquet"),
        ("in/*.txt", "holds no"),
    ):
        with pytest.raises(UserError, match=words):
            find_files(tmp_path / location)


def test_vectors_below_the_texts_are_refused(tmp_path: Path) -> None:
    """At the next start they would be read as texts."""
    for out in ("vectors", "a/vectors"):
        with pytest.raises(UserError, match=f"{out}: lies in --text .*; name a folder outside of it"):
            refuse_inside(tmp_path, tmp_path / out)
    for out in ("_vectors", "../vectors"):
        refuse_inside(tmp_path, tmp_path / out)
    refuse_inside("memory://in", tmp_path / "vectors")


def test_files_behind_urls(tmp_path: Path, embedder: ArrowEmbedder) -> None:
    fsspec = pytest.importorskip("fsspec", reason="needs fsspec")
    memory = fsspec.filesystem("memory")
    for name, rows in (("b", 5), ("a", 9)):
        texts = write(tmp_path / "x.parquet", rows)
        memory.pipe(f"/bulk/{name}.parquet", (tmp_path / "x.parquet").read_bytes())
    memory.pipe("/bulk/_other/c.parquet", b"damaged")
    files = read_inputs(find_files("memory://bulk"), embedder)
    assert [(file.name, file.rows) for file in files] == [
        ("memory:///bulk/a.parquet", 9),
        ("memory:///bulk/b.parquet", 5),
    ]
    assert read_inputs(find_files("memory://bulk/*.parquet"), embedder) == files
    shard = divide(files, 4)[1]
    assert read_shard(shard, "text", None).column("text").to_pylist() == texts[3:6]
    memory.pipe("/bulk/a.parquet", b"damaged")
    with pytest.raises(UserError, match=r"memory:///bulk/a.parquet: not an intact .parquet file"):
        read_shard(shard, "text", None)


def test_shards_are_even_and_cover_each_row_once(tmp_path: Path, embedder: ArrowEmbedder) -> None:
    texts = [
        text for name, rows in (("a", 23), ("b", 0), ("c", 8)) for text in write(tmp_path / f"{name}.parquet", rows)
    ]
    shards = divide(read_inputs(find_files(tmp_path), embedder), 8)
    assert [(shard.file.name[-9], shard.begin, shard.end, shard.first) for shard in shards] == [
        ("a", 0, 7, 0), ("a", 7, 15, 7), ("a", 15, 23, 15), ("c", 0, 8, 23),
    ]  # fmt: skip
    tables = [read_shard(shard, "text", None) for shard in shards]
    assert [text for table in tables for text in table.column("text").to_pylist()] == texts
    assert [number for table in tables for number in table.column("index").to_pylist()] == list(range(31))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        pytest.param({"body": ["a"]}, "no column 'text'", id="no-text"),
        pytest.param({"text": [1]}, "b.parquet: column 'text' holds int64", id="numbers"),
        pytest.param({"text": ["a"] * 9 + [None]}, "b.parquet, row 10: column 'text' is null", id="null"),
        pytest.param({"text": ["a"], "doc": [1]}, "b.parquet: column 'doc' holds int64, but string in .*a", id="ids"),
        pytest.param(None, "b.parquet: not an intact .parquet file", id="damaged"),
    ],
)
def test_inputs_are_checked_before_any_work(
    tmp_path: Path, embedder: ArrowEmbedder, columns: dict[str, Any] | None, words: str
) -> None:
    write(tmp_path / "a.parquet", 3, doc=["x", "y", "z"])
    if columns is None:
        (tmp_path / "b.parquet").write_bytes(b"PAR1" * 9)
    else:
        if "doc" not in columns:
            columns = {**columns, "doc": [str(row) for row in range(len(next(iter(columns.values()))))]}
        pq.write_table(pa.table(columns), tmp_path / "b.parquet", row_group_size=4)
    with pytest.raises(UserError, match=words):
        read_inputs(find_files(tmp_path), replace(embedder, id_column="doc"))


def test_a_changed_file_is_told_by_its_footer(tmp_path: Path, embedder: ArrowEmbedder) -> None:
    def digest(texts: list[str]) -> str:
        pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
        return read_inputs(find_files(tmp_path), embedder)[0].sha256

    assert digest(["ab", "ba"]) == digest(["ab", "ba"]) != digest(["ab", "bb"])


def test_a_folder_continues_with_what_its_journal_names(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with opened_folder(out, RUN, resume=True, overwrite=False) as folder:
        (folder.target.unfinished / "left").touch()
        for shard in (0, 1, 2):
            (out / folder.name(shard)).write_text("abc")
        folder.append(record(0))
        folder.append(record(1, size=4))  # as if it had been cut
        with (
            pytest.raises(UserError, match="another process is writing there"),
            opened_folder(out, RUN, resume=True, overwrite=False),
        ):
            pass
    (out / "_partial-1234").mkdir()
    with (out / JOURNAL).open("a") as file:
        file.write('{"shard": 2, "file": "part-0000')  # a kill within a write
    with opened_folder(out, RUN, resume=True, overwrite=False) as folder:
        assert folder.records == {0: record(0)}
        assert sorted(path.name for path in out.iterdir() if path != folder.target.unfinished) == [
            MANIFEST,
            JOURNAL,
            "part-00000.parquet",
        ]
        assert len((out / JOURNAL).read_text().splitlines()) == 1
        for shard in (1, 2):
            folder.append(record(shard))
        assert folder.finish() == {"rows": 9, "tokens": 27, "truncated": 0, "width": 2}
    assert json.loads((out / MANIFEST).read_text())["complete"]["rows"] == 9
    assert not list(out.glob("_partial-*"))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            replace(RUN, options={**RUN.options, "dtype": "bf16"}),
            "begun with --dtype fp32, and it is now bf16; repeat its",
        ),
        (replace(RUN, options={**RUN.options, "pooling": "cls"}), "--pooling at its default, and it is now cls"),
        (replace(RUN, model_sha256="1" * 64), "another model, 'm', or other files of it"),
        (replace(RUN, inputs=[InputFile("/a.parquet", 9, "2")]), "other input files: /a.parquet is new or was changed"),
        (replace(RUN, inputs=[*RUN.inputs, InputFile("/b.parquet", 9, "2")]), "1 input files, and there are now 2"),
    ],
)
def test_a_different_run_is_refused_and_changes_nothing(tmp_path: Path, other: RunRecord, words: str) -> None:
    out = tmp_path / "out"
    with opened_folder(out, RUN, resume=False, overwrite=False) as folder:
        (out / folder.name(0)).write_text("abc")
        folder.append(record(0))
    with pytest.raises(UserError, match=words), opened_folder(out, other, resume=True, overwrite=False):
        pass
    with pytest.raises(UserError, match="already holds a run; continue it with --resume"):
        opened_folder(out, RUN, resume=False, overwrite=False).__enter__()
    assert (out / "part-00000.parquet").exists()
    with opened_folder(out, other, resume=False, overwrite=True) as folder:
        assert folder.records == {}
    assert not (out / "part-00000.parquet").exists()
    with opened_folder(out, other, resume=True, overwrite=False):
        pass


def test_folders_with_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for overwrite in (False, True):
        with (
            pytest.raises(UserError, match="holds other files"),
            opened_folder(tmp_path, RUN, resume=False, overwrite=overwrite),
        ):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_shard_is_written_whole_with_its_ids(tmp_path: Path, embedder: ArrowEmbedder) -> None:
    texts = write(tmp_path / "in/a.parquet", 20, doc=[f"d{row}" for row in range(20)])
    encoder, tokenizer, _ = load_embedder(embedder.model)
    expected = encoder.embed(texts, tokenizer).numpy()
    shard = divide(read_inputs(find_files(tmp_path / "in"), embedder), 10)[1]
    for id_column, ids in ((None, list(range(10, 20))), ("doc", [f"d{row}" for row in range(10, 20)])):
        out, partial = tmp_path / f"out-{id_column}", tmp_path / f"out-{id_column}" / "_partial"
        partial.mkdir(parents=True)
        writer = ShardWriter(replace(embedder, id_column=id_column), FolderTarget(out, partial))
        answer = writer(shard_table(shard, "x.parquet"))
        row = answer.to_pylist()[0]
        assert row[ERROR] == ""
        written = ShardRecord(**json.loads(row[RECORD]))
        table = pq.read_table(out / "x.parquet")
        assert table.schema.names == [id_column or "index", "embedding"]
        assert table.column(0).to_pylist() == ids
        np.testing.assert_array_equal(np.stack(table.column("embedding").to_numpy()), expected[10:])
        assert (written.shard, written.rows, written.width) == (1, 10, expected.shape[1])
        assert written.size == (out / "x.parquet").stat().st_size
        assert list(partial.iterdir()) == []


def test_errors_of_a_worker_name_file_and_row(tmp_path: Path, embedder: ArrowEmbedder) -> None:
    write(tmp_path / "a.parquet", 20)
    shard = divide(read_inputs(find_files(tmp_path / "a.parquet"), embedder), 10)[1]
    folder = tmp_path / "out"
    partial = folder / "_partial"
    writer = ShardWriter(embedder, FolderTarget(folder, partial))

    def error(shard: Shard = shard) -> str:
        return writer(shard_table(shard, "x.parquet")).to_pylist()[0][ERROR]

    assert error() == f"{folder}/_partial/x.parquet.start-0: No such file or directory"  # a folder that is gone
    partial.mkdir(parents=True)
    pq.write_table(pa.table({"text": ["a"] * 13 + [None] + ["a"] * 6}), tmp_path / "a.parquet", write_statistics=False)
    assert error().startswith(f"{tmp_path}/a.parquet, row 14: column 'text' is null")
    for _ in range(MOST_STARTS - 1):
        error()
    ended = f"{tmp_path}/a.parquet, rows 11 to 20: the worker ended {MOST_STARTS} times there"
    assert error().startswith(ended)
    (partial / "x.parquet.start-0").unlink()
    write(tmp_path / "a.parquet", 19)
    assert error().startswith(f"{tmp_path}/a.parquet: has changed since the command began")
    assert not (folder / "x.parquet").exists()
