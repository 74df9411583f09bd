"""The steps of a tokenizer.json: what changes a text, splits it into words, and joins tokens to text.

The steps are kept as the file has them, and compiled for the C++ core. A step that no family of encoders uses is a
`VocabularyError` that names it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from fastbert import _C
from fastbert.io.untrusted_input import shown
from fastbert.tokenizers.json_errors import VocabularyError

Json = Mapping[str, Any]
_BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
_SCHEMES = ("always", "first", "never")
SPACE = "\u2581"  # what stands for a space in pieces of sentencepiece


@dataclass(frozen=True)
class Pipeline:
    """The parts of a tokenizer.json beside its model; None where it has none. `path` names the file in messages."""

    normalizer: Json | None
    pre_tokenizer: Json | None
    post_processor: Json | None
    decoder: Json | None
    path: Path = Path("pipeline")

    @classmethod
    def read(cls, content: Json, path: Path) -> Pipeline:
        """Return the parts of a tokenizer.json's content."""
        names = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
        for name in names:
            if not isinstance(content.get(name), dict | None):
                raise VocabularyError(f"{path}: {name} is not a JSON object; restore the file")
        normalizer, pre_tokenizer, post_processor, decoder = (content.get(name) for name in names)
        return cls(normalizer, pre_tokenizer, post_processor, decoder, path)

    def compiled_normalizer(self) -> _C.Normalizer:
        """Return the normalizer of the core."""
        steps = [_normalizer_step(step, self.path) for step in _steps(self.normalizer, "normalizers", self.path)]
        try:
            return _C.Normalizer(steps)
        except ValueError as error:
            raise VocabularyError(
                f"{self.path}: the character map (precompiled_charsmap) of its normalizer is damaged: {error}; restore"
                " the file"
            ) from None

    def lower_cased(self) -> Pipeline:
        """Return steps of which the first one converts texts to lower case; itself where a step of it does already."""
        steps = list(_steps(self.normalizer, "normalizers", self.path))
        if any(step.get("type") == "Lowercase" for step in steps):
            return self
        return replace(self, normalizer={"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *steps]})

    def byte_level(self) -> bool | None:
        """Return `add_prefix_space` if the pre-tokenizer is the byte-level one with its own expression, else None."""
        steps = list(_steps(self.pre_tokenizer, "pretokenizers", self.path))
        if len(steps) != 1 or steps[0].get("type") != "ByteLevel":
            return None
        if steps[0].get("use_regex", True) is not True:
            raise VocabularyError(f"{self.path}: its pre_tokenizer ByteLevel without use_regex is not supported")
        return _flag(steps[0], "add_prefix_space", True, self.path)

    def compiled_pre_tokenizer(self) -> list[tuple[Any, ...]]:
        """Return the steps of the pre-tokenizer for the Unigram core."""
        return [_splitting_step(step, self.path) for step in _steps(self.pre_tokenizer, "pretokenizers", self.path)]

    def decode(self, tokens: Iterable[str]) -> str:
        """Join tokens to text."""
        return decoder_of(self.decoder, self.path)(list(tokens))


class Content(NamedTuple):
    """A tokenizer's files: the model's name in a tokenizer.json ("WordPiece", "BPE", "Unigram"), the vocabulary by id,
    the constructor's arguments for the model, the steps, and the other arguments."""

    kind: str
    vocab: list[str]
    model: dict[str, Any]
    pipeline: Pipeline
    options: dict[str, Any]


def _steps(part: Json | None, key: str, path: Path) -> Iterable[Json]:
    """Yield the steps of a part, those of sequences one by one."""
    if part is None:
        return
    if part.get("type") != "Sequence":
        yield part
        return
    steps = part.get(key)
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise VocabularyError(f"{path}: {key} must be a list of objects; restore the file")
    for step in steps:
        yield from _steps(step, key, path)


def _flag(step: Json, name: str, default: bool | None, path: Path) -> bool:
    value = step.get(name, default)
    if not isinstance(value, bool):
        raise VocabularyError(f"{path}: {name}={shown(value)} of {shown(step.get('type'))} must be true or false")
    return value


def _text(step: Json, name: str, path: Path, *, empty: bool = False) -> str:
    value = step.get(name)
    if not isinstance(value, str) or (not value and not empty):
        raise VocabularyError(f"{path}: {name}={shown(value)} of {shown(step.get('type'))} must be a text")
    return _encodable(value, step, path)


def _encodable(value: str, step: Json, path: Path) -> str:
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise VocabularyError(
            f"{path}: {shown(value)} of {shown(step.get('type'))} holds a lone surrogate (half of a character); remove"
            " it"
        )
    return value


def _choice(step: Json, name: str, choices: Sequence[str], path: Path) -> str:
    value = step.get(name)
    if value not in choices:
        raise VocabularyError(f"{path}: {name}={shown(value)} must be one of {', '.join(choices)}")
    return str(value)


def _unsupported(step: Json, part: str, path: Path) -> VocabularyError:
    return VocabularyError(
        f"{path}: its {part} {shown(step.get('type'))} is not supported; use a tokenizer of an encoder (byte-level BPE"
        " as GPT-2's and RoBERTa's, Unigram as XLM-RoBERTa's, WordPiece), or transformers"
    )


def _normalizer_step(step: Json, path: Path) -> tuple[Any, ...]:
    kind = step.get("type")
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        return (kind.lower(),)
    if kind == "Lowercase":
        return ("lowercase",)
    if kind == "StripAccents":
        return ("strip_accents",)
    if kind == "Strip":
        return "strip", *(_flag(step, name, None, path) for name in ("strip_left", "strip_right"))
    if kind == "Prepend":
        return "prepend", _text(step, "prepend", path)
    if kind == "Replace":
        pattern, content = step.get("pattern"), _text(step, "content", path, empty=True)
        if isinstance(pattern, dict) and isinstance(pattern.get("String"), str) and pattern["String"]:
            return "replace", _encodable(pattern["String"], step, path), content
        if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
            return "replace_runs", _runs(_encodable(pattern["Regex"], step, path), path), content
        raise VocabularyError(f"{path}: the pattern {shown(pattern)} of Replace is not a text or an expression")
    if kind == "Precompiled":
        try:
            data = base64.b64decode(_text(step, "precompiled_charsmap", path), validate=True)
        except binascii.Error as error:
            raise VocabularyError(f"{path}: precompiled_charsmap is not base64 ({error}); restore the file") from None
        return "charsmap", data
    raise _unsupported(step, "normalizer", path)


_RUN = re.compile(r"(?P<set>\[(?:\\[nrts]|[^\\\[\]^-])+\]|\\[nrts]|[^\\\[\](){}|+*?.^$])(?P<count>\{(\d{1,3}),\}|\+)?")
_ESCAPES = {"\\n": "\n", "\\r": "\r", "\\t": "\t"}


def _runs(expression: str, path: Path) -> list[tuple[str, bool, int, bool]]:
    r"""Return the alternatives of an expression such as " {2,}" and "\s{2,}|[\n\r\t]": runs of characters of a set, as
    (characters, all white space too, least number, no more than that)."""
    runs = []
    for alternative in expression.split("|"):
        match = _RUN.fullmatch(alternative)
        if match is None:
            raise VocabularyError(
                f"{path}: the expression {shown(expression)} of Replace is not supported; only runs of characters are,"
                r" such as ' {2,}' or '\s+'"
            )
        items = re.findall(r"\\.|[^\[\]]", match["set"])
        characters = "".join(_ESCAPES.get(item, item) for item in items if item != "\\s")
        least = int(match[3]) if match[3] else 1
        if least < 1:
            raise VocabularyError(f"{path}: the expression {shown(expression)} of Replace matches nothing")
        runs.append((characters, "\\s" in items, least, match["count"] is None))
    return runs


def _splitting_step(step: Json, path: Path) -> tuple[Any, ...]:
    kind = step.get("type")
    if kind == "WhitespaceSplit":
        return ("whitespace_split",)
    if kind == "Metaspace":
        replacement = _text(step, "replacement", path)
        if len(replacement) != 1:
            raise VocabularyError(f"{path}: replacement={shown(replacement)} of Metaspace must be one character")
        # Files of older versions have a flag instead.
        before = {True: "always", False: "never"}.get(step.get("add_prefix_space", True), "")
        scheme = _choice({"prepend_scheme": before} | dict(step), "prepend_scheme", _SCHEMES, path)
        return "metaspace", replacement, scheme, _flag(step, "split", True, path)
    if kind == "Digits":
        return "digits", _flag(step, "individual_digits", False, path)
    if kind == "Punctuation":
        return "punctuation", _choice({"behavior": "Isolated"} | dict(step), "behavior", _BEHAVIORS, path)
    if kind == "Split":
        pattern = step.get("pattern")
        if isinstance(pattern, dict) and isinstance(pattern.get("String"), str) and pattern["String"]:
            behavior = _choice(step, "behavior", _BEHAVIORS, path)
            return "split", _encodable(pattern["String"], step, path), behavior, _flag(step, "invert", False, path)
        raise VocabularyError(f"{path}: the pattern {shown(pattern)} of Split is not supported; only a String is")
    raise _unsupported(step, "pre_tokenizer", path)


Decoder = Callable[[list[str]], str]
_BYTES_OF = {character: byte for byte, character in enumerate(_C.byte_level_alphabet())}


def bytes_of_token(token: str) -> bytes:
    """Return the bytes that a token of a byte-level vocabulary stands for; of other tokens their UTF-8."""
    known = [_BYTES_OF.get(character, -1) for character in token]
    return token.encode() if -1 in known else bytes(known)


def decoder_of(decoder: Json | None, path: Path) -> Decoder:
    """Return the function of a decoder: tokens to text."""
    if decoder is None:
        return " ".join
    steps = [_decoder_step(step, path) for step in _steps(decoder, "decoders", path)]

    def decode(tokens: list[str]) -> str:
        for step in steps:
            tokens = step(tokens)
        return "".join(tokens)

    return decode


def _decoder_step(step: Json, path: Path) -> Callable[[list[str]], list[str]]:
    kind = step.get("type")
    if kind == "ByteLevel":
        return lambda tokens: [b"".join(map(bytes_of_token, tokens)).decode("utf-8", "replace")]
    if kind == "Metaspace":
        _, replacement, scheme, _ = _splitting_step(step, path)

        def spaced(tokens: list[str]) -> list[str]:
            first = "" if scheme != "never" else " "
            return [token.replace(replacement, " " if index else first) for index, token in enumerate(tokens)]

        return spaced
    if kind == "Replace":
        pattern, content = step.get("pattern"), _text(step, "content", path, empty=True)
        if isinstance(pattern, dict) and isinstance(old := pattern.get("String"), str) and old:
            return lambda tokens: [token.replace(old, content) for token in tokens]
    if kind == "ByteFallback":
        return _join_bytes
    if kind == "Fuse":
        return lambda tokens: ["".join(tokens)]
    if kind == "Strip":
        content, start, stop = _text(step, "content", path), step.get("start", 0), step.get("stop", 0)
        if isinstance(start, int) and isinstance(stop, int) and len(content) == 1:
            return lambda tokens: [_stripped(token, content, start, stop) for token in tokens]
    raise _unsupported(step, "decoder", path)


_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")


def _join_bytes(tokens: list[str]) -> list[str]:
    """Replace runs of pieces for bytes by their text; bytes that are not UTF-8 each by a replacement character."""
    result: list[str] = []
    run = bytearray()

    def finish() -> None:
        if run:
            try:
                result.append(run.decode("utf-8"))
            except UnicodeDecodeError:
                result.extend("\ufffd" * len(run))
            run.clear()

    for token in tokens:
        if match := _BYTE_PIECE.fullmatch(token):
            run.append(int(match[1], 16))
        else:
            finish()
            result.append(token)
    finish()
    return result


def _stripped(token: str, content: str, start: int, stop: int) -> str:
    left = min(len(token) - len(token.lstrip(content)), start)
    right = min(len(token) - len(token.rstrip(content)), stop)
    return token[left : max(len(token) - right, left)]
