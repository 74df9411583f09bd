"""The training step in CUDA graphs: equal to the ordinary one, step by step, whatever the batches are."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from graphed_runs import BERT, COARSE, EXACT, Data, Run, assert_same

from fastbert.errors import UserError
from fastbert.graphs import Buckets
from fastbert.models import BertForPreTraining
from fastbert.packing import PackedBatch
from fastbert.training.config import PretrainConfig
from fastbert.training.stopping import Stopped


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param({}, id="two-micro-batches"),
        pytest.param({"batch_size": 3}, id="one-micro-batch"),
        pytest.param({"checkpoint_activations": True}, id="checkpointed"),
        pytest.param({"max_grad_norm": 1e-3}, id="clipped"),
        pytest.param({"dtype": torch.bfloat16}, id="bf16"),
        pytest.param({"log_every": 1}, id="logged-each-step"),
    ],
)
def test_graphed_steps_have_the_bits_of_ordinary_ones(tmp_path: Path, seed: int, flags: dict) -> None:
    """With buckets that fill nothing up; every other step is a replay."""
    runs = [Run(tmp_path / str(i), Data(seed, same=True), buckets, **flags) for i, buckets in enumerate((None, EXACT))]
    for run in runs:
        run.trainer.run()
    assert_same(*runs, tolerance=0)
    recorder = runs[1].recorder
    assert recorder.captures == 2
    assert recorder.replays == (8 if flags.get("batch_size") == 3 else 13)


def test_batches_filled_up_to_buckets_train_the_same(tmp_path: Path, seed: int) -> None:
    plain, graphed = Run(tmp_path / "a", Data(seed), None), Run(tmp_path / "b", Data(seed), COARSE)
    plain.trainer.run()
    graphed.trainer.run()
    assert_same(plain, graphed, tolerance=2e-6)
    report = graphed.trainer.computer.graphs.report()
    assert sum(use.calls for use in report) == 10
    assert graphed.recorder.captures == len(report) + 1
    assert graphed.recorder.replays == sum(use.replays for use in report) + 4


def test_parameters_without_a_gradient_are_left_alone(tmp_path: Path, seed: int) -> None:
    """Without sentence pairs the head for them gets no gradient, so no weight decay either."""
    runs = [Run(tmp_path / str(i), Data(seed, pairs=False, same=True), b) for i, b in enumerate((None, EXACT))]
    before = runs[1].weights()["cls.seq_relationship.weight"]
    for run in runs:
        run.trainer.run()
    assert_same(*runs, tolerance=0)
    assert torch.equal(runs[1].weights()["cls.seq_relationship.weight"], before)


def test_pairs_that_come_later_are_trained_from_then_on(tmp_path: Path, seed: int) -> None:
    class Later(Data):
        def batch(self, step: int, first: int, sequences: int) -> PackedBatch:
            batch = super().batch(step, first, sequences)
            return batch if step >= 2 else replace(batch, next_sentence_label=None)

    runs = [Run(tmp_path / str(i), Later(seed, same=True), b) for i, b in enumerate((None, EXACT))]
    for run in runs:
        run.trainer.run()
    assert_same(*runs, tolerance=0)
    assert runs[1].recorder.captures == 4


def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, seed: int) -> None:
    """Stopped in the middle, where the report of a step may still be on its way."""
    whole = Run(tmp_path / "whole", Data(seed), COARSE)
    whole.trainer.run()
    first, second = (Run(tmp_path / "parts", Data(seed), COARSE) for _ in range(2))

    def stop(metrics, finished: float) -> None:
        if metrics["step"] == 2:
            first.trainer.stop.number = signal.SIGINT

    first.trainer.reporter.on_step = stop
    with pytest.raises(Stopped):
        first.trainer.run()
    assert second.trainer.resume() == 3, "step 2 is reported while step 3 runs"
    second.trainer.run()
    for name, value in whole.weights().items():
        assert torch.equal(second.weights()[name], value), name


def test_resuming_drops_what_was_recorded_before(tmp_path: Path, seed: int) -> None:
    run = Run(tmp_path / "run", Data(seed, same=True), EXACT, checkpoint_every=5)
    run.trainer.run()
    expected = run.weights()
    run.trainer.position.step = 0
    assert run.trainer.resume() == 5
    assert run.recorder.forgotten == 2
    graphs = run.trainer.computer.graphs
    graphs([graphs.prepare(Data(seed, same=True).batch(0, 0, 3))], lr=0.0)
    assert run.recorder.captures == 4
    for name, value in expected.items():
        assert torch.equal(run.weights()[name], value), name


def test_a_replay_draws_the_masks_of_its_own_keys(tmp_path: Path, seed: int) -> None:
    graphs = Run(tmp_path, Data(seed), COARSE).trainer.computer.graphs
    batch = Data(seed).batch(0, 0, 3)
    other = replace(batch, dropout_key=batch.dropout_key + 1)
    losses = [
        float(graphs([graphs.prepare(each)], lr=0.0).read()[0].mlm_loss_sum) for each in (batch, other, batch, other)
    ]
    assert losses[0] == losses[2] != losses[1] == losses[3]
    with pytest.raises(UserError, match="the batch has no dropout_key"):
        graphs.prepare(replace(batch, dropout_key=None))
    with pytest.raises(UserError, match="the batch has no masked_positions with labels"):
        graphs.prepare(replace(batch, masked_positions=None, labels=None))


def test_an_optimiser_that_loaded_a_state_is_made_capturable_again(tmp_path: Path, seed: int) -> None:
    """The state of an ordinary run: its rates are floats."""
    data = Data(seed, same=True)
    plain, graphed = Run(tmp_path / "a", data, None), Run(tmp_path / "b", data, EXACT)
    plain.trainer.run()
    graphed.trainer.run()
    optimizer, graphs = graphed.trainer.optimizer, graphed.trainer.computer.graphs
    optimizer.load_state_dict(plain.trainer.optimizer.state_dict())
    found = graphs([graphs.prepare(data.batch(5, 0, 3))], lr=1e-3)
    assert torch.isfinite(torch.tensor(found.read()[1]))
    assert graphed.recorder.captures == 4
    for group in optimizer.param_groups:
        assert group["capturable"]
        assert torch.equal(group["lr"], torch.tensor(1e-3))


@pytest.mark.parametrize("change", ["gradients", "weights"])
def test_gradients_or_weights_that_moved_are_noticed(tmp_path: Path, seed: int, change: str) -> None:
    def steps(run: Run) -> dict[str, torch.Tensor]:
        data, trainer = Data(seed, same=True), run.trainer
        for step in range(4):
            graphs = trainer.computer.graphs
            graphs([graphs.prepare(data.batch(step, 0, 3))], lr=1e-3)
            if step == 1 and run is changed and change == "gradients":
                trainer.model.zero_grad(set_to_none=True)
            if step == 1 and run is changed and change == "weights":
                for parameter in trainer.model.parameters():
                    parameter.data = parameter.data.clone()
        return run.weights()

    plain, changed = Run(tmp_path / "a", Data(seed), EXACT), Run(tmp_path / "b", Data(seed), EXACT)
    expected, found = steps(plain), steps(changed)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    assert (plain.recorder.captures, changed.recorder.captures) == (2, 4)


def test_graphs_may_be_switched_on_when_a_run_is_resumed(tmp_path: Path) -> None:
    saved = PretrainConfig(out=tmp_path, cuda_graphs="off")
    assert PretrainConfig(out=tmp_path, cuda_graphs=True).resumed_from(saved).cuda_graphs == "on"


def test_sequences_without_a_pair_label_count_for_nothing(seed: int) -> None:
    model = BertForPreTraining(BERT).eval()
    model.init_weights(seed=seed)
    batch = Data(seed).batch(0, 0, 4)
    labels = batch.next_sentence_label.clone()
    labels[1:3] = -100
    with torch.no_grad():
        some = model(replace(batch, next_sentence_label=labels))
        logits, target = some.seq_relationship_logits[[0, 3]], labels[[0, 3]]
        expected = torch.nn.functional.cross_entropy(logits, target, reduction="sum")
        none = model(replace(batch, next_sentence_label=torch.full_like(labels, -100)))
    torch.testing.assert_close(some.nsp_loss_sum, expected)
    assert int(some.nsp_count) == 2
    assert int(some.nsp_correct) == int((logits.argmax(-1) == target).sum())
    torch.testing.assert_close(some.loss, some.mlm_loss_sum / some.mlm_count + expected / 2)
    assert int(none.nsp_count) == int(none.nsp_correct) == 0
    assert none.loss.isfinite()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAGpu:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("flags", [{}, {"checkpoint_activations": True}], ids=["", "checkpointed"])
    def test_graphed_steps_equal_ordinary_ones(self, tmp_path: Path, seed: int, dtype, flags: dict) -> None:
        data = Data(seed, same=True)
        runs = [Run(tmp_path / str(i), data, b, "cuda", dtype=dtype, **flags) for i, b in enumerate((None, EXACT))]
        for run in runs:
            run.trainer.run()
        assert_same(*runs, tolerance=1e-6)
        assert [(use.how, use.replays) for use in runs[1].trainer.computer.graphs.report()] == [("graph", 9)]

    def test_a_replay_does_not_wait(self, tmp_path: Path, seed: int) -> None:
        graphs = Run(tmp_path, Data(seed), Buckets(), "cuda").trainer.computer.graphs
        batches = [graphs.prepare(Data(seed, same=True).batch(step, 0, 3)) for step in range(4)]
        for batch in batches[:2]:
            graphs([batch], lr=1e-3)
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = [graphs([batch], lr=1e-3) for batch in batches[2:]]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert all(torch.isfinite(torch.tensor(each.read()[1])) for each in found)
