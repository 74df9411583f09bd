"""Read and write the JSON files of tokenizers: `tokenizer.json`, and added tokens in any of them.

Files are untrusted: a damaged file, or one that describes a tokenizer other than BERT's, is a `VocabularyError` that
names the file and the cure.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastbert import _C
from fastbert.io.collector import collector_paused
from fastbert.io.log import logger
from fastbert.io.untrusted_input import read_regular, shown
from fastbert.tokenizers.added import FLAGS, AddedToken
from fastbert.tokenizers.json_errors import VocabularyError
from fastbert.tokenizers.template import PostProcessor, bert_template, read_post_processor, roberta_template

# The largest published vocabularies have 900,000 tokens; larger files would take seconds and gigabytes to read.
MAX_TOKENS = 1 << 20
MAX_BYTES = 64 << 20


class FileToken(NamedTuple):
    """An added token of a file; `id` is None if the file does not state it."""

    token: AddedToken
    id: int | None
    source: str


class TokenizerJson(NamedTuple):
    """The content of a tokenizer.json: the vocabulary by id, constructor options, added tokens."""

    vocab: list[str]
    options: dict[str, Any]
    added: list[FileToken]


def read_bytes(path: Path) -> bytes:
    """Return a file's content."""
    cure = "name a vocab.txt, a tokenizer.json or a tokenizer's folder"
    try:
        return read_regular(path, MAX_BYTES, VocabularyError)
    except FileNotFoundError:
        raise VocabularyError(f"{path}: no such file; {cure}") from None
    except OSError as error:
        raise VocabularyError(f"{path}: {error.strerror}; {cure}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Return a file's JSON object; numbers are those that the `tokenizers` library reads, to the last bit."""
    try:
        with collector_paused():
            value = json.loads(read_bytes(path), parse_float=_C.read_decimal)
    except (ValueError, RecursionError) as error:
        raise VocabularyError(f"{path}: not JSON ({error}); restore the file") from None
    if not isinstance(value, dict):
        raise VocabularyError(f"{path}: holds {type(value).__name__}, not a JSON object; restore the file")
    return value


def is_id(value: Any) -> bool:
    """Return true for a whole number; JSON's true and false are not numbers."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_count(count: int, source: str) -> None:
    """Raise VocabularyError for more tokens than any tokenizer has, before they are processed."""
    if count > MAX_TOKENS:
        raise VocabularyError(
            f"{source}: {count:,} tokens, and a tokenizer has at most {MAX_TOKENS:,}; name the vocabulary, not a text"
        )


def read_token(value: Any, path: Path, *, token_id: int | None = None, special: bool = False) -> FileToken:
    """Return an added token from a string, or from an object with its content and flags."""
    fields = value if isinstance(value, dict) else {"content": value}
    content = fields.get("content")
    if not isinstance(content, str) or not content:
        raise VocabularyError(f"{path}: added token {shown(value)} has no content; restore the file")
    flags = {flag: fields[flag] for flag in FLAGS if fields.get(flag) is not None}
    if special:
        flags |= {"special": True, "normalized": flags.get("normalized", False)}
    try:
        return FileToken(AddedToken(content, **flags), token_id, str(path))
    except (TypeError, ValueError) as error:
        raise VocabularyError(f"{path}: added token {shown(content)}: {error}; restore the file") from None


def read_tokenizer_json(path: Path) -> TokenizerJson:
    """Read a tokenizer.json that describes BERT's pipeline. Raises VocabularyError for any other."""
    content = read_json(path)
    for name in ("model", "normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if not isinstance(content.get(name), dict | None):
            raise VocabularyError(f"{path}: {name} is not a JSON object; restore the file")
    vocab, options = _read_model(content.get("model") or {}, path)
    options |= _read_normalizer(content.get("normalizer") or {}, path)
    options |= _read_post_processor(content.get("post_processor"), vocab, path)
    for stage, type_name in (("pre_tokenizer", "BertPreTokenizer"), ("decoder", "WordPiece")):
        actual = (content.get(stage) or {}).get("type", type_name)
        if actual != type_name:
            raise VocabularyError(f"{path}: its {stage} is {shown(actual)}; only BERT's ({type_name}) is supported")
    prefix = (content.get("decoder") or {}).get("prefix", "##")
    if prefix != "##":
        raise VocabularyError(f"{path}: its decoder's prefix is {shown(prefix)}; BERT's is '##'")
    options |= read_sides(content, path)
    return TokenizerJson(vocab, options, read_added(content, path))


def read_sides(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the sides of truncation and padding of a tokenizer.json, whose other settings are ignored."""
    options: dict[str, Any] = {}
    for state in ("truncation", "padding"):
        if content.get(state) is not None:
            logger.info("%s: its %s is ignored except for the side; request it in each call", path, state)
            # Files of older versions of Hugging Face's library lack it.
            direction = content[state].get("direction", "Right") if isinstance(content[state], dict) else None
            if direction not in ("Left", "Right"):
                raise VocabularyError(f"{path}: {state} has the direction {shown(direction)}, not 'Left' or 'Right'")
            options[f"{state}_side"] = direction.lower()
    return options


def read_added(content: dict[str, Any], path: Path) -> list[FileToken]:
    """Return the added tokens of a tokenizer.json."""
    tokens = content.get("added_tokens") or []
    if not isinstance(tokens, list) or not all(isinstance(token, dict) for token in tokens):
        raise VocabularyError(f"{path}: added_tokens must be a list of objects; restore the file")
    added = []
    for token in tokens:
        if not is_id(token.get("id")):
            raise VocabularyError(
                f"{path}: added token {shown(token.get('content'))} has no id (it is {shown(token.get('id'))}); restore"
                " the file"
            )
        added.append(read_token(token, path, token_id=token["id"]))
    return added


def sorted_by_id(ids: dict[str, Any], path: Path) -> list[str]:
    """Return the tokens of a vocabulary in the order of their ids, which must run from 0 without gaps."""
    check_count(len(ids), str(path))
    for token, token_id in ids.items():
        if not is_id(token_id):
            raise VocabularyError(
                f"{path}: token {shown(token)} has id {shown(token_id)}, which is not a whole number; restore the file"
            )
    by_id = sorted(ids.items(), key=lambda item: item[1])
    for expected_id, (token, token_id) in enumerate(by_id):
        if token_id != expected_id:
            raise VocabularyError(
                f"{path}: token {shown(token)} has id {shown(token_id)} where {expected_id} was expected; ids must run"
                " from 0 without gaps"
            )
    return [token for token, _ in by_id]


def tokenizer_json(
    vocab: Sequence[str],
    options: dict[str, Any],
    special_tokens: dict[str, Any],
    added: Mapping[int, AddedToken],
    post_processor: PostProcessor,
) -> dict[str, Any]:
    """Return the content of a tokenizer's tokenizer.json."""
    ids = {token: index for index, token in enumerate(vocab)} | {token.content: index for index, token in added.items()}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, **token.to_dict()} for index, token in added.items()],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": options["tokenize_chinese_chars"],
            "strip_accents": options["strip_accents"],
            "lowercase": options["do_lower_case"],
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": post_processor.to_json(ids.__getitem__),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": special_tokens["unk_token"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: index for index, token in enumerate(vocab)},
        },
    }


