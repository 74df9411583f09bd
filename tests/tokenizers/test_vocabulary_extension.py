"""Guided extension: what is proposed, where new entries go, and that all other text is tokenized as before."""

import random
from pathlib import Path

import pytest

from fastbert.errors import UserError
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.tokenizers.extension import changed_words, extend_for, extend_vocabulary, propose
from fastbert.tokenizers.word_counts import count_words

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
BASE = [
    *SPECIAL, "[unused0]", "[unused1]", "[unused2]", *LETTERS, *(f"##{letter}" for letter in LETTERS),
    "cell", "cells", "the", "##tion", ".", "-", "中",
]  # fmt: skip


@pytest.fixture
def base() -> WordPieceTokenizer:
    return WordPieceTokenizer(BASE)


def test_words_are_ranked_by_the_tokens_they_cost(base: WordPieceTokenizer) -> None:
    words = {"action": 10, "the": 500, "cd": 20, "ab": 20, "rare": 4, "cellx": 11, "aж": 50, "zzz": 11}
    proposal = propose(base, words, min_frequency=5)
    # Three save as much as each other: the alphabet decides. "the" is an entry, "rare" too rare, "aж" unknown.
    assert [(candidate.word, candidate.pieces, candidate.saved) for candidate in proposal.candidates] == [
        ("zzz", ("z", "##z", "##z"), 22),
        ("ab", ("a", "##b"), 20),
        ("action", ("a", "##c", "##tion"), 20),
        ("cd", ("c", "##d"), 20),
        ("cellx", ("cell", "##x"), 11),
    ]
    assert proposal.tokens == 30 + 500 + 40 + 40 + 16 + 22 + 50 + 33
    assert proposal.saved(2) == 42
    assert propose(base, dict(reversed(words.items())), min_frequency=5) == proposal


def test_auto_stops_at_the_knee(base: WordPieceTokenizer) -> None:
    words = {f"{a}{b}": count for count, (a, b) in zip(range(400, 0, -1), ((a, b) for a in LETTERS for b in LETTERS))}
    proposal = propose(base, words, min_frequency=1, window=10, share=0.01)
    saved = [candidate.saved for candidate in proposal.candidates]
    assert saved == sorted(saved, reverse=True)
    n = proposal.worth
    assert 0 < n < len(saved)
    assert sum(saved[n : n + 10]) < 0.01 * proposal.tokens <= sum(saved[n - 1 : n + 9])
    assert propose(base, words, min_frequency=1, window=10, share=0.5).worth == 0
    assert propose(base, words, min_frequency=1, window=10, share=1e-9).worth == len(saved)


def test_nothing_to_propose(base: WordPieceTokenizer) -> None:
    for words in ({}, {"the": 9}, {"ab": 4}):
        proposal = propose(base, words)
        assert (proposal.candidates, proposal.worth) == ((), 0)
    with pytest.raises(UserError, match="min_frequency=0"):
        propose(base, {}, min_frequency=0)


def test_unused_entries_are_filled_first(base: WordPieceTokenizer) -> None:
    extension = extend_vocabulary(base, ["alpha", "beta", "gamma", "delta", "the", "alpha"])
    assert [(entry.word, entry.id, entry.replaced) for entry in extension.entries] == [
        ("alpha", 5, "[unused0]"),
        ("beta", 6, "[unused1]"),
        ("gamma", 7, "[unused2]"),
        ("delta", len(BASE), None),
    ]
    assert extension.base_size == len(BASE)
    assert extension.tokenizer.vocab_size == len(BASE) + 1
    assert base.convert_ids_to_tokens(list(extension.entries[0].pieces)) == ["a", "##l", "##p", "##h", "##a"]
    unchanged = {token: index for token, index in base.vocab.items() if not token.startswith("[unused")}
    assert unchanged.items() <= extension.tokenizer.vocab.items()
    assert base.vocab_size == len(BASE)


def test_unused_entries_can_be_kept(base: WordPieceTokenizer) -> None:
    extension = extend_vocabulary(base, ["alpha", "beta"], keep_unused=True)
    assert extension.tokenizer.convert_ids_to_tokens(range(len(BASE))) == BASE
    assert [entry.id for entry in extension.entries] == [len(BASE), len(BASE) + 1]


def test_an_unused_entry_in_use_is_never_filled() -> None:
    base = WordPieceTokenizer(BASE, additional_special_tokens=["[unused1]"])
    extension = extend_vocabulary(base, ["alpha", "beta", "gamma"])
    assert [entry.id for entry in extension.entries] == [5, 7, len(BASE)]
    assert extension.tokenizer.tokenize("x[unused1]") == ["x", "[unused1]"]


