"""Plans of runs: what they predict follows from the flags, and steps of few layers predict those of more."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert.cli import main
from fastbert.config import BertConfig
from fastbert.data.prepare import prepare
from fastbert.errors import UserError
from fastbert.planning import peak
from fastbert.planning.batches import planned_batch
from fastbert.planning.communication import communication
from fastbert.planning.fitting import GIB
from fastbert.planning.flags import PlanFlags
from fastbert.planning.flops import BatchStatistics
from fastbert.planning.measure import layers_to_measure, measure_steps, period_of, random_batch
from fastbert.planning.parameters import PartParameters
from fastbert.planning.plan import make_plan
from fastbert.planning.report import sections
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.training.config import MASK_RATES


def test_a_plan_of_the_paper() -> None:
    """BERT-large on 64 H100: every figure from the sizes by hand."""
    plan = make_plan(
        PlanFlags(model="large", tokens=3e11, gpus=64, batch_size=4096, utilisation="0.45", mean_length=128)
    )
    assert plan.record()["total_parameters"] == BertConfig.preset("large").num_parameters(heads=True)
    assert plan.steps == math.ceil(3e11 / (4096 * 128))
    assert (plan.micro_batch, plan.micro_batches, plan.parallel) == (64, 1, "ddp")
    assert plan.times.passes == pytest.approx(plan.flops.total / (64 * 0.45 * 989.4e12))
    assert plan.communication.all_reduce == pytest.approx(2 * 63 / 64 * 2 * plan.record()["total_parameters"])
    assert plan.link_bandwidth == 50
    assert plan.times.exposed < plan.times.communication
    assert plan.seconds == plan.steps * plan.times.step
    assert plan.memory.total < 80 * GIB
    assert not any("waits for communication" in note for note in plan.notes)
    small = make_plan(PlanFlags(model="large", tokens=3e11, gpus=64, batch_size=256))
    assert re.search(r"% of a step waits for communication, which micro-batches of 4 .*--batch-size", small.notes[0])
    fewer = make_plan(PlanFlags(model="large", tokens=3e11, gpus=8, batch_size=4096, parallel="fsdp"))
    assert fewer.link_bandwidth == 450
    assert fewer.communication.all_gather
    assert fewer.memory.parts["weights"] < plan.memory.parts["weights"]


def test_a_plan_is_one_that_pretrain_takes() -> None:
    """FSDP2 is not chosen for what it does not do, and flags that pretrain must be given are named."""
    for flags in ({"optimizer": "muon"}, {"param_dtype": "bf16"}):
        name = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in flags.items())
        with pytest.raises(UserError, match=f"--parallel fsdp and {name} exclude each other"):
            PlanFlags(model="base", gpus=8, parallel="fsdp", **flags)  # type: ignore[arg-type]
        with pytest.raises(UserError, match=f"or --parallel fsdp without {name}"):
            make_plan(PlanFlags(model="large", gpus=8, memory=3, **flags))  # type: ignore[arg-type]
    plan = make_plan(PlanFlags(model="large", gpus=8, memory=6, batch_size=8192))
    assert plan.parallel == "fsdp"
    [remark] = [row[2] for row in sections(plan)[0][1] if row[0] == "micro-batch"]
    assert remark.endswith(f"; give pretrain --micro-batch {plan.micro_batch} and --parallel fsdp")
    short = make_plan(PlanFlags(model="tiny", gpus=1, steps=100))
    [hours] = [row[2] for row in sections(short)[0][1] if row[0] == "time"]
    assert float(hours.split()[0]) > 0


def test_the_matmuls_of_muon_take_time_on_a_gpu() -> None:
    updates = [
        make_plan(PlanFlags(model="base", gpus=gpus, batch_size=64, optimizer=name)).times.update
        for name, gpus in (("adamw", 1), ("muon", 1), ("muon", 2), ("adamw", 2))
    ]
    assert updates[1] - updates[0] > 1e-3
    assert updates[2] - updates[3] == pytest.approx((updates[1] - updates[0]) / 2)


def test_a_plan_for_more_positions_than_a_size_has() -> None:
    long = PlanFlags(model="mini", gpus=1, batch_size=64, max_length=1024, max_positions=2048)
    plan, usual = make_plan(long), make_plan(PlanFlags(model="mini", gpus=1, batch_size=64, max_length=512))
    assert plan.record()["total_parameters"] - usual.record()["total_parameters"] == (2048 - 512) * 256
    with pytest.raises(UserError, match=r"--max-length 1024 is more than .*, or extend them with --max-positions"):
        make_plan(PlanFlags(model="mini", gpus=1, batch_size=64, max_length=1024))


def test_the_largest_micro_batch_fits_and_the_next_does_not() -> None:
    flags = {"model": "large", "gpu": "l4", "batch_size": 4096, "max_length": 512}
    most = make_plan(PlanFlags(**flags)).largest_micro_batch  # type: ignore[arg-type]
    assert make_plan(PlanFlags(**flags, micro_batch=most)).memory.total <= 24 * GIB  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=rf"^--micro-batch {most + 1}: needs .* GiB per device, of 24.0; at most {most}"
    ):
        make_plan(PlanFlags(**flags, micro_batch=most + 1))  # type: ignore[arg-type]
    checkpointed = make_plan(PlanFlags(**flags, checkpoint_activations=True))  # type: ignore[arg-type]
    assert checkpointed.largest_micro_batch > 2 * most
    assert checkpointed.flops.recomputed > checkpointed.flops.forward / 2


def test_every_gpu_is_recognised_by_its_names() -> None:
    names = {
        "NVIDIA A100-SXM4-80GB": "a100", "NVIDIA A100-PCIE-40GB": "a100-40gb", "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA H100 PCIe": "h100-pcie", "NVIDIA H100 NVL": "h100-nvl", "NVIDIA H200": "h200", "NVIDIA L4": "l4",
        "NVIDIA L40S": "l40s", "NVIDIA L40": "l40", "NVIDIA GeForce RTX 4090": "rtx-4090", "Tesla T4": "t4",
        "AMD Instinct MI300X": "mi300x", "NVIDIA B200": "b200", "NVIDIA A10G": "a10g", "NVIDIA A10": "a10",
        "NVIDIA GH200 480GB": "gh200",
    }  # fmt: skip
    for name, key in names.items():
        assert peak.gpu_of_device(name) is peak.GPUS[key], name
    assert peak.gpu_of_device("NVIDIA GeForce GTX 1050") is None
    assert peak.peak_flops("cuda", "bf16", "NVIDIA H100 80GB HBM3") == 989.4e12
    assert peak.peak_flops("cuda", "bf16", "unknown") is None
    assert peak.gpu("4090") is peak.GPUS["rtx-4090"]
    assert peak.peak_flops("cpu", "bf16") == peak.peak_flops("cpu", "bf16")


def test_communication_follows_the_processes_of_the_loop() -> None:
    counted = [PartParameters("layers", 800, is_layers=True), PartParameters("embeddings", 200)]
    one, four = (communication(counted, 4, "fsdp", "bf16", count) for count in (1, 4))
    assert one.all_gather == 0.75 * (2 * 800 + 200) * 4
    assert one.reduce_scatter == 0.75 * 1000 * 2
    assert (four.all_gather, four.reduce_scatter) == (4 * one.all_gather, one.reduce_scatter)
    assert communication(counted, 4, "ddp", "bf16", 4) == communication(counted, 4, "ddp", "bf16", 1)
    assert communication(counted, 4, "ddp", "fp16", 1).all_reduce == 2 * 0.75 * 1000 * 4
    assert communication(counted, 1, "none", "bf16", 4).total == 0
    shared = [replace(counted[0], uses=3.0), counted[1]]
    assert communication(shared, 4, "fsdp", "bf16", 1).all_gather == 0.75 * (3 * 2 * 800 + 200) * 4


def test_newer_architectures_are_planned_with_their_masks_and_windows() -> None:
    flags: dict[str, Any] = {"model": "tiny", "gpus": 1, "batch_size": 64}
    for name in ("mpnet", "modernbert", "deberta-v2", "nomic_bert", "eurobert", "albert", "jina_embeddings_v3"):
        plan = make_plan(PlanFlags(**flags, architecture=name))
        assert plan.objective == ("mlm+sop" if name == "albert" else "mlm"), name
        given = make_plan(PlanFlags(**flags, architecture=name, mask_prob=MASK_RATES.get(name, 0.15)))
        assert plan.flops == given.flops, name
        checkpointed = make_plan(PlanFlags(**flags, architecture=name, checkpoint_activations=True))
        assert checkpointed.memory.activations < plan.memory.activations / 2, name
    short, long = (
        make_plan(PlanFlags(**flags, architecture="modernbert", max_length=length, mean_length=length))
        for length in (64, 1024)
    )
    # Of two layers, the first is global, and the other one shows 64 tokens on each side.
    visible = 1024 * 129 - 64 * 65
    grown = dict(long.flops_parts)["attention"] / dict(short.flops_parts)["attention"]
    assert grown == pytest.approx((1024**2 + visible) / (2 * 64**2))


def test_a_random_batch_has_the_planned_statistics() -> None:
    for objective in ("mlm+nsp", "ltr"):
        planned = planned_batch(64, 128, objective, 0.15)
        batch = BatchStatistics.of([random_batch(planned, objective, 1000)])
        assert batch.sequences == 64
        for name in ("tokens", "squared_lengths", "predictions"):
            assert getattr(batch, name) == pytest.approx(getattr(planned, name), rel=0.03), (objective, name)


def test_steps_of_few_layers_predict_those_of_more() -> None:
    """With a clock that counts matmuls the prediction is exact but for the last layer, so the line is the right one."""
    assert [layers_to_measure(count) for count in (1, 2, 3, 4, 12)] == [(1, 1), (1, 2), (1, 2), (1, 3), (1, 3)]
    assert [layers_to_measure(count, least=2, period=3) for count in (2, 3, 4, 5, 12)] == [
        (2, 2), (2, 3), (2, 3), (2, 4), (2, 5)
    ]  # fmt: skip
    assert [period_of(windows) for windows in ((), (None,) * 6, (None, 64, 64, None, 64, 64), (None, 8, 8))] == [
        2, 2, 3, 2
    ]  # fmt: skip
    config = BertConfig.preset("tiny", vocab_size=512, num_hidden_layers=6)
    batch = planned_batch(4, 32, "mlm+nsp", 0.15)
    ticks = [0.0]

    def clock() -> float:
        """Count the layers of the models: each step of the measured ones takes one call before, between and behind."""
        ticks[0] += 1.0
        return ticks[0]

    measured = measure_steps(
        config, "mlm+nsp", batch, device=torch.device("cpu"), dtype="fp32", seconds=0.0, clock=clock
    )
    assert measured.layers == (1, 3)
    assert measured.passes == (1.0, 1.0)
    assert measured.update_of(6) == 1.0
    assert measured.steps == 3
    line = replace(measured, passes=(3.0, 7.0), update=(2.0, 1.0))
    assert line.passes_of(6) == 13.0
    assert line.update_of(6) == 2.0  # noise: more layers cannot take less


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", *words, "--json"]) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plan


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    plan = run_json(capsys, "--model", "large", "--tokens", "3e11", "--gpus", "64", "--batch-size", "4096")
    assert plan["tokens"] >= 3e11
    assert plan["memory"]["fits"]
    assert sum(plan["memory"]["parts"].values()) == plan["memory"]["total"]
    assert plan["flops"]["total"] == pytest.approx(sum(plan["flops_parts"].values()))
    assert main(["plan", "--model", "mini", "--architecture", "electra", "--gpu", "4090", "--quiet"]) == 0
    text = capsys.readouterr().out
    for title in ("Run", "Parameters", "Memory per device", "FLOPs per optimiser step", "Time", "Disk"):
        assert f"\n{title}" in f"\n{text}"
    assert "generator attention" in text
    plan = run_json(capsys, "--model", "tiny", "--vocab-size", "512", "--batch-size", "4", "--device", "cpu")
    assert plan["measured"]["layers"] == [1, 2]
    assert plan["seconds"] > 0
    assert plan["memory"]["parts"]["framework"] > 1 << 20


def test_shards_are_mixed_as_a_run_mixes_them(tmp_path: Path) -> None:
    """Documents of 6 and of 28 words: the mean length of samples follows the weights."""
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    places = []
    for words in (6, 28):
        prepare([[" ".join("a" * words)]] * 60, tokenizer, tmp_path / str(words))
        places.append(str(tmp_path / str(words)))
    flags = {"model": "tiny", "objective": "mlm", "max_length": 32, "utilisation": "0.5", "gpus": 1}

    def tokens(data: Any, mix: Any = None) -> float:
        plan = make_plan(PlanFlags(**flags, batch_size=1, data=data, mix=mix))  # type: ignore[arg-type]
        return plan.tokens_per_step

    assert tokens(places[0]) == 8
    assert tokens(f"file://{places[1]}") == 30
    assert tokens(places, (1.0, 1.0)) == pytest.approx(19, rel=0.1)
    assert tokens(places, (4.0, 1.0)) == pytest.approx(12.4, rel=0.1)
    other = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "b"])
    prepare([["b b b b"]] * 60, other, tmp_path / "other")
    with pytest.raises(UserError, match="tokenizer"):
        tokens((*places, str(tmp_path / "other")))
