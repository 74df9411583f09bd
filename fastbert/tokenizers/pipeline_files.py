"""Read byte-level BPE and Unigram tokenizers: tokenizer.json, vocab.json and merges.txt.

Files are untrusted: a damaged file is a `VocabularyError` that names the file, the place and the cure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fastbert.io.untrusted_input import read_json_file, shown
from fastbert.tokenizers import files
from fastbert.tokenizers.added import AddedToken
from fastbert.tokenizers.json_errors import VocabularyError
from fastbert.tokenizers.json_files import (
    FileToken,
    check_count,
    is_id,
    read_added,
    read_bytes,
    read_json,
    read_sides,
    sorted_by_id,
)
from fastbert.tokenizers.pipeline import Content, Pipeline
from fastbert.tokenizers.template import read_post_processor

VOCAB_JSON, MERGES_FILE = "vocab.json", "merges.txt"
# Older names of the same files (GPT-2's own release).
_OLD_VOCAB_JSON, _OLD_MERGES = "encoder.json", "vocab.bpe"
PIECE_MODELS = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")


def kind_of(model: Any) -> Any:
    """Return the type of a tokenizer.json's model, which files of older versions leave out."""
    if not isinstance(model, dict):
        return None
    if "type" in model:
        return model["type"]
    if "merges" in model:
        return "BPE"
    return "Unigram" if isinstance(model.get("vocab"), list) else "WordPiece"


def read_pipeline(path: Path) -> Content | None:
    """Read a folder or a tokenizer.json of a tokenizer other than WordPiece's; return None for one of WordPiece."""
    file = path / files.TOKENIZER_FILE if path.is_dir() else path
    if file.is_file() and file.suffix == ".json":
        content = read_json(file)
        return None if kind_of(content.get("model")) in (None, "WordPiece") else _read_with_json(path, file, content)
    if not path.is_dir():
        return read_content(path) if path.name in PIECE_MODELS else None
    if (path / files.VOCAB_FILE).is_file():
        return None
    has_files = any((path / name).is_file() for name in (VOCAB_JSON, _OLD_VOCAB_JSON, *PIECE_MODELS))
    return read_content(path) if has_files else None


def read_content(path: Path) -> Content:
    """Read a folder or a tokenizer.json."""
    if not path.is_dir():
        if path.name in PIECE_MODELS:
            from fastbert.tokenizers.piece_models import read_piece_model

            return _with_settings(path.parent, *read_piece_model(path, {}), settings=False)
        return _read_with_json(path, path, read_json(path))
    if (file := path / files.TOKENIZER_FILE).is_file():
        return _read_with_json(path, file, read_json(file))
    config: dict[str, Any] = {}
    for name in ("config.json", files.SPECIAL_TOKENS_FILE, files.CONFIG_FILE):
        config |= _json_of(path / name)
    for vocab_name, merges_name in ((VOCAB_JSON, MERGES_FILE), (_OLD_VOCAB_JSON, _OLD_MERGES)):
        if (path / vocab_name).is_file():
            return _with_settings(path, _read_bpe_files(path / vocab_name, path / merges_name, config), [])
    for name in PIECE_MODELS:
        if (path / name).is_file():
            from fastbert.tokenizers.piece_models import read_piece_model

            return _with_settings(path, *read_piece_model(path / name, config))
    raise VocabularyError(
        f"{path}: holds no tokenizer: none of {files.TOKENIZER_FILE}, {files.VOCAB_FILE}, {VOCAB_JSON},"
        f" {', '.join(PIECE_MODELS)}; name a tokenizer's folder"
    )


def _json_of(path: Path) -> dict[str, Any]:
    values = read_json_file(path) if path.is_file() else {}
    return values if isinstance(values, dict) else {}


def _read_with_json(path: Path, file: Path, json: dict[str, Any]) -> Content:
    """Return the content of a folder or a file, given that of its tokenizer.json."""
    content, added = _read_tokenizer_json(json, file)
    if path.is_dir():
        _check_other_files(path, content, added)
    return _with_settings(file.parent, content, added, settings=path.is_dir())


