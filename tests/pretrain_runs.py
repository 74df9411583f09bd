"""Pre-training runs: how a test stops them, and what they leave."""

import os
import re
import signal
from pathlib import Path

import torch
from safetensors.torch import load_file

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
    """metrics.jsonl without what a clock measured."""
    return re.sub(r', "(seconds|tokens_per_second)": [^,}]+', "", (folder / "metrics.jsonl").read_text())
