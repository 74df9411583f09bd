"""Files of models that write text: which weights of a checkpoint make an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from fastbert.checkpoints.file_tensors import equal
from fastbert.checkpoints.key_mapping import DECODER, match
from fastbert.checkpoints.source import Weights
from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import shown
from fastbert.models.seq2seq.config import SequenceConfig, Sharing

_DECODER_BERT = "decoder.bert."
_HEAD = "decoder.cls."
_EMBEDDING = "embeddings.word_embeddings.weight"


def tied_names(names: Iterable[str], shared: Sharing) -> tuple[str, ...]:
    """The names of an encoder-decoder's weights that are others under a second name."""
    return tuple(name for name in names if _first_name(name, shared) is not None)


def weights_for(config: SequenceConfig, weights: Weights, own: Collection[str], tied: Collection[str]) -> Weights:
    """A checkpoint of BERT or of an encoder-decoder by the names of the model that `config` describes.

    Raises `CheckpointError` for an encoder-decoder that lacks weights, holds two values of what the model has once, or
    was meant for a prefix mask.
    """
    saved = any(name.startswith(_DECODER_BERT) for name in weights.tensors)
    if config.kind == "prefix":
        if saved:
            raise CheckpointError(f"{weights.path}: holds an encoder-decoder; load it as one, without kind='prefix'")
        return weights
    if not saved:
        return _of_bert(config, weights, own)
    lacking = sorted(set(own) - set(tied) - weights.tensors.keys())
    if lacking:
        more = f" and {len(lacking) - 8} more" if len(lacking) > 8 else ""
        raise CheckpointError(
            f"{weights.path}: lacks {', '.join(lacking[:8])}{more}; fetch the whole checkpoint, or begin with BERT's"
        )
    for name in tied:
        first = _first_name(name, config.shared)
        if first in weights.tensors and name in weights.tensors:
            _check_same(weights, name, name, first)
    return weights


def _of_bert(config: SequenceConfig, weights: Weights, own: Collection[str]) -> Weights:
    """BERT's weights as the encoder's, and as those of the decoder that do not begin anew."""
    wanted = {name: theirs for name in own if (theirs := _bert_name(name, config)) is not None}
    matched = match(weights.tensors, set(wanted.values()), "bert", weights.path)
    if DECODER in matched and _EMBEDDING in matched:
        _check_same(weights, DECODER, matched[DECODER], matched[_EMBEDDING])
    tensors = {name: weights.tensors[matched[theirs]] for name, theirs in wanted.items() if theirs in matched}
    return replace(weights, tensors=tensors, origins={})


def _bert_name(name: str, config: SequenceConfig) -> str | None:
    """Return BERT's name of the weight that initialises one of ours; None for weights that are drawn."""
    if name.startswith("encoder."):
        return name.removeprefix("encoder.")
    if name.startswith(_HEAD):
        return name.removeprefix("decoder.")
    theirs = name.removeprefix(_DECODER_BERT)
    if theirs.startswith("embeddings."):
        return theirs
    return theirs if config.kind == "bert2bert" and ".crossattention." not in theirs else None


def _first_name(name: str, shared: Sharing) -> str | None:
    """The name of the weight that this one is too, None for one of its own."""
    if name == f"decoder.{DECODER}":
        return f"{'encoder.' if shared != 'none' else _DECODER_BERT}{_EMBEDDING}"
    if name == "decoder.cls.predictions.decoder.bias":
        return "decoder.cls.predictions.bias"
    if not name.startswith(_DECODER_BERT) or shared == "none" or ".crossattention." in name:
        return None
    rest = name.removeprefix(_DECODER_BERT)
    return f"encoder.{rest}" if shared == "all" or rest.startswith("embeddings.") else None


def _check_same(weights: Weights, name: str, first: str, second: str) -> None:
    place: Path = weights.path
    if not equal(weights.tensors[first], weights.tensors[second]):
        raise CheckpointError(
            f"{place}: {shown(name)} is not {shown(second)}, but this model has one weight for both; sharing='none'"
            " keeps what the decoder has of its own"
        )
