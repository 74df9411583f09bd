"""NaN, infinities and loss spikes in training (row 13): seen at once, never saved, never hidden, and without a trace in
what follows."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pretrain_runs import stop_at, timeless, weights
from safetensors.torch import load_file, save_file
from torch import Tensor
from torture.campaign import Campaign
from torture.ledger import Figures, merged
from torture.poison import PLACES, VALUES, Poison, left_out
from torture.scorecard import scored
from torture.toy_run import toy_config

from fastbert import cli
from fastbert.errors import UserError
from fastbert.training.checkpoint import MANIFEST, MODEL, OPTIMIZER
from fastbert.training.config import PretrainConfig
from fastbert.training.loop import Trainer
from fastbert.training.pretrain import pretrain
from fastbert.training.reporter import Reporter
from fastbert.training.step_computing import StepComputer
from fastbert.training.step_loss import StepLoss
from fastbert.training.stopping import Stopped

VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"dtype": "bf16"},
    {"micro_batch": 4},
    {"dtype": "bf16", "param_dtype": "bf16"},
    {"optimizer": "lamb"},
    {"optimizer": "muon", "dtype": "bf16"},
    {"checkpoint_activations": True},
    {"async_save": "on"},
)


@pytest.fixture(autouse=True)
def quick_runs(threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, and no pictures."""
    torch.set_num_threads(1)
    monkeypatch.setattr("fastbert.training.pretrain.plot_runs", lambda runs, file, **options: file.write_bytes(b""))


class Runs:
    """The runs of a check in one folder, and those without poison that they are compared with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[dict[str, Tensor], str]] = {}

    def config(self, variant: dict[str, Any], name: str) -> PretrainConfig:
        """Return the configuration of a run, whose folder is empty."""
        out = self.folder / name
        shutil.rmtree(out, ignore_errors=True)
        return toy_config(self.folder, out=out, **variant)

    def reference(self, variant: dict[str, Any], without: int | None = None) -> tuple[dict[str, Tensor], str]:
        """Return the weights and the metrics of a run without poison; one step may be left out."""
        key = f"{variant} {without}"
        if key not in self._known:
            config = self.config(variant, "reference")
            if without is None:
                pretrain(config)
            else:
                with left_out(without):
                    pretrain(replace(config, on_nan="skip"))
            self._known[key] = weights(config.out), timeless(config.out)
        return self._known[key]


def assert_finite_files(folder: Path, what: str) -> None:
    """Fail if a checkpoint, or the trained model, holds a NaN or an infinity."""
    for file in folder.rglob("*.safetensors"):
        for name, tensor in load_file(file).items():
            assert bool(tensor.isfinite().all()), f"{what}: {name} of {file.relative_to(folder)} is not finite"


def assert_equal_runs(config: PretrainConfig, reference: tuple[dict[str, Tensor], str], what: str) -> None:
    """Fail unless a run's weights are equal, and its metrics unless it has skipped a step, which they count."""
    for name, tensor in weights(config.out).items():
        assert torch.equal(tensor, reference[0][name]), f"{what}: {name} differs from that of the run without poison"
    assert timeless(config.out) == reference[1], f"{what}: metrics differ from those of the run without poison"


