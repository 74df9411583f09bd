"""Read and write a tokenizer's folder: vocab.txt, tokenizer_config.json, special_tokens_map.json, tokenizer.json.

Files are untrusted: a damaged file is a `VocabularyError` that names the file, the line and the cure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastbert.io.atomic_write import write_atomic, write_json_atomic
from fastbert.io.log import logger
from fastbert.io.text import has_surrogates
from fastbert.io.untrusted_input import shown
from fastbert.tokenizers.added import AddedToken
from fastbert.tokenizers.json_files import (
    FileToken,
    VocabularyError,
    check_count,
    is_id,
    read_bytes,
    read_json,
    read_token,
    read_tokenizer_json,
    tokenizer_json,
)
from fastbert.tokenizers.template import PostProcessor

VOCAB_FILE = "vocab.txt"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
TOKENIZER_FILE = "tokenizer.json"
ADDED_TOKENS_FILE = "added_tokens.json"

SPECIAL_TOKEN_NAMES = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
SPECIAL_TOKEN_ROLES = ("bos_token", "eos_token", *SPECIAL_TOKEN_NAMES)
DEFAULT_SPECIAL_TOKENS = ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]")
# The usual special tokens of roles that no file assigns.
USUAL_SPECIAL_TOKENS: dict[str, tuple[str, ...]] = {
    "pad_token": ("<pad>", "[PAD]", "<|padding|>"),
    "mask_token": ("<mask>", "[MASK]"),
    "unk_token": ("<unk>", "[UNK]", "<|endoftext|>"),
    "bos_token": ("<s>", "[CLS]", "<|endoftext|>"),
    "eos_token": ("</s>", "[SEP]", "<|endoftext|>"),
}
OPTION_NAMES = (
    "do_lower_case",
    "strip_accents",
    "tokenize_chinese_chars",
    "model_max_length",
    "split_special_tokens",
    "padding_side",
    "truncation_side",
)
# What a tokenizer.json of MPNet says beside its vocabulary.
_MPNET = {
    "row_format": "roberta",
    "trim_offsets": True,
    "cls_token": "<s>",
    "sep_token": "</s>",
    "mask_token": "<mask>",
}
_EXTRA_KEYS = ("additional_special_tokens", "extra_special_tokens")

# Added tokens are searched in every text with a table of one entry per byte.
MAX_ADDED_CHARACTERS = 4 << 20

# transformers writes int(1e30) as the length of a tokenizer without a limit.
UNLIMITED_LENGTH = 10**20
NO_LIMIT = int(1e30)


def read_vocab(path: Path) -> list[str]:
    """Return the tokens of a vocab.txt, one per line, in the order of their ids.

    A line ends with a line feed, optionally after a carriage return; other white space belongs to the token.
    """
    data = read_bytes(path)
    check_count(data.count(b"\n"), str(path))
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


def check_tokens(tokens: Sequence[str], location: Callable[[int], str]) -> None:
    """Raise VocabularyError for empty and repeated tokens, which would shift the ids of later tokens.

    `location(index)` names a token's location in messages.
    """
    check_count(len(tokens), location(0))
    if set(map(type, tokens)) <= {str} and "" not in (distinct := set(tokens)) and len(distinct) == len(tokens):
        _check_unicode(tokens, location)
        return
    indices: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if not isinstance(token, str):
            raise TypeError(f"{location(index)}: a token must be a string, not {type(token).__name__}")
        if not token:
            raise VocabularyError(f"{location(index)}: empty token; restore the token or remove the line")
        first = indices.setdefault(token, index)
        if first != index:
            raise VocabularyError(
                f"{location(index)}: token {shown(token)} is repeated (first at {location(first)}); tokens must be"
                " distinct"
            )


def _check_unicode(tokens: Sequence[str], location: Callable[[int], str]) -> None:
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError:
        index = next(i for i, token in enumerate(tokens) if has_surrogates(token))
        raise VocabularyError(
            f"{location(index)}: token {tokens[index]!a} holds a lone surrogate (half of a character); remove it"
        ) from None


def read_folder(folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Return the vocabulary and constructor options of a saved tokenizer.

    Options of `tokenizer_config.json` take precedence over those of `tokenizer.json`. Added tokens are those of the
    configuration's `added_tokens_decoder`; without it, `special_tokens_map.json` takes precedence for special tokens,
    and added tokens are those of `tokenizer.json` and `added_tokens.json`. Special tokens without a role are added.
    """
    from_json = read_tokenizer_json(folder / TOKENIZER_FILE) if (folder / TOKENIZER_FILE).is_file() else None
    if (folder / VOCAB_FILE).is_file():
        vocab = read_vocab(folder / VOCAB_FILE)
        if from_json is not None and from_json.vocab != vocab:
            raise VocabularyError(
                f"{folder}: {VOCAB_FILE} ({len(vocab)} tokens) and {TOKENIZER_FILE} ({len(from_json.vocab)}) hold"
                " different vocabularies; remove the one that the model was not trained with"
            )
    elif from_json is not None:
        vocab = from_json.vocab
        check_tokens(vocab, lambda index: f"{folder / TOKENIZER_FILE}, id {index}")
    else:
        raise VocabularyError(f"{folder}: holds neither {VOCAB_FILE} nor {TOKENIZER_FILE}; name a tokenizer's folder")
    options = dict(from_json.options) if from_json is not None else {}
    if from_json is None and not (folder / CONFIG_FILE).is_file():
        options |= guess_case(vocab, folder / VOCAB_FILE)
    added = from_json.added if from_json is not None else []
    config = read_json(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else {}
    is_bare_mpnet = from_json is None and _family(folder, config).startswith("mpnet")
    if is_bare_mpnet:
        options |= _MPNET
    options |= read_settings(folder, options, added, vocab)
    if is_bare_mpnet and options["mask_token"] not in (token.content for token in options["added_tokens"]):
        options["added_tokens"].append(AddedToken(options["mask_token"], lstrip=True, special=True))
    if options.get("row_format") == "roberta":
        options |= usual_special_tokens(options, vocab)
    for role in SPECIAL_TOKEN_ROLES[:2]:
        # Of no effect on BERT's rows, so that a configuration may name any.
        if options.get(role) not in {*vocab, *(token.content for token in options["added_tokens"])}:
            options.pop(role, None)
    return vocab, options


def read_settings(
    folder: Path, from_json: Mapping[str, Any], added_from_json: Sequence[FileToken], vocab: Sequence[str]
) -> dict[str, Any]:
    """Return the constructor options of the small files of a folder, and its added tokens in the order of their ids.

    `from_json` are the options of tokenizer.json, `added_from_json` its added tokens.
    """
    config_path, map_path = folder / CONFIG_FILE, folder / SPECIAL_TOKENS_FILE
    contents = {path: read_json(path) for path in (config_path, map_path) if path.is_file()}
    if "added_tokens_decoder" in contents.get(config_path, {}):
        contents.pop(map_path, None)
    options: dict[str, Any] = {}
    for path, content in contents.items():
        options |= _known_options(content, path)
    if "added_tokens_decoder" in contents.get(config_path, {}):
        added = _tokens_by_id(contents[config_path]["added_tokens_decoder"], config_path)
    else:
        added = list(added_from_json)
        # The older name in special_tokens_map.json has no effect here, as in the reference.
        keys_of = [(config_path, _EXTRA_KEYS), (map_path, _EXTRA_KEYS[1:])]
        extra = [_extra_tokens(contents.get(path, {}), path, keys) for path, keys in keys_of]
        roles = _role_tokens({**from_json, **options})
        added += _old_added_tokens(folder / ADDED_TOKENS_FILE, roles.union(*extra))
    for path, content in contents.items():
        roles_of_file = [content[name] for name in SPECIAL_TOKEN_ROLES if isinstance(content.get(name), dict)]
        added += [read_token(role | {"special": True}, path, special=True) for role in roles_of_file]
        extra_tokens = _extra_tokens(content, path, _EXTRA_KEYS)
        added += extra_tokens.values()
        if extra_tokens:
            options["additional_special_tokens"] = list(extra_tokens)
    if input_names := _input_names(folder, contents.get(config_path, {})):
        options["model_input_names"] = input_names
    return options | {"added_tokens": order_added_tokens(added, vocab)}


def _input_names(folder: Path, config: Mapping[str, Any]) -> list[str] | None:
    """Return what calls of a folder's tokenizer return, where its files or its architecture decide it."""
    names = config.get("model_input_names")
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return names
    # The only architecture whose tokenizer is BERT's in all but this.
    return ["input_ids", "attention_mask"] if _family(folder, config).startswith("distilbert") else None


def _family(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the class of a folder's tokenizer, given its configuration, or else its architecture; in lower case."""
    kind = config.get("tokenizer_class")
    if kind is None and (folder / "config.json").is_file():
        kind = read_json(folder / "config.json").get("model_type")
    return str(kind).lower()


def read_tokenizer_file(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Return the vocabulary and constructor options of a tokenizer.json alone."""
    vocab, options, added = read_tokenizer_json(path)
    check_tokens(vocab, lambda index: f"{path}, id {index}")
    options["added_tokens"] = order_added_tokens(added, vocab)
    # The roles of BERT's rows have BERT's names.
    return vocab, options | (usual_special_tokens(options, vocab) if "row_format" in options else {})


def usual_special_tokens(
    options: Mapping[str, Any],
    vocab: Iterable[str],
    usual: Mapping[str, Sequence[str]] = USUAL_SPECIAL_TOKENS,
) -> dict[str, str]:
    """Return the special tokens of roles that the options lack: by role, the first of the usual ones that a tokenizer
    has. An unknown token must be recognised in text."""
    missing = {role: names for role, names in usual.items() if role not in options}
    names = {name for names_of_role in missing.values() for name in names_of_role}
    recognised = {token.content for token in options["added_tokens"] if token.special}
    known = {token for token in vocab if token in names} | {token.content for token in options["added_tokens"]}
    roles = {}
    for role, names_of_role in missing.items():
        candidates = [name for name in names_of_role if name in (recognised if role == "unk_token" else known)]
        if candidates:
            roles[role] = candidates[0]
    return roles


def read_vocab_file(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Return the vocabulary and constructor options for a vocab.txt alone."""
    vocab = read_vocab(path)
    return vocab, guess_case(vocab, path)


def guess_case(vocab: Sequence[str], path: Path) -> dict[str, Any]:
    """Return `do_lower_case=False` for a vocabulary with capitals, which lower-casing would make unreachable."""
    for token in vocab:
        letters = token.removeprefix("##")
        if token.lower() != token and letters.isalpha() and letters.lower() != letters:
            logger.info("%s has tokens with capitals (%r): lower-casing is off (do_lower_case=False)", path, token)
            return {"do_lower_case": False}
    return {}


def write_folder(
    folder: Path,
    vocab: Sequence[str],
    options: dict[str, Any],
    special_tokens: dict[str, Any],
    added: Mapping[int, AddedToken],
    post_processor: PostProcessor,
) -> tuple[str, ...]:
    """Write vocab.txt, tokenizer_config.json and special_tokens_map.json, as transformers does; return their paths."""
    _check_line_ends(vocab)
    folder.mkdir(parents=True, exist_ok=True)
    by_id = {str(index): token.to_dict() for index, token in added.items()}
    # A tokenizer of transformers that takes everything from tokenizer.json, or BERT's.
    kind = "BertTokenizer" if post_processor.is_bert else "PreTrainedTokenizerFast"
    config = {"tokenizer_class": kind, **options, **special_tokens, "added_tokens_decoder": by_id}
    write_vocab(folder / VOCAB_FILE, vocab)
    write_json_atomic(folder / CONFIG_FILE, config, ensure_ascii=False)
    write_json_atomic(folder / SPECIAL_TOKENS_FILE, special_tokens, ensure_ascii=False)
    # transformers prefers the vocabulary of an existing tokenizer.json, and strips white space from vocab.txt.
    needs_json = not post_processor.is_bert or any(token != token.rstrip() for token in vocab)
    if needs_json or (folder / TOKENIZER_FILE).exists():
        content = tokenizer_json(vocab, options, special_tokens, added, post_processor)
        write_json_atomic(folder / TOKENIZER_FILE, content, ensure_ascii=False)
    names = (VOCAB_FILE, CONFIG_FILE, SPECIAL_TOKENS_FILE, TOKENIZER_FILE)
    return tuple(str(folder / name) for name in names if (folder / name).exists())


def write_vocab(path: Path, vocab: Sequence[str]) -> None:
    """Write a vocab.txt: one token per line."""
    _check_line_ends(vocab)
    write_atomic(path, "".join(f"{token}\n" for token in vocab))


def _check_line_ends(vocab: Sequence[str]) -> None:
    for token in vocab:
        if "\n" in token or "\r" in token:
            raise VocabularyError(f"token {token!r} contains a line end, which {VOCAB_FILE} cannot represent")


def _known_options(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a file's constructor options; special tokens may be strings or objects with `content`."""
    options = {name: config[name] for name in OPTION_NAMES if name in config}
    for name in SPECIAL_TOKEN_ROLES:
        token = config.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if token is not None:
            options[name] = token
    length: Any = options.get("model_max_length")
    is_number = isinstance(length, int | float) and not isinstance(length, bool)
    is_length = is_number and length >= 1 and (length > UNLIMITED_LENGTH or length == int(length))
    flags, sides = (
        ("do_lower_case", "tokenize_chinese_chars", "split_special_tokens"),
        ("padding_side", "truncation_side"),
    )
    for name, holds, expected in (
        *((name, isinstance(options.get(name, True), bool), "true or false") for name in flags),
        ("strip_accents", isinstance(options.get("strip_accents"), bool | None), "true, false or null"),
        *((name, isinstance(options.get(name, ""), str), "a string") for name in SPECIAL_TOKEN_ROLES),
        *((name, options.get(name, "right") in ("left", "right"), "'left' or 'right'") for name in sides),
        ("model_max_length", length is None or is_length, "a whole number of at least 1, or null"),
    ):
        if not holds:
            raise VocabularyError(f"{path}: {name}={shown(options[name])} must be {expected}")
    return options


def _role_tokens(options: dict[str, Any]) -> set[str]:
    """Return the special tokens by role: those of the options, else BERT's."""
    return {options.get(name, token) for name, token in zip(SPECIAL_TOKEN_NAMES, DEFAULT_SPECIAL_TOKENS, strict=True)}


def _extra_tokens(config: dict[str, Any], path: Path, keys: Sequence[str]) -> dict[str, FileToken]:
    """Return the special tokens without a role."""
    tokens: dict[str, FileToken] = {}
    for key in keys:
        extra = config.get(key) or []
        if not isinstance(extra, list | dict):
            raise VocabularyError(f"{path}: {key}={shown(extra)} must be a list; restore the file")
        for value in extra.values() if isinstance(extra, dict) else extra:
            token = read_token(value, path, special=True)
            tokens.setdefault(token.token.content, token)
    return tokens


def _tokens_by_id(by_id: Any, path: Path) -> list[FileToken]:
    if not isinstance(by_id, dict):
        raise VocabularyError(f"{path}: added_tokens_decoder must map ids to tokens; restore the file")
    check_count(len(by_id), f"{path}: added_tokens_decoder")
    for token_id, token in by_id.items():
        if not (len(token_id) <= 10 and token_id.isdecimal() and isinstance(token, dict)):
            raise VocabularyError(
                f"{path}: added_tokens_decoder must map ids to tokens, not {shown(token_id)} to {shown(token)}; restore"
                " the file"
            )
    return [read_token(token, path, token_id=int(token_id)) for token_id, token in by_id.items()]


def _old_added_tokens(path: Path, special: set[str]) -> list[FileToken]:
    """Return the tokens of an added_tokens.json, which holds only their ids."""
    if not path.is_file():
        return []
    ids = read_json(path)
    for token, token_id in ids.items():
        if not is_id(token_id):
            raise VocabularyError(
                f"{path}: {shown(token)} has the id {shown(token_id)}, which is not a whole number; restore the file"
            )
    return [read_token(token, path, token_id=index, special=token in special) for token, index in ids.items()]


def order_added_tokens(added: list[FileToken], vocab: Sequence[str]) -> list[AddedToken]:
    """Return distinct added tokens in the order of their ids. Raises VocabularyError for inconsistent ids."""
    check_count(len(vocab) + len(added), added[0].source if added else "vocab")
    # Few contents are looked up in a large vocabulary: one pass finds their ids.
    contents = {item.token.content for item in added}
    ids = {token: index for index, token in enumerate(vocab) if token in contents}
    ordered: dict[str, AddedToken] = {}
    new = len(vocab)
    for token, token_id, source in sorted(added, key=lambda item: (item.id is None, item.id or 0)):
        known = ids.setdefault(token.content, new if token_id in (None, new) else -1)
        new += known == new
        if token_id is not None and (known != token_id or known < 0):
            raise VocabularyError(
                f"{source}: added token {shown(token.content)} has id {shown(token_id)}, but the vocabulary has"
                f" {'no such token' if known < 0 else known}; make them agree"
            )
        ordered.setdefault(token.content, token)
    return list(ordered.values())
