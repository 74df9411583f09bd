"""Tokenizers with the options of another one and different entries: the first ones, or more words."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from fastbert import _C
from fastbert.tokenizers.byte_level import BYTES, ByteLevelBPETokenizer
from fastbert.tokenizers.pipeline import Pipeline
from fastbert.tokenizers.pipeline_tokenizer import PipelineTokenizer
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.tokenizers.unigram import UnigramTokenizer
from fastbert.tokenizers.wordpiece import WordPieceTokenizer

AnyTokenizer = TypeVar("AnyTokenizer", bound=Tokenizer)


def with_vocabulary(tokenizer: AnyTokenizer, tokens: Sequence[str], **model: Any) -> AnyTokenizer:
    """Return a tokenizer with the same options and different entries; `model` are the constructor's other arguments
    that belong to the entries: merges or scores."""
    parameters = [*inspect.signature(type(tokenizer).__init__).parameters]
    if isinstance(tokenizer, PipelineTokenizer):
        parameters += inspect.signature(PipelineTokenizer.__init__).parameters
    # Each option of the constructor is an attribute of the same name.
    names = [name for name in parameters if name not in ("self", "vocab", "options") and hasattr(tokenizer, name)]
    kind: Any = type(tokenizer)
    variant: AnyTokenizer = kind(tokens, **({name: getattr(tokenizer, name) for name in names} | model))
    return variant


def entry_of(tokenizer: Tokenizer, word: str) -> str:
    """Return the entry that makes a counted word one token."""
    if isinstance(tokenizer, ByteLevelBPETokenizer):
        alphabet = _C.byte_level_alphabet()
        return "".join(alphabet[byte] for byte in word.encode())
    return word


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Return the id of words or characters without an entry; byte-level BPE never yields it."""
    return tokenizer.unknown_id if isinstance(tokenizer, UnigramTokenizer) else tokenizer.unk_token_id


def word_encoder(tokenizer: Tokenizer, size: int | None = None) -> Tokenizer | None:
    """Return a tokenizer of counted words with the first `size` entries (None: all of them): it yields the tokens that
    the words have in text. None if the unknown token, or one of the bytes, is not among the entries.

    WordPiece normalises and splits a word into itself. The words of the others must not be split again: " word" of BPE
    has its space already.
    """
    if isinstance(tokenizer, WordPieceTokenizer):
        if size is None or size >= tokenizer.vocab_size:
            return tokenizer
        special = [index for index in tokenizer.all_special_ids if index < tokenizer.vocab_size]
        if max(special, default=0) >= size:
            return None
        return with_vocabulary(tokenizer, list(tokenizer.vocab)[:size])
    size = tokenizer.vocab_size if size is None else min(size, tokenizer.vocab_size)
    tokens = list(tokenizer.vocab)[:size]
    if isinstance(tokenizer, ByteLevelBPETokenizer):
        entries = set(tokens)
        if not entries.issuperset(BYTES.values()):
            return None
        merges = [(a, b) for a, b in tokenizer.merges if a in entries and b in entries and a + b in entries]
        split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
        pipeline = Pipeline(None, split, None, None, tokenizer.pipeline.path)
        return ByteLevelBPETokenizer(tokens, merges, pipeline=pipeline, whole_words=tokenizer.whole_words)
    assert isinstance(tokenizer, UnigramTokenizer)
    if tokenizer.unknown_id >= size or (tokenizer.byte_fallback and not {"<0x00>", "<0xFF>"}.issubset(tokens)):
        return None
    return UnigramTokenizer(
        tokens,
        tokenizer.scores[:size].tolist(),
        unknown_id=tokenizer.unknown_id,
        pipeline=Pipeline(None, None, None, None, tokenizer.pipeline.path),
        byte_fallback=tokenizer.byte_fallback,
    )


def with_words(tokenizer: AnyTokenizer, tokens: Sequence[str], words: Sequence[str]) -> AnyTokenizer:
    """Return a tokenizer with `tokens`, the entries so far, and words of a text behind them, each of which becomes one
    token: a piece of Unigram that is slightly more probable than the word's pieces together, or a word that byte-level
    BPE does not split whatever its merges (`ignore_merges`)."""
    entries = [entry_of(tokenizer, word) for word in words]
    if isinstance(tokenizer, ByteLevelBPETokenizer):
        return with_vocabulary(tokenizer, [*tokens, *entries], whole_words=bool(entries) or tokenizer.whole_words)
    if not isinstance(tokenizer, UnigramTokenizer):
        return with_vocabulary(tokenizer, [*tokens, *entries])
    lowest = float(tokenizer.scores.min())
    scores = [*tokenizer.scores, *(lowest - _OUT_OF_REACH for _ in tokens[tokenizer.vocab_size :])]
    return with_vocabulary(tokenizer, [*tokens, *entries], scores=[*scores, *_scores(tokenizer, words, lowest)])


# More than any word's pieces lose against another split, so that an added token that became a piece is no word's piece.
_OUT_OF_REACH = 1e4
# A word of n pieces gets n - 1 times this much more than they have together, so that it also precedes shorter new words
# with the rest of its pieces.
_ADVANTAGE = 0.01


def _scores(tokenizer: UnigramTokenizer, words: Sequence[str], lowest: float) -> list[float]:
    encoder = word_encoder(tokenizer)
    assert encoder is not None
    ids, offsets = encoder.encode_ragged(words)
    result = []
    for begin, end in pairwise(offsets.tolist()):
        pieces = ids[begin:end]
        known = not np.any(pieces == tokenizer.unknown_id)
        total = float(tokenizer.scores[pieces].sum()) if known else lowest
        result.append(total + _ADVANTAGE * (end - begin - 1))
    return result
