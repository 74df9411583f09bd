"""Guided vocabulary extension: which words of a domain split most, how many are worth an entry, and the new tokenizer.

Old entries keep their ids. New words take the place of `[unusedN]` entries first, so that the model's embedding need
not grow, then go to the end. `fastbert.models.vocabulary_extension` gives the model its new rows.

A word that is an entry is one token. A longer word that begins with it may split in another way than before ("angio"
changes "angiogram"), since WordPiece takes the longest entry first; every other word is tokenized as before.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fastbert.errors import UserError
from fastbert.tokenizers.coverage import WordPieces, with_vocabulary
from fastbert.tokenizers.word_counts import Normalization, count_words
from fastbert.tokenizers.wordpiece import WordPieceTokenizer

logger = logging.getLogger("fastbert")

_UNUSED = re.compile(r"\[unused\d+\]")
# Rows are worth their memory and their training while the next hundred of them save a thousandth of the tokens.
WINDOW = 100
WORTH = 0.001


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A word that splits."""

    word: str
    count: int
    pieces: tuple[str, ...]

    @property
    def saved(self) -> int:
        """Tokens that the text would have less if the word were one: count * (pieces - 1)."""
        return self.count * (len(self.pieces) - 1)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The words that split, those that cost most tokens first, and how many are worth an entry."""

    candidates: tuple[Candidate, ...]
    tokens: int
    """Tokens of the text as it is tokenized now."""
    worth: int
    """The first so many are worth an entry: the fewest after which the next `window` save less than `share`."""
    window: int
    share: float

    def saved(self, rows: int) -> int:
        """Tokens saved by the first `rows` candidates, if no other word changed."""
        return sum(candidate.saved for candidate in self.candidates[:rows])


@dataclass(frozen=True, kw_only=True)
class NewEntry:
    """A word that became an entry."""

    word: str
    id: int
    pieces: tuple[int, ...]
    """Ids of what the word was before: its embedding begins as the mean of theirs."""
    replaced: str | None
    """The `[unusedN]` whose place it took; None for a new row at the end."""


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A tokenizer with more words; ids of old entries, but for replaced ones, are as before."""

    tokenizer: WordPieceTokenizer
    base_size: int
    """Tokens of the tokenizer that was extended, added ones included."""
    entries: tuple[NewEntry, ...]


@dataclass(frozen=True, kw_only=True)
class ChangedWord:
    """A word that is no new entry but begins with one, and splits in another way than before."""

    word: str
    count: int
    before: tuple[str, ...]
    after: tuple[str, ...]


def propose(
    tokenizer: WordPieceTokenizer,
    words: Mapping[str, int],
    *,
    min_frequency: int = 5,
    window: int = WINDOW,
    share: float = WORTH,
) -> Proposal:
    """Rank the words of a text by the tokens that an entry of their own would save.

    Args:
        tokenizer: the one to extend.
        words: how often each normalised word occurs, counted with the tokenizer's own normalisation (`count_words`).
        min_frequency: words that occur less often are no candidates.
        window, share: entries are worth adding while the next `window` save at least `share` of all tokens.

    Unknown words are no candidates: they have no pieces to begin from. The result is a function of the arguments alone.
    """
    if min_frequency < 1 or window < 1 or not 0 < share < 1:
        raise UserError(
            f"min_frequency={min_frequency} and window={window} must be at least 1, share={share} between 0 and 1"
        )
    ordered = sorted(words)
    pieces = WordPieces.of(tokenizer, ordered)
    tokens = sum(words[word] * int(length) for word, length in zip(ordered, pieces.lengths, strict=True))
    found = [
        Candidate(word=word, count=words[word], pieces=tuple(tokenizer.convert_ids_to_tokens(pieces[index])))
        for index, word in enumerate(ordered)
        if words[word] >= min_frequency and pieces.lengths[index] > 1 and not pieces.unknown[index]
    ]
    probe = _extended(tokenizer, [candidate.word for candidate in found], keep_unused=True)
    as_entries = WordPieces.of(probe, [candidate.word for candidate in found])
    # A word whose text is normalised once more into something else would be an entry that is never found.
    found = [
        candidate
        for index, candidate in enumerate(found)
        if as_entries[index] == probe.convert_tokens_to_ids([candidate.word])
    ]
    found.sort(key=lambda candidate: (-candidate.saved, candidate.word))
    return Proposal(
        candidates=tuple(found),
        tokens=tokens,
        worth=_worth([candidate.saved for candidate in found], tokens * share, window),
        window=window,
        share=share,
    )


