"""The training step in CUDA graphs: equal to the ordinary one, step by step, whatever the batches are."""

import json
import logging
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rerunning import Rerun

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.graphs import Buckets
from fastbert.models import BertForPreTraining
from fastbert.packing import PackedBatch
from fastbert.training.config import Budget, PretrainConfig
from fastbert.training.graphed import GraphedStep, reason_not_captured
from fastbert.training.loop import Trainer, TrainingError
from fastbert.training.reporter import Reporter
from fastbert.training.stopping import Stopped

BERT = BertConfig(
    vocab_size=150, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=32,
)  # fmt: skip
EXACT = Buckets(tokens=1, sequences=1, masked=1, per_doubling=2**20, shortest=1)
COARSE = Buckets(tokens=64, sequences=4, masked=8, per_doubling=1)


class Data:
    """Random sequences as a function of seed, step and micro-batch; with `same` all have the same lengths."""

    def __init__(self, seed: int = 0, *, pairs: bool = True, same: bool = False) -> None:
        self.seed, self.pairs, self.same = seed, pairs, same

    def training_step(self, step: int, batch_size: int, micro_batch: int) -> list[PackedBatch]:
        return [self.batch(step, first, micro_batch) for first in range(0, batch_size, micro_batch)]

    def validation_batches(self, samples: int, micro_batch: int) -> list[PackedBatch]:
        return [self.batch(10_000, 0, micro_batch)]

    def batch(self, step: int, first: int, sequences: int) -> PackedBatch:
        draw = torch.Generator().manual_seed(hash((self.seed, step, first)))
        lengths = torch.randint(5, 33, (sequences,), generator=draw)
        if self.same:
            lengths = torch.arange(5, 5 + sequences)
        tokens = int(lengths.sum())
        masked = torch.arange(1, tokens, 5)
        return PackedBatch(
            input_ids=torch.randint(0, BERT.vocab_size, (tokens,), generator=draw),
            cu_seqlens=torch.cat((torch.zeros(1), lengths.cumsum(0))).int(),
            max_seqlen=int(lengths.max()),
            dropout_key=torch.randint(0, 2**62, (sequences,), generator=draw),
            masked_positions=masked,
            labels=torch.randint(0, BERT.vocab_size, masked.shape, generator=draw),
            next_sentence_label=torch.randint(0, 2, (sequences,), generator=draw) if self.pairs else None,
        )


class Run:
    """A trainer over `Data`, with or without graphs, and what it reported."""

    def __init__(self, folder: Path, data: Data, buckets: Buckets | None, device: str = "cpu", **flags) -> None:
        steps = flags.pop("steps", 5)
        self.reported: list[dict] = []
        self.messages: list[str] = []
        self.recorder = Rerun(failing=flags.pop("failing", None))
        dtype, kind = flags.pop("dtype", torch.float32), flags.pop("kind", BertForPreTraining)
        defaults = {"batch_size": 6, "micro_batch": 3, "max_length": 32, "lr": 1e-3, "warmup": 0.0, "log_every": 3}
        config = PretrainConfig(**{**defaults, "eval_every": 100, "checkpoint_every": 100, **flags})
        model = kind(BERT)
        model.init_weights(seed=data.seed % 2**31)
        folder.mkdir(exist_ok=True)
        self.trainer = Trainer(
            model, data, config, Budget(steps=steps), device=torch.device(device), dtype=dtype, folder=folder,
            fingerprint="", data_fingerprint="",
            reporter=Reporter(on_step=self.on_step, on_message=self.messages.append),
        )  # fmt: skip
        if buckets is not None:
            self.trainer.graphs = GraphedStep(
                model, self.trainer.optimizer, max_grad_norm=config.max_grad_norm, dtype=dtype, buckets=buckets,
                recorder=self.recorder if device == "cpu" else None,
            )  # fmt: skip
        elif device == "cpu":
            # What is recorded stands for a GPU's steps, whose norm is torch's.
            optimizer, check = self.trainer.optimizer, self.trainer.optimizer._norm

            def norm(used: list) -> float:
                check(used)
                return float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))

            optimizer._norm = norm

    def on_step(self, metrics, finished: float) -> None:
        self.reported.append(timeless({**metrics, "finished": finished}))

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().cpu().clone() for name, value in self.trainer.model.state_dict().items()}

    def lines(self) -> list[dict]:
        lines = (self.trainer.folder / "metrics.jsonl").read_text().splitlines()
        return [timeless(json.loads(line)) for line in lines]


def timeless(values: dict) -> dict:
    """Metrics without what a clock measured, and without what is no number."""
    return {k: v for k, v in values.items() if "second" not in k and v is not None and k != "split"}


