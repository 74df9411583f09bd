"""The step that is launched on a GPU without waiting: its syncs, its order, its bits and its failures, on a CPU."""

import contextlib
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from graphed_runs import EXACT, Data, Run, assert_same
from torch.profiler import ProfilerActivity, profile

import fastbert
from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models import BertForPreTraining, encoder, labels
from fastbert.models.electra.config import ElectraConfig
from fastbert.models.electra.pretraining import GeneratorAndDiscriminator
from fastbert.ops import gpu
from fastbert.ops.attention.arguments import AttentionArguments
from fastbert.training import pretrain
from fastbert.training.device_step import DeviceStep, StepStats
from fastbert.training.optimizer import adamw
from fastbert.training.step_loss import StepLoss

# Of tensors on a GPU each of them would be a host-device sync.
SYNCS = (
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::repeat_interleave",
)
METHODS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "__array__")


SHAPE = {
    "vocab_size": 150, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 32,
}  # fmt: skip


def fused_step(seed: int, scaler: torch.amp.GradScaler | None = None, *, detects: bool = False) -> DeviceStep:
    """A step of a model that the Triton kernels support: a BERT, or ELECTRA's discriminator and generator."""
    model: Any = BertForPreTraining(BertConfig(**SHAPE))
    if detects:
        model = GeneratorAndDiscriminator(ElectraConfig(**SHAPE, embedding_size=32), 0.5)
    model.init_weights(seed=seed % 2**31)
    optimizer = adamw(model, lr=1e-3, weight_decay=0.01)
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    return DeviceStep(StepLoss(model), optimizer, scaler, max_grad_norm=1.0, dtype=torch.float32)


def without_checks_of_cpu_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip what reads the values of a batch on a CPU alone, as a GPU does."""
    for module in (encoder, labels):
        monkeypatch.setattr(module, "is_readable", lambda tensor: False)
    monkeypatch.setattr(AttentionArguments, "check_offsets", lambda self: None)


@pytest.mark.parametrize(
    ("flat", "detects"),
    [(False, False), (True, True)],
    ids=["", "flat-electra"],
)
def test_a_step_has_no_host_device_sync(monkeypatch: pytest.MonkeyPatch, flat: bool, detects: bool, seed: int) -> None:
    step, data = fused_step(seed, detects=detects), Data(seed, same=True)
    copies = step.optimizer.flatten(step.loss.model, torch.float32).active() if flat else contextlib.nullcontext()
    batches = [step.prepare(data.batch(0, first, 3)) for first in (0, 3)]
    without_checks_of_cpu_values(monkeypatch)
    read: list[str] = []
    with fastbert.use_backend("triton"), copies, monkeypatch.context() as patch:
        for name in METHODS:
            method = getattr(torch.Tensor, name)
            patch.setattr(
                torch.Tensor, name, lambda self, *a, _m=method, _n=name, **k: (read.append(_n), _m(self, *a, **k))[1]
            )
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            stats = step(batches, 1e-3)
        launched, read = list(read), []
        assert float(torch.ones(())) == 1.0
    assert read == ["__float__"], "the methods are watched"
    assert launched == []
    events = profiled.events()
    fused = "_Layer" if flat else "fastbert::encoder_layer"
    assert any(event.name == fused for event in events), "the fused layer ran"

    def inside_the_update(event) -> bool:
        # The fused AdamW of a CPU reads its step counts itself; that of a GPU reads them in its kernel.
        while event is not None and event.name != "aten::_fused_adamw_":
            event = event.cpu_parent
        return event is not None

    assert [event.name for event in events if event.name in SYNCS and not inside_the_update(event)] == []
    assert stats.read()[1] > 0


def test_a_step_is_read_after_the_next_has_been_launched(tmp_path: Path, monkeypatch, seed: int) -> None:
    order: list[str] = []
    run = Run(tmp_path, Data(seed), None, launched=True, log_every=2)
    launch, read = DeviceStep.__call__, StepStats.read
    monkeypatch.setattr(DeviceStep, "__call__", lambda *a: (order.append("launch"), launch(*a))[1])
    monkeypatch.setattr(StepStats, "read", lambda self: (order.append("read"), read(self))[1])
    run.trainer.run()
    assert order == ["launch", *["launch", "read"] * 4, "read"]
    assert [line["step"] for line in run.lines()] == [1, 2, 4, 5, 5]


@pytest.mark.parametrize(
    "flags",
    [pytest.param({}, id="two-micro-batches"), pytest.param({"dtype": torch.bfloat16, "log_every": 1}, id="bf16")],
)
def test_launched_steps_have_the_bits_of_the_cpu_step(tmp_path: Path, seed: int, flags: dict) -> None:
    data = Data(seed, same=True)
    runs = [Run(tmp_path / str(i), data, None, launched=bool(i), **flags) for i in range(2)]
    for run in runs:
        run.trainer.run()
    assert_same(*runs, tolerance=0)


def test_no_accumulate_grad_node_outlives_a_step(seed: int) -> None:
    """A node that an earlier loss keeps would belong to another stream than a capture's, and end it."""
    step, data, probes = fused_step(seed), Data(seed), []

    class Probe:
        """What a node holds as long as it lives."""

    def loss(model: BertForPreTraining, batch, *weights):
        output = model(batch)
        for parameter in model.parameters():
            probe = Probe()
            torch.autograd.graph.get_gradient_edge(parameter).node.metadata["probe"] = probe
            probes.append(weakref.ref(probe))
        return output.mlm_loss_sum + output.nsp_loss_sum, output

    step.loss = StepLoss(step.loss.model, loss)
    gc.disable()
    try:
        stats = step([data.batch(0, 0, 3)], 1e-3)
        assert probes
        assert [probe for probe in probes if probe() is not None] == []
    finally:
        gc.enable()
    assert stats.read()[1] > 0


