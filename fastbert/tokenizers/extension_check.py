"""Recognise a tokenizer that `fastbert.tokenizers.extension` made from another one."""

from __future__ import annotations

from fastbert import _C
from fastbert.errors import UserError
from fastbert.tokenizers.byte_level import ByteLevelBPETokenizer
from fastbert.tokenizers.extension import Extension, extend_vocabulary, is_unused
from fastbert.tokenizers.tokenizer import Tokenizer


def find_extension(base: Tokenizer, other: Tokenizer) -> Extension | None:
    """Return the extension of `base` that `other` is: no entries if both are the same, None if `other` is not `base`
    with more words.

    An extension has the ids of all old entries, words in place of `[unusedN]` entries or behind the old entries, and
    every option of `base`, so that its fingerprint is that of `base` extended by these words.
    """
    if base.fingerprint == other.fingerprint:
        return Extension(tokenizer=other, base_size=len(base), entries=())
    if type(base) is not type(other) or len(other) < len(base):
        return None
    before, after = list(base.vocab), list(other.vocab)
    replaced = [index for index, token in enumerate(before) if token != after[index]]
    if not all(is_unused(before[index]) for index in replaced):
        return None
    try:
        words = [_word(other, after[index]) for index in (*replaced, *range(len(before), len(after)))]
        extension = extend_vocabulary(base, words, keep_unused=not replaced)
    except (UserError, UnicodeDecodeError, KeyError):  # entries that are not words
        return None
    return extension if extension.tokenizer.fingerprint == other.fingerprint else None


def _word(tokenizer: Tokenizer, entry: str) -> str:
    """Return the word that `fastbert.tokenizers.variants.entry_of` made an entry of."""
    if not isinstance(tokenizer, ByteLevelBPETokenizer):
        return entry
    bytes_of = {character: byte for byte, character in enumerate(_C.byte_level_alphabet())}
    return bytes(bytes_of[character] for character in entry).decode()
