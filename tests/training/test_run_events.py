"""What happens in the course of a run: schedules and phases, skipped steps, roll-backs, the clock, and replays."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_tracker
import pytest
import torch
from pretrain_runs import stop_at, timeless, weights

from fastbert import cli
from fastbert.errors import UserError
from fastbert.training import loop
from fastbert.training.config import PretrainConfig
from fastbert.training.monitors import Monitors
from fastbert.training.optimizer import AdamW, GradientError
from fastbert.training.pretrain import pretrain
from fastbert.training.reporter import Reporter
from fastbert.training.run_folder import read_run
from fastbert.training.skipped_steps import TrainingError
from fastbert.training.step_log import weights_sum
from fastbert.training.stopping import Stopped


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[set[int]], None]:
    """Make the gradients of some steps, numbered from 1 over all runs of a test, not finite."""

    def fail(steps: set[int]) -> None:
        original, calls = AdamW.clip_gradients, 0

        def clipped(self: AdamW, max_norm: float) -> torch.Tensor:
            nonlocal calls
            calls += 1
            if calls in steps:
                raise GradientError("a weight, of shape (2,), is nan at [1]")
            return original(self, max_norm)

        monkeypatch.setattr(AdamW, "clip_gradients", clipped)

    return fail


def test_schedules_and_phases_resume_bit_for_bit(config: PretrainConfig) -> None:
    """Batch, length, mask rate and learning rate follow the run, and so do those of one that was stopped twice."""
    flags: dict[str, Any] = {
        "batch_schedule": "2:8@0.5,6", "length_schedule": "16@0.5,32", "mask_schedule": "0.4:0.1", "schedule": "wsd",
        "decay_fraction": 0.5, "max_length": 128, "log_every": 1, "eval_every": 4, "batch_size": None,
    }  # fmt: skip
    whole = replace(config, out=config.out.with_name("whole"), **flags)
    pretrain(whole)
    cut = replace(config, **flags)
    for step in (3, 8):
        with pytest.raises(Stopped):
            pretrain(replace(cut, resume=True), stop_at(step))
    pretrain(replace(cut, resume=True))
    assert timeless(cut.out) == timeless(whole.out)
    for name, value in weights(whole.out).items():
        assert torch.equal(value, weights(cut.out)[name]), name
    steps = [line for line in lines(whole.out) if line["split"] == "train"]
    tokens = [b["tokens"] - a["tokens"] for a, b in zip([{"tokens": 0}, *steps], steps)]
    assert tokens[0] <= 3 * 16
    assert tokens[5] > 6 * 12
    assert tokens[-1] > 6 * 20
    assert steps[4]["learning_rate"] == pytest.approx(config.lr, rel=1e-6)
    assert steps[-1]["learning_rate"] < 0.2 * config.lr
    assert read_run(whole.out).batch_size == 6  # 5.5 on average


def test_defaults_of_a_batch_schedule_follow_its_mean(config: PretrainConfig) -> None:
    """So do the epochs that are said, and that decide over dropout."""
    messages: list[str] = []
    flags = replace(config, batch_size=None, batch_schedule="2:6")
    pretrain(flags, Reporter(on_message=messages.append))
    stored = read_run(config.out)
    assert (stored.batch_size, stored.batch_schedule) == (4, "2:6")
    said = "\n".join(messages)
    sequences = int(re.findall(r"([\d,]+) training and", said)[0].replace(",", ""))
    assert re.findall(r"12 steps \((.*) epochs?\) of (.*) sequences", said) == [(f"{48 / sequences:.3g}", "2:6")]
    with pytest.raises(UserError, match="--batch-size and --batch-schedule exclude each other"):
        pretrain(replace(flags, batch_size=8, overwrite=True))


def test_a_run_that_only_skips_ends(config: PretrainConfig, failing: Callable[[set[int]], None]) -> None:
    failing(set(range(5, 1000)))
    with pytest.raises(TrainingError, match="step 54: the gradients of 50 steps in a row were not finite numbers"):
        pretrain(replace(config, steps=100, on_nan="skip", eval_samples=8))


def test_a_spike_rolls_the_run_back(config: PretrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last checkpoint, from which the step is left out; a resumed run leaves it out too."""
    seen: list[int] = []

    def judge(self: Monitors, step: int, loss: float, phase: int) -> str | None:
        seen.append(step)
        return "step 7: the loss is far above" if step == 7 and seen.count(7) == 1 else None

    monkeypatch.setattr(Monitors, "judge", judge)
    messages: list[str] = []
    fake = fake_tracker.install(monkeypatch)
    flags = replace(config, on_spike="rollback", checkpoint_every=3, log_every=1)
    pretrain(replace(flags, track=("wandb",)), Reporter(on_message=messages.append))
    steps = [step for [logged] in [fake.runs.values()] for step, values in logged if "train/loss" in values]
    assert steps == list(range(1, 13)), "each once"
    assert "step 7: the loss is far above: back to step 6; step 7 will be left out" in messages
    assert seen == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert [line["gradient_norm"] is None for line in lines(config.out, "steps.jsonl")].index(True) == 6
    assert cli.main(["replay", str(config.out), "--steps", "7:12", "--quiet"]) == 0

    seen.clear()
    cut = replace(flags, out=config.out.with_name("cut"))
    with pytest.raises(Stopped):
        pretrain(cut, stop_at(10))
    pretrain(replace(cut, resume=True))
    assert timeless(cut.out) == timeless(config.out)
    seen.clear()
    alone = replace(flags, out=config.out.with_name("none"), checkpoint_every=7, eval_every=7)  # due at the spike
    pretrain(alone, Reporter(on_message=messages.append))
    assert any(text.endswith("no checkpoint before it to return to: the run goes on") for text in messages)
    assert seen == list(range(1, 13))
    undisturbed = replace(alone, out=config.out.with_name("undisturbed"), on_spike="ignore")
    pretrain(undisturbed)
    assert timeless(alone.out) == timeless(undisturbed.out)
    assert [path.name for path in sorted((alone.out / "checkpoints").glob("step-*"))] == [
        "step-00000007",
        "step-00000012",
    ]


