"""The benchmark of ELMo's pre-training: losses and gradients are compared, then steps are timed."""

import json
from pathlib import Path

import pytest

from fastbert.benchmarks import bench_elmo
from fastbert.benchmarks.training.plain_elmo import PlainElmo


def test_both_are_compared_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    lines = [" ".join(f"w{(n * k) % 17}" for k in range(1, 9)) for n in range(60)]
    text.write_text("\n".join("\n\n".join(lines[n : n + 6]) for n in range(0, 60, 6)))
    monkeypatch.setattr(bench_elmo, "Options", lambda **given: bench_options(**given))
    file = tmp_path / "rows.json"
    arguments = ["--quick", "--text", str(text), "--threads", "1", "--rounds", "1", "--json", str(file)]
    assert bench_elmo.main(arguments) == 0
    rows = {(row["contender"], row["dtype"]): row for row in json.loads(file.read_text())["rows"]}
    assert rows.keys() == {(name, dtype) for name in ("fastbert", "PyTorch, padded") for dtype in ("fp32", "bf16")}
    for (name, dtype), row in rows.items():
        assert row["outputs"] == "close"
        assert row["max_abs_difference"] <= (bench_elmo.CLOSE[dtype] if name != "fastbert" else 0)
        assert row["tokens_per_second"] > 0
    assert "of the padded batches are words" in capsys.readouterr().out
    # A step of another model is not timed.
    forward = PlainElmo.forward
    monkeypatch.setattr(PlainElmo, "forward", lambda self, *inputs: 1.1 * forward(self, *inputs))
    with pytest.raises(SystemExit, match=r"fp32: losses differ by 0\.0"):
        bench_elmo.main(arguments)


def bench_options(**given: object) -> bench_elmo.Options:
    return OPTIONS(**{**given, "batch_size": 4, "max_length": 16})  # type: ignore[arg-type]


OPTIONS = bench_elmo.Options