def steps_of(folder: Path) -> dict[int, dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    return {line["step"]: line for line in lines}


def poison_checkpoint(folder: Path, draw: random.Random) -> str:
    """Put a value into a tensor of a checkpoint whose manifest agrees; return where."""
    file = folder / draw.choice((MODEL, OPTIMIZER))
    tensors = load_file(file)
    name = draw.choice([name for name, tensor in tensors.items() if tensor.dim()])
    position = draw.randrange(tensors[name].numel())
    tensors[name].view(-1)[position] = draw.choice(VALUES)
    save_file(tensors, file, {"format": "pt"})
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["sha256"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return f"{name}[{position}]"


def resumed_from_poison(runs: Runs, variant: dict[str, Any], draw: random.Random, what: str) -> Figures:
    """Stop a run, poison its last checkpoint and resume it: from the one before, to the same end."""
    config = runs.config(variant, "poisoned")
    with pytest.raises(Stopped):
        pretrain(config, stop_at(draw.choice((3, 4))))
    last = sorted((config.out / "checkpoints").glob("step-*"))[-1]
    what = f"{what}, at {poison_checkpoint(last, draw)}"
    pretrain(PretrainConfig(out=config.out, resume=True))
    shutil.rmtree(last)
    assert_finite_files(config.out, what)
    assert_equal_runs(config, runs.reference(variant), what)
    return {"in_checkpoint": 1, "passed_over": 1}


def poisoned(runs: Runs, number: int) -> Figures:
    """Poison one run; return where it was seen."""
    draw = random.Random(f"poison {number}")
    variant = VARIANTS[number % len(VARIANTS)]
    place = (*PLACES, "checkpoint")[(number + number // len(VARIANTS)) % (len(PLACES) + 1)]
    if place == "checkpoint":
        return resumed_from_poison(runs, variant, draw, f"number {number}, in a checkpoint, {variant}")
    on_nan = draw.choice(("stop", "skip"))
    poison = Poison(place, draw.randint(2, 5), draw.choice(VALUES), draw.getrandbits(32))
    what = f"number {number}, {poison.value} in the {place} of step {poison.step}, {variant}, --on-nan {on_nan}"
    config, messages = runs.config({**variant, "on_nan": on_nan}, "poisoned"), list[str]()
    seen_in: list[int] = []
    reporter = Reporter(
        on_message=messages.append, on_step=lambda metrics, progress: seen_in.append(int(metrics["step"]))
    )
    error: UserError | None = None
    with poison.injected():
        try:
            pretrain(config, reporter)
        except UserError as raised:
            error = raised
    assert poison.sites, f"{what}: the step was not reached"
    what = f"{what}, at {poison.sites[0]}"
    assert_finite_files(config.out, what)
    figures: Figures = {f"in_{place}": 1}
    if error is not None:
        assert "\n" not in str(error), f"{what}: {error}"
        late = len(set(seen_in)) - poison.step + 1 if seen_in else 0
        persistent = place in ("moment", "weight")
        # What no step's result shows, such as the embedding of a position that no text reaches, a bias of -inf, whose
        # word is never predicted, or an infinite second moment, whose weight stands still, is seen when it would be
        # saved.
        hidden = persistent and "was not written" in str(error)
        assert late <= 1 or hidden, f"{what}: seen {late} steps later: {error}"
        figures |= {"seen_when_saved": 1} if hidden else {"largest_steps_until_seen": max(0, late)}
        assert on_nan == "stop" or persistent, f"{what}: was to be skipped: {error}"
        if not persistent:
            assert f"step {poison.step}: the gradient is not a finite number" in str(error), f"{what}: {error}"
            assert poison.model is not None
            assert all(bool(p.isfinite().all()) for p in poison.model.parameters()), f"{what}: poisoned weights"
        pretrain(PretrainConfig(out=config.out, resume=True))
        assert_equal_runs(config, runs.reference(variant), what)
        return {**figures, "stopped": 1}
    line = steps_of(config.out)[poison.step]
    if line["gradient_norm"] is not None:
        # Nothing that the step computes depends on it: an element that is not read, or that is overwritten.
        assert_equal_runs(config, runs.reference(variant), what)
        return {**figures, "without_effect": 1}
    assert on_nan == "skip", f"{what}: the step counts as finite"
    message = f"step {poison.step}: the gradient is not finite; it is skipped (1 so far)"
    assert message in messages, f"{what}: not reported"
    after = [json.loads(x) for x in (config.out / "metrics.jsonl").read_text().splitlines()]
    later = [x for x in after if x["split"] == "train" and x["step"] > poison.step]
    assert all(x["skipped_steps"] == 1 for x in later), f"{what}: metrics do not count it"
    assert_equal_runs(config, runs.reference(variant, without=poison.step), what)
    return {**figures, "skipped": 1, "largest_steps_until_seen": 0}


@scored(
    row=13,
    unit="poisoned steps",
    short=12,
    full=1_000,
    chunk=25,
    goal="seen within a step or before it is saved; none is saved; what follows equals a run without it",
)
def test_poisoned_steps(campaign: Campaign, tmp_path: Path) -> None:
    """A NaN or an infinity anywhere in a step stops the run with one line, or skips the step, as --on-nan says."""
    runs = Runs(tmp_path)
    campaign.run(lambda numbers: merged(poisoned(runs, number) for number in numbers))


@contextmanager
def spiking(step: int, first_only: bool) -> Iterator[None]:
    """Make the loss of a step, and its gradient, a hundred times as large; or, if not `first_only`, let every run omit
    the step from the start."""
    original_step, original_forward, original_init = StepComputer.step, StepLoss.forward, Trainer.__init__
    now = [0]

    def counted(computer: StepComputer, loaded: Any) -> Any:
        now[0] = loaded.spec.number
        return original_step(computer, loaded)

    def forward(loss: StepLoss, batch: Any, part: Any) -> Any:
        value, output = original_forward(loss, batch, part)
        if first_only and now[0] == step:
            output.mlm_loss_sum = output.mlm_loss_sum * 100
            value = value * 100
        return value, output

    def omitting(trainer: Trainer, *arguments: Any, **options: Any) -> None:
        original_init(trainer, *arguments, **options)
        if not first_only:
            trainer.omitted.add(step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepComputer, "step", counted)
        patch.setattr(StepLoss, "forward", forward)
        patch.setattr(Trainer, "__init__", omitting)
        yield


def spike(runs: Runs, number: int) -> Figures:
    """Roll a run back from a spike, and compare it with one that leaves the step out."""
    draw = random.Random(f"spikes {number}")
    variant, step = VARIANTS[number % len(VARIANTS)], draw.randint(34, 40)
    what = f"number {number}, a spike in step {step}, {variant}"
    flags = {"steps": 41, "batch_size": 2, "checkpoint_every": 5, "on_spike": "rollback"}
    config = runs.config({**variant, **flags, "micro_batch": 1 + number % 2}, "spiked")
    messages: list[str] = []
    with spiking(step, first_only=True):
        pretrain(config, Reporter(on_message=messages.append))
    back = 5 * ((step - 1) // 5)
    told = [text for text in messages if text.endswith(f"back to step {back}; step {step} will be left out")]
    assert len(told) == 1, f"{what}: {messages}"
    assert steps_of(config.out)[step]["omitted"] is True, f"{what}: steps.jsonl does not show it"
    assert_finite_files(config.out, what)
    whole = runs.config({**variant, **flags, "micro_batch": 1 + number % 2}, "omitting")
    with spiking(step, first_only=False):
        pretrain(whole)
    assert_equal_runs(config, (weights(whole.out), timeless(whole.out)), what)
    assert cli.main(["replay", str(config.out), "--steps", f"{step}:41", "--quiet"]) == 0, f"{what}: replay differs"
    return {"rolled_back": 1, "replayed_steps": 42 - step}


@scored(
    row=13, unit="loss spikes", short=1, full=50, chunk=5, goal="each is rolled back, as if its step had been left out"
)
def test_loss_spikes(campaign: Campaign, tmp_path: Path) -> None:
    """After a spike a run goes back to the checkpoint before it, leaves the step out, and a replay finds its bits."""
    runs = Runs(tmp_path)
    campaign.run(lambda numbers: merged(spike(runs, number) for number in numbers))