def assert_same(first: Run, second: Run, tolerance: float) -> None:
    """Equal weights, lines and reports: to the bit with a tolerance of 0."""
    result = second.weights()
    for name, value in first.weights().items():
        assert float((result[name] - value).abs().max()) <= tolerance, name
    for a, b in ((first.lines(), second.lines()), (first.reported, second.reported)):
        assert len(a) == len(b) > 0
        for line, other in zip(a, b):
            assert other == (pytest.approx(line, rel=1e-5) if tolerance else line)


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
    report = graphed.trainer.graphs.report()
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
    run.trainer.step = 0
    assert run.trainer.resume() == 5
    assert run.recorder.forgotten == 2
    graphs = run.trainer.graphs
    graphs([graphs.prepare(Data(seed, same=True).batch(0, 0, 3))], lr=0.0)
    assert run.recorder.captures == 4
    for name, value in expected.items():
        assert torch.equal(run.weights()[name], value), name


def test_a_replay_draws_the_masks_of_its_own_keys(tmp_path: Path, seed: int) -> None:
    graphs = Run(tmp_path, Data(seed), COARSE).trainer.graphs
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


@pytest.mark.parametrize("log_every", [1, 3, 100])
def test_a_gradient_that_is_no_number_ends_the_run_as_ever(tmp_path: Path, seed: int, log_every: int) -> None:
    """One step later at most, with the same message, and with the weights from before that step."""
    runs, errors = [], []
    for i, buckets in enumerate((None, EXACT)):
        runs.append(Run(tmp_path / str(i), Data(seed, same=True), buckets, lr=1e30, steps=30, log_every=log_every))
        with pytest.raises(TrainingError, match=r"step \d+: the gradient is not a finite number") as error:
            runs[-1].trainer.run()
        # The ordinary step looks at the gradient itself, and names the parameter.
        errors.append(re.sub(r"; [\w.]+, of shape \(.*\), is \S+ at \[.*\](?=\);)", "", str(error.value)))
    assert errors[0] == errors[1]
    assert runs[0].reported == runs[1].reported
    for name, value in runs[0].weights().items():
        assert torch.equal(runs[1].weights()[name], value), name


class Unchecked(BertForPreTraining):
    """What a GPU does with numbers outside its tables: it looks at none of them and gives NaN."""

    def forward(self, batch: PackedBatch):
        rows = {"input_ids": 150, "position_ids": 32, "token_type_ids": 2, "labels": 150}
        legal = {name: getattr(batch, name).clamp(-100 * (name == "labels"), end - 1) for name, end in rows.items()}
        output = super().forward(replace(batch, **legal))
        if any(not torch.equal(getattr(batch, name), values) for name, values in legal.items()):
            output.mlm_loss_sum = output.mlm_loss_sum * torch.nan
        return output


@pytest.mark.parametrize("graphs", [False, True], ids=["ordinary", "graphs"])
@pytest.mark.parametrize("field", ["input_ids", "position_ids", "token_type_ids", "labels"])
def test_numbers_out_of_range_are_named_before_the_learning_rate(
    tmp_path: Path, seed: int, field: str, graphs: bool
) -> None:
    class Wrong(Data):
        def batch(self, step: int, first: int, sequences: int) -> PackedBatch:
            batch = super().batch(step, first, sequences)
            if (step, first) == (2, 3):
                getattr(batch, field)[3] = 4321
            return batch

    run = Run(tmp_path, Wrong(seed, same=True), EXACT if graphs else None, kind=Unchecked)
    message = f"step 3: the gradient is not a finite number, because {field} holds 4321, outside the .*[0-9]+ "
    with pytest.raises(TrainingError, match=message) as error:
        run.trainer.run()
    assert "--lr" not in str(error.value)
    assert len(run.reported) == 2


def test_ranges_are_those_of_the_model(seed: int) -> None:
    model, batch = BertForPreTraining(BERT), Data(seed).batch(0, 0, 3)
    model.check_ranges(batch)
    model.check_ranges(replace(batch, next_sentence_label=torch.full((3,), -100), labels=None, masked_positions=None))
    for name, value in (("next_sentence_label", 2), ("masked_positions", batch.num_tokens), ("masked_positions", -100)):
        values = getattr(batch, name).clone()
        values[1] = value
        with pytest.raises(UserError, match=f"{name} holds {value}, outside the [0-9]+ "):
            model.check_ranges(replace(batch, **{name: values}))
        if name == "masked_positions":
            with pytest.raises(UserError, match=f"{name} holds {value}, outside the {batch.num_tokens} tokens"):
                model(replace(batch, **{name: values}))


def test_a_step_that_raised_leaves_nothing_to_the_next(tmp_path: Path, seed: int) -> None:
    """Its first micro-batch had been computed."""
    data = Data(seed, same=True)
    bad = replace(data.batch(1, 3, 3), token_type_ids=torch.full_like(data.batch(1, 3, 3).input_ids, 9))
    runs = [Run(tmp_path / str(i), data, EXACT) for i in range(2)]
    for i, run in enumerate(runs):
        graphs = run.trainer.graphs
        for step in range(3):
            if i == step == 1:
                with pytest.raises(UserError, match="token_type_ids holds 9"):
                    graphs([graphs.prepare(batch) for batch in (data.batch(1, 0, 3), bad)], lr=1e-3)
            result = graphs([graphs.prepare(data.batch(step, first, 3)) for first in (0, 3)], lr=1e-3)
        run.count = result.read()[0].mlm_count
    assert runs[0].count == runs[1].count
    for name, value in runs[0].weights().items():
        assert torch.equal(runs[1].weights()[name], value), name


