"""Pre-training runs: how a test stops them, and what they leave."""

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fastbert.training.config import PretrainConfig
from fastbert.training.metrics import MEASURED
from fastbert.training.pretrain import pretrain
from fastbert.training.reporter import Reporter
from fastbert.training.stopping import Stopped


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def stop_at(step: int, *numbers: int) -> Reporter:
    """A reporter that sends this process signals in the given step, SIGINT if none is named."""

    def on_step(metrics, progress) -> None:
        if metrics["step"] == step:
            for number in numbers or (signal.SIGINT,):
                os.kill(os.getpid(), number)

    return Reporter(on_step=on_step)


def assert_resumes_to_the_bit(whole: PretrainConfig, step: int = 7) -> PretrainConfig:
    """Compare a run with one that is stopped in `step` and resumed; return the latter."""
    pretrain(whole)
    run = replace(whole, out=whole.out.with_name("resumed"))
    with pytest.raises(Stopped):
        pretrain(run, stop_at(step))
    pretrain(PretrainConfig(out=run.out, resume=True))
    assert all(torch.equal(tensor, weights(run.out)[name]) for name, tensor in weights(whole.out).items())
    assert timeless(run.out) == timeless(whole.out)
    return run


def timeless(folder: Path) -> str:
    """metrics.jsonl without what a clock or the machine measured."""
    return without_clocks((folder / "metrics.jsonl").read_text())


def without_clocks(lines: str) -> str:
    """Lines of metrics.jsonl without what differs between a run and its repetition."""
    return re.sub(rf'(, )?"({"|".join(MEASURED)})": [^,}}\n]+', "", lines)