def test_a_run_by_the_clock_repeats_its_schedule(
    config: PretrainConfig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed, its steps have the progress that they had, and a replay finds the same bits."""
    readings = accumulate(cycle((0.02, 0.025, 0.04)))  # of a clock that no busy machine slows down
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(readings)))
    flags = replace(config, steps=None, hours=0.4 / 3600, log_every=1, checkpoint_every=4, keep_checkpoints=99)
    with pytest.raises(Stopped):
        pretrain(flags, stop_at(6))
    before = lines(config.out, "schedule.jsonl")
    pretrain(replace(flags, resume=True))
    after = lines(config.out, "schedule.jsonl")
    assert after[: len(before)] == before
    progress = [line["progress"] for line in after[1:]]
    assert progress == sorted(progress)
    last = lines(config.out, "steps.jsonl")[-1]["step"]
    assert 12 <= last <= 20
    assert cli.main(["replay", str(config.out), "--steps", f"3:{last}"]) == 0
    assert capsys.readouterr().out.count("equal\n") == last - 2


def test_the_sum_of_all_weights_tells_their_places() -> None:
    """A bit, two rows or two parameters that are changed."""
    first, second = torch.randn(3, 4), torch.randn(3, 4)
    third = first.clone()
    third[1, 1] = torch.nextafter(first[1, 1], torch.tensor(9.0))

    def total(*tensors: torch.Tensor) -> int:
        return weights_sum(torch.nn.ParameterList([torch.nn.Parameter(tensor) for tensor in tensors]))

    sums = {total(first, second), total(second, first), total(first.flip(0), second), total(third, second)}
    assert len(sums) == 4
    assert total(first, second) == total(first.clone(), second.clone())
    assert total(torch.zeros(0), torch.tensor(1.0)) != total(torch.tensor(1.0), torch.zeros(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_sum_of_all_weights_is_its_definition(dtype: torch.dtype) -> None:
    """Lines of steps.jsonl are compared by later versions: all shapes, also transposed, and any number of threads."""
    shapes = [(3000, 77), (5,), (), (0,), (4, 0), (2, 3, 4), (1, 100_000), (70_000, 1)]
    tensors = [torch.randn(shape, dtype=dtype) for shape in shapes] + [torch.randn(30, 40, dtype=dtype).t()]
    model = torch.nn.ParameterList([torch.nn.Parameter(tensor) for tensor in tensors])
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensors[0].element_size()]
    expected = 0
    for index, tensor in enumerate(tensors):
        rows = tensor.contiguous().view(kind).reshape(len(tensor) if tensor.dim() else 1, -1) if tensor.numel() else []
        expected += (2 * index + 1) * sum((2 * row + 1) * sum(values.tolist()) for row, values in enumerate(rows))
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            assert weights_sum(model) == expected % 2**64, f"{threads} threads"
    finally:
        torch.set_num_threads(before)


def test_a_replay_finds_what_was_changed(config: PretrainConfig, capsys: pytest.CaptureFixture[str]) -> None:
    """A difference of one bit ends it with 1; nothing is written."""
    pretrain(replace(config, checkpoint_every=4, keep_checkpoints=9, log_every=5))
    capsys.readouterr()
    before = {path: path.read_bytes() for path in sorted(config.out.rglob("*")) if path.is_file()}
    assert cli.main(["replay", str(config.out), "--steps", "6:10"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in shown] == ["6", "7", "8", "9", "10"]
    assert all(line.endswith("equal") for line in shown)
    assert before == {path: path.read_bytes() for path in sorted(config.out.rglob("*")) if path.is_file()}

    steps = config.out / "steps.jsonl"
    recorded = steps.read_text()
    loss = lines(config.out, "steps.jsonl")[7]["loss"]
    steps.write_text(recorded.replace(repr(loss), repr(loss + 2**-50)))
    assert cli.main(["replay", str(config.out), "--steps", "6:10"]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3
    assert "different: the run had loss" in shown[-1]
    steps.write_text(re.sub(r'"weights": (\d+)', lambda found: f'"weights": {int(found[1]) + 1}', recorded))
    assert cli.main(["replay", str(config.out), "--steps", "10"]) == 1
    assert cli.main(["replay", str(config.out), "--steps", "12:13"]) == 2
    assert "has taken 12 steps; name earlier ones" in capsys.readouterr().err
    steps.write_text(recorded)

    # The token shards of the run are found where they are now, and only if they are whole.
    moved = (config.out / "data").rename(config.out.with_name("moved"))
    assert cli.main(["replay", str(config.out), "--steps", "6:7"]) == 2
    shown = capsys.readouterr().err
    assert "the run's token shards are not there" in shown
    assert "replay with --data, followed by the place of the run's own (SHA-256" in shown
    assert cli.main(["replay", str(config.out), "--steps", "6:7", "--data", str(moved)]) == 0
    tokens = next(moved.glob("*.tokens.bin"))
    content = bytearray(tokens.read_bytes())
    content[-1] ^= 1
    tokens.write_bytes(content)
    capsys.readouterr()
    assert cli.main(["replay", str(config.out), "--steps", "6:7", "--data", str(moved)]) == 2
    assert tokens.name in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"mask_schedule": "0:0.3"}, "--mask-schedule 0:0.3: fractions must be above 0"),
        ({"batch_schedule": "0:8"}, "--batch-schedule 0:8: batches must have at least 1 sequence"),
        ({"length_schedule": "16:32"}, "--length-schedule 16:32: lengths are whole numbers in steps"),
        ({"length_schedule": "16,32"}, "--length-schedule 16,32: part 1 needs @"),
        ({"length_schedule": "2@0.5,32"}, "lengths must be from 3 to"),
        ({"parallel": "fsdp", "teacher": "somewhere"}, "--parallel fsdp and --teacher exclude each other"),
    ],
)
def test_wrong_schedules_are_named(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        PretrainConfig(corpus=("text",), **flags)