def test_a_scaler_may_meet_infinities(seed: int) -> None:
    """They lower its factor, leave the weights alone and end nothing."""

    def loss(model: BertForPreTraining, batch, *weights):
        output = model(batch)
        return output.mlm_loss_sum * 1e6, output

    step, data = fused_step(seed, torch.amp.GradScaler("cpu", init_scale=2.0**127)), Data(seed)
    step.loss = StepLoss(step.loss.model, loss)
    before = [parameter.detach().clone() for parameter in step.loss.model.parameters()]
    stats = step([data.batch(0, 0, 3)], 1e-3)
    assert not torch.isfinite(torch.tensor(stats.read()[1]))
    assert all(torch.equal(old, new) for old, new in zip(before, step.loss.model.parameters()))
    assert step.scaler.get_scale() == 2.0**126


def test_a_step_that_raised_leaves_nothing_to_the_next(seed: int) -> None:
    data, steps = Data(seed, same=True), [fused_step(seed) for _ in range(2)]
    bad = data.batch(1, 3, 3)
    bad.input_ids[2] = 4321
    for i, step in enumerate(steps):
        if i:
            with pytest.raises(UserError, match="input_ids holds 4321"):
                step([data.batch(1, 0, 3), bad], 1e-3)
        counts = step([data.batch(0, 0, 3)], 1e-3).read()[0].mlm_count
        assert counts == len(data.batch(0, 0, 3).labels)
    for first, second in zip(*(step.loss.model.parameters() for step in steps)):
        assert torch.equal(first, second)


def test_a_lack_of_memory_names_the_flags_of_the_run(tmp_path: Path, seed: int) -> None:
    runs = [Run(tmp_path / str(i), Data(seed), buckets, micro_batch=i + 1) for i, buckets in enumerate((None, EXACT))]
    plain, graphed = (pretrain._cures(run.trainer) for run in runs)
    assert plain == ["--checkpoint-activations"]
    assert graphed == ["--micro-batch 1 (now 2)", "--checkpoint-activations", "--cuda-graphs off"]
    with pytest.raises(UserError, match=r"out of memory; use --checkpoint-activations$"), gpu.out_of_memory(plain):
        raise torch.OutOfMemoryError("CUDA out of memory.")
