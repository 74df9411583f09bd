"""Runs of several processes: the same steps for every number of them, what ends them, and how they go on."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pretrain_runs import weights
from ranks import Ranks

from fastbert.data.prepare import prepare
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.training.config import PretrainConfig
from fastbert.training.pretrain import pretrain

STEPS = 6
FLAGS = ("--log-every=1", "--checkpoint-every=2", "--eval-every=3", "--eval-samples=9", "--keep-checkpoints=9")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    running = Ranks(tmp_path_factory.mktemp("ranks"))
    yield running
    running.close()


@pytest.fixture
def prepared(config: PretrainConfig, tmp_path: Path) -> PretrainConfig:
    """A run of six steps of 13 sequences on prepared shards, in micro-batches of two."""
    shards = prepare(config.find_corpus(), load_tokenizer(config.tokenizer), tmp_path / "shards").folder
    return replace(
        config, corpus=(), data=(str(shards),), steps=STEPS, batch_size=13, micro_batch=2, dropout=0.1, init="normal",
        log_every=1, checkpoint_every=2, eval_every=3, eval_samples=9, keep_checkpoints=9,
    )  # fmt: skip


def words(config: PretrainConfig, out: Path, *flags: str) -> list[str]:
    """The command line of the run, in another folder."""
    names = ("model", "tokenizer", "steps", "batch_size", "micro_batch", "max_length", "lr", "dtype", "dropout", "init")
    values = [f"--{name.replace('_', '-')}={getattr(config, name)}" for name in names]
    return ["pretrain", *values, f"--data={config.data[0]}", f"--out={out}", "--text-format=lines", *FLAGS, *flags]


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines]


def norms(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    return [line["gradient_norm"] for line in lines]


def assert_close(first: Path, second: Path) -> None:
    assert losses(first) == pytest.approx(losses(second), rel=1e-6)
    assert norms(first) == pytest.approx(norms(second), rel=1e-4)
    for name, value in weights(first).items():
        torch.testing.assert_close(weights(second)[name], value, rtol=1e-4, atol=2e-6, msg=name)


def test_losses_do_not_depend_on_the_number_of_processes(
    prepared: PretrainConfig, ranks: Ranks, tmp_path: Path
) -> None:
    """DDP with 4 processes, and FSDP2, with micro-batches of which the last process has fewer. A killed run of 2
    processes continues with 3 in a test of its own."""
    pretrain(prepared)
    uneven = ("--parallel=fsdp", "--micro-batch=3")
    for name, size, flags in (("four", 4, ()), ("shards", 2, uneven)):
        ended = ranks.run([words(prepared, tmp_path / name, *flags)] * size)
        assert ended.codes == [0] * size, ended.outputs
        assert "validation: masked-LM loss" in ended.outputs[0]
        assert all(output == "" for output in ended.outputs[1:])
        assert_close(prepared.out, tmp_path / name)


def test_the_mean_of_checkpoints_is_that_of_one_process(prepared: PretrainConfig, ranks: Ranks, tmp_path: Path) -> None:
    """With FSDP2, whose processes hold parts."""
    pretrain(replace(prepared, average_last=2))
    ended = ranks.run([words(prepared, tmp_path / "shards", "--parallel=fsdp", "--average-last=2")] * 2)
    assert ended.codes == [0, 0], ended.outputs
    for name, value in weights(prepared.out).items():
        torch.testing.assert_close(weights(tmp_path / "shards")[name], value, rtol=1e-4, atol=2e-6, msg=name)


def test_matrices_are_shared_out_with_muon(prepared: PretrainConfig, ranks: Ranks, tmp_path: Path) -> None:
    """The losses of one process, but for the rounding of iterations in bf16."""
    pretrain(replace(prepared, optimizer="muon"))
    ended = ranks.run([words(prepared, tmp_path / "two", "--optimizer=muon")] * 2)
    assert ended.codes == [0, 0], ended.outputs
    assert losses(tmp_path / "two") == pytest.approx(losses(prepared.out), rel=1e-4)


def test_a_process_that_is_killed_ends_the_others(prepared: PretrainConfig, ranks: Ranks, tmp_path: Path) -> None:
    """They say so, the checkpoints are whole, and the run goes on with as many processes, or another number, as it
    would have; also where an agent of torchrun starts them again, in the store that holds what the others agreed on."""
    out = tmp_path / "killed"
    command = words(prepared, out)
    after = str(out / "checkpoints" / "step-00000002")
    ended = ranks.run([command] * 2, kill=1, after=after, keep_store=True)
    ended.assert_killed(1)
    ended = ranks.run([[*command, "--resume"]] * 3, keep_store=True)
    assert ended.codes == [0, 0, 0], ended.outputs
    pretrain(prepared)
    assert_close(prepared.out, out)


def test_a_signal_stops_all_processes_after_the_same_step(
    prepared: PretrainConfig, ranks: Ranks, tmp_path: Path
) -> None:
    """Whichever process gets it; resumed, the run ends with the bits of one that was not stopped."""
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    assert ranks.run([words(prepared, straight)] * 2).codes == [0, 0]
    after = str(stopped / "checkpoints" / "step-00000002")
    command = words(prepared, stopped)
    ended = ranks.run([command] * 2, kill=1, after=after, signal=int(signal.SIGTERM))
    assert set(ended.codes) <= {0, 128 + signal.SIGTERM}
    assert ranks.run([[*command, "--resume"]] * 2).codes == [0, 0]
    assert all(torch.equal(value, weights(stopped)[name]) for name, value in weights(straight).items())
    ended = ranks.run([["replay", str(straight), "--steps=2:4"]] * 2)
    assert ended.codes == [0, 0], ended.outputs
    assert [output.count("equal\n") for output in ended.outputs] == [3, 0]


STOPS = """
import os, signal
from fastbert.cli.training_view import TrainingView
report = TrainingView.step
def step(view, record, progress):
    report(view, record, progress)
    if record["step"] == 3:
        os.kill(os.getpid(), signal.SIGTERM)
