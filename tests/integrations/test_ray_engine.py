"""`fastbert embed --engine ray` with two workers on this machine: results, errors, signals and kills."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from data_servers import serving
from embedding import random_texts, saved

from fastbert.embeddings.folder import load_embedder
from fastbert.integrations.ray.cluster import Cluster, descendants, end_processes

pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
with_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")

ROWS, SHARD_ROWS = (500, 30, 0, 170), 7
KILLS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """A model, and files of very different size."""
    folder = tmp_path_factory.mktemp("ray")
    saved(folder / "model", seed)
    (folder / "in").mkdir()
    for number, rows in enumerate(ROWS):
        ids = pa.array([f"{number}-{row}" for row in range(rows)], pa.string())
        texts = pa.array(random_texts(seed + number, rows), pa.string())
        pq.write_table(pa.table({"doc": ids, "body": texts}), folder / "in" / f"{number}.parquet", row_group_size=64)
    return folder


def command(folder: Path, out: Path | str, *flags: object) -> list[str]:
    fixed = ("--engine", "ray", "--model", folder / "model", "--out", out, "--dtype", "fp32", "--device", "cpu")
    size = ("--workers", 2, "--threads", 1, "--shard-rows", SHARD_ROWS)
    words = ["embed", *fixed, "--column", "body", *size, *flags]
    return [sys.executable, "-P", "-m", "fastbert", *map(str, words)]


def start(folder: Path, out: Path | str, *flags: object, text: Path | str | None = None) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        command(folder, out, "--text", text or folder / "in", "--id-column", "doc", *flags),
        **pipes,
        text=True,
        cwd=out.parent if isinstance(out, Path) else folder,
        start_new_session=True,
    )


@contextlib.contextmanager
def s3(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve a folder as s3://bucket to the commands that are started."""
    pytest.importorskip("s3fs", reason="needs the extra [remote]")
    bucket.mkdir()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with serving(bucket, "/bucket/") as (address, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address.removesuffix("/bucket"))
        yield


def lines(out: Path) -> int:
    """The shards in the journal, or with a record."""
    with contextlib.suppress(FileNotFoundError):
        records = out / "_shards"
        return len(os.listdir(records)) if records.is_dir() else (out / "_shards.jsonl").read_bytes().count(b"\n")
    return 0


def wait_for(out: Path, shards: int, run: subprocess.Popen[str]) -> None:
    """Until so many shards are complete, or the run has ended."""
    while lines(out) < shards and run.poll() is None:
        time.sleep(0.002)


def check(folder: Path, out: Path) -> None:
    """Each id once, in order, with the vector of `embed`, bit for bit."""
    inputs = [pq.read_table(file) for file in sorted((folder / "in").glob("*.parquet"))]
    ids = [identifier for table in inputs for identifier in table.column("doc").to_pylist()]
    texts = [text for table in inputs for text in table.column("body").to_pylist()]
    encoder, tokenizer, _ = load_embedder(folder / "model")
    table = pq.read_table(out)
    assert table.column("doc").to_pylist() == ids
    vectors = np.stack(table.column("embedding").to_numpy())
    np.testing.assert_array_equal(vectors, encoder.embed(texts, tokenizer).numpy())
    assert json.loads((out / "_manifest.json").read_text())["complete"]["rows"] == len(ids)
    assert [path.name for path in out.glob("*partial*")] == []


