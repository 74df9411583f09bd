"""Names of a checkpoint's files in each format. Imports no torch, so that missing models are reported at once."""

from __future__ import annotations

from pathlib import Path

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
WEIGHTS_PATTERNS = ("model-*-of-*.safetensors", WEIGHTS, WEIGHTS_INDEX)
PICKLED = "pytorch_model.bin"
PICKLED_INDEX = "pytorch_model.bin.index.json"
TENSORFLOW_INDEX = ".index"


def index_file(prefix: Path) -> Path:
    """Return the path of a TensorFlow checkpoint's index."""
    return prefix.with_name(prefix.name + TENSORFLOW_INDEX)
