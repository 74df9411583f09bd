"""What the processes of a run that torchrun started have in common."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch

from fastbert.flags import flag
from fastbert.training.run_config import RunConfig

CONTINUE = "its checkpoints are whole: continue with --resume"
SAME_COMMAND = "start every process with the same command and software"


def identity(config: RunConfig) -> dict[str, Any]:
    """Return what all processes of a run must have in common: flags and versions."""
    flags = {flag(name): value for name, value in config.to_dict().items()}
    return {"fastbert": version("fastbert-engine"), "torch": torch.__version__, **flags}
