"""Read the models of sentencepiece (spiece.model, sentencepiece.bpe.model, spm.model) with its package."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastbert.io.untrusted_input import shown
from fastbert.tokenizers.added import AddedToken
from fastbert.tokenizers.json_errors import VocabularyError
from fastbert.tokenizers.json_files import FileToken, check_count, is_id, read_bytes
from fastbert.tokenizers.pipeline import SPACE, Content, Pipeline
from fastbert.tokenizers.template import RowTemplate, bert_template, roberta_template

_UNIGRAM = 1  # of TrainerSpec.ModelType
_OTHER_MODELS = {2: "BPE", 3: "word", 4: "character"}
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6  # of SentencePiece.Type
_EXTRA_IDS, _MOST_EXTRA_IDS = 100, 10_000  # of T5; the first where its configuration does not say


def read_piece_model(path: Path, config: Mapping[str, Any]) -> tuple[Content, list[FileToken]]:
    """Read a model of sentencepiece, with the ids, steps and rows of its folder's architecture, and its added tokens:
    control symbols, and those that its users defined.

    `config` holds the values of config.json, special_tokens_map.json and tokenizer_config.json. The rules are those of
    transformers' converters: XLM-RoBERTa and CamemBERT number their pieces behind fairseq's special tokens, ALBERT
    lower-cases, joins quotes and splits a comma from a number, T5 has no token before a text and extra ones behind the
    pieces, DeBERTa strips the text; characters without a piece are unknown, also where the model has pieces for bytes.

    Raises:
        UserError: the sentencepiece package is missing, the file is damaged, its model is not Unigram, or its special
            pieces are not those of the architecture.
    """
    model = _parse(path)
    if model.trainer_spec.model_type != _UNIGRAM:
        kind = _OTHER_MODELS.get(model.trainer_spec.model_type, "different")
        raise VocabularyError(f"{path}: is a {kind} model of sentencepiece; only Unigram models can be read")
    if model.trainer_spec.treat_whitespace_as_suffix:
        raise VocabularyError(f"{path}: its pieces end with their space (treat_whitespace_as_suffix): not supported")
    if not model.pieces:
        raise VocabularyError(f"{path}: holds no pieces; restore the file")
    check_count(len(model.pieces), str(path))
    pieces = [(_text_of(piece, index, path), float(piece.score)) for index, piece in enumerate(model.pieces)]
    bytes_of_model = sum(piece.type == _BYTE for piece in model.pieces)
    if model.trainer_spec.byte_fallback and bytes_of_model != 256:
        raise VocabularyError(
            f"{path}: byte_fallback needs a piece per byte, and it has {bytes_of_model} of 256; restore the file"
        )
    unknown = [index for index, piece in enumerate(model.pieces) if piece.type == _UNKNOWN]
    if len(unknown) != 1:
        raise VocabularyError(
            f"{path}: {len(unknown)} of its {len(pieces)} pieces stand for unknown characters, not 1; restore the file"
        )
    family = _family_of(config)
    layout = _layout_of(family or _usual_family(path), pieces, unknown[0], config, path)
    charsmap = bytes(model.normalizer_spec.precompiled_charsmap)
    normalizers = list(layout.before_charsmap)
    if charsmap:
        encoded = base64.b64encode(charsmap).decode()
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": encoded})
    normalizers += layout.behind_charsmap
    ids = {token: index for index, (token, _) in enumerate(layout.pieces)}
    if missing := [token for token in layout.template.special_tokens() if token not in ids]:
        raise VocabularyError(
            f"{path}: {missing[0]!r} is not among its {len(pieces)} pieces; name a folder whose config.json says which"
            " architecture it has"
        )
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    pipeline = Pipeline(
        {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        {"type": "Sequence", "pretokenizers": [*layout.splits, metaspace]},
        layout.template.to_json(ids.__getitem__),
        metaspace,
        path=path,
    )
    arguments = {
        "scores": [score for _, score in layout.pieces],
        "unknown_id": layout.unknown_id,
        "byte_fallback": False,
    }
    content = Content("Unigram", [piece for piece, _ in layout.pieces], arguments, pipeline, dict(layout.options))
    added = [
        FileToken(
            AddedToken(piece.piece, special=piece.type == _CONTROL, normalized=False), ids[piece.piece], str(path)
        )
        for piece in model.pieces
        if piece.type == _CONTROL or (piece.type == _USER_DEFINED and layout.recognises_symbols)
    ]
    if family == "camembert" and not isinstance(config.get("mask_token"), Mapping):
        added.append(FileToken(AddedToken("<mask>", lstrip=True, special=True), ids["<mask>"], str(path)))
    if family == "t5":
        added += _extra_tokens(config, layout.pieces, path)
    return content, added


_FAMILIES = ("xlmroberta", "camembert", "albert", "deberta", "t5")


def _family_of(config: Mapping[str, Any]) -> str:
    """Return the family that a folder's files name; empty if they name none of them."""
    names = [str(config.get(name, "")).lower().replace("-", "") for name in ("model_type", "tokenizer_class")]
    return next((family for family in _FAMILIES if any(family in name for name in names)), "")


