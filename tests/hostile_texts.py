"""Text that tokenizers get wrong: every kind of boundary at every offset of the blocks and windows of a scan.

The core reads text in blocks of 64 bytes and windows of 4,096, caches chunks of up to 15 and 63 bytes, and lays short
texts side by side: the generator puts contractions, white space, long words and characters of several bytes across all
of these.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

# What stands at a boundary.
PARTS = [
    "the", "The", "hello", "World", "don't", "we'll", "they're", "I've", "x'y", "'s", "'S", "'", "''", "``", "'l",
    "'ll", "'re", "'r", "'v", "'ve", "'m", "'d", "'t", "n't", "o'clock", "s'", "''s", "' s", " 's", "\u2019s", "1's",
    ".'s", "é's", " ", "  ", "   ", "      ", "\n", "\n\n", "\t", "\r\n", "\r", " \n", "\n ", "\t ", "\x0b", "\x0c",
    "\x1c", "\x85", "\xa0", " \xa0", "\u1680", "\u2003", "\u2028", "\u3000", "\u200b", "\ufeff", "\u2060", "\u180e",
    "\u00ad", "\u200d", "\u200c", "é", "e\u0301", "É", "ñ", "n\u0303", "ß", "ẞ", "İ", "i\u0307", "ı", "ΑΣ", "ΑΣ ",
    "ς", "ǆ", "ﬁ", "ﬃ", "①", "½", "²", "Ⅷ", "㍿", "ｶﾞ", "が", "か\u3099", "Å", "\u212b", "A\u030a", "\u1e9b\u0323",
    "\u0344", "\u0301", "\u0301\u0327", "\u0345", "a\u0327\u0301", "\U0001d15e", "\U0001d165", "q\u0307\u0323",
    "\ud7a3", "\u1100\u1161\u11a8", "가\u11a8", "한국", "한국어", "中文", "日本語", "中 文", "。", "，", "！", "ไทย",
    "เก่ง", "க்ஷி", "क्षि", "नमस्ते", "العربية", "ﷺ", "لا", "עברית", "שָׁ", "\U00011300", "\u0b4d", "😀",
    "👨\u200d👩\u200d👧", "🇩🇪", "🇩", "👍🏽", "\u2764\ufe0f", "\U0001d400", "\U000e0041", "\U0010ffff", "\ufffd",
    "\ufffe", "\ue000", "\x00", "\x07", "\x1b", "\x7f", "\x80", "0", "1", "12", "123", "1234567", "1,000.50", "٣",
    "२", ".", ",", "!", "!!", "?!", "...", "…", "-", "--", "_", "__", "—", "(", ")", '"', "#", "##", "@", "&amp;",
    "http://a.b/c?d=e", "a@b.c", "<s>", "</s>", "<mask>", " <mask>", "<mask> ", "<pad>", "<unk>", "[MASK]", "[CLS]",
    "[SEP]", "[sep]", "[mask]", "<|endoftext|>", "<MASK>", "<mask", "mask>", "|||IP_ADDRESS|||", "▁", "▁▁", " ▁",
    "▁ ", "Ġ", "<0x41>", "abc", "ABC", "aBc", "naïve", "Straße", "supercalifragilisticexpialidocious",
    "aaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaa", "ab" * 31, "ab" * 32, "a" * 63, "é" * 31, "é" * 32, "中" * 21, "1" * 63,
    "!" * 64, " " * 63,
]  # fmt: skip
# What is repeated to reach an offset.
FILLERS = [
    "a", "ab ", "the cat sat ", "é", "中", "한 ", "😀", " ", "  a", "\n", "1", "12 ", "!", "!? ", "a.b", "x's ",
    "\u3000", "\u00a0", "e\u0301", "A", "ab\t", "word word\n", "ΑΣ ", "'", "ﬁ ", "▁", "aaaaaaaaaaaaaaa ", "\x00",
    "\u0301", "क्षि ",
]  # fmt: skip
RANGES = [
    (0x20, 0x7F), (0x00, 0xA0), (0xA0, 0x250), (0x2B0, 0x400), (0x400, 0x530), (0x590, 0x700), (0x900, 0xE00),
    (0xE00, 0x1200), (0x1AB0, 0x1B00), (0x1DC0, 0x2070), (0x2000, 0x2070), (0x20D0, 0x2100), (0x2100, 0x2400),
    (0x3000, 0x3400), (0x4E00, 0xA000), (0xAC00, 0xD7A4), (0xE000, 0x11000), (0xF900, 0x10000), (0x10000, 0x12000),
    (0x16A00, 0x16F00), (0x1D100, 0x1D800), (0x1E000, 0x1F000), (0x1F000, 0x1FB00), (0x2F800, 0x2FA20),
    (0xE0000, 0xE01F0),
]  # fmt: skip
BOUNDARIES = [15, 16, 63, 64, 128, 1024, 4032, 4096, 8192]
MAX_SHIFT = 12


def character(rng: random.Random) -> str:
    """Draw a character of some block of Unicode."""
    low, high = rng.choice(RANGES)
    point = rng.randrange(low, high)
    return chr(point if not 0xD800 <= point < 0xE000 else 0xFFFD)


def mixture(rng: random.Random, parts: list[str], count: int) -> str:
    """Draw parts side by side, with some characters of any kind, and some spaces between them."""
    drawn = []
    for _ in range(count):
        kind = rng.random()
        if kind < 0.7:
            drawn.append(rng.choice(parts))
        elif kind < 0.85:
            drawn.append(character(rng))
        elif kind < 0.97:
            drawn.append(" ")
        else:
            drawn.append(rng.choice(parts)[:4] * rng.randint(2, 20))
    return "".join(drawn)


def filled(rng: random.Random, filler: str, size: int) -> str:
    """Repeat a text up to some number of bytes, with ASCII where it does not fit."""
    text = filler * (size // len(filler.encode()))
    return text + rng.choice("ab 1!'") * (size - len(text.encode()))


def at_boundary(rng: random.Random, parts: list[str], boundary: int | None = None) -> str:
    """Draw a text in which a few parts lie across an offset at which a block, a window or a kind of chunk ends."""
    boundary = boundary or rng.choice(BOUNDARIES)
    before = boundary - rng.randint(0, MAX_SHIFT)
    text = filled(rng, rng.choice(FILLERS), before) + mixture(rng, parts, rng.randint(1, 5))
    return text + (rng.choice(FILLERS) * rng.randint(0, 70) if rng.random() < 0.7 else "")


def hostile_text(rng: random.Random, parts: list[str] = PARTS, *, long: float = 0.03) -> str:
    """Draw a text; a share of `long` of them is longer than a thousand bytes."""
    kind = rng.random()
    if kind < long:
        return at_boundary(rng, parts, rng.choice(BOUNDARIES[5:]))
    if kind < long + 0.1:
        return at_boundary(rng, parts, rng.choice(BOUNDARIES[:5]))
    if kind < long + 0.13:
        return rng.choice(FILLERS) * rng.randint(0, 130)
    return mixture(rng, parts, rng.choice([0, 1, 1, 2, 3, 5, 8, 20]))


def hostile_texts(rng: random.Random, count: int, parts: list[str] = PARTS, *, long: float = 0.03) -> list[str]:
    """Draw texts."""
    return [hostile_text(rng, parts, long=long) for _ in range(count)]


def every_offset(parts: list[str] = PARTS) -> Iterator[str]:
    """Yield each part at each of the offsets around the end of a block, and pairs of parts there."""
    for index, part in enumerate(parts):
        other = parts[(index * 7 + 3) % len(parts)]
        for shift in range(MAX_SHIFT):
            filler = FILLERS[(index + shift) % len(FILLERS)]
            text = filler * ((64 - shift) // len(filler.encode()))
            yield text + "a" * (64 - shift - len(text.encode())) + part + other
