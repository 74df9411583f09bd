"""Names of tensors: what old, other people's and TensorFlow's checkpoints call the weights of our models."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from fastbert.checkpoints.file_tensors import FileTensor
from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import shown

# Of checkpoints that were born in TensorFlow.
RENAMED = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
# Buffers that other libraries save beside the weights, and that hold 0, 1, 2, ... and zeros.
IGNORED = ("embeddings.position_ids", "embeddings.token_type_ids")
ENCODER = re.compile(r"(?:bert\.)?(?:embeddings|encoder)\.")
_LAYER = re.compile(r"(?:bert\.)?encoder\.layer\.(\d{1,6})\.")
DECODER, DECODER_BIAS, OUTPUT_BIAS = (
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "cls.predictions.bias",
)


def match(names: Iterable[str], own: Collection[str], prefix: str, place: Path) -> dict[str, str]:
    """A model's names -> a checkpoint's, which may have the prefix or not, and old names of LayerNorms; names that the
    model does not have stand for themselves. Raises `CheckpointError` where two of a checkpoint's are the same weight.
    """
    matched: dict[str, str] = {}
    for name in names:
        if name.endswith(IGNORED):
            continue
        ours = name
        for old, new in RENAMED:
            ours = ours.replace(old, new)
        if ours not in own:
            stripped, prefixed = ours.removeprefix(f"{prefix}."), f"{prefix}.{ours}"
            ours = stripped if stripped in own else prefixed if prefixed in own else ours
        if ours in matched:
            raise CheckpointError(f"{place}: holds {shown(name)} and {shown(matched[ours])}, which are the same weight")
        matched[ours] = name
    if OUTPUT_BIAS in own and OUTPUT_BIAS not in matched and DECODER_BIAS in matched:
        matched[OUTPUT_BIAS] = matched[DECODER_BIAS]
    return matched


def is_encoders(name: str) -> bool:
    """Return whether a weight belongs to the embeddings or the layers: what no task ever makes anew."""
    return ENCODER.match(name) is not None


def layers(names: Iterable[str]) -> int:
    """Encoder layers in a checkpoint."""
    numbers = [int(found[1]) for name in names if (found := _LAYER.match(name))]
    return max(numbers) + 1 if numbers else 0


# TensorFlow's names. Kernels are (in, out) there, and (out, in) here.

_TF_HEADS = {
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}
_TF_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")
_TF_LEAVES = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
_TF_WEIGHT = re.compile(r"(?:bert/(?:embeddings|encoder|pooler)|cls/predictions/transform)/(?:\w+/)*\w+")
_TF_TRAINING = re.compile(
    r"(?:.*/)?(?:adam_[mv]|lamb_[mv]|Adam|Adam_1|Momentum|global_step|beta[12]_power|loss_scale|(?:num_)?(?:good|bad)_steps)"
)


def from_tensorflow(name: str) -> str | None:
    """Our name of a tensor in a TensorFlow checkpoint of BERT; None for what is none of its weights."""
    if name in _TF_HEADS:
        return _TF_HEADS[name]
    if is_training_state(name) or not _TF_WEIGHT.fullmatch(name):
        return None
    parts = re.sub(r"/layer_(\d+)/", r"/layer/\1/", name).split("/")
    if parts[-1] in _TF_TABLES:
        return ".".join([*parts, "weight"])
    if parts[-1] not in _TF_LEAVES:
        return None
    return ".".join([*parts[:-1], _TF_LEAVES[parts[-1]]])


def to_tensorflow(name: str) -> str | None:
    """The name in a TensorFlow checkpoint of a weight with our name, `bert.` included; None where there is none."""
    for theirs, ours in _TF_HEADS.items():
        if name == ours:
            return theirs
    parts = re.sub(r"\.layer\.(\d+)\.", r".layer_\1.", name).split(".")
    if parts[-2] in _TF_TABLES:
        parts.pop()
    elif parts[-2] == "LayerNorm":
        parts[-1] = {"weight": "gamma", "bias": "beta"}.get(parts[-1], "")
    elif parts[-1] == "weight":
        parts[-1] = "kernel"
    theirs = "/".join(parts)
    return theirs if from_tensorflow(theirs) == name else None


def is_training_state(name: str) -> bool:
    """Return whether a tensor in a TensorFlow checkpoint is an optimizer's, or a step's number."""
    return _TF_TRAINING.fullmatch(name) is not None


def is_transposed(theirs: str) -> bool:
    """Return whether a tensor with this name in a TensorFlow checkpoint has its rows where ours has columns."""
    return theirs.endswith("/kernel")


def weights_of_bundle(bundle: Mapping[str, FileTensor]) -> tuple[dict[str, FileTensor], dict[str, str]]:
    """Return the weights of a TensorFlow checkpoint under our names, and the mapping of our names to TensorFlow's. A
    tensor that is not a weight of BERT keeps its name."""
    weights: dict[str, FileTensor] = {}
    origins: dict[str, str] = {}
    for theirs, stored in bundle.items():
        ours = from_tensorflow(theirs) or theirs
        if ours in weights:
            raise CheckpointError(f"{stored.file}: {shown(theirs)} and {shown(origins[ours])} are the same weight")
        weights[ours] = stored.transposed() if is_transposed(theirs) and len(stored.shape) == 2 else stored
        origins[ours] = theirs
    return weights, origins
