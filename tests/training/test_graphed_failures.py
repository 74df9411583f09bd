"""The training step in CUDA graphs where something fails: numbers out of range, captures, steps that raised."""

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from graphed_runs import BERT, COARSE, EXACT, Data, Run, assert_same

from fastbert.cli.flags import parse
from fastbert.errors import UserError
from fastbert.models import BertForPreTraining
from fastbert.packing import PackedBatch
from fastbert.training.config import PretrainConfig
from fastbert.training.graphed import GraphedStep, reason_not_captured, reason_not_chosen
from fastbert.training.skipped_steps import TrainingError


@pytest.mark.parametrize("log_every", [1, 3, 100])
def test_a_gradient_that_is_no_number_ends_the_run_as_ever(tmp_path: Path, seed: int, log_every: int) -> None:
    """One step later at most, with the same message, and with the weights from before that step."""
    runs, errors, flags = [], [], {"lr": 1e30, "steps": 30, "log_every": log_every}
    for i, (buckets, launched) in enumerate(((None, False), (EXACT, False), (None, True))):
        runs.append(Run(tmp_path / str(i), Data(seed, same=True), buckets, launched=launched, **flags))
        with pytest.raises(TrainingError, match=r"step \d+: the gradient is not a finite number") as error:
            runs[-1].trainer.run()
        # The ordinary step looks at the gradient itself, and names the parameter.
        errors.append(re.sub(r"; [\w.]+, of shape \(.*\), is \S+ at \[.*\](?=\);)", "", str(error.value)))
    for run, error in zip(runs[1:], errors[1:]):
        assert errors[0] == error
        assert runs[0].reported == run.reported
        assert not list((run.trainer.folder / "checkpoints").glob("step-*"))
        for name, value in runs[0].weights().items():
            assert torch.equal(run.weights()[name], value), name


class Unchecked(BertForPreTraining):
    """What a GPU does with numbers outside its tables: it looks at none of them and gives NaN."""

    def forward(self, batch: PackedBatch):
        rows = {"input_ids": 150, "position_ids": 32, "token_type_ids": 2, "labels": 150}
        legal = {name: getattr(batch, name).clamp(-100 * (name == "labels"), end - 1) for name, end in rows.items()}
        output = super().forward(replace(batch, **legal))
        if any(not torch.equal(getattr(batch, name), values) for name, values in legal.items()):
            output.mlm_loss_sum = output.mlm_loss_sum * torch.nan
        return output


@pytest.mark.parametrize("kind", ["ordinary", "launched", "graphs"])
@pytest.mark.parametrize("field", ["input_ids", "position_ids", "token_type_ids", "labels"])
def test_numbers_out_of_range_are_named_before_the_learning_rate(
    tmp_path: Path, seed: int, field: str, kind: str
) -> None:
    class Wrong(Data):
        def batch(self, step: int, first: int, sequences: int) -> PackedBatch:
            batch = super().batch(step, first, sequences)
            if (step, first) == (2, 3):
                getattr(batch, field)[3] = 4321
            return batch

    buckets = EXACT if kind == "graphs" else None
    run = Run(tmp_path, Wrong(seed, same=True), buckets, launched=kind == "launched", kind=Unchecked)
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
        graphs = run.trainer.computer.graphs
        for step in range(3):
            if i == step == 1:
                with pytest.raises(UserError, match="token_type_ids holds 9"):
                    graphs([graphs.prepare(batch) for batch in (data.batch(1, 0, 3), bad)], lr=1e-3)
            found = graphs([graphs.prepare(data.batch(step, first, 3)) for first in (0, 3)], lr=1e-3)
        run.count = found.read()[0].mlm_count
    assert runs[0].count == runs[1].count
    for name, value in runs[0].weights().items():
        assert torch.equal(runs[1].weights()[name], value), name


def test_a_capture_that_fails_later_leaves_the_graphs_before_it(tmp_path: Path, seed: int) -> None:
    data = Data(seed, same=True)
    run = Run(tmp_path, data, EXACT)
    graphs = run.trainer.computer.graphs
    small, large = (graphs.prepare(data.batch(0, 0, sequences)) for sequences in (3, 5))
    graphs([small], lr=1e-3)
    run.recorder.failing = "it waits"
    for _ in range(2):
        graphs([small, large], lr=1e-3)
    assert [(use.how, use.calls, use.replays) for use in graphs.report()] == [("graph", 3, 2), ("eager", 2, 0)]


def test_a_failed_capture_trains_on_without(tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    plain = Run(tmp_path / "a", Data(seed), None)
    failed = Run(tmp_path / "b", Data(seed), COARSE, failing="it waits")
    plain.trainer.run()
    with caplog.at_level(logging.WARNING, "fastbert"):
        failed.trainer.run()
    assert_same(plain, failed, tolerance=2e-6)
    assert {(use.how, use.reason) for use in failed.trainer.computer.graphs.report()} == {
        ("eager", "the capture failed: it waits")
    }
    assert len(caplog.records) == 1


def test_where_there_are_no_graphs_the_run_says_so_in_a_line(tmp_path: Path) -> None:
    run = Run(tmp_path, Data(), None, cuda_graphs="on")
    assert run.trainer.computer.graphs is None
    assert run.messages[0].startswith("kernels: native (")
    assert run.messages[1:] == ["--cuda-graphs has no effect: there are no CUDA graphs on a device of type cpu"]
    assert Run(tmp_path, Data(), None).messages == run.messages[:1], "silent on a CPU unless it was asked for"
    with pytest.raises(UserError, match="a graphed step cannot be recorded: there are no CUDA graphs"):
        GraphedStep(run.trainer.model, run.trainer.optimizer, max_grad_norm=1.0)


def test_graphs_are_the_default_for_bf16_on_a_gpu() -> None:
    gpu = torch.device("cuda")
    assert reason_not_chosen(gpu, torch.bfloat16) is None
    assert "fp16" in (reason_not_chosen(gpu, torch.float16) or "")
    assert "default for bf16" in (reason_not_chosen(gpu, torch.float32) or "")
    assert reason_not_captured(gpu, torch.float32) is None
    assert "teacher" in (reason_not_chosen(gpu, torch.bfloat16, distills=True) or "")
    assert "type cpu" in (reason_not_chosen(torch.device("cpu"), torch.bfloat16) or "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "auto"),
        (["--cuda-graphs"], "on"),
        (["--cuda_graphs"], "on"),
        (["--cuda-graphs", "--steps", "3"], "on"),
        (["--cuda-graphs", "off", "--steps", "3"], "off"),
        (["--steps", "3", "--cuda-graphs=auto"], "auto"),
    ],
)
def test_the_flag_stands_with_and_without_a_value(words: list[str], expected: str) -> None:
    assert parse(PretrainConfig, "pretrain", ["--corpus", "text", *words]).cuda_graphs == expected


def test_the_flag_refuses_other_values_and_accepts_booleans() -> None:
    with pytest.raises(UserError, match="--cuda-graphs maybe: choose one of auto, on, off"):
        parse(PretrainConfig, "pretrain", ["--corpus", "text", "--cuda-graphs", "maybe"])
    assert [PretrainConfig(cuda_graphs=value).cuda_graphs for value in (True, False)] == ["on", "off"]
    assert PretrainConfig(teacher="folder").cuda_graphs == "auto"
    with pytest.raises(UserError, match="--teacher and --cuda-graphs exclude each other"):
        PretrainConfig(teacher="folder", cuda_graphs="on")
    with pytest.raises(UserError, match="--cuda-graphs maybe must be auto, on or off"):
        PretrainConfig(cuda_graphs="maybe")