def _read_model(model: dict[str, Any], path: Path) -> tuple[list[str], dict[str, Any]]:
    ids = model.get("vocab")
    if model.get("type", "WordPiece") != "WordPiece" or not isinstance(ids, dict):
        raise VocabularyError(f"{path}: its model is {shown(model.get('type'))}; only WordPiece tokenizers can be read")
    for name, expected in (("continuing_subword_prefix", "##"), ("max_input_chars_per_word", 100)):
        if model.get(name, expected) != expected:
            raise VocabularyError(f"{path}: {name}={shown(model[name])} is not supported; BERT's is {expected!r}")
    vocab = sorted_by_id(ids, path)
    options = {"unk_token": model["unk_token"]} if isinstance(model.get("unk_token"), str) else {}
    return vocab, options


def _read_normalizer(normalizer: dict[str, Any], path: Path) -> dict[str, Any]:
    if normalizer.get("type") != "BertNormalizer":
        raise VocabularyError(
            f"{path}: its normalizer is {shown(normalizer.get('type'))}; only BertNormalizer is supported"
        )
    if not normalizer.get("clean_text", True):
        raise VocabularyError(
            f"{path}: its normalizer keeps control characters (clean_text is false), which is not supported;"
            " set clean_text to true"
        )
    for name, default in (("lowercase", True), ("handle_chinese_chars", True), ("strip_accents", None)):
        value = normalizer.get(name, default)
        if not isinstance(value, bool) and not (name == "strip_accents" and value is None):
            raise VocabularyError(f"{path}: {name}={shown(value)} must be true or false")
    return {
        "do_lower_case": normalizer.get("lowercase", True),
        "strip_accents": normalizer.get("strip_accents"),
        "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
    }


def _read_post_processor(processor: dict[str, Any] | None, vocab: list[str], path: Path) -> dict[str, Any]:
    """Return the tokens before and after sequences, which of the known rows they make, and what it does to offsets."""
    if processor is None:
        return {}
    read = read_post_processor(processor, path)
    for token, token_id in read.ids.items():
        if token in vocab and vocab.index(token) != token_id:
            raise VocabularyError(
                f"{path}: its post_processor gives {shown(token)} the id {shown(token_id)}, but the vocabulary"
                f" {vocab.index(token)}; make them agree"
            )
    special = read.template.special_tokens()
    if len(special) == 2:
        options: dict[str, Any] = {"cls_token": special[0], "sep_token": special[1]}
        if read.trim_offsets:
            options |= {"trim_offsets": True, "expects_prefix": read.expects_prefix}
        if read.template == bert_template(*special):
            return options
        if read.template == roberta_template(*special):
            return {**options, "row_format": "roberta"}
    raise VocabularyError(
        f"{path}: its post_processor ({shown(processor.get('type'))}) is not BERT's: [CLS] A [SEP], and [CLS] A [SEP] B"
        " [SEP] with type 1 from B on; nor RoBERTa's: <s> A </s></s> B </s> with type 0; others are not supported"
    )