@pytest.mark.parametrize(
    ("word", "seen"),
    [
        ("COVID-19", "'-', '19', 'covid'"),
        ("two words", "'two', 'words'"),
        ("##ing", "'#', 'ing'"),
        ("Case", "'case'"),
        ("café", "'cafe'"),
        ("[unused0]x", "'[', ']', 'unused0', 'x'"),
        ("中国", "'中', '国'"),
        ("x" * 101, "nothing"),
        ("", "nothing"),
        (" ", "nothing"),
    ],
)
def test_what_is_not_one_word_is_refused(base: WordPieceTokenizer, word: str, seen: str) -> None:
    with pytest.raises(UserError) as error:
        extend_vocabulary(base, ["alpha", word])
    assert repr(word) in str(error.value)
    assert f"is not one word to this tokenizer, but {seen};" in str(error.value)


def test_a_string_is_no_list_of_words(base: WordPieceTokenizer) -> None:
    with pytest.raises(TypeError, match="'alpha'"):
        extend_vocabulary(base, "alpha")


def test_a_word_is_one_token_wherever_it_stands(base: WordPieceTokenizer) -> None:
    extension = extend_vocabulary(base, ["alpha", "beta"])
    text = "Alpha-BETA.the ALPHA\u0301 alphabet"
    expected = ["alpha", "-", "beta", ".", "the", "alpha", "alpha", "##b", "##e", "##t"]
    assert extension.tokenizer.tokenize(text) == expected


def test_text_without_the_new_words_is_as_before(seed: int) -> None:
    """Words that begin with no new entry keep their tokens; the others are those that are reported."""
    rng = random.Random(seed)
    base = WordPieceTokenizer([*BASE, *(f"{a}{b}" for a in "abc" for b in "abc"), *(f"##{a}b" for a in "abc")])
    words = ["".join(rng.choice("abc") for _ in range(rng.randint(1, 7))) for _ in range(3000)]
    counts = count_words(words)
    new = [word for word in rng.sample(sorted(counts), 40) if word not in base.vocab]
    extension = extend_vocabulary(base, new)
    changed = {change.word: change for change in changed_words(base, extension, counts)}
    assert changed
    for word, count in counts.items():
        before, after = base.tokenize(word), extension.tokenizer.tokenize(word)
        if word in new:
            assert after == [word]
        elif not word.startswith(tuple(new)):
            assert after == before
        assert (word in changed) == (before != after and word not in new)
        if word in changed:
            assert (changed[word].count, changed[word].before, changed[word].after) == (count, (*before,), (*after,))


def test_words_that_make_others_unknown_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    # ##c is missing, so "abcd" is a ##bcd today, and behind a new entry "ab" would have no pieces.
    base = WordPieceTokenizer([*SPECIAL, "a", "##b", "##bcd", "x", "##y"])
    words = {"ab": 50, "abcd": 9, "xy": 30}
    proposal = propose(base, words)
    assert [candidate.word for candidate in proposal.candidates] == ["ab", "xy", "abcd"]
    extension, changed = extend_for(base, proposal.candidates[:2], words)
    assert [entry.word for entry in extension.entries] == ["xy"]
    assert changed == ()
    assert "other words would become unknown: ab" in caplog.text


def test_a_word_that_is_normalised_once_more_is_no_candidate() -> None:
    base = WordPieceTokenizer([*SPECIAL, "a", "##b"])
    assert [candidate.word for candidate in propose(base, {"ab": 9, "AB": 9}).candidates] == ["ab"]


def test_saved_and_loaded_again(base: WordPieceTokenizer, tmp_path: Path) -> None:
    extension = extend_vocabulary(base, ["alpha", "delta", "gamma", "beta"])
    extension.tokenizer.save_pretrained(tmp_path)
    again = WordPieceTokenizer.from_pretrained(tmp_path)
    assert again.fingerprint == extension.tokenizer.fingerprint
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "the alpha of beta-gamma, deltas [unused0]."
    assert theirs.tokenize(text) == again.tokenize(text)


def test_a_released_vocabulary_for_real_text(data_dir: Path, released_vocab) -> None:
    """A German text for the English vocabulary: what the chosen words save is what was proposed."""
    import tarfile

    with tarfile.open(data_dir / "multilingual" / "ntrex.tar.xz") as archive:
        member = archive.extractfile("ntrex/deu.txt")
        assert member is not None
        lines = member.read().decode().splitlines()
    base = WordPieceTokenizer(released_vocab("bert-base-uncased"))
    words = count_words(lines)
    proposal = propose(base, words)
    assert proposal.tokens == len(base.encode_ragged(lines)[0])
    assert 0 < proposal.worth <= len(proposal.candidates)
    extension, changed = extend_for(base, proposal.candidates[: proposal.worth], words)
    others = sum(change.count * (len(change.before) - len(change.after)) for change in changed)
    tokens = len(extension.tokenizer.encode_ragged(lines)[0])
    assert tokens == proposal.tokens - proposal.saved(proposal.worth) - others
    assert extension.tokenizer.vocab_size == base.vocab_size  # fewer words than [unusedN]
