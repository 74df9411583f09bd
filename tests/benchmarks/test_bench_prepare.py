"""The benchmark of preparing shards on a megabyte: one process per measurement, equal shards, rows and files."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.platform != "linux":
    pytest.skip("reads a process's memory as Linux shows it", allow_module_level=True)

from fastbert.benchmarks import bench_prepare
from fastbert.data.corpus import read_documents

DOCUMENTS = [[f"Sentence {i} of document {j} has words." for i in range(12)] for j in range(20)]


@pytest.mark.parametrize("layout", bench_prepare.LAYOUTS)
def test_the_text_is_repeated_with_changes_in_its_layout(tmp_path: Path, layout: str) -> None:
    bench_prepare.write_text(DOCUMENTS, tmp_path / "a.txt", layout, 30_000)
    assert 30_000 <= (tmp_path / "a.txt").stat().st_size < 31_000
    documents = list(read_documents(tmp_path / "a.txt", text_format=layout))
    assert documents[:20] == DOCUMENTS
    assert documents[20] != DOCUMENTS[0]
    assert len(" ".join(documents[20])) == len(" ".join(DOCUMENTS[0]))


def test_all_numbers_of_workers_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join("\n".join(document) for document in DOCUMENTS))
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nsentence\nof\ndocument\nhas\nwords\n.\n")
    words = ["--text", str(tmp_path / "a.txt"), "--tokenizer", str(tmp_path / "vocab.txt"), "--megabytes", "1"]
    words += ["--layouts", "lines", "--workers", "2", "1", "--rounds", "1", "--json", str(tmp_path / "rows.json")]
    assert bench_prepare.main(words) == 0
    rows = {row["contender"]: row for row in json.loads((tmp_path / "rows.json").read_text())["rows"]}
    assert {name: row["details"]["workers"] for name, row in rows.items()} == {"fastbert": 2, "1 worker": 1}
    for row in rows.values():
        assert (row["workload"], row["outputs"], row["dtype"]) == ("lines-1MB", "equal", "uint16")
        assert row["megabytes_per_second"] > 0
        assert 1e6 < row["details"]["peak_bytes"] < 1e9
    assert capsys.readouterr().out.count("lines-1MB") == 2


def test_shards_that_differ_are_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(path: Path, layout: str, tokenizer: Path, out: Path, workers: int, mode: str) -> dict[str, Any]:
        return {"index": str(workers)}

    monkeypatch.setattr(bench_prepare, "_in_a_process", run)
    (tmp_path / "a.txt").write_text("Some text.\n")
    words = ["--text", str(tmp_path / "a.txt"), "--tokenizer", str(tmp_path), "--workers", "2", "1", "--quick"]
    with pytest.raises(SystemExit, match="lines, 1 MB: the shards depend on the number of workers"):
        bench_prepare.main([*words, "--megabytes", "1"])
