"""The CPU benchmarks' contenders: verdicts on their outputs, ratios of their rows, and the peak they are held to."""

from dataclasses import replace

import numpy as np
import pytest
from cpu_rows import row

from fastbert.benchmarks.cpu import limits, lineup, peak, report, workloads
from fastbert.benchmarks.harness.measure import Timing
from fastbert.config import BertConfig

pytestmark = pytest.mark.usefixtures("threads")


def test_verdicts(seed: int) -> None:
    rng = np.random.default_rng(seed % 2**32)
    expected = rng.standard_normal((4, 300)).astype(np.float32)

    def verdict(actual: np.ndarray, dtype: str = "fp32") -> str:
        return lineup.compare(expected, actual, dtype, "reference").outputs

    assert verdict(expected) == "equal"
    assert verdict(expected * np.float32(1.0001)) == "close"
    off = expected + rng.standard_normal(expected.shape).astype(np.float32) * 0.02
    assert verdict(off).startswith("cosine 1 is below") or verdict(off).startswith("cosine 0.99")
    assert verdict(off, "bf16") == "close"
    one_token = expected.copy()
    one_token[2] = expected[1]
    assert "is below 0.98" in verdict(one_token, "int8")
    assert verdict(expected[:3]) == "shape (3, 300), not (4, 300)"
    one_token[0, 0] = np.nan
    assert verdict(one_token) == "holds values that are not finite"


def test_ratios_are_to_our_best_that_agrees_and_to_ours_in_the_same_dtype() -> None:
    rows = [
        row("fastbert fp32", 10.0),
        row("fastbert bf16", 4.0, "bf16"),
        row("fastbert int8", 1.0, "int8", "cosine 0.3 is below 0.98"),
        row("other fp32", 20.0),
        row("other int8", 3.0, "int8"),
    ]
    results = {row.contender: row for row in lineup.with_ratios(rows)}
    assert results["other fp32"].ratio_to_fastbert == 5.0
    assert results["other fp32"].details["ratio_to_same_dtype"] == 2.0
    assert results["other int8"].details["ratio_to_same_dtype"] == 3.0
    assert results["fastbert bf16"].ratio_to_fastbert == 1.0
    alone = lineup.with_ratios([row("other bf16", 1.0, "bf16")])[0]
    assert (alone.ratio_to_fastbert, alone.details["ratio_to_same_dtype"]) == (None, None)


def test_the_peak_of_a_dtype_is_the_best_that_may_serve_it() -> None:
    units = {name: {"source": name.upper(), "work": 100.0} for name in ("fp32", "bf16", "int8", "copy")}
    seconds = {"fp32": 1.0, "bf16": 2.0, "int8": 0.5, "copy": 4.0}
    timings = {name: [Timing(value, 0.0), Timing(3 * value, 0.0)] for name, value in seconds.items()}
    assert peak.best(units, timings) == {
        "fp32": (100.0, "fp32: FP32"),
        "bf16": (100.0, "fp32: FP32"),
        "int8": (200.0, "int8: INT8"),
        "copy": (25.0, "COPY"),
    }


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ({"fp32": [1.0, 1.3], "copy": [1.0, 2.0]}, None),
        ({"fp32": [1.0, 1.4], "copy": [1.0, 1.0]}, "the peak of fp32 moved between rounds from 71.4 to 100 GFLOP/s"),
        ({"copy": [2.0, 1.0, 1.5]}, "the copy moved between rounds from 50 to 100 GB/s"),
        ({"copy": []}, None),
    ],
)
def test_a_peak_that_moves_by_more_than_a_quarter_is_said(seconds: dict[str, list[float]], words: str | None) -> None:
    units = {what: {"source": "", "work": 1e11} for what in seconds}
    timings = {what: [Timing(value, 0.0) for value in values] for what, values in seconds.items()}
    moved = peak.movement(units, timings)
    assert moved == (words and f"{words}: the machine was not steady")
    one = replace(row("other fp32", 1.0), details={} if moved is None else {"frequency": moved})
    assert report.notes_of(one) == ([] if moved is None else [moved])


def test_the_extension_s_own_peak_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastbert import _C

    monkeypatch.setattr(peak, "COPY_BYTES", 1 << 20)
    monkeypatch.setattr(
        _C, "cpu_peak", lambda dtype, threads, seconds: {"fp32": 1e9, "bf16": 4e9}.get(dtype, 8e9), raising=False
    )
    units = (one_thread := peak.Peak(1)).open()
    actual = peak.best(units, {what: [one_thread.time(what)] for what in units})
    assert {what: round(actual[what][0]) for what in peak.DTYPES} == {
        "fp32": 10**9,
        "bf16": 4 * 10**9,
        "int8": 8 * 10**9,
    }
    assert actual["bf16"][1] == "bf16: the extension's own kernel"


PEAKS = {"fp32": (1e9, ""), "bf16": (2e9, ""), "int8": (4e9, ""), "copy": (1e8, "")}


def test_the_model_adds_matmuls_attention_and_bytes() -> None:
    config = BertConfig(vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96)
    work = workloads.batch("toy", [3, 7], 8, config)
    assert work.forward is not None
    assert work.forward.matmuls + work.forward.attention == work.operations
    matrices = 2 * (4 * 64 * 64 + 2 * 64 * 96)
    assert work.forward.matmuls == 2 * 10 * matrices + 2 * 2 * 64 * 64
    assert work.forward.attention == 2 * 4 * 64 * (9 + 49)
    assert work.forward.weights == matrices + 64 * 64
    assert work.forward.activations == 10 * 64 * (2 * 2 * 6 + 1)
    # An int8 model has bf16 activations, in attention too.
    terms = limits.model_milliseconds(work.forward, "int8", PEAKS)
    assert terms == {
        "matmuls": 1e3 * work.forward.matmuls / 4e9,
        "attention": 1e3 * work.forward.attention / 2e9,
        "bytes": pytest.approx(1e3 * (work.forward.weights + 2 * work.forward.activations) / 1e8),
    }
    slow = limits.with_model(row("fastbert int8", 4 * sum(terms.values()), "int8"), work.forward, PEAKS)
    assert slow.details["share_of_model"] == 0.25
    assert slow.details["model_ms"] == {name: pytest.approx(value, rel=1e-3) for name, value in terms.items()}


@pytest.mark.parametrize("lacking", ["int8", "bf16", "copy"])
def test_without_a_rate_there_is_no_model(lacking: str) -> None:
    work = workloads.batch("toy", [3], 3, BertConfig.preset("tiny")).forward
    rates = {name: rate for name, rate in PEAKS.items() if name != lacking}
    assert limits.with_model(row("fastbert int8", 1.0, "int8"), work, rates).details == {}
    assert limits.with_model(row("fastbert int8", 1.0, "int8"), None, PEAKS).details == {}
