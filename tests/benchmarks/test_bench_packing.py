"""The benchmark of packing: losses are compared, then steps are timed."""

import json
from pathlib import Path

import pytest
import torch

from fastbert.benchmarks import bench_packing


def test_all_are_compared_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers", reason="compares with transformers")
    text = tmp_path / "text.txt"
    lines = [" ".join(f"w{(n * k) % 17}" for k in range(1, 4 + n % 9)) for n in range(60)]
    text.write_text("\n".join("\n\n".join(lines[n : n + 6]) for n in range(0, 60, 6)))
    file = tmp_path / "rows.json"
    arguments = ["--quick", "--text", str(text), "--max-length", "32", "--batch-size", "4"]
    arguments += ["--threads", "1", "--rounds", "1", "--json", str(file)]
    assert bench_packing.main(arguments) == 0
    rows = {row["contender"]: row for row in json.loads(file.read_text())["rows"]}
    assert len(rows) == 6
    for name, row in rows.items():
        assert row["outputs"] == "close"
        assert row["max_abs_difference"] <= (bench_packing.CLOSE if name != "fastbert" else 0)
        assert row["tokens_per_second"] > 0
    assert "% of the padded batches are text" in capsys.readouterr().out
    # A model of another loss is not timed.
    spoiled = bench_packing.padded

    def shifted(*arguments: object) -> dict[str, torch.Tensor]:
        inputs = spoiled(*arguments)  # type: ignore[arg-type]
        return {**inputs, "token_type_ids": 1 - inputs["token_type_ids"]}

    monkeypatch.setattr(bench_packing, "padded", shifted)
    with pytest.raises(SystemExit, match="its loss differs by"):
        bench_packing.main(arguments)


def test_padded_batches_hold_the_same(tmp_path: Path) -> None:
    from fastbert.packing import PackedBatch

    batch = PackedBatch(
        input_ids=torch.tensor([3, 7, 4, 3, 8, 9, 4]),
        cu_seqlens=torch.tensor([0, 3, 7], dtype=torch.int32),
        max_seqlen=4,
        masked_positions=torch.tensor([1, 5]),
        labels=torch.tensor([70, 90]),
        next_sentence_label=torch.tensor([0, 1]),
    )
    inputs = bench_packing.padded(batch, 5)
    assert inputs["input_ids"].tolist() == [[3, 7, 4, 0, 0], [3, 8, 9, 4, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]
    assert inputs["labels"].tolist() == [[-100, 70, -100, -100, -100], [-100, -100, 90, -100, -100]]
    assert inputs["next_sentence_label"].tolist() == [0, 1]
