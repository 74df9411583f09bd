"""Tokenizer files: `vocab.txt`, `tokenizer_config.json`, `special_tokens_map.json` and `tokenizer.json`, in and out.

What is read is checked before it is believed: a damaged file is a `VocabularyError` that names the file, the line and
the cure.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastbert.errors import UserError

logger = logging.getLogger("fastbert")

VOCAB_FILE = "vocab.txt"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
TOKENIZER_FILE = "tokenizer.json"

SPECIAL_TOKEN_NAMES = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
OPTION_NAMES = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "model_max_length", "split_special_tokens")

# transformers writes int(1e30) as the length of a tokenizer that has no limit.
UNLIMITED_LENGTH = 10**20


class VocabularyError(UserError):
    """A vocabulary or another tokenizer file that cannot be used."""


def read_vocab(path: Path) -> list[str]:
    """The tokens of a vocab.txt, one per line, in the order of their ids.

    A line ends with a line feed (with or without a carriage return); any other white space belongs to the token.
    """
    data = _read_bytes(path)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise VocabularyError(
            f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x} at offset {error.start});"
            " save the file as UTF-8"
        ) from None
    if text.startswith("\ufeff"):
        raise VocabularyError(f"{path}, line 1: begins with a byte order mark; save the file as UTF-8 without BOM")
    tokens = text.replace("\r\n", "\n").split("\n")
    if tokens[-1] == "":
        tokens.pop()
    if not tokens:
        raise VocabularyError(f"{path}: empty; a vocabulary has one token per line (fastbert vocab builds one)")
    check_tokens(tokens, lambda index: f"{path}, line {index + 1}")
    return tokens


def check_tokens(tokens: Sequence[str], place: Any) -> None:
    """Refuse empty and repeated tokens: ids behind one would not be what the model was trained with."""
    seen: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if not isinstance(token, str):
            raise TypeError(f"{place(index)}: a token must be a string, not {type(token).__name__}")
        if not token:
            raise VocabularyError(f"{place(index)}: empty token; put the missing token there or remove the line")
        first = seen.setdefault(token, index)
        if first != index:
            raise VocabularyError(
                f"{place(index)}: token {token!r} is there already ({place(first)}); tokens must be distinct"
            )


def read_folder(folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Vocabulary and constructor options of a saved tokenizer.

    `tokenizer_config.json` and `special_tokens_map.json` decide; what they leave open is taken from `tokenizer.json`.
    """
    from_json = _read_tokenizer_json(folder / TOKENIZER_FILE) if (folder / TOKENIZER_FILE).is_file() else None
    if (folder / VOCAB_FILE).is_file():
        vocab = read_vocab(folder / VOCAB_FILE)
    elif from_json is not None:
        vocab = from_json[0]
    else:
        raise VocabularyError(f"{folder}: holds neither {VOCAB_FILE} nor {TOKENIZER_FILE}; name a tokenizer's folder")
    options = dict(from_json[1]) if from_json is not None else {}
    for name in (SPECIAL_TOKENS_FILE, CONFIG_FILE):
        path = folder / name
        if path.is_file():
            options |= _known_options(_read_json(path), path)
    if from_json is None and not (folder / CONFIG_FILE).is_file():
        options |= guess_case(vocab, folder / VOCAB_FILE)
    return vocab, options


