"""Texts designed to be slow: seeded, of any size, one generator per possible weakness of a tokenizer."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

MIXTURE_SEED = 20_260
BYTE_LEVEL_SPACE, PIECE_SPACE = "\u0120", "\u2581"
LETTERS = string.ascii_lowercase
MARKS = "".join(map(chr, [*range(0x300, 0x346), 0x591, 0x64B, 0x93C, 0x302E, 0x3099, 0x1D165, 0x20D0]))
HAN = "".join(map(chr, range(0x4E00, 0x9FA6)))
HANGUL = "".join(map(chr, range(0xAC00, 0xD7A4)))
DELETED = "\x00\x01\x1f\x7f\x85\xad\u200b\u200d\u2060\ufeff\ufffd\ue000"
SPACES = " \t\n\r\xa0\u2003\u2028\u3000"
SCRIPTS = f"{LETTERS}äöüéñßабвгдежзиёαβγδεάή" + "אבגדהابتثجकखगघिกขคงあいうアイ中文字한국어"
PEOPLE = "👨👩👧👦🏳️🧑❤"
ASTRAL = "".join(map(chr, range(0x1D400, 0x1D455)))
CASED = "ÀÉÎÕÜÇŠŽİẞΆΏЁЙ" + string.ascii_uppercase

Rng = np.random.Generator
Generator = Callable[[Rng, int, Sequence[str]], str]


def draw(rng: Rng, characters: str, count: int) -> str:
    """Draw `count` characters from a string."""
    points = np.array([ord(character) for character in characters], "<u4")
    return points[rng.integers(len(points), size=count)].tobytes().decode("utf-32-le")


def draw_words(rng: Rng, characters: str, size: int, mean: float) -> str:
    """Draw about `size` characters of random words with geometric lengths."""
    text = np.frombuffer(draw(rng, characters, size).encode("utf-32-le"), "<u4").copy()
    text[rng.random(size) < 1 / (mean + 1)] = ord(" ")
    return text.tobytes().decode("utf-32-le")


def _repeat(unit: str) -> Generator:
    return lambda rng, size, vocab: unit * (size // len(unit.encode()) + 1)


def _random(characters: str) -> Generator:
    return lambda rng, size, vocab: draw(rng, characters, size)


def _words(characters: str, mean: float) -> Generator:
    return lambda rng, size, vocab: draw_words(rng, characters, size, mean)


def _pick(units: Sequence[str], separator: str = "") -> Generator:
    """Return a generator of random units that fill the size."""

    def generate(rng: Rng, size: int, vocab: Sequence[str]) -> str:
        mean = sum(len((unit + separator).encode()) for unit in units) / len(units)
        indices = rng.integers(len(units), size=int(size / mean) + 1)
        return separator.join([units[index] for index in indices])

    return generate


def _prefix_words(rng: Rng, size: int, vocab: Sequence[str]) -> str:
    """Generate words that start like one entry of the vocabulary and continue like another: long matches that fail
    late."""
    entries = [token.removeprefix("##") for token in vocab if token.removeprefix("##").isalpha()]
    pairs = rng.integers(len(entries), size=(size // 8 + 1, 2))
    return " ".join([f"{entries[first]}{entries[second][:-1]}" for first, second in pairs.tolist()])


def _late_failures(rng: Rng, size: int, vocab: Sequence[str]) -> str:
    """Generate chains of continuing pieces of up to 99 characters, ended by a character that no vocabulary has."""
    pieces = [token[2:] for token in vocab if token.startswith("##") and token[2:].isalpha()] or ["a"]
    words = []
    for _ in range(size // 100 + 1):
        chain = "".join([pieces[index] for index in rng.integers(len(pieces), size=60)])
        words.append(chain[:98] + "\U00010348")
    return " ".join(words)


def _joined_pieces(rng: Rng, size: int, vocab: Sequence[str]) -> str:
    """Generate one word of random pieces, in which many overlap."""
    pieces = [token.removeprefix("##") for token in vocab if token.removeprefix("##").isalpha()] or ["a"]
    return "".join([pieces[index] for index in rng.integers(len(pieces), size=size // 4 + 1)])


def _numbered(rng: Rng, size: int, vocab: Sequence[str]) -> str:
    """Generate words that are all different, so that no cache of words helps."""
    start = int(rng.integers(1 << 40))
    return " ".join([f"{LETTERS[index % 26]}{start + index * 7919:x}" for index in range(size // 12 + 1)])


def _same_length(rng: Rng, size: int, vocab: Sequence[str]) -> str:
    """Generate different words of 15, 16 and 17 letters, around the size of a cache's key."""
    letters = draw(rng, LETTERS, size)
    lengths = rng.integers(15, 18, size=size // 16 + 1).cumsum().tolist()
    return " ".join([letters[begin:end] for begin, end in zip([0, *lengths], lengths)])


def _marked_letters(rng: Rng, size: int, vocab: Sequence[str]) -> str:
    """Generate letters with tens of combining marks in the wrong order."""
    marks = draw(rng, MARKS, size)
    return "".join([f"{LETTERS[index % 26]}{marks[index * 30 : index * 30 + 30]}" for index in range(size // 60 + 1)])


def _deleted_between(rng: Rng, size: int, vocab: Sequence[str]) -> str:
    """Generate letters separated by characters that are deleted, which joins them."""
    letters, deleted = draw(rng, LETTERS + "  ", size // 3 + 1), draw(rng, DELETED, size // 3 + 1)
    return "".join([letter + mark for letter, mark in zip(letters, deleted)])


def _families(rng: Rng, size: int, vocab: Sequence[str]) -> str:
    """Generate emoji joined by zero-width joiners."""
    return "\u200d".join(draw(rng, PEOPLE, size // 6 + 1))


KINDS: dict[str, Generator] = {
    "one letter": _repeat("a"),
    "99 letters and a space": _repeat("a" * 99 + " "),
    "101 letters and a space": _repeat("a" * 101 + " "),
    "one word of random letters": _random(LETTERS),
    "random words": _words(LETTERS, 6),
    "long random words": _words(LETTERS, 60),
    "different numbers": _numbered,
    "words of 15 to 17 letters": _same_length,
    "beginnings of words": _prefix_words,
    "failing at the last character": _late_failures,
    "unknown words": _words("\u0f00\u0f40\u0f41\U00010348\u0f42", 8),
    "combining marks alone": _random(MARKS),
    "letters under many marks": _marked_letters,
    "beginnings of special tokens": _pick(["[SE", "[MAS", "[", "[CL", "[UN", "]", "[PA", "[[SEP"]),
    "special tokens": _pick(["[SEP]", "[MASK]", "[CLS]", "[UNK]x", "[PAD] "]),
    "number signs": _repeat("##"),
    "punctuation": _random(string.punctuation),
    "white space": _random(SPACES),
    "deleted characters": _random(DELETED),
    "deleted between letters": _deleted_between,
    "capitals with accents": _words(CASED, 7),
    "Chinese": _random(HAN),
    "Hangul": _words(HANGUL, 4),
    "mixed scripts": _words(SCRIPTS, 5),
    "mathematical letters": _words(ASTRAL, 6),
    "emoji families": _families,
}


# Weaknesses of byte-level BPE and of Unigram, in addition to the kinds above.
PIECE_KINDS: dict[str, Generator] = {
    **KINDS,
    "one space": _repeat(" "),
    "runs of spaces": _words("  \n\t a", 3),
    "digits": _random(string.digits),
    "contractions": _pick(["'s", "'t", "'re", "'ll", "'", "''ve", " 'm", "'S"]),
    "two letters": _random("ab"),
    "pieces without spaces": _joined_pieces,
    "letters of another alphabet": _random("абвгдежзиклмнопрстуфхцчшщыэюя"),
    "composed and decomposed": _pick(
        ["é", "e\u0301", "Å", "\u212b", "か\u3099", "が", "ậ", "a\u0323\u0302", "\u1100\u1161\u11a8"]
    ),
    "characters that expand": _pick(["\ufdfa", "\ufb03", "\u3300", "\u33ff", "\u2167", "\u00bd", "\uff21", "\u1d2c"]),
    "spaces of the pieces": _pick(["\u2581", "\u2581\u2581", "a\u2581", " \u2581 ", "\u0120", "\u0120a"]),
    "special tokens of pieces": _pick(
        ["<s>", "</s>", "<mask>", "<pad>", "<unk>", "<|endoftext|>", "<", "<ma", "|||", " <mask> "]
    ),
}


def read_tokens(path: Path) -> list[str]:
    """Return the tokens of a vocab.txt, or those of a folder's tokenizer.json spelled as in a vocab.txt: pieces that do
    not begin a word with ## before them."""
    if not path.is_dir():
        return path.read_text(encoding="utf-8").split("\n")
    vocab = json.loads((path / "tokenizer.json").read_bytes())["model"]["vocab"]
    pieces = vocab if isinstance(vocab, dict) else [piece for piece, _ in vocab]
    # Bytes beyond ASCII stand for parts of characters in byte-level pieces.
    readable = [piece for piece in pieces if not isinstance(vocab, dict) or piece.lstrip(BYTE_LEVEL_SPACE).isascii()]
    return [piece[1:] if piece[:1] in (BYTE_LEVEL_SPACE, PIECE_SPACE) else f"##{piece}" for piece in readable if piece]


def hostile_text(kind: str, size: int, seed: int, vocab: Sequence[str]) -> str:
    """Return a text of one kind, at most `size` bytes long and seldom much shorter; the same for the same arguments."""
    rng = np.random.default_rng([seed, list(PIECE_KINDS).index(kind)])
    # Generators count in characters or bytes, whichever is easier; with tiny vocabularies some fall short.
    text = PIECE_KINDS[kind](rng, size, vocab).encode()
    return (text * -(-size // len(text)))[:size].decode(errors="ignore")


def hostile_mixture(vocab: Path, size: int) -> list[str]:
    """Return texts of all kinds in equal parts, `size` bytes in total."""
    tokens = read_tokens(vocab)
    share = size // len(KINDS)
    piece = min(share, 2000)
    return [
        hostile_text(kind, piece, MIXTURE_SEED + index, tokens) for kind in KINDS for index in range(share // piece)
    ]
