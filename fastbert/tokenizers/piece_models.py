"""Read the models of sentencepiece (spiece.model, sentencepiece.bpe.model, spm.model) with its package."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastbert.io.untrusted_input import shown
from fastbert.tokenizers.added import AddedToken
from fastbert.tokenizers.json_errors import VocabularyError
from fastbert.tokenizers.json_files import FileToken, check_count, read_bytes
from fastbert.tokenizers.pipeline import SPACE, Content, Pipeline
from fastbert.tokenizers.template import RowTemplate, bert_template, roberta_template

_UNIGRAM = 1  # of TrainerSpec.ModelType
_CONTROL, _USER_DEFINED = 3, 4  # of SentencePiece.Type


def read_piece_model(path: Path, config: Mapping[str, Any]) -> tuple[Content, list[FileToken]]:
    """Read a model of sentencepiece, with the ids, steps and rows of its folder's architecture, and its added tokens:
    control symbols, and those that its users defined.

    `config` holds the values of config.json and tokenizer_config.json. The rules are those of transformers' converters:
    XLM-RoBERTa and CamemBERT number their pieces behind fairseq's special tokens, ALBERT lower-cases and joins quotes,
    T5 has no token before a text, DeBERTa strips it.

    Raises:
        UserError: the sentencepiece package is missing, the file is damaged, or its model is not Unigram.
    """
    model = _parse(path)
    if model.trainer_spec.model_type != _UNIGRAM:
        raise VocabularyError(f"{path}: is a BPE model of sentencepiece; only Unigram models can be read")
    pieces = [(piece.piece, float(piece.score)) for piece in model.pieces]
    if not pieces:
        raise VocabularyError(f"{path}: holds no pieces; restore the file")
    if not (model.HasField("trainer_spec") and model.HasField("normalizer_spec")):
        raise VocabularyError(f"{path}: is cut off after {len(pieces):,} pieces; restore the file")
    check_count(len(pieces), str(path))
    for index, (piece, _) in enumerate(pieces):
        if not isinstance(piece, str):  # the bytes of a string that is not UTF-8
            raise VocabularyError(f"{path}: piece {index} is {shown(piece)}, which is not UTF-8; restore the file")
    names = [str(config.get(name, "")).lower().replace("-", "") for name in ("model_type", "tokenizer_class")]
    family = next((family for family in _FAMILIES if any(family in name for name in names)), "")
    if not family:
        family = "xlmroberta" if path.name == "sentencepiece.bpe.model" else "t5"
    charsmap = bytes(model.normalizer_spec.precompiled_charsmap)
    normalizers: list[dict[str, Any]] = []
    if charsmap:
        encoded = base64.b64encode(charsmap).decode()
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": encoded})
    unknown_id = int(model.trainer_spec.unk_id)
    if not 0 <= unknown_id < len(pieces):
        raise VocabularyError(f"{path}: unk_id={unknown_id} is not one of its {len(pieces)} pieces; restore the file")
    split: list[dict[str, Any]] = []
    options: dict[str, Any] = {}
    if family in ("xlmroberta", "camembert"):
        pieces, unknown_id = _fairseq_pieces(pieces, family)
        template = roberta_template("<s>", "</s>")
        split.append({"type": "WhitespaceSplit"})
    elif family == "albert":
        template = bert_template("[CLS]", "[SEP]")
        normalizers = _albert_normalizers(config) + normalizers
        split.append({"type": "WhitespaceSplit"})
    elif family == "deberta":
        template = bert_template("[CLS]", "[SEP]")
        normalizers.insert(0, {"type": "Strip", "strip_left": True, "strip_right": True})
        normalizers.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
        options["mask_token"] = "[MASK]"
    else:
        ending = (("</s>", 0),)
        template = RowTemplate(((0, 0), *ending), ((0, 0), *ending, (1, 0), *ending))
        split.append({"type": "WhitespaceSplit"})
    ids = {token: index for index, (token, _) in enumerate(pieces)}
    if missing := [token for token in template.special_tokens() if token not in ids]:
        raise VocabularyError(f"{path}: {missing[0]!r} is not among its {len(pieces)} pieces; name the model's folder")
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    pipeline = Pipeline(
        {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        {"type": "Sequence", "pretokenizers": [*split, metaspace]},
        template.to_json(ids.__getitem__),
        metaspace,
        path=path,
    )
    arguments = {
        "scores": [score for _, score in pieces],
        "unknown_id": unknown_id,
        "byte_fallback": False,
    }
    content = Content("Unigram", [piece for piece, _ in pieces], arguments, pipeline, options)
    if family in ("xlmroberta", "camembert"):
        return content, []
    added = [
        FileToken(AddedToken(piece.piece, special=piece.type == _CONTROL, normalized=False), index, str(path))
        for index, piece in enumerate(model.pieces)
        if piece.type in (_CONTROL, _USER_DEFINED)
    ]
    return content, added


_FAMILIES = ("xlmroberta", "camembert", "albert", "deberta", "t5")


def _fairseq_pieces(pieces: list[tuple[str, float]], family: str) -> tuple[list[tuple[str, float]], int]:
    """Return the pieces behind fairseq's special tokens, and the id of the unknown one."""
    if family == "camembert":
        first = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)]
        return [*first, *pieces[1:], ("<mask>", 0.0)], 3
    return [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces[3:], ("<mask>", 0.0)], 3


def _albert_normalizers(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")
    ]
    if config.get("keep_accents") is not True:
        steps += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if config.get("do_lower_case", True) is not False:
        steps.append({"type": "Lowercase"})
    return steps


def _parse(path: Path) -> Any:
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise VocabularyError(
            f"{path}: needs the sentencepiece package ({error}): `pip install 'fastbert-engine[sentencepiece]'`, or"
            " save the tokenizer as a tokenizer.json"
        ) from None
    messages: Any = sentencepiece_model_pb2  # its classes are made when it is imported
    model = messages.ModelProto()
    try:
        model.ParseFromString(read_bytes(path))
    except DecodeError as error:
        raise VocabularyError(f"{path}: not a model of sentencepiece ({error}); restore the file") from None
    return model
