"""Train a tokenizer of any kind: the same corpus always gives the same files.

Words are counted by the C++ code that later tokenizes, and pieces are learned from them by the `tokenizers` library.
Its BPE depends on the counts alone. Its Unigram adds floating-point numbers in the order of a randomly seeded hash map,
and numbers rare characters in that order: what differs between runs is rounded off, and those characters get equal
scores.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from threading import Event
from typing import Any

from fastbert import _C
from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.tokenizers import layouts
from fastbert.tokenizers.layouts import SPECIAL_TOKENS, UNKNOWN, Kind
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.tokenizers.training import (
    check_limits,
    check_size,
    in_thread,
    learn_vocabulary,
    most_frequent_characters,
    repeated,
)
from fastbert.tokenizers.word_counts import Normalization, PipelineWords, Words, count_words
from fastbert.tokenizers.wordpiece import WordPieceTokenizer

Heartbeat = Callable[[float], None]

# Scores differ between runs from the 11th digit on; the library's own steps between rare characters are 1e-4.
_SCORE_DIGITS = 4
_SCORE_STEP = 1e-4
_BYTES = 256


def check_kind_size(kind: Kind, vocab_size: int) -> None:
    """Raise `UserError` for a vocabulary without room for pieces."""
    if kind == "wordpiece":
        check_size(vocab_size)
        return
    beside = len(SPECIAL_TOKENS) + (_BYTES if kind == "bpe" else 0)
    if vocab_size < beside + 2:
        held = f"{len(SPECIAL_TOKENS)} special tokens" + (f" and {_BYTES} bytes" if kind == "bpe" else "")
        raise UserError(f"vocab_size={vocab_size} has no room beside {held}; use at least {beside + 2}")


def words_of_kind(kind: Kind, lower_case: bool) -> Words:
    """Return how a new tokenizer of a kind splits text into words."""
    if kind == "wordpiece":
        return Normalization(lower_case=lower_case)
    return PipelineWords(layouts.new_pipeline(kind, lower_case))


def train_tokenizer(
    sentences: Iterable[str],
    kind: Kind,
    vocab_size: int = 30522,
    *,
    lower_case: bool | None = None,
    min_frequency: int = 2,
    alphabet_limit: int = 1000,
    progress: Callable[[int], None] | None = None,
) -> Tokenizer:
    """Train a tokenizer: "wordpiece" in BERT's layout, "bpe" in RoBERTa's, or "unigram" in XLM-RoBERTa's.

    Args:
        sentences: the corpus, read once: any strings (sentences, lines, documents).
        kind: the kind of tokenizer.
        vocab_size: the number of tokens. A small corpus may support fewer, which is logged as a warning.
        lower_case: lower-case text and remove accents; None means that WordPiece does and the others do not.
        min_frequency: WordPiece and BPE form a piece only from a pair that occurs at least this often.
        alphabet_limit: maximum number of characters of WordPiece and Unigram, the most frequent ones, which never fill
            more than half of the vocabulary; words with other characters are ignored. Byte-level BPE has all bytes.
        progress: called with the number of sentences read since the last call.

    Returns:
        The tokenizer; a function of the arguments alone.

    Raises:
        UserError: the corpus has no words, or `vocab_size` is too small.

    Example:
        >>> from fastbert.tokenizers import train_tokenizer
        >>> tokenizer = train_tokenizer(["low slow lower slower"] * 9, "wordpiece", vocab_size=30)
        >>> tokenizer.vocab_size, tokenizer.tokenize("slower lows")
        (24, ['slower', 'low', '##s'])
    """
    lower_case = layouts.lower_cases(kind, cased=lower_case is False, lower_case=lower_case is True)
    check_kind_size(kind, vocab_size)
    check_limits(vocab_size, min_frequency, alphabet_limit)
    words = count_words(sentences, normalization=words_of_kind(kind, lower_case), progress=progress)
    return learn_tokenizer(
        words, kind, vocab_size, lower_case=lower_case, min_frequency=min_frequency, alphabet_limit=alphabet_limit
    )


def learn_tokenizer(
    words: Mapping[str, int],
    kind: Kind,
    vocab_size: int = 30522,
    *,
    lower_case: bool,
    min_frequency: int = 2,
    alphabet_limit: int = 1000,
    heartbeat: Heartbeat | None = None,
) -> Tokenizer:
    """Train a tokenizer from counted words, as `train_tokenizer` does from text.

    Args:
        words: how often each word occurs, split as by `words_of_kind`.
        kind, vocab_size, lower_case, min_frequency, alphabet_limit: as in `train_tokenizer`.
        heartbeat: called ten times per second with the elapsed seconds, while the pieces are learned.

    Raises:
        UserError: there are no words, or `vocab_size` is too small.
    """
    if kind == "wordpiece":
        tokens = learn_vocabulary(
            words, vocab_size, min_frequency=min_frequency, alphabet_limit=alphabet_limit, heartbeat=heartbeat
        )
        return WordPieceTokenizer(tokens, do_lower_case=lower_case)
    check_kind_size(kind, vocab_size)
    check_limits(vocab_size, min_frequency, alphabet_limit)
    words = {word: words[word] for word in sorted(words) if not any(token in word for token in SPECIAL_TOKENS)}
    if not any(not word.isspace() for word in words):
        raise UserError("the corpus holds no words; give it some text")
    pipeline = layouts.new_pipeline(kind, lower_case)
    size = vocab_size - len(SPECIAL_TOKENS)
    tokenizer: Tokenizer
    if kind == "bpe":
        pieces, merges = in_thread(lambda stop: _learn_byte_level_bpe(words, size, min_frequency, stop), heartbeat)
        tokenizer = layouts.byte_level_tokenizer(pieces, merges, pipeline)
    else:
        words = _of_alphabet(words, alphabet_limit, size // 2)
        if not words:
            raise UserError(
                f"vocab_size={vocab_size} has no room for the characters of any word of the text (at most"
                f" {min(alphabet_limit, size // 2)}); raise it"
            )
        scores = in_thread(lambda stop: _learn_unigram(words, size, stop), heartbeat)
        tokenizer = layouts.unigram_tokenizer(list(scores), list(scores.values()), pipeline)
    if len(tokenizer) < vocab_size:
        logger.warning(
            "the text supports only %d of %d tokens of a vocabulary; add text for more", len(tokenizer), vocab_size
        )
    return tokenizer


def _learn_byte_level_bpe(
    words: Mapping[str, int], size: int, min_frequency: int, stop: Event
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return at most `size` tokens, the bytes and then the merged ones in the order of the merges, and the merges."""
    from tokenizers import Tokenizer as Learner
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.trainers import BpeTrainer

    alphabet = _C.byte_level_alphabet()
    spelled = {word.encode().decode("latin-1").translate(alphabet): count for word, count in words.items()}
    learner = Learner(BPE())
    learner.pre_tokenizer = WhitespaceSplit()  # no character of the alphabet is white space
    trainer = BpeTrainer(
        vocab_size=size, min_frequency=min_frequency, show_progress=False, initial_alphabet=sorted(alphabet)
    )
    learner.train_from_iterator(repeated(spelled, stop), trainer)
    model = json.loads(learner.to_str())["model"]
    tokens: list[str] = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tokens, [(left, right) for left, right in model["merges"]]