def _usual_family(path: Path) -> str:
    return "xlmroberta" if path.name == "sentencepiece.bpe.model" else "t5"


class _Layout(NamedTuple):
    """The pieces and rows of a family, and its steps beside the model's character map."""

    pieces: list[tuple[str, float]]
    unknown_id: int
    template: RowTemplate
    before_charsmap: Sequence[Mapping[str, Any]] = ()
    behind_charsmap: Sequence[Mapping[str, Any]] = ()
    splits: Sequence[Mapping[str, Any]] = ({"type": "WhitespaceSplit"},)
    options: Mapping[str, Any] = {}
    recognises_symbols: bool = True
    """Symbols that users defined are added tokens; else pieces, whose score of 0 is above that of any other."""


def _layout_of(
    family: str, pieces: list[tuple[str, float]], unknown_id: int, config: Mapping[str, Any], path: Path
) -> _Layout:
    if family in ("xlmroberta", "camembert"):
        return _Layout(*_fairseq_pieces(pieces, family, path), roberta_template("<s>", "</s>"))
    if family == "t5":
        ending = (("</s>", 0),)
        return _Layout(pieces, unknown_id, RowTemplate(((0, 0), *ending), ((0, 0), *ending, (1, 0), *ending)))
    template = bert_template("[CLS]", "[SEP]")
    if family == "albert":
        pieces = [(piece, score - 100 if _ends_with_number_and_comma(piece) else score) for piece, score in pieces]
        return _Layout(pieces, unknown_id, template, _albert_normalizers(config), recognises_symbols=False)
    lower: list[dict[str, Any]] = [{"type": "Lowercase"}] * (config.get("do_lower_case") is True)
    return _Layout(
        pieces,
        unknown_id,
        template,
        [*lower, {"type": "Strip", "strip_left": True, "strip_right": True}],
        [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}],
        [{"type": "Punctuation", "behavior": "Isolated"}] if config.get("split_by_punct") is True else [],
        {"mask_token": "[MASK]"},
    )


def _fairseq_pieces(pieces: list[tuple[str, float]], family: str, path: Path) -> tuple[list[tuple[str, float]], int]:
    """Return the pieces behind fairseq's special tokens, and the id of the unknown one."""
    expected = ["<unk>", "<s>", "</s>"]
    first = [piece for piece, _ in pieces[:3]]
    if first != expected:
        raise VocabularyError(
            f"{path}: begins with the pieces {shown(first)}, where models of XLM-RoBERTa and CamemBERT have {expected};"
            " save the tokenizer as a tokenizer.json"
        )
    if family == "camembert":
        fairseq = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)]
        return [*fairseq, *pieces[1:], ("<mask>", 0.0)], 3
    return [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces[3:], ("<mask>", 0.0)], 3


def _extra_tokens(config: Mapping[str, Any], pieces: Sequence[tuple[str, float]], path: Path) -> list[FileToken]:
    """Return T5's tokens behind the pieces, the last one first; by default none if the pieces hold them already."""
    count = config.get("extra_ids")
    if count is None:
        count = 0 if any(piece == "<extra_id_0>" for piece, _ in pieces) else _EXTRA_IDS
    if not is_id(count) or not 0 <= count <= _MOST_EXTRA_IDS:
        raise VocabularyError(
            f"{path.parent}: extra_ids={shown(count)} of its tokenizer_config.json or config.json must be a whole"
            f" number from 0 to {_MOST_EXTRA_IDS}; give the number of <extra_id_0>, ... behind the pieces"
        )
    tokens = [AddedToken(f"<extra_id_{index}>", special=True) for index in reversed(range(count))]
    return [FileToken(token, len(pieces) + index, str(path)) for index, token in enumerate(tokens)]


def _ends_with_number_and_comma(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def _albert_normalizers(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")
    ]
    if config.get("keep_accents") is not True:
        steps += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if config.get("do_lower_case", True) is not False:
        steps.append({"type": "Lowercase"})
    return steps


def _text_of(piece: Any, index: int, path: Path) -> str:
    text = piece.piece
    if not isinstance(text, str):
        raise VocabularyError(f"{path}: piece {index} ({shown(text)}) is not UTF-8; restore the file")
    return text


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
    except (DecodeError, UnicodeDecodeError) as error:
        raise VocabularyError(f"{path}: not a model of sentencepiece ({error}); restore the file") from None
    for part in ("trainer_spec", "normalizer_spec"):
        if not model.HasField(part):
            raise VocabularyError(
                f"{path}: cut off after {len(model.pieces):,} pieces, or not a model of sentencepiece (no {part});"
                " restore the file"
            )
    return model
