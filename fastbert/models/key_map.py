"""Names of weights in the files of an architecture, of old releases and of other libraries."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import shown

# Of checkpoints that were converted from TensorFlow.
RENAMED = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
# Buffers that other libraries save beside the weights: 0, 1, 2, ... and zeros.
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
DECODER, DECODER_BIAS, OUTPUT_BIAS = (
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "cls.predictions.bias",
)
# Models with a head have the encoder's prefix before these.
_ENCODER = re.compile(r"(?:\w+\.)?(?:embeddings|embeddings_project|encoder|transformer|positions)\.")


@dataclass(frozen=True)
class KeyMap:
    """The names in an architecture's files, as changes of the names in our models, which are those of BERT's files."""

    renames: tuple[tuple[str, str], ...] = ()
    """Parts of our names and what replaces them in files, applied in order."""

    def then(self, *renames: tuple[str, str]) -> KeyMap:
        """Return a map with further changes."""
        return KeyMap((*self.renames, *renames))

    def file_name(self, name: str) -> str:
        """Return the name in files of a parameter."""
        for part, replacement in self.renames:
            name = name.replace(part, replacement)
        return name

    def match(self, names: Iterable[str], parameters: Collection[str], prefix: str, path: Path) -> dict[str, str]:
        """Map the names of a model's `parameters` to those of a checkpoint.

        A checkpoint's names may lack the encoder's `prefix` or have it where the model does not, and LayerNorms may
        have their old names. Names that the model does not have are mapped to themselves. Raises `CheckpointError`
        where two of a checkpoint's names are the same weight.
        """
        model_names = {self.file_name(name): name for name in parameters}
        matched: dict[str, str] = {}
        for name in names:
            if name.endswith(BUFFERS):
                continue
            key = name
            for old, new in RENAMED:
                key = key.replace(old, new)
            candidates = (key, key.removeprefix(f"{prefix}."), f"{prefix}.{key}")
            key = next((model_names[candidate] for candidate in candidates if candidate in model_names), key)
            if key in matched:
                raise CheckpointError(
                    f"{path}: holds {shown(name)} and {shown(matched[key])}, which are the same weight"
                )
            matched[key] = name
        bias = self.file_name(DECODER_BIAS)
        if OUTPUT_BIAS in parameters and OUTPUT_BIAS not in matched and bias in matched:
            matched[OUTPUT_BIAS] = matched[bias]
        return matched

    def count_layers(self, names: Iterable[str]) -> int:
        """Return the number of encoder layers in a checkpoint."""
        stack = re.escape(self.file_name("encoder.layer."))
        pattern = re.compile(rf"(?:\w+\.)?{stack}(\d{{1,6}})\.")
        numbers = [int(layer[1]) for name in names if (layer := pattern.match(name))]
        return max(numbers) + 1 if numbers else 0


BERT_NAMES = KeyMap()


def is_encoder_weight(name: str) -> bool:
    """Return whether a weight belongs to the embeddings or the layers, which no task initialises."""
    return _ENCODER.match(name) is not None