def read_vocab_file(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Vocabulary and constructor options for a bare vocab.txt, without anything beside it."""
    vocab = read_vocab(path)
    return vocab, guess_case(vocab, path)


def guess_case(vocab: Sequence[str], path: Path) -> dict[str, Any]:
    """Lower-casing would make tokens with capitals unreachable, so a vocabulary that has them is a cased one."""
    for token in vocab:
        letters = token.removeprefix("##")
        if letters.isalpha() and letters.lower() != letters:
            logger.info("%s holds capitals (%r): lower-casing is off (do_lower_case=False)", path, token)
            return {"do_lower_case": False}
    return {}


def write_folder(folder: Path, vocab: Sequence[str], options: dict[str, Any], special_tokens: dict[str, str]) -> None:
    """Write vocab.txt, tokenizer_config.json and special_tokens_map.json, as transformers reads them."""
    for token in vocab:
        if "\n" in token or token.endswith("\r"):
            raise VocabularyError(f"token {token!r} holds a line end, which {VOCAB_FILE} cannot keep")
    folder.mkdir(parents=True, exist_ok=True)
    config = {"tokenizer_class": "BertTokenizer", **options, **special_tokens}
    # newline="": the bytes must not depend on the platform.
    (folder / VOCAB_FILE).write_text("".join(f"{token}\n" for token in vocab), encoding="utf-8", newline="")
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    tokens = json.dumps(special_tokens, indent=2, ensure_ascii=False) + "\n"
    (folder / SPECIAL_TOKENS_FILE).write_text(tokens, encoding="utf-8")


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise VocabularyError(f"{path}: no such file; name a vocab.txt or a tokenizer's folder") from None
    except OSError as error:
        raise VocabularyError(f"{path}: {error.strerror}; name a vocab.txt or a tokenizer's folder") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read_bytes(path))
    except ValueError as error:
        raise VocabularyError(f"{path}: not JSON ({error}); restore the file") from None
    if not isinstance(value, dict):
        raise VocabularyError(f"{path}: holds {type(value).__name__}, not a JSON object; restore the file")
    return value


def _known_options(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """The constructor's options among a file's keys; special tokens may be strings or objects with `content`."""
    options = {name: config[name] for name in OPTION_NAMES if name in config}
    for name in SPECIAL_TOKEN_NAMES:
        token = config.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if token is not None:
            options[name] = token
    for name in ("do_lower_case", "tokenize_chinese_chars", "split_special_tokens"):
        if not isinstance(options.get(name, True), bool):
            raise VocabularyError(f"{path}: {name}={options[name]!r} must be true or false")
    if not isinstance(options.get("strip_accents"), bool | None):
        raise VocabularyError(f"{path}: strip_accents={options['strip_accents']!r} must be true, false or null")
    return options


def _read_tokenizer_json(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Vocabulary and options of a tokenizer.json, if it describes BERT's pipeline and nothing else."""
    content = _read_json(path)
    model = content.get("model") or {}
    normalizer = content.get("normalizer") or {}
    ids = model.get("vocab")
    if model.get("type", "WordPiece") != "WordPiece" or not isinstance(ids, dict):
        raise VocabularyError(f"{path}: its model is {model.get('type')!r}; only WordPiece tokenizers can be read")
    if normalizer.get("type") != "BertNormalizer" or not normalizer.get("clean_text", True):
        raise VocabularyError(f"{path}: its normalizer is not BERT's (BertNormalizer with clean_text); not supported")
    for name, expected in (("continuing_subword_prefix", "##"), ("max_input_chars_per_word", 100)):
        if model.get(name, expected) != expected:
            raise VocabularyError(f"{path}: {name}={model[name]!r} is not supported; BERT's is {expected!r}")
    by_id = sorted(ids.items(), key=lambda item: item[1])
    for expected_id, (token, token_id) in enumerate(by_id):
        if token_id != expected_id:
            raise VocabularyError(f"{path}: token {token!r} has id {token_id!r} where {expected_id} was expected")
    for added in content.get("added_tokens") or []:
        if ids.get(added.get("content")) != added.get("id"):
            raise VocabularyError(
                f"{path}: added token {added.get('content')!r} is not in the vocabulary; put it there at its id"
            )
    options = {
        "do_lower_case": bool(normalizer.get("lowercase", True)),
        "strip_accents": normalizer.get("strip_accents"),
        "tokenize_chinese_chars": bool(normalizer.get("handle_chinese_chars", True)),
    }
    if isinstance(model.get("unk_token"), str):
        options["unk_token"] = model["unk_token"]
    return [token for token, _ in by_id], options