TrainingView.step = step
"""
READS_LATE = """
import time
from fastbert.distributed.world import World
wait_for = World._wait_for
def late(world, key):
    time.sleep(0.5 * ("stopped" in key))
    return wait_for(world, key)
World._wait_for = late
"""


def test_no_process_that_stops_takes_the_store_from_another(
    prepared: PretrainConfig, ranks: Ranks, tmp_path: Path
) -> None:
    """The store lives in the first one, which saves and would end first, as the other one reads it late."""
    ended = ranks.run([words(prepared, tmp_path / "run")] * 2, before=[STOPS, READS_LATE])
    assert ended.codes == [128 + signal.SIGTERM] * 2, ended.outputs


def test_processes_must_agree(prepared: PretrainConfig, ranks: Ranks, tmp_path: Path) -> None:
    """On their flags, and on a batch with a sequence for each; each mistake is one line, of the first process, and is
    not that of the processes before in the same store."""
    out = tmp_path / "run"
    ended = ranks.run([words(prepared, out), words(prepared, out, "--seed=7")], keep_store=True)
    assert ended.codes == [2, 2]
    assert "process 1 of 2 has --seed=7, but process 0 has --seed=" in ended.outputs[0]
    assert not out.exists()
    ended = ranks.run([words(prepared, out, "--batch-size=2", "--micro-batch=1")] * 3, keep_store=True)
    assert ended.codes == [2, 2, 2]
    assert [output.count("fastbert: error:") for output in ended.outputs] == [1, 0, 0]
    assert "--batch-size 2 is less than one sequence per process for 3 processes" in ended.outputs[0]


def test_torchrun_starts_the_command(prepared: PretrainConfig, tmp_path: Path) -> None:
    """It ends all processes as soon as one has ended, but the first one says why before that. A run that ends well
    comes first, in the same processes."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone", "--nproc-per-node=2"]
    good, bad = (
        words(prepared, tmp_path / flags[0], *flags) for flags in (("--steps=1",), ("--lr=1e30", "--warmup=0"))
    )
    code = f"import sys; from fastbert.cli import main; assert main({good}) == 0; sys.exit(main({bad}))"
    done = subprocess.run([*launch, sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("validation: masked-LM loss") == 1
    assert done.stderr.count("the gradient is not a finite number") == 1
    assert "AssertionError" not in done.stderr
    assert "find_unused_parameters" not in done.stderr