def _worth(saved: Sequence[int], least: float, window: int) -> int:
    """The first place from which `window` entries save less than `least`; `saved` falls."""
    for rows in range(len(saved)):
        if sum(saved[rows : rows + window]) < least:
            return rows
    return len(saved)


def extend_vocabulary(tokenizer: WordPieceTokenizer, words: Iterable[str], *, keep_unused: bool = False) -> Extension:
    """Add whole words to a tokenizer.

    Args:
        tokenizer: stays as it is; the extended one is new.
        words: normalised words, in order: the first take the lowest free places. Those that are entries already are
            left out.
        keep_unused: append all to the end, in place of filling `[unusedN]` entries first. Those that the tokenizer
            counts among its special tokens are never filled.

    Raises:
        UserError: something is not one word to this tokenizer ("COVID-19" is three, and in lower case).
    """
    if isinstance(words, str):
        raise TypeError(f"words must be a list of words, not the string {words!r}")
    given = list(dict.fromkeys(words))
    if "" in given:
        raise _not_one_word(tokenizer, "")
    before = WordPieces.of(tokenizer, given)
    ids = tokenizer.vocab
    new = [index for index, word in enumerate(given) if word not in ids]
    extended = _extended(tokenizer, [given[index] for index in new], keep_unused=keep_unused)
    extended_ids = extended.vocab
    after = WordPieces.of(extended, given)
    for index in new:
        if after[index] != [extended_ids[given[index]]]:
            raise _not_one_word(tokenizer, given[index])
    entries = []
    for index in new:
        place = extended_ids[given[index]]
        replaced = tokenizer.convert_ids_to_tokens(place) if place < len(tokenizer) else None
        entries.append(NewEntry(word=given[index], id=place, pieces=tuple(before[index]), replaced=replaced))
    return Extension(tokenizer=extended, base_size=len(tokenizer), entries=tuple(entries))


def changed_words(
    tokenizer: WordPieceTokenizer, extension: Extension, words: Mapping[str, int]
) -> tuple[ChangedWord, ...]:
    """The words of a text that are no new entries and yet split in another way; the most frequent first."""
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
    tokenizer: WordPieceTokenizer,
    candidates: Sequence[Candidate],
    words: Mapping[str, int],
    *,
    keep_unused: bool = False,
) -> tuple[Extension, tuple[ChangedWord, ...]]:
    """Extend by candidates, but for those that would make another word of the text unknown; and what else changes.

    That happens where a vocabulary lacks a character in the middle of words: the rest behind the new entry then has no
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
        logger.warning("left out, since other words would become unknown: %s", ", ".join(sorted(harmful)))
        chosen = [word for word in chosen if word not in harmful]


def _not_one_word(tokenizer: WordPieceTokenizer, word: str) -> UserError:
    seen = ", ".join(map(repr, count_words([word], normalization=Normalization.of(tokenizer)))) or "nothing"
    return UserError(
        f"{word!r} is not one word to this tokenizer, which sees {seen}; entries are whole words as its normalisation"
        " leaves them"
    )


def _extended(tokenizer: WordPieceTokenizer, words: Sequence[str], *, keep_unused: bool) -> WordPieceTokenizer:
    """The tokenizer with words in the places of `[unusedN]` entries, then at the end."""
    tokens = list(tokenizer.vocab)[: tokenizer.vocab_size]
    recognised = tokenizer.added_tokens_encoder
    free = [] if keep_unused else [i for i, token in enumerate(tokens) if _UNUSED.fullmatch(token)]
    free = [index for index in free if tokens[index] not in recognised]
    for index, word in zip(free, words, strict=False):
        tokens[index] = word
    at_end = words[len(free) :]
    if at_end:
        tokens += _as_entries(tokenizer)
    return with_vocabulary(tokenizer, [*tokens, *at_end])


def _as_entries(tokenizer: WordPieceTokenizer) -> list[str]:
    """The added tokens behind the vocabulary, which keep their ids as entries of it when words go to its end."""
    behind = list(tokenizer.vocab)[tokenizer.vocab_size :]
    for token in behind:
        if token.startswith("##") or list(count_words([token], normalization=Normalization.of(tokenizer))) == [token]:
            raise UserError(
                f"the added token {token!r} stands behind the vocabulary, where new words go, and would become a word"
                " itself; extend the vocabulary first, then add tokens"
            )
    return behind