def _of_alphabet(words: Mapping[str, int], limit: int, room: int) -> dict[str, int]:
    """Return the words of the most frequent characters."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for char in word:
            counts[char] += count
    characters = set(most_frequent_characters(counts)[: min(limit, room)])
    return {word: count for word, count in words.items() if characters.issuperset(word)}


def _learn_unigram(words: Mapping[str, int], size: int, stop: Event) -> dict[str, float]:
    """Return at most `size` pieces with their log probabilities, the most probable ones first."""
    from tokenizers import Tokenizer as Learner
    from tokenizers.models import Unigram
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.trainers import UnigramTrainer

    learner = Learner(Unigram())
    learner.pre_tokenizer = WhitespaceSplit()
    trainer = UnigramTrainer(vocab_size=size + 1, show_progress=False, unk_token=UNKNOWN)
    learner.train_from_iterator(repeated(words, stop), trainer)
    model: dict[str, Any] = json.loads(learner.to_str())["model"]
    scores = {piece: score for piece, score in model["vocab"] if piece != UNKNOWN}
    lowest = min(scores.values())
    characters = [piece for piece in scores if len(piece) == 1]
    for character in characters:
        # The library has given rare characters scores from the lowest one up, in random order.
        if scores[character] < lowest + _SCORE_STEP * len(characters):
            scores[character] = lowest
    rounded = {piece: round(score, _SCORE_DIGITS) for piece, score in scores.items()}
    return dict(sorted(rounded.items(), key=lambda item: (-item[1], item[0])))
