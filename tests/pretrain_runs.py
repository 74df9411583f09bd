"""Pre-training runs: how a test stops them, and what they leave."""

import os
import re
import signal
from pathlib import Path

import torch
from safetensors.torch import load_file

from fastbert.training.metrics import MEASURED
from fastbert.training.reporter import Reporter


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def stop_at(step: int, *numbers: int) -> Reporter:
    """A reporter that sends this process signals in the given step, SIGINT if none is named."""

    def on_step(metrics, progress) -> None:
        if metrics["step"] == step:
            for number in numbers or (signal.SIGINT,):
                os.kill(os.getpid(), number)

    return Reporter(on_step=on_step)


def timeless(folder: Path) -> str:
    """metrics.jsonl without what a clock or the machine measured."""
    return without_clocks((folder / "metrics.jsonl").read_text())


def without_clocks(lines: str) -> str:
    """Lines of metrics.jsonl without what differs between a run and its repetition."""
    return re.sub(rf'(, )?"({"|".join(MEASURED)})": [^,}}\n]+', "", lines)