def _read_tokenizer_json(content: dict[str, Any], path: Path) -> tuple[Content, list[FileToken]]:
    """Read the parts of a tokenizer.json and its added tokens."""
    model = content.get("model")
    kind = kind_of(model)
    if not isinstance(model, dict) or kind not in ("BPE", "Unigram"):
        raise VocabularyError(f"{path}: its model is {shown(kind)}; only WordPiece, BPE and Unigram can be read")
    pipeline = Pipeline.read(content, path)
    vocab, arguments = (_read_bpe if kind == "BPE" else _read_unigram)(model, path)
    check_count(len(vocab), str(path))
    return Content(str(kind), vocab, arguments, pipeline, read_sides(content, path)), read_added(content, path)


def _read_bpe(model: Mapping[str, Any], path: Path) -> tuple[list[str], dict[str, Any]]:
    for name, neutral in (
        ("dropout", (None, 0, 0.0)),
        ("continuing_subword_prefix", (None, "")),
        ("end_of_word_suffix", (None, "")),
        ("byte_fallback", (None, False)),
    ):
        if model.get(name) not in neutral:
            raise VocabularyError(f"{path}: {name}={shown(model[name])} is not supported by byte-level BPE; remove it")
    if not isinstance(model.get("vocab"), dict):
        raise VocabularyError(f"{path}: its vocabulary is not a JSON object; restore the file")
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise VocabularyError(f"{path}: its merges are not a list; restore the file")
    pairs = [_pair(merge, lambda rank: f"{path}, merge {rank + 1}", rank) for rank, merge in enumerate(merges)]
    return sorted_by_id(model["vocab"], path), {"merges": pairs, "whole_words": model.get("ignore_merges") is True}


def _pair(merge: Any, place: Any, rank: int) -> tuple[str, str]:
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not (isinstance(parts, list) and len(parts) == 2 and all(isinstance(part, str) for part in parts)):
        raise VocabularyError(f"{place(rank)}: {shown(merge)} is not a pair of tokens; restore the file")
    return parts[0], parts[1]


def _read_unigram(model: Mapping[str, Any], path: Path) -> tuple[list[str], dict[str, Any]]:
    pieces = model.get("vocab")
    if not isinstance(pieces, list):
        raise VocabularyError(f"{path}: its vocabulary is not a list; restore the file")
    try:
        vocab = [piece for piece, _ in pieces]
        if set(map(type, vocab)) - {str} or {type(score) for _, score in pieces} - {int, float}:
            raise TypeError
        scores = [float(score) for _, score in pieces]
    except (TypeError, ValueError, OverflowError):
        index = next(index for index, item in enumerate(pieces) if not _is_piece(item))
        raise VocabularyError(
            f"{path}: piece {index} is {shown(pieces[index])}, not a text and its score; restore the file"
        ) from None
    unknown = model.get("unk_id")
    if not isinstance(unknown, int) or isinstance(unknown, bool) or not 0 <= unknown < len(vocab):
        raise VocabularyError(
            f"{path}: unk_id={shown(unknown)} must be the id of a piece for unknown characters, one of {len(vocab)};"
            " restore the file"
        )
    fallback = model.get("byte_fallback", False)
    if not isinstance(fallback, bool | None):
        raise VocabularyError(f"{path}: byte_fallback={shown(fallback)} must be true or false")
    return vocab, {"scores": scores, "unknown_id": unknown, "byte_fallback": bool(fallback)}


def _is_piece(item: Any) -> bool:
    return (
        isinstance(item, list)
        and len(item) == 2
        and isinstance(item[0], str)
        and (isinstance(item[1], float) or (is_id(item[1]) and abs(item[1]) < 1 << 63))
    )


def _read_bpe_files(vocab_path: Path, merges_path: Path, config: Mapping[str, Any]) -> Content:
    vocab = read_vocab_json(vocab_path)
    if not merges_path.is_file():
        raise VocabularyError(f"{merges_path}: no such file; {vocab_path.name} needs it beside it")
    merges = read_merges(merges_path)
    if not merges:
        raise VocabularyError(f"{merges_path}: holds no merges, so that texts would become bytes; restore the file")
    prefix = config.get("add_prefix_space") is True
    kinds = [str(config.get(name, "")).lower() for name in ("model_type", "tokenizer_class")]
    post_processor: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
    options: dict[str, Any] = {}
    if not any("gpt" in kind for kind in kinds) and "<s>" in vocab and "</s>" in vocab:
        post_processor = {
            "type": "RobertaProcessing",
            "sep": ["</s>", vocab.index("</s>")],
            "cls": ["<s>", vocab.index("<s>")],
            "trim_offsets": config.get("trim_offsets", True) is not False,
            "add_prefix_space": prefix,
        }
        if "<unk>" in vocab:
            options["unk_token"] = "<unk>"
    steps = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True}
    pipeline = Pipeline(None, steps, post_processor, dict(steps), path=vocab_path.parent)
    return Content("BPE", vocab, {"merges": merges}, pipeline, options)