def test_an_optimiser_that_loaded_a_state_is_made_capturable_again(tmp_path: Path, seed: int) -> None:
    """The state of an ordinary run: its rates are floats."""
    data = Data(seed, same=True)
    plain, graphed = Run(tmp_path / "a", data, None), Run(tmp_path / "b", data, EXACT)
    plain.trainer.run()
    graphed.trainer.run()
    optimizer, graphs = graphed.trainer.optimizer, graphed.trainer.graphs
    optimizer.load_state_dict(plain.trainer.optimizer.state_dict())
    result = graphs([graphs.prepare(data.batch(5, 0, 3))], lr=1e-3)
    assert torch.isfinite(torch.tensor(result.read()[1]))
    assert graphed.recorder.captures == 4
    for group in optimizer.param_groups:
        assert group["capturable"]
        assert torch.equal(group["lr"], torch.tensor(1e-3))


def test_a_capture_that_fails_later_leaves_the_graphs_before_it(tmp_path: Path, seed: int) -> None:
    data = Data(seed, same=True)
    run = Run(tmp_path, data, EXACT)
    graphs = run.trainer.graphs
    small, large = (graphs.prepare(data.batch(0, 0, sequences)) for sequences in (3, 5))
    graphs([small], lr=1e-3)
    run.recorder.failing = "it waits"
    for _ in range(2):
        graphs([small, large], lr=1e-3)
    assert [(use.how, use.calls, use.replays) for use in graphs.report()] == [("graph", 3, 2), ("eager", 2, 0)]


@pytest.mark.parametrize("change", ["gradients", "weights"])
def test_gradients_or_weights_that_moved_are_noticed(tmp_path: Path, seed: int, change: str) -> None:
    def steps(run: Run) -> dict[str, torch.Tensor]:
        data, trainer = Data(seed, same=True), run.trainer
        for step in range(4):
            graphs = trainer.graphs
            graphs([graphs.prepare(data.batch(step, 0, 3))], lr=1e-3)
            if step == 1 and run is changed and change == "gradients":
                trainer.model.zero_grad(set_to_none=True)
            if step == 1 and run is changed and change == "weights":
                for parameter in trainer.model.parameters():
                    parameter.data = parameter.data.clone()
        return run.weights()

    plain, changed = Run(tmp_path / "a", Data(seed), EXACT), Run(tmp_path / "b", Data(seed), EXACT)
    expected, actual = steps(plain), steps(changed)
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name
    assert (plain.recorder.captures, changed.recorder.captures) == (2, 4)


def test_a_failed_capture_trains_on_without(tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    plain = Run(tmp_path / "a", Data(seed), None)
    failed = Run(tmp_path / "b", Data(seed), COARSE, failing="it waits")
    plain.trainer.run()
    with caplog.at_level(logging.WARNING, "fastbert"):
        failed.trainer.run()
    assert_same(plain, failed, tolerance=2e-6)
    assert {(use.how, use.reason) for use in failed.trainer.graphs.report()} == {
        ("eager", "the capture failed: it waits")
    }
    assert len(caplog.records) == 1


def test_where_there_are_no_graphs_the_run_says_so_in_a_line(tmp_path: Path) -> None:
    run = Run(tmp_path, Data(), None, cuda_graphs=True)
    assert run.trainer.graphs is None
    assert run.messages[0].startswith("kernels: native (")
    assert run.messages[1:] == ["--cuda-graphs has no effect: there are no CUDA graphs on a device of type cpu"]
    assert "fp16" in (reason_not_captured(torch.device("cuda"), torch.float16) or "")
    assert reason_not_captured(torch.device("cuda"), torch.bfloat16) is None
    with pytest.raises(UserError, match="a graphed step cannot be recorded: there are no CUDA graphs"):
        GraphedStep(run.trainer.model, run.trainer.optimizer, max_grad_norm=1.0)


def test_graphs_may_be_switched_on_when_a_run_is_resumed(tmp_path: Path) -> None:
    saved = PretrainConfig(out=tmp_path)
    assert PretrainConfig(out=tmp_path, cuda_graphs=True).resumed_from(saved).cuda_graphs


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
        assert [(use.how, use.replays) for use in runs[1].trainer.graphs.report()] == [("graph", 9)]

    def test_a_replay_does_not_wait(self, tmp_path: Path, seed: int) -> None:
        graphs = Run(tmp_path, Data(seed), Buckets(), "cuda").trainer.graphs
        batches = [graphs.prepare(Data(seed, same=True).batch(step, 0, 3)) for step in range(4)]
        for batch in batches[:2]:
            graphs([batch], lr=1e-3)
        torch.cuda.set_sync_debug_mode("error")
        try:
            results = [graphs([batch], lr=1e-3) for batch in batches[2:]]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert all(torch.isfinite(torch.tensor(each.read()[1])) for each in results)
