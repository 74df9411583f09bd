"""Map the weights of a checkpoint to those of an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from fastbert.checkpoints.file_tensors import equal
from fastbert.checkpoints.weights import Weights
from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import shown
from fastbert.models.key_map import BERT_NAMES, DECODER
from fastbert.models.seq2seq.config import SequenceConfig, Sharing

_DECODER_BERT = "decoder.bert."
_HEAD = "decoder.cls."
_EMBEDDING = "embeddings.word_embeddings.weight"


def tied_names(names: Iterable[str], shared: Sharing) -> tuple[str, ...]:
    """Return the names of an encoder-decoder's tied weights, each of which has another name."""
    return tuple(name for name in names if _first_name(name, shared) is not None)


def weights_for(config: SequenceConfig, weights: Weights, names: Collection[str], tied: Collection[str]) -> Weights:
    """Return the weights of a checkpoint, of BERT or of an encoder-decoder, under the names of the model of `config`.

    Raises `CheckpointError` for an encoder-decoder that lacks weights, or holds different values for tied ones, or is
    loaded with `kind="prefix"`.
    """
    saved = any(name.startswith(_DECODER_BERT) for name in weights.tensors)
    if config.kind == "prefix":
        if saved:
            raise CheckpointError(f"{weights.path}: holds an encoder-decoder; load it as one, without kind='prefix'")
        return weights
    if not saved:
        return _of_bert(config, weights, names)
    lacking = sorted(set(names) - set(tied) - weights.tensors.keys())
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


def _of_bert(config: SequenceConfig, weights: Weights, names: Collection[str]) -> Weights:
    """Return BERT's weights as those of the encoder, and of the decoder where it starts from BERT."""
    sources = {name: bert_name for name in names if (bert_name := _bert_name(name, config)) is not None}
    matched = BERT_NAMES.match(weights.tensors, set(sources.values()), "bert", weights.path)
    if DECODER in matched and _EMBEDDING in matched:
        _check_same(weights, DECODER, matched[DECODER], matched[_EMBEDDING])
    tensors = {name: weights.tensors[matched[bert_name]] for name, bert_name in sources.items() if bert_name in matched}
    return replace(weights, tensors=tensors, origins={})


def _bert_name(name: str, config: SequenceConfig) -> str | None:
    """Return BERT's name of the weight that one of ours starts from; None for new weights."""
    if name.startswith("encoder."):
        return name.removeprefix("encoder.")
    if name.startswith(_HEAD):
        return name.removeprefix("decoder.")
    bert_name = name.removeprefix(_DECODER_BERT)
    if bert_name.startswith("embeddings."):
        return bert_name
    return bert_name if config.kind == "bert2bert" and ".crossattention." not in bert_name else None


def _first_name(name: str, shared: Sharing) -> str | None:
    """Return the other name of a tied weight, None for a weight that is not tied."""
    if name == f"decoder.{DECODER}":
        return f"{'encoder.' if shared != 'none' else _DECODER_BERT}{_EMBEDDING}"
    if name == "decoder.cls.predictions.decoder.bias":
        return "decoder.cls.predictions.bias"
    if not name.startswith(_DECODER_BERT) or shared == "none" or ".crossattention." in name:
        return None
    rest = name.removeprefix(_DECODER_BERT)
    return f"encoder.{rest}" if shared == "all" or rest.startswith("embeddings.") else None


def _check_same(weights: Weights, name: str, first: str, second: str) -> None:
    """Raise CheckpointError for different values of two weights that the model ties."""
    if not equal(weights.tensors[first], weights.tensors[second]):
        raise CheckpointError(
            f"{weights.path}: {shown(name)} is not {shown(second)}, but this model ties them; sharing='none' keeps the"
            " decoder's own weights"
        )