def read_vocab_json(path: Path) -> list[str]:
    """Return the tokens of a vocab.json in the order of their ids."""
    return sorted_by_id(read_json(path), path)


def read_merges(path: Path) -> list[tuple[str, str]]:
    """Return the pairs of a merges.txt, one per line, after an optional line with a version."""
    try:
        lines = read_bytes(path).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise VocabularyError(f"{path}: not UTF-8 (at byte {error.start}); restore the file") from None
    first = 1 if lines[0].startswith("#version") else 0
    return [
        _pair(line.removesuffix("\r"), lambda rank: f"{path}, line {rank + 1}", index)
        for index, line in enumerate(lines[first:], first)
        if line.strip("\r")
    ]


def _check_other_files(folder: Path, content: Content, added: Iterable[FileToken]) -> None:
    """Raise VocabularyError if vocab.json or merges.txt contradict tokenizer.json."""
    if content.kind != "BPE":
        return
    if (folder / VOCAB_JSON).is_file():
        ids = {token: index for index, token in enumerate(content.vocab)}
        added_ids = {token.token.content: token.id for token in added if token.id is not None}
        ids |= added_ids
        vocab = read_vocab_json(folder / VOCAB_JSON)
        for index, token in enumerate(vocab):
            if ids.get(token) != index:
                raise VocabularyError(
                    f"{folder}: {VOCAB_JSON} gives {token!r} the id {index}, and {files.TOKENIZER_FILE}"
                    f" {ids.get(token)}; remove the one that the model was not trained with"
                )
        for index, token in enumerate(content.vocab[len(vocab) :], len(vocab)):
            if token not in added_ids:
                raise VocabularyError(
                    f"{folder}: {VOCAB_JSON} ends before id {index}, which is {token!r} in {files.TOKENIZER_FILE};"
                    " remove the one that the model was not trained with"
                )
    if (folder / MERGES_FILE).is_file():
        merges, expected = read_merges(folder / MERGES_FILE), content.model["merges"]
        if merges != expected:
            pairs = enumerate(zip_longest(merges, expected), 1)
            place, (left, right) = next(item for item in pairs if item[1][0] != item[1][1])
            raise VocabularyError(
                f"{folder}: merge {place} of {MERGES_FILE} ({_shown_merge(left)}) and of {files.TOKENIZER_FILE}"
                f" ({_shown_merge(right)}) differ; remove the one that the model was not trained with"
            )


def _shown_merge(merge: tuple[str, str] | None) -> str:
    return shown(" ".join(merge)) if merge else "it has fewer"


def _with_settings(folder: Path, content: Content, added: Sequence[FileToken], *, settings: bool = True) -> Content:
    """Return the content with the options of the folder's small files, and the usual special tokens for roles that no
    file assigns."""
    options = dict(content.options)
    if settings:
        options |= files.read_settings(folder, options, added, content.vocab)
    else:
        options["added_tokens"] = files.order_added_tokens(list(added), content.vocab)
    for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars"):
        options.pop(name, None)  # of WordPiece; the normalizer decides
    added_tokens: list[AddedToken] = options["added_tokens"]
    processor = read_post_processor(content.pipeline.post_processor, content.pipeline.path)
    before, behind = processor.template.around()
    roles: dict[str, Sequence[str]] = dict(files.USUAL_SPECIAL_TOKENS)
    roles |= {"cls_token": tuple(before[:1]), "sep_token": tuple(behind[-1:])}
    named = {name for names in roles.values() for name in names} | {
        str(options[role]) for role in roles if role in options
    }
    known = {token for token in content.vocab if token in named} | {token.content for token in added_tokens}
    for role in roles:
        if options.get(role) not in known:
            options.pop(role, None)
    options |= files.usual_special_tokens(options, known, roles)
    if "unk_token" not in options and "unknown_id" in content.model:
        options["unk_token"] = content.vocab[content.model["unknown_id"]]
    return content._replace(options=options)
