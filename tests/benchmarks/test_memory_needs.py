"""The memory that is predicted for encoders: what counts, and contenders that would not fit are left out."""

from pathlib import Path

import pytest

from fastbert.benchmarks.cpu import lineup, memory_needs, workloads
from fastbert.benchmarks.cpu.lineup import Lineup
from fastbert.config import BertConfig
from fastbert.models import BertModel

TINY = BertConfig.preset("tiny")


def size_of(lengths: list[int], padded_to: int) -> memory_needs.BatchSize:
    size = workloads.batch("toy", lengths, padded_to, TINY).size
    assert size is not None
    return size


def test_parameters_are_those_of_the_model() -> None:
    exact = sum(parameter.numel() for parameter in BertModel(TINY).parameters())
    assert size_of([8], 8).parameters == pytest.approx(exact, rel=1e-3)


def test_padding_counts_where_it_is_computed_and_scores_where_they_are_held() -> None:
    full, ragged = size_of([128] * 8, 128), size_of([16] * 8, 128)

    def more(contender: str) -> int:
        return memory_needs.needed(full, contender, "fp32") - memory_needs.needed(ragged, contender, "fp32")

    assert more("transformers sdpa fp32") == more("onnxruntime fp32") == 0
    assert more("fastbert fp32") == 7 * 128 * 6 * TINY.hidden_size * 4
    scores = 2 * 8 * TINY.num_attention_heads * 128**2 * 4
    eager, sdpa = (memory_needs.needed(full, f"transformers {name} fp32", "fp32") for name in ("eager", "sdpa"))
    assert eager - sdpa == scores


def test_prepacked_matrices_count_beside_the_original_weights() -> None:
    size = size_of([8], 8)
    matrices = TINY.num_hidden_layers * 12 * TINY.hidden_size**2
    assert size.matrices == matrices
    own = memory_needs.needed(size, "fastbert fp32", "fp32")
    other = memory_needs.needed(size, "llama.cpp fp32", "fp32")
    assert own - other == 4 * matrices
    int8 = memory_needs.needed(size, "fastbert int8", "int8"), memory_needs.needed(size, "llama.cpp int8", "int8")
    assert int8[0] - int8[1] == size.parameters + matrices


def test_what_does_not_fit_is_said_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    size = size_of([512] * 64, 512)
    bytes_needed = memory_needs.needed(size, "transformers eager fp32", "fp32")
    monkeypatch.setattr(memory_needs, "available", lambda: bytes_needed)
    assert memory_needs.lack(size, "transformers eager fp32", "fp32") is None
    monkeypatch.setattr(memory_needs, "available", lambda: bytes_needed - 1)
    reason = memory_needs.lack(size, "transformers eager fp32", "fp32")
    shown = memory_needs.gigabytes(bytes_needed)
    assert reason is not None
    assert reason.startswith(f"not enough memory: needs about {shown}, {shown} are available; choose a smaller --model")
    assert memory_needs.lack(size, "transformers eager fp32", "fp32", held=1) is None
    assert memory_needs.lack(None, "transformers eager fp32", "fp32") is None
    monkeypatch.setattr(memory_needs, "available", lambda: None)
    assert memory_needs.lack(size, "transformers eager fp32", "fp32") is None


def test_such_a_contender_is_absent_and_never_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_needs, "available", lambda: 1000)
    monkeypatch.setattr(
        lineup.Lineup, "_start", lambda self, name, **_: pytest.fail(name) if name != lineup.PEAK else 0
    )
    monkeypatch.setattr(lineup.Lineup, "_peak", lambda self: {})
    work = workloads.batch("toy", [8], 8, TINY)
    with Lineup(
        "encoder", ["fastbert fp32"], 1, model=None, isolate=True, folder=tmp_path, say=lambda _: None
    ) as contenders:
        result = contenders.measure(work, 1)
    assert result.rows == []
    [absent] = result.absent
    assert absent.reason.startswith("not enough memory: needs about 0.2 GB, 0.0 GB are available")
