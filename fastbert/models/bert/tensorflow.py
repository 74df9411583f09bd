"""TensorFlow's names of BERT's weights, as the first releases have them.

Kernels are (in, out) in TensorFlow, and (out, in) here.
"""

from __future__ import annotations

import re
from dataclasses import replace

from fastbert.checkpoints.file_tensors import FileTensor
from fastbert.checkpoints.weights import Weights
from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import shown

_HEADS = {
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}
_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")
_LEAVES = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
_WEIGHT = re.compile(r"(?:bert/(?:embeddings|encoder|pooler)|cls/predictions/transform)/(?:\w+/)*\w+")
_TRAINING = re.compile(
    r"(?:.*/)?(?:adam_[mv]|lamb_[mv]|Adam|Adam_1|Momentum|global_step|beta[12]_power|loss_scale|(?:num_)?(?:good|bad)_steps)"
)


def from_tensorflow(name: str) -> str | None:
    """Return our name of a tensor in a TensorFlow checkpoint of BERT; None for a tensor that is not a weight."""
    if name in _HEADS:
        return _HEADS[name]
    if is_training_state(name) or not _WEIGHT.fullmatch(name):
        return None
    parts = re.sub(r"/layer_(\d+)/", r"/layer/\1/", name).split("/")
    if parts[-1] in _TABLES:
        return ".".join([*parts, "weight"])
    if parts[-1] not in _LEAVES:
        return None
    return ".".join([*parts[:-1], _LEAVES[parts[-1]]])


def to_tensorflow(name: str) -> str | None:
    """Return the name in a TensorFlow checkpoint of a weight with our name, `bert.` included; None for other names."""
    for tensorflow_name, head in _HEADS.items():
        if name == head:
            return tensorflow_name
    parts = re.sub(r"\.layer\.(\d+)\.", r".layer_\1.", name).split(".")
    if parts[-2] in _TABLES:
        parts.pop()
    elif parts[-2] == "LayerNorm":
        parts[-1] = {"weight": "gamma", "bias": "beta"}.get(parts[-1], "")
    elif parts[-1] == "weight":
        parts[-1] = "kernel"
    tensorflow_name = "/".join(parts)
    return tensorflow_name if from_tensorflow(tensorflow_name) == name else None


def is_training_state(name: str) -> bool:
    """Return whether a tensor in a TensorFlow checkpoint is an optimizer's, or a step counter."""
    return _TRAINING.fullmatch(name) is not None


def is_transposed(name: str) -> bool:
    """Return whether a tensor with this name in a TensorFlow checkpoint is the transpose of ours."""
    return name.endswith("/kernel")


def rename_weights(weights: Weights) -> Weights:
    """Return a TensorFlow checkpoint under our names, with TensorFlow's as `origins`; other tensors keep their names.

    Raises CheckpointError for two tensors that are the same weight.
    """
    tensors: dict[str, FileTensor] = {}
    origins: dict[str, str] = {}
    for origin, stored in weights.tensors.items():
        name = from_tensorflow(origin) or origin
        if name in tensors:
            raise CheckpointError(f"{stored.file}: {shown(origin)} and {shown(origins[name])} are the same weight")
        tensors[name] = stored.transposed() if is_transposed(origin) and len(stored.shape) == 2 else stored
        origins[name] = origin
    return replace(weights, tensors=tensors, origins=origins)
