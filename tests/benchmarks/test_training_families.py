"""The training benchmark of other families than BERT: useful work, and every family's steps on a toy shape."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from fastbert import _C
from fastbert.benchmarks import bench_training, peers
from fastbert.benchmarks.bench_training import Options
from fastbert.benchmarks.cpu import families, peak
from fastbert.benchmarks.cpu.families import FAMILIES, Family
from fastbert.benchmarks.cpu.lineup import Result
from fastbert.benchmarks.harness import measure
from fastbert.benchmarks.peers.training import split
from fastbert.benchmarks.training import contender, lineup, report, workloads
from fastbert.benchmarks.training.workloads import MASKED_LM, Sources
from fastbert.errors import UserError

pytestmark = pytest.mark.usefixtures("threads")
LAYERS = 2


def toy_config(family: Family, quick: bool = False) -> Any:
    """The family's layers, two of them, 64 wide."""
    return replace(
        family.released(), vocab_size=99, hidden_size=64, num_hidden_layers=LAYERS, num_attention_heads=2,
        intermediate_size=96, pad_token_id=1,
    )  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param("mpnet-base", id="transform"), pytest.param("eurobert-210m", id="bare")])
def test_operations_are_those_that_torch_counts(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    config = toy_config(FAMILIES[name])
    theirs = transformers.AutoConfig.for_model(**config.to_dict())
    model = transformers.AutoModelForMaskedLM.from_config(theirs, attn_implementation="eager")
    ids = torch.full((2, 8), 5)
    with FlopCounterMode(display=False) as counted:
        model(input_ids=ids, labels=ids).loss.backward()
    # RoPE's angles, which torch computes as a matmul, are the work of no layer.
    angles = sum(sum(by_kind.values()) for name, by_kind in counted.get_flop_counts().items() if "rotary_emb" in name)
    expected = counted.get_total_flops() - angles
    assert workloads.masked_lm_operations(config, [8, 8], 16) == expected
    # Without a label, a token is not read: neither the head nor the last layer behind its attention computes it.
    head = (64 * 64 if name == "mpnet-base" else 0) + 64 * 99
    layer = 64 * 64 + (3 if name == "eurobert-210m" else 2) * 64 * 96
    assert workloads.masked_lm_operations(config, [8, 8], 4) == expected - 12 * 6 * (head + layer)


def test_steps_of_the_released_shapes() -> None:
    for name in FAMILIES:
        made = workloads.builders(Sources(quick=True, family=name))
        assert list(made) == ["lognormal", "full-128"]
        lognormal, full = (build() for build in made.values())
        assert lognormal.note.startswith(f"{name}, 2 layers, lengths like Wikipedia's sentences, ")
        for workload, batches, sequences in ((lognormal, 2, 4), (full, 1, 1)):
            assert workload.head == MASKED_LM
            assert workload.config.num_hidden_layers == 2
            assert [len(batch["lengths"]) for batch in split(workload.arrays)] == [sequences] * batches
            for batch in split(workload.arrays):
                assert "next_sentence_label" not in batch
                assert workload.config.pad_token_id not in {*batch["input_ids"], *batch["labels"]}
        assert full.tokens == 128
        # Three times the encoder's forward pass, less what nobody reads of the last layer, and the head.
        config, masked = full.config, len(full.arrays["0.labels"])
        assert masked == round(0.15 * 128)
        head = 6 * masked * 768 * (config.vocab_size + (0 if name == "eurobert-210m" else 768))
        unread = 3 * (128 - masked) * families.unread_operations(config)
        assert full.operations == pytest.approx(3 * families.operations(config, [128]) - unread + head, rel=1e-12)


def test_losses_and_gradients_agree_with_transformers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(Family, "config", toy_config)
    for name in FAMILIES:
        for workload in (build() for build in workloads.builders(Sources(quick=True, family=name)).values()):
            folder = bench_training.save_model(tmp_path / name / workload.name, workload)
            expected = None
            for peer_name in ("transformers fp32", "fastbert fp32", "fastbert bf16", "transformers bf16"):
                options = peers.options("training", peer_name)
                peer = peers.load("training", peer_name)(folder, threads=1, scratch=tmp_path, **options)
                peer.open(workload.arrays)
                values = peer.values()
                expected = values if expected is None else expected
                verdict = lineup.compare(expected, values, options["dtype"], "transformers fp32")
                assert verdict.outputs in measure.AGREEING, (name, workload.name, peer_name, verdict)


def test_a_family_from_end_to_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Family, "config", toy_config)
    monkeypatch.setattr(peak, "COPY_BYTES", 1 << 20)
    monkeypatch.setattr(_C, "cpu_peak", lambda dtype, threads, seconds: 1e11, raising=False)
    monkeypatch.setattr(contender, "TURN_SECONDS", 0.01)
    names = ["fastbert fp32", "transformers fp32"]
    if any(peers.missing("training", peer_name) for peer_name in names):
        pytest.skip("transformers is not installed")
    options = Options(
        family="modernbert-base", quick=True, rounds=1, threads=1, isolate=False, contenders=("fp32",),
        workloads=("lognormal",),
    )  # fmt: skip
    messages: list[str] = []
    result = bench_training.run(options, messages.append)
    assert isinstance(result, Result)
    assert [(row.workload, row.contender) for row in result.rows] == [("lognormal", name) for name in names], messages
    for row in result.rows:
        assert row.agrees, row
        assert row.details["reference"] == "transformers fp32"
        assert row.details["gflops"] > 0

    bench_training.publish(result, options, tmp_path / "rows.json", None)
    record = json.loads((tmp_path / "rows.json").read_text())
    assert record["benchmark"] == "training-modernbert-base"
    assert len(record["rows"]) == len(names)
    printed = io.StringIO()
    report.show(result, Console(file=printed, width=200))
    assert "lognormal; modernbert-base, 2 layers" in printed.getvalue()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"family": "bert-base"}, "--family bert-base is not one of mpnet-base, ", id="unknown"),
        pytest.param({"family": "mpnet-base", "model": "base"}, "--model does not apply to --family", id="model"),
        pytest.param({"family": "nomic-bert", "loss_curve": 9}, "--loss-curve does not apply to --family", id="curve"),
        pytest.param({"family": "nomic-bert", "workloads": ("wiki",)}, "there are lognormal, full-128", id="workload"),
    ],
)
def test_wrong_options_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Options(**options)
