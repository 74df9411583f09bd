"""Tokenizer files: `vocab.txt`, `tokenizer_config.json`, `special_tokens_map.json` and `tokenizer.json`, in and out.

What is read is checked before it is believed: a damaged file is a `VocabularyError` that names the file, the line and
the cure.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastbert.errors import UserError
from fastbert.tokenizers.added import AddedToken

logger = logging.getLogger("fastbert")

VOCAB_FILE = "vocab.txt"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
TOKENIZER_FILE = "tokenizer.json"

SPECIAL_TOKEN_NAMES = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DEFAULT_SPECIAL_TOKENS = ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]")
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
    if set(map(type, tokens)) <= {str} and "" not in (distinct := set(tokens)) and len(distinct) == len(tokens):
        return
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
    added: list[FileToken] = list(from_json[2]) if from_json is not None else []
    for name in (SPECIAL_TOKENS_FILE, CONFIG_FILE):
        path = folder / name
        if path.is_file():
            content = _read_json(path)
            options |= _known_options(content, path)
            added += _added_tokens(content, path)
    if from_json is None and not (folder / CONFIG_FILE).is_file():
        options |= guess_case(vocab, folder / VOCAB_FILE)
    roles = {options.get(name) for name in SPECIAL_TOKEN_NAMES} | set(DEFAULT_SPECIAL_TOKENS)
    options["additional_special_tokens"] = _place_added_tokens(added, vocab, roles)
    return vocab, options


def read_vocab_file(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Vocabulary and constructor options for a bare vocab.txt, without anything beside it."""
    vocab = read_vocab(path)
    return vocab, guess_case(vocab, path)


def guess_case(vocab: Sequence[str], path: Path) -> dict[str, Any]:
    """Lower-casing would make tokens with capitals unreachable, so a vocabulary that has them is a cased one."""
    for token in vocab:
        letters = token.removeprefix("##")
        if token.lower() != token and letters.isalpha() and letters.lower() != letters:
            logger.info("%s holds capitals (%r): lower-casing is off (do_lower_case=False)", path, token)
            return {"do_lower_case": False}
    return {}


def write_folder(
    folder: Path,
    vocab: Sequence[str],
    options: dict[str, Any],
    special_tokens: dict[str, Any],
    added: Mapping[int, AddedToken],
) -> None:
    """Write vocab.txt, tokenizer_config.json and special_tokens_map.json, as transformers reads them."""
    for token in vocab:
        if "\n" in token or token.endswith("\r"):
            raise VocabularyError(f"token {token!r} holds a line end, which {VOCAB_FILE} cannot keep")
    folder.mkdir(parents=True, exist_ok=True)
    by_id = {str(index): token.to_dict() for index, token in added.items()}
    config = {"tokenizer_class": "BertTokenizer", **options, **special_tokens, "added_tokens_decoder": by_id}
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
    for name in SPECIAL_TOKEN_NAMES:
        if not isinstance(options.get(name, ""), str):
            raise VocabularyError(f"{path}: {name}={options[name]!r} must be a string")
    length = options.get("model_max_length")
    if length is not None and not (isinstance(length, int | float) and length >= 1):
        raise VocabularyError(f"{path}: model_max_length={length!r} must be a number of at least 1, or null")
    return options


class FileToken(NamedTuple):
    """A token that a file adds to the vocabulary; `id` is None where the file does not say."""

    content: str
    id: int | None
    place: str


def _added_tokens(config: dict[str, Any], path: Path) -> list[FileToken]:
    """The tokens that a configuration adds, each checked to be one that is matched as it is written."""
    tokens = []
    for key in ("additional_special_tokens", "extra_special_tokens"):
        extra = config.get(key) or []
        if not isinstance(extra, list | dict):
            raise VocabularyError(f"{path}: {key}={extra!r} must be a list; restore the file")
        for token in extra.values() if isinstance(extra, dict) else extra:
            tokens.append(_added_token(token if isinstance(token, dict) else {"content": token}, None, path))
    by_id = config.get("added_tokens_decoder") or {}
    if not isinstance(by_id, dict) or not all(
        token_id.isdecimal() and isinstance(token, dict) for token_id, token in by_id.items()
    ):
        raise VocabularyError(f"{path}: added_tokens_decoder must map ids to tokens; restore the file")
    for token_id, token in by_id.items():
        tokens.append(_added_token(token, int(token_id), path))
    for name in SPECIAL_TOKEN_NAMES:
        if isinstance(config.get(name), dict):
            _added_token(config[name] | {"normalized": False}, None, path)
    return tokens


def _added_token(token: dict[str, Any], token_id: int | None, path: Path) -> FileToken:
    content = token.get("content")
    if not isinstance(content, str) or not content:
        raise VocabularyError(f"{path}: added token {token!r} has no content; restore the file")
    plain_flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    for flag, plain in plain_flags.items():
        if token.get(flag, plain) != plain:
            raise VocabularyError(
                f"{path}: added token {content!r} has {flag}={token[flag]!r}; only special tokens that are matched as"
                f" they are written are supported, so set {flag} to {plain!r}"
            )
    return FileToken(content, token_id, str(path))


def _place_added_tokens(added: list[FileToken], vocab: list[str], roles: set[Any]) -> list[str]:
    """Append added tokens to `vocab` where they are missing; returns those that are special without a role."""
    ids = {token: index for index, token in enumerate(vocab)}
    for token in sorted(added, key=lambda token: -1 if token.id is None else token.id):
        if token.id is not None and token.id == len(vocab) and token.content not in ids:
            ids[token.content] = len(vocab)
            vocab.append(token.content)
        if token.id is not None and ids.get(token.content) != token.id:
            raise VocabularyError(
                f"{token.place}: added token {token.content!r} has id {token.id}, but the vocabulary has"
                f" {ids.get(token.content, 'no such token')}; make them agree"
            )
    for token in added:
        if token.content not in ids:
            raise VocabularyError(f"{token.place}: {token.content!r} is not in the vocabulary; add it to {VOCAB_FILE}")
    return [content for content in dict.fromkeys(token.content for token in added) if content not in roles]


def _read_tokenizer_json(path: Path) -> tuple[list[str], dict[str, Any], list[FileToken]]:
    """Vocabulary, options and added tokens of a tokenizer.json, if it describes BERT's pipeline and nothing else."""
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
    added = [_added_token(token, token.get("id"), path) for token in content.get("added_tokens") or []]
    options = {
        "do_lower_case": bool(normalizer.get("lowercase", True)),
        "strip_accents": normalizer.get("strip_accents"),
        "tokenize_chinese_chars": bool(normalizer.get("handle_chinese_chars", True)),
    }
    if isinstance(model.get("unk_token"), str):
        options["unk_token"] = model["unk_token"]
    return [token for token, _ in by_id], options, added
