"""The benchmark of cross-encoders on a toy: workloads, peers, verdicts, rows, files."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fastbert.benchmarks import bench_rerank, peers
from fastbert.benchmarks.bench_rerank import Options
from fastbert.benchmarks.cpu import lineup, peak, rerank_contender
from fastbert.benchmarks.cpu.contender import TextContender
from fastbert.benchmarks.cpu.rerank_contender import RerankLineup, kendall_tau
from fastbert.benchmarks.harness import measure
from fastbert.errors import UserError

QUICK = ("fastbert int8", "sentence-transformers bf16 by 32", "openvino int8 by 8")
REFERENCE = "sentence-transformers fp32 by 32"
TOY = replace(
    rerank_contender.MINILM, vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=64,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _small_peak(monkeypatch: pytest.MonkeyPatch, threads: None) -> None:
    monkeypatch.setattr(peak, "COPY_BYTES", 1 << 20)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    rerank_contender.write_model(folder, TOY)
    return folder


def test_the_workloads_have_the_lengths_that_they_name(model: Path) -> None:
    full, mixed = rerank_contender.workloads(model, 10)
    assert (full.name, full.tokens, full.texts) == ("10 pairs, full-256", 2560, 10)
    assert mixed.name == "10 pairs, mixed lengths"
    assert 160 <= mixed.tokens < 2560
    query, *texts = peers.texts_of(full.arrays)
    assert len(query.split()) == rerank_contender.QUERY_TOKENS
    assert len(texts) == 10
    width, inner = TOY.hidden_size, TOY.intermediate_size
    layer = 2560 * (8 * width**2 + 4 * width * inner) + 4 * width * 10 * 256**2
    unread = 2550 * 2 * width * (width + 2 * inner)
    assert full.operations == 2 * layer + 10 * 2 * width**2 - unread


def test_kendall_tau(seed: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    a, b = np.random.default_rng(seed).standard_normal((2, 30))
    assert kendall_tau(a, b) == pytest.approx(stats.kendalltau(a, b).statistic)
    assert kendall_tau(a, 2 * a) == 1


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow, id=name)
        for name in peers.names("rerank")
        if name != REFERENCE
    ],
)
def test_every_adapter_gives_the_scores_of_the_reference(name: str, model: Path, tmp_path: Path) -> None:
    for contender_name in (REFERENCE, name):
        if module := peers.missing("rerank", contender_name):
            pytest.skip(f"{contender_name} is not installed (no module {module})")
    path = tmp_path / "workload.npz"
    rerank_contender.workloads(model, 20)[1].save(path)
    results = []
    for one in (REFERENCE, name):
        contender = TextContender("rerank", one, str(model), 1, str(tmp_path / "scratch"))
        contender.load()
        contender.open(str(path))
        assert contender.time().seconds > 0
        contender.save(str(tmp_path / "values.npy"))
        results.append(np.load(tmp_path / "values.npy"))
    assert results[1].shape == (1, 20)
    if name.startswith("openvino int8"):  # as exact as it is
        return
    assert lineup.compare(*results, lineup.dtype_of("rerank", name), "reference").outputs in measure.AGREEING


def test_rows_hold_the_order_and_the_speed(model: Path, tmp_path: Path) -> None:
    chosen = {"contenders": ("fastbert fp32", "fastbert int8"), "workloads": ("mixed",)}
    options = Options(folder=model, pairs=12, threads=1, rounds=1, isolate=False, **chosen)
    result = bench_rerank.run(options, lambda line: None)
    assert [row.contender for row in result.rows] == ["fastbert fp32", "fastbert int8"]
    for row in result.rows:
        assert row.workload == "12 pairs, mixed lengths"
        assert row.details["kendall_tau"] > 0.9
        assert row.details["texts_per_second"] == pytest.approx(12 / row.median_ms * 1e3, rel=1e-3)
    bench_rerank.publish(result, options, tmp_path / "rows.json", None)
    record = json.loads((tmp_path / "rows.json").read_text())
    assert (record["benchmark"], len(record["rows"])) == ("rerank", 2)


def test_scores_that_are_no_numbers_have_no_order() -> None:
    verdict = RerankLineup.verdict(None, np.ones((1, 3)), np.full((1, 3), np.nan), "fp32", "reference")  # type: ignore[arg-type]
    assert "kendall_tau" not in verdict.details
    assert verdict.outputs == "holds values that are not finite"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "tiny"}, "--folder"),
        ({"pairs": 1}, "--pairs 1 must be at least 2"),
        ({"contenders": ("nobody",)}, "no contender has 'nobody' in its name"),
    ],
)
def test_wrong_options_are_named(options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Options(**options)
