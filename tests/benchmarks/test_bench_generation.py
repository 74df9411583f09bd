"""The benchmark of generation on toys: texts are compared, rows are written, wrong texts are found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fastbert.benchmarks import bench_generation
from fastbert.benchmarks.bench_generation import CONTENDERS, Options
from fastbert.benchmarks.harness.records import machine_class, problems
from fastbert.errors import UserError


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    shape = {
        "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64
    }  # fmt: skip
    monkeypatch.setattr(bench_generation, "SHAPES", {"mini": shape, "small": shape})
    monkeypatch.setattr(bench_generation, "QUICK_TOKENS", 6)
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before


def test_all_contenders_write_the_same_texts_and_rows_say_how_fast(tmp_path: Path) -> None:
    options, said, steps = Options(quick=True, rounds=1, threads=1), [], []
    result = bench_generation.run(options, said.append, lambda *step: steps.append(step))
    by_workload = {
        name: {row.contender: row for row in result.rows if row.workload == name} for name in options.selected()
    }
    for name, rows in by_workload.items():
        named = {*rows, *(each.contender for each in result.absent if each.workload == name)}
        uncached = {"uncached fastbert fp32"} if name == "mini, batch 16" else set()  # for one text alone
        assert named == {*CONTENDERS} - uncached
    assert not said
    for row in result.rows:
        assert row.agrees, row
        assert row.details["equal_tokens"] > 0.5, row
    assert by_workload["mini, batch 1"]["fastbert fp32"].outputs == "equal"
    assert by_workload["mini, batch 1"]["uncached fastbert fp32"].outputs == "equal"
    assert "uncached fastbert fp32" not in by_workload["mini, batch 16"]
    assert steps[-1] == (2, 2, "")
    bench_generation.publish(result, options, tmp_path / "rows.json", tmp_path / "rows.png")
    record = json.loads((tmp_path / "rows.json").read_text())
    # A copy that was installed from a wheel has no commit.
    assert problems({**record, "note": "a test"}, "generation", machine_class(record["machine"])) == []
    assert (tmp_path / "rows.png").stat().st_size > 1000


def test_a_wrong_text_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    call = bench_generation._call

    def wrong(name: str, *arguments: object) -> object:
        texts = call(name, *arguments)
        return (lambda: (texts() + 1) % 97) if name == "fastbert fp32" else texts

    monkeypatch.setattr(bench_generation, "_call", wrong)
    said: list[str] = []
    options = Options(quick=True, rounds=1, threads=1, workloads=("batch 1",), contenders=("fastbert fp32",))
    result = bench_generation.run(options, said.append)
    outputs = {row.contender: row.outputs for row in result.rows if row.workload == "mini, batch 1"}
    assert "deviations behind the most probable" in outputs["fastbert fp32"]
    assert outputs["uncached fastbert fp32"] == "equal"
    assert any(line.startswith("fastbert fp32: mini, batch 1: a token is") for line in said)


def test_wrong_options_are_named() -> None:
    for options, message in (
        ({"model": "mini"}, "--model names an encoder"),
        ({"workloads": ("large",)}, "no workload has 'large' in its name"),
        ({"contenders": ("vllm",)}, "no contender has 'vllm' in its name"),
        ({"quick": True, "workloads": ("small",)}, "no workload has 'small'"),
    ):
        with pytest.raises(UserError, match=message):
            Options(**options)  # type: ignore[arg-type]
