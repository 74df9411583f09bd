"""Extend a vocabulary by words of a domain: rank the words that split most, and add those that are worth an entry.

Old entries keep their ids. New words replace `[unusedN]` entries first, so that the model's embedding need not grow;
the rest is appended. `fastbert.models.vocabulary_extension` adds the model's new rows.

A word that is an entry is one token. With WordPiece, which matches the longest entry first, a longer word that begins
with it may split differently ("angio" changes "angiogram"), and with Unigram one whose pieces began with those of the
word; byte-level BPE compares whole words with new entries. All other words are tokenized as before.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.tokenizers.coverage import WordPieces
from fastbert.tokenizers.pipeline import SPACE
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.tokenizers.unigram import UnigramTokenizer
from fastbert.tokenizers.variants import entry_of, with_vocabulary, with_words
from fastbert.tokenizers.word_counts import count_words, words_of
from fastbert.tokenizers.wordpiece import WordPieceTokenizer

_UNUSED = re.compile(r"\[unused\d+\]")
# Rows are worth adding while the next hundred rows save at least a thousandth of the tokens.
WINDOW = 100
MIN_SHARE = 0.001


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A word that splits."""

    word: str
    count: int
    pieces: tuple[str, ...]

    @property
    def saved(self) -> int:
        """Return how many tokens an entry for the word would save: count * (pieces - 1)."""
        return self.count * (len(self.pieces) - 1)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The words that split, those with the most tokens to save first, and how many are worth an entry."""

    candidates: tuple[Candidate, ...]
    tokens: int
    """Number of tokens in the text at present."""
    worth: int
    """Number of candidates worth an entry: the fewest after which the next `window` save less than `share`."""
    window: int
    share: float

    def saved(self, rows: int) -> int:
        """Return the tokens saved by the first `rows` candidates, if no other word changed."""
        return sum(candidate.saved for candidate in self.candidates[:rows])


@dataclass(frozen=True, kw_only=True)
class NewEntry:
    """A word that became an entry."""

    word: str
    id: int
    pieces: tuple[int, ...]
    """Ids of the word's former pieces: its embedding is initialised as their mean."""
    replaced: str | None
    """The `[unusedN]` that it replaced; None for a new row at the end."""


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A tokenizer with more words; ids of old entries, except replaced ones, are unchanged."""

    tokenizer: Tokenizer
    base_size: int
    """Number of tokens of the original tokenizer, including added ones."""
    entries: tuple[NewEntry, ...]


@dataclass(frozen=True, kw_only=True)
class ChangedWord:
    """A word that is not a new entry but begins with one, and now splits differently."""

    word: str
    count: int
    before: tuple[str, ...]
    after: tuple[str, ...]


def propose(
    tokenizer: Tokenizer,
    words: Mapping[str, int],
    *,
    min_frequency: int = 5,
    window: int = WINDOW,
    share: float = MIN_SHARE,
) -> Proposal:
    """Rank the words of a text by the number of tokens that an entry for each would save.

    Args:
        tokenizer: the tokenizer to extend.
        words: the count of each word, normalised and split as by the tokenizer (`count_words`, `words_of`).
        min_frequency: words that occur less often are not candidates.
        window, share: entries are worth adding while the next `window` save at least `share` of all tokens.

    Unknown words are not candidates: they have no pieces for an initial embedding. Nor are byte-level BPE's chunks
    without a letter or digit. Of Unigram's words, which include punctuation, candidates are those without it, with the
    counts of all forms ("▁word" of "▁word," too). The result depends only on the arguments.
    """
    if min_frequency < 1 or window < 1 or not 0 < share < 1:
        raise UserError(
            f"min_frequency={min_frequency} and window={window} must be at least 1, share={share} between 0 and 1"
        )
    ordered = sorted(words)
    lengths = WordPieces.of(tokenizer, ordered).lengths
    tokens = sum(words[word] * int(length) for word, length in zip(ordered, lengths, strict=True))
    words = _possible_entries(tokenizer, words)
    ordered = sorted(words)
    pieces = WordPieces.of(tokenizer, ordered)
    candidates = [
        Candidate(word=word, count=words[word], pieces=tuple(tokenizer.convert_ids_to_tokens(pieces[index])))
        for index, word in enumerate(ordered)
        if words[word] >= min_frequency and pieces.lengths[index] > 1 and not pieces.unknown[index]
    ]
    probe = _extended(tokenizer, [candidate.word for candidate in candidates], keep_unused=True)
    as_entries = WordPieces.of(probe, [candidate.word for candidate in candidates])
    # A word that changes when it is normalised again would be an entry that never matches.
    candidates = [
        candidate
        for index, candidate in enumerate(candidates)
        if as_entries[index] == probe.convert_tokens_to_ids([entry_of(probe, candidate.word)])
    ]
    candidates.sort(key=lambda candidate: (-candidate.saved, candidate.word))
    return Proposal(
        candidates=tuple(candidates),
        tokens=tokens,
        worth=_worth([candidate.saved for candidate in candidates], tokens * share, window),
        window=window,
        share=share,
    )


def _possible_entries(tokenizer: Tokenizer, words: Mapping[str, int]) -> Mapping[str, int]:
    """Return the words of a text that could be new entries, with their counts."""
    if isinstance(tokenizer, WordPieceTokenizer):
        return words
    entries = tokenizer.vocab
    if not isinstance(tokenizer, UnigramTokenizer):
        return {
            word: count
            for word, count in words.items()
            if any(map(str.isalnum, word)) and entry_of(tokenizer, word) not in entries
        }
    counts: Counter[str] = Counter()
    for word, count in words.items():
        end = len(word)
        while end and not word[end - 1].isalnum() and not _is_mark(word[end - 1]):
            end -= 1
        # An entry may split into other pieces that are more probable together.
        if end > 1 and word[0] == SPACE and word[1].isalnum() and word[:end] not in entries:
            counts[word[:end]] += count
    return counts


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _worth(saved: Sequence[int], minimum: float, window: int) -> int:
    """Return the first index from which `window` entries save less than `minimum`; `saved` is descending."""
    for rows in range(len(saved)):
        if sum(saved[rows : rows + window]) < minimum:
            return rows
    return len(saved)


def extend_vocabulary(tokenizer: Tokenizer, words: Iterable[str], *, keep_unused: bool = False) -> Extension:
    """Add whole words to a tokenizer.

    Args:
        tokenizer: the original tokenizer, which is not changed.
        words: normalised words, in order: the first ones replace the lowest `[unusedN]` entries of WordPiece. Words
            that are entries already are ignored. A word of byte-level BPE begins with its space (" word"), one of
            Unigram with the character that stands for it ("\u2581word").
        keep_unused: append all words instead of replacing `[unusedN]` entries first. Entries that are special tokens of
            the tokenizer are never replaced.

    Raises:
        UserError: a text is not one word to this tokenizer ("COVID-19" is three, in lower case).
    """
    if isinstance(words, str):
        raise TypeError(f"words must be a list of words, not the string {words!r}")
    distinct = list(dict.fromkeys(words))
    if "" in distinct:
        raise _not_one_word(tokenizer, "")
    before = WordPieces.of(tokenizer, distinct)
    ids = tokenizer.vocab
    new = [index for index, word in enumerate(distinct) if entry_of(tokenizer, word) not in ids]
    extended = _extended(tokenizer, [distinct[index] for index in new], keep_unused=keep_unused)
    extended_ids = extended.vocab
    after = WordPieces.of(extended, distinct)
    for index in new:
        if after[index] != [extended_ids[entry_of(tokenizer, distinct[index])]]:
            raise _not_one_word(tokenizer, distinct[index])
    entries = []
    for index in new:
        new_id = extended_ids[entry_of(tokenizer, distinct[index])]
        replaced = tokenizer.convert_ids_to_tokens(new_id) if new_id < len(tokenizer) else None
        entries.append(NewEntry(word=distinct[index], id=new_id, pieces=tuple(before[index]), replaced=replaced))
    return Extension(tokenizer=extended, base_size=len(tokenizer), entries=tuple(entries))


def changed_words(tokenizer: Tokenizer, extension: Extension, words: Mapping[str, int]) -> tuple[ChangedWord, ...]:
    """Return the words of a text that are not new entries but split differently; the most frequent first."""
    added = {entry.word for entry in extension.entries}
    others = [word for word in sorted(words) if word not in added]
    before, after = WordPieces.of(tokenizer, others), WordPieces.of(extension.tokenizer, others)
    changed = [
        ChangedWord(
            word=word,
            count=words[word],
            before=tuple(tokenizer.convert_ids_to_tokens(before[index])),
            after=tuple(extension.tokenizer.convert_ids_to_tokens(after[index])),
        )
        for index, word in enumerate(others)
        if before[index] != after[index]
    ]
    return tuple(sorted(changed, key=lambda change: (-change.count, change.word)))


def extend_for(
    tokenizer: Tokenizer,
    candidates: Sequence[Candidate],
    words: Mapping[str, int],
    *,
    keep_unused: bool = False,
) -> tuple[Extension, tuple[ChangedWord, ...]]:
    """Extend a tokenizer by candidates, except those that would make another word of the text unknown; also return the
    words that split differently.

    A word becomes unknown if the vocabulary lacks a character inside words: the rest after the new entry then has no
    pieces.
    """
    chosen = [candidate.word for candidate in candidates]
    while True:
        extension = extend_vocabulary(tokenizer, chosen, keep_unused=keep_unused)
        changed = changed_words(tokenizer, extension, words)
        unknown = tokenizer.unk_token
        lost = [change.word for change in changed if unknown in change.after and unknown not in change.before]
        harmful = {word for word in chosen if any(other.startswith(word) for other in lost)}
        if not harmful:
            return extension, changed
        logger.warning("omitted, since other words would become unknown: %s", ", ".join(sorted(harmful)))
        chosen = [word for word in chosen if word not in harmful]


def _not_one_word(tokenizer: Tokenizer, word: str) -> UserError:
    actual = ", ".join(map(repr, count_words([word], normalization=words_of(tokenizer)))) or "nothing"
    return UserError(
        f"{word!r} is not one word to this tokenizer, but {actual}; entries are whole words after its normalisation"
    )


def _extended(tokenizer: Tokenizer, words: Sequence[str], *, keep_unused: bool) -> Tokenizer:
    """Return the tokenizer with words in place of `[unusedN]` entries, then at the end."""
    tokens = list(tokenizer.vocab)[: tokenizer.vocab_size]
    recognised = tokenizer.added_tokens_encoder
    replaceable = isinstance(tokenizer, WordPieceTokenizer) and not keep_unused
    free = [i for i, token in enumerate(tokens) if replaceable and is_unused(token)]
    free = [index for index in free if tokens[index] not in recognised]
    for index, word in zip(free, words, strict=False):
        tokens[index] = word
    at_end = words[len(free) :]
    if not at_end:
        return with_vocabulary(tokenizer, tokens)
    return with_words(tokenizer, [*tokens, *_as_entries(tokenizer)], at_end)


def is_unused(token: str) -> bool:
    """Return whether an entry is one of the placeholders of BERT's vocabularies, such as `[unused7]`."""
    return _UNUSED.fullmatch(token) is not None


def _as_entries(tokenizer: Tokenizer) -> list[str]:
    """Return the added tokens after the vocabulary, which become entries to keep their ids when words are appended."""
    added = list(tokenizer.vocab)[tokenizer.vocab_size :]
    for token in added if isinstance(tokenizer, WordPieceTokenizer) else ():
        if token.startswith("##") or list(count_words([token], normalization=words_of(tokenizer))) == [token]:
            raise UserError(
                f"the added token {token!r} is after the vocabulary, where new words are appended, and would become a"
                " word itself; extend the vocabulary first, then add tokens"
            )
    return added
