"""`pytest benchmarks`: every workload of every suite runs at the smallest size, and its files are comparable."""

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert.benchmarks import bench_embed, bench_generation, bench_serving
from fastbert.benchmarks.cpu import contender, operations, rerank_contender, workloads
from fastbert.benchmarks.harness import comparison
from fastbert.benchmarks.harness.suite import Workshop
from fastbert.benchmarks.tokenizer.command import TokenizerOptions
from fastbert.benchmarks.training import contender as training_contender
from fastbert.cli.bench import BENCHMARKS
from fastbert.config import BertConfig

pytestmark = pytest.mark.usefixtures("threads")

ROOT = Path(__file__).resolve().parents[2]
TOY = BertConfig(vocab_size=30522, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=96)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toy models, short sequences, few texts, one call per round."""
    monkeypatch.setattr(BertConfig, "preset", classmethod(lambda cls, name, **more: replace(TOY, **more)))
    for module in (bench_embed, rerank_contender):
        monkeypatch.setattr(module, "MINILM", TOY)
    gpt2 = {"vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    monkeypatch.setattr(bench_generation, "SHAPES", dict.fromkeys(bench_generation.SHAPES, gpt2))
    monkeypatch.setattr(bench_generation, "QUICK_TOKENS", 3)
    requests = {name: (TOY, route) for name, (_, route) in bench_serving.REQUESTS.items()}
    monkeypatch.setattr(bench_serving, "REQUESTS", requests)
    for module in (operations, workloads):
        monkeypatch.setattr(module, "LONGEST", 16)
    monkeypatch.setattr(rerank_contender, "LONGEST", 24)
    monkeypatch.setattr(TokenizerOptions, "limit", 40_000)
    for module in (contender, training_contender):
        monkeypatch.setattr(module, "MOST_CALLS", 1)
    monkeypatch.setattr(training_contender, "MOST_WARMING", 2)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("what", BENCHMARKS)
def test_every_workload_runs(what: str, tmp_path: Path) -> None:
    module = importlib.import_module(f"fastbert.benchmarks.{BENCHMARKS[what][0].MODULE}")
    cases = module.cases(full=False)
    names = [str(case) for case in cases]
    assert len(set(names)) == len(names)
    assert {case.benchmark for case in cases} == {what}
    # The workloads of the real sizes are the same or more.
    if what != "training":  # whose models have the names of their sizes
        assert {case.workload.split(",")[-1] for case in cases} <= {
            case.workload.split(",")[-1] for case in module.cases(full=True)
        }
    workshop = Workshop(tmp_path, threads=1)
    with workshop.closing:
        for case in cases:
            # A server per dtype would take long to start; `test_bench_serving.py` starts them.
            if what == "serving" and not (case.dtype == "fp32" and case.workload.startswith("empty")):
                continue
            # `test_bench_scaling.py` starts the processes of one.
            if case.workload.startswith("two processes"):
                continue
            torch.set_num_threads(1)
            call = case.open(workshop)
            result = call.run(*(call.fresh() if call.fresh is not None else ()))
            assert call.calls >= 1
            assert result is not None or what == "training"
            assert call.tokens or call.operations or what in ("loading", "serving")


def run_pytest(*words: str) -> str:
    command = [sys.executable, "-P", "-m", "pytest", "benchmarks/bench_kernels.py", "-k", "fp32-softmax", *words]
    # Without the variables of this run: in a worker of pytest-xdist the plugin measures nothing.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_file_compares_with_itself_and_the_plugin_may_be_missing(tmp_path: Path) -> None:
    pytest.importorskip("pytest_benchmark", reason="measures with pytest-benchmark")
    file = tmp_path / "rows.json"
    run_pytest("--threads", "1", f"--benchmark-json={file}")
    measured = comparison.read(file)
    workloads_seen = {(benchmark, workload) for benchmark, workload, _ in measured.rows}
    assert workloads_seen == {("kernels", f"softmax, {what}") for what in ("forward", "forward and backward")}
    result = comparison.compare(measured, measured)
    assert len(result.changes) == 2
    assert {change.source for change in result.changes} == {"matmul_gflops"}
    assert (result.exit_code, result.notes) == (0, [])
    [test, *_] = json.loads(file.read_text())["benchmarks"]
    assert test["extra_info"]["threads"] == 1
    assert test["extra_info"]["machine_class"]
    assert "commit" in test["extra_info"]
    printed = run_pytest("-rs", "-p", "no:benchmark")
    assert "2 skipped" in printed
    assert "needs pytest-benchmark: pip install" in printed
