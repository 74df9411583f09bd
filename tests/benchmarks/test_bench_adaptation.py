"""The benchmark of domain adaptation, on toy data: its rows and their record."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
from domain_text import write_corpus
from toy_tasks import toy_folder

from fastbert.benchmarks import bench_adaptation
from fastbert.benchmarks.bench_defaults import WIKIPEDIA


@pytest.mark.slow
def test_every_kind_of_pairs_has_a_row_with_and_without_pre_training(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for seed, name in enumerate((WIKIPEDIA, bench_adaptation.BOOKS)):
        (data / name).parent.mkdir(parents=True)
        text = write_corpus(tmp_path / "text.txt", 60, seed=seed).read_bytes()
        (data / name).write_bytes(lzma.compress(text))
    model = toy_folder(tmp_path / "model")
    flags = (
        "--what pairs control --pairs dropout --steps 2 --pretrain-batch-size 8 --contrastive-steps 2 --batch-size 8"
    )
    names = ["--data", str(data), "--folder", str(model), "--json", str(tmp_path / "rows.json")]
    assert bench_adaptation.main([*flags.split(), "--max-length", "32", *names]) == 0
    record = json.loads((tmp_path / "rows.json").read_text())
    assert record["benchmark"] == "adaptation"
    rows = {row["contender"]: row for row in record["rows"]}
    assert [*rows] == [
        *("before", "pretrained", "pretrained, dropout", "dropout", "pretrained, neighbours", "neighbours"),
        *("pretrained, both", "both", "control"),
    ]
    assert rows["before"]["new_head"]
    assert rows["pretrained"]["mlm_loss"] < rows["before"]["mlm_loss"]
    assert "ndcg@10" not in rows["control"]
    assert record["settings"]["held_out"]["queries"] > 0
