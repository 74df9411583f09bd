"""The benchmark of scores on a toy model and a toy BLiMP: rows, the record, and scores that differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from language_models import saved

pytest.importorskip("transformers")

from fastbert.benchmarks import bench_scoring


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    """The flags that name a model and pairs."""
    saved(tmp_path / "model", "BertForMaskedLM")
    (tmp_path / "blimp").mkdir()
    rows = [
        ("phenomenon", "paradigm", "good", "bad"),
        ("p", "x", "the cats run .", "the cat run ."),
        ("p", "y", "a", "b"),
    ]
    (tmp_path / "blimp" / "pairs.tsv").write_text("\n".join(map("\t".join, rows)))
    return ["--folder", str(tmp_path / "model"), "--data", str(tmp_path), "--threads", "1", "--rounds", "1"]


def test_rows_and_record(places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_scoring.main([*places, "--dtypes", "bf16", "int8", "--json", str(tmp_path / "rows.json")]) == 0
    shown = capsys.readouterr().out.splitlines()
    names = ["fastbert", bench_scoring.LOOP, bench_scoring.TOKEN_LOOP, "fastbert bf16", "fastbert int8"]
    assert [line[:26].strip() for line in shown[1:]] == names
    record = json.loads((tmp_path / "rows.json").read_text())
    assert record["benchmark"] == "scoring"
    assert record["settings"]["pairs"] == 2
    assert [row["dtype"] for row in record["rows"]] == ["fp32", "fp32", "fp32", "bf16", "int8"]
    assert record["rows"][0]["max_abs_difference"] < bench_scoring.CLOSE
    assert record["rows"][0]["outputs"] == "close"


def test_scores_that_differ_are_not_measured(
    places: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_scoring, "loop", lambda model, tokenizer, texts, batched=True: np.zeros(len(texts)))
    assert bench_scoring.main(places) == 2
    assert "nothing was measured" in capsys.readouterr().err


def test_without_blimp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_scoring.main(["--data", str(tmp_path)]) == 2
    assert "no BLiMP" in capsys.readouterr().err