@with_ray
def test_a_terminated_run_leaves_no_process_and_continues(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = start(folder, out)
    wait_for(out, 3, run)
    processes = descendants(run.pid)
    assert len(processes) >= 4  # Ray's two servers and the workers
    run.send_signal(signal.SIGTERM)
    printed, errors = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGTERM, errors
    assert [process for process, begun in processes.items() if descendants_start(process) == begun] == []
    assert errors.splitlines()[0] == f"fp32 on cpu, 2 workers of 1 core, {out}"
    assert "repeat the command with --resume to continue" in errors.splitlines()[-1]
    assert all(word not in errors + printed for word in ("Traceback", "ray::", "core_worker", "Warning"))
    done = lines(out)
    assert 3 <= done < 101
    run = start(folder, out, "--resume", "--quiet")
    printed, errors = run.communicate(timeout=300)
    assert (run.returncode, errors) == (0, "")
    assert " were there already" in printed
    check(folder, out)
    assert sum(1 for _ in (out / "_shards.jsonl").open()) == len(list(out.glob("part-*.parquet")))
    # Complete: nothing is left to do, and Ray is not started.
    began = time.monotonic()
    run = start(folder, out, "--resume")
    printed, _ = run.communicate(timeout=60)
    assert run.returncode == 0
    assert printed.startswith("0 texts")
    assert time.monotonic() - began < 60
    workers = {json.loads(line)["worker"] for line in (out / "_shards.jsonl").open()}
    assert len(workers) == 4  # two of each start


def descendants_start(process: int) -> str:
    """The start of a process that still runs, else an empty word."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]
    return ""


@with_ray
def test_a_killed_run_continues_in_s3(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts from S3 and vectors to S3; the next run begins while Ray's processes of the killed one may still work."""
    bucket, url = tmp_path / "bucket", "s3://bucket/a/out"
    left: dict[int, str] = {}
    with s3(bucket, monkeypatch), end_of(left):
        shutil.copytree(folder / "in", bucket / "in")
        run = start(folder, url, text="s3://bucket/in")
        wait_for(bucket / "a/out", 3, run)
        left |= descendants(run.pid)
        run.kill()
        _, errors = run.communicate(timeout=60)
        assert errors.splitlines()[:1] == [f"fp32 on cpu, 2 workers of 1 core, {url}"]
        run = start(folder, url, text="s3://bucket/in")
        _, errors = run.communicate(timeout=60)
        assert errors == (
            f"fastbert: error: --out {url}: already holds a run; continue it with --resume or replace it with"
            " --overwrite\n"
        )
        run = start(folder, url, "--resume", "--quiet", text="s3://bucket/in")
        printed, errors = run.communicate(timeout=300)
        assert (run.returncode, errors) == (0, "")
        assert " were there already" in printed
    check(folder, bucket / "a/out")
    assert lines(bucket / "a/out") == len(list((bucket / "a/out").glob("part-*.parquet")))


@with_ray
def test_an_error_of_a_worker_is_one_line(folder: Path, tmp_path: Path) -> None:
    texts = [*["a b"] * 40, None, "a"]
    pq.write_table(pa.table({"body": texts}), tmp_path / "x.parquet", write_statistics=False)
    words = command(folder, tmp_path / "out", "--text", tmp_path / "x.parquet", "--quiet")
    run = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    cure = "column 'body' is null; leave the row out, or fill it with a text"
    assert run.stderr == f"fastbert: error: {tmp_path}/x.parquet, row 41: {cure}\n"
    assert (run.returncode, run.stdout) == (2, "")


def test_workers_and_threads_divide_the_cores() -> None:
    def divided(cores: list[int], gpus: list[int], **asked: object) -> tuple[int, int]:
        cluster = Cluster(**{"workers": None, "threads": None, "gpus": bool(gpus), **asked})  # type: ignore[arg-type]
        cluster._divide(cores, gpus or [0] * len(cores))
        return cluster.workers, cluster.threads

    assert divided([2], []) == (1, 2)
    assert divided([64], []) == (16, 4)
    assert divided([64], [], workers=32) == (32, 2)
    assert divided([2], [], workers=4) == (4, 1)  # more than there are, as asked
    assert divided([6, 6, 1], []) == (2, 4)
    assert divided([6, 6], [], threads=1) == (12, 1)
    assert divided([16, 16], [2, 2]) == (4, 4)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--text", "-"], "--text -: --engine ray reads .parquet files"),
        (["--out", "v.npy"], "--out v.npy: --engine ray writes a folder"),
        (["--out", "s3:/bucket/v"], "--out s3:/bucket/v: is a URL with one slash; write two"),
        (["--out", "s3://bucket/v.parquet"], "--out s3://bucket/v.parquet: --engine ray writes a folder"),
        (["--out", "http://host/v"], "--out http://host/v: web servers take no files; name a folder, or a URL such as"),
        (["--out", "gibberish://host/v"], "--out gibberish://host/v: fsspec knows no gibberish://; check the address"),
        (["--out", "file:///none/v"], "--out /none/v: no such folder /none; make it first"),
        (["--workers", "0"], "--workers 0 must be at least 1"),
        (["--vectors", "tokens"], "--vectors tokens: --engine ray writes one vector per text"),
        (["--resume", "--overwrite"], "--resume and --overwrite exclude each other"),
        (["--text", "none.parquet"], "none.parquet: no such file"),
        (
            ["--engine", "local", "--text", "-", "--out", "s3://bucket/v.npy"],
            "--out s3://bucket/v.npy: is a URL; name a file of this",
        ),
        (["--engine", "local", "--resume"], "--resume changes nothing without --engine ray"),
        (["--engine", "local", "--shard-rows", "5"], "--shard-rows 5 changes nothing without --engine ray"),
    ],
)
def test_wrong_flags_are_refused(
    folder: Path, tmp_path: Path, flags: list[str], words: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pytest.importorskip("tyro", reason="the command line needs tyro")
    if words.startswith("none") and find_spec("ray") is None:
        pytest.skip("needs ray")
    from fastbert import cli

    monkeypatch.chdir(tmp_path)
    base = {"--engine": "ray", "--model": str(folder / "model"), "--text": str(folder / "in"), "--out": "out"}
    given = {name: value for name, value in base.items() if name not in flags}
    assert cli.main(["embed", *(word for pair in given.items() for word in pair), *flags]) == 2
    assert words in capsys.readouterr().err


@with_ray
@pytest.mark.slow
@pytest.mark.parametrize("url", [None, "s3://bucket/out"], ids=["folder", "s3"])
def test_a_run_survives_twenty_kills(
    folder: Path, tmp_path: Path, seed: int, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL at random moments, of the start, within shards and between them; every other time the next run begins
    while Ray's processes of the killed one may still work."""
    draw = random.Random(seed)
    out = tmp_path / "bucket" / "out" if url else tmp_path / "out"
    left: dict[int, str] = {}
    progress = []
    with s3(tmp_path / "bucket", monkeypatch) if url else contextlib.nullcontext(), end_of(left):
        for kill in range(KILLS):
            before = lines(out)
            run = start(folder, url or out, "--resume")
            if kill % 4 == 3:
                time.sleep(draw.uniform(0, 8))  # within the start, mostly
            else:
                while lines(out) > before and run.poll() is None:  # the journal may lose a line that was cut
                    time.sleep(0.002)
                wait_for(out, before + draw.randint(1, 6), run)
                time.sleep(draw.uniform(0, 0.05))
            left |= descendants(run.pid)
            run.kill()
            _, errors = run.communicate(timeout=60)
            assert run.returncode == -signal.SIGKILL, errors
            progress.append(lines(out))
            if kill % 2:
                end_processes(left, 0)
                left.clear()
        run = start(folder, url or out, "--resume")
        _, errors = run.communicate(timeout=300)
        assert run.returncode == 0, errors
    check(folder, out)
    assert 0 < progress[-1] < sum(-(-rows // SHARD_ROWS) for rows in ROWS), progress  # kills fell into the work


@contextlib.contextmanager
def end_of(processes: dict[int, str]) -> Iterator[None]:
    try:
        yield
    finally:
        end_processes(processes, 0)


def test_processes_that_do_not_end_are_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"],
        stdin=subprocess.PIPE,
    )
    while len(processes := descendants(parent.pid)) < 1:
        time.sleep(0.01)
    assert descendants(os.getpid()).keys() >= {parent.pid, *processes}
    end_processes(processes, 0.1)
    assert parent.wait(10) == 0
    assert descendants(parent.pid) == {}
