"""Small WordPiece vocabularies, hostile texts and calls of a tokenizer, drawn at random."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
RANGES = [
    (0x20, 0x7F), (0x00, 0xA0), (0xA0, 0x250), (0x2B0, 0x400), (0x400, 0x530), (0x590, 0x700), (0x900, 0xE00),
    (0x1AB0, 0x1B00), (0x1DC0, 0x2070), (0x20D0, 0x2100), (0x2E00, 0x3100), (0x3400, 0x3410), (0x9FF0, 0xA000),
    (0xA640, 0xA800), (0xAC00, 0xAC40), (0xF900, 0xFAFF), (0xFB00, 0xFFFE), (0x10A00, 0x10A60), (0x11000, 0x11A00),
    (0x16A00, 0x16F00), (0x1D15E, 0x1D1AE), (0x1E000, 0x1E950), (0x1F300, 0x1F600), (0x2B810, 0x2B930),
    (0x2F800, 0x2FA20), (0xE0000, 0xE01F0), (0xF0000, 0xF0010), (0x10FFF0, 0x110000),
]  # fmt: skip
MARKS = [*range(0x300, 0x346), 0x483, 0x591, 0x64B, 0x93C, 0x94D, 0x1134D, 0x302A, 0x302E, 0x3099, 0x1D165, 0x1D16D]
MARKS += [
    0x20D0,
    0x8D4,
    0x898,
    0x1AB0,
    0x1B44,
    0x1BAA,
    0x1733,
    0x1734,
    0xFE0F,
    0x200D,
    0xAD,
    0x1E94A,
    0xA953,
    0x93E,
]
HOSTILE_WORDS = [
    *SPECIAL_TOKENS, "[sep]", "[MASK", "MASK]", "[[MASK]]", "[SEP]]", "[unused1]", "##able", "hello", "World",
    "unaffable", "café", "cafe\u0301", "Straße", "İstanbul", "ΑΣ", "한국", "中国", "\u2028", "\x85", "\u3000",
    "THE", "\ufeff", " ", "  ", "\t", "\n", "\r\n", "a" * 99, "a" * 100, "a" * 101, "é" * 100, "\u0301" * 120,
    "ab" * 60, "\ufffd",
]  # fmt: skip
WORDS = [
    "hello", "world", "the", "unaffable", "cafe", "café", "cafe\u0301", "İstanbul", "Straße", "中国", "日本a",
    "한국", "abc", "abcd.", "don't", "hello,world", "un-able", "[MASK]", "[SEP]", "foo[SEP]bar", "[CLS][PAD]",
    "[mask]", "##able", "a", "b", "c", "1984", "xyz!?", "\U0001d165\u302e", "ﬁ",
]  # fmt: skip
BLANKS = ["", " ", "\t\n ", "\u3000", "\x00", "\ufeff", "\u0301", "\xad \x85", "[SEP]", " [PAD] "]


def small_vocabulary() -> list[str]:
    """Words and pieces over several scripts, so that whole words, pieces and unknown words all occur."""
    ascii_marks = [chr(point) for point in range(33, 127)]
    letters = "abcdefghijklmnopqrstuvwxyzßøπσωабвгдеж가나ابتकखग中国日本𠀀𝒳"
    marks = "\u0300\u0301\u0307\u0308\u0327\u0345\u302e\U0001d165\u093e\u0ccb\u1100\u1161\u11a8\ufe0f\u20e0"
    words = ["hello", "world", "the", "un", "aff", "able", "cafe", "naive", "straße", "한국", "i̇", "ab", "abc", "abcd"]
    pieces = [*letters, *marks, "able", "aff", "ing", "bc", "lo", "ré", "é", "İ", "A", "B", "İst"]
    return list(dict.fromkeys([*SPECIAL_TOKENS, *ascii_marks, *letters, *words, *(f"##{piece}" for piece in pieces)]))


def hostile_text(rng: random.Random) -> str:
    """Draw a text that mixes everything in which tokenizers are known to differ."""
    parts = []
    for _ in range(rng.randint(0, 12)):
        kind = rng.random()
        if kind < 0.35:
            parts.append(rng.choice(HOSTILE_WORDS))
        elif kind < 0.55:
            parts.append("".join(chr(rng.choice(MARKS)) for _ in range(rng.randint(1, 6))))
        elif kind < 0.65:
            parts.append(" ")
        else:
            low, high = rng.choice(RANGES)
            parts.append("".join(chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 5))))
    return "".join(parts)


class Call(NamedTuple):
    """What a tokenizer is called with: `tokenizer(text, pair, **options)`."""

    text: Any
    pair: Any
    options: dict[str, Any]

    def of(self, tokenizer: Any) -> Any:
        """The result, or the exception: the reference has some that are no `Exception`."""
        try:
            return tokenizer(self.text, self.pair, **self.options)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # noqa: BLE001  # a Rust panic is a bare BaseException
            return error

    def __str__(self) -> str:
        arguments = [ascii(self.text), *([ascii(self.pair)] if self.pair is not None else [])]
        return f"tokenizer({', '.join([*arguments, *(f'{key}={value!r}' for key, value in self.options.items())])})"


def draw_text(rng: random.Random) -> str:
    """Draw a text of any kind: words, several scripts, special tokens, hostile, blank, words about the length limit."""
    kind = rng.random()
    if kind < 0.08:
        return rng.choice(BLANKS)
    if kind < 0.25:
        return hostile_text(rng)
    if kind < 0.28:
        return rng.choice(["a", "é", "e\u0301", "b", "ab"]) * rng.randint(99, 101) + rng.choice(["", " c", "!"])
    return rng.choice([" ", " ", "  ", "\n"]).join(rng.choices(WORDS, k=rng.randint(1, 10)))


def draw_words(rng: random.Random) -> list[str]:
    """Draw words of a text that is split already."""
    odd = ["", " ", "a b", "[SEP]", "x[MASK]y", "[CLS] z", "hello world", "e\u0301", "中国", "\x00"]
    return [
        rng.choice(odd) if rng.random() < 0.3 else draw_text(rng) if rng.random() < 0.1 else rng.choice("abc")
        for _ in range(rng.choice([0, 1, 2, 3, 5, 8]))
    ]


def shorten(texts: Any) -> Any:
    """Return the beginnings of texts."""
    return texts[:30] if isinstance(texts, str) else [shorten(text) for text in texts[:6]]


def draw_lengths(rng: random.Random, options: dict[str, Any]) -> None:
    """Draw the options of lengths."""
    if rng.random() < 0.8:
        small = rng.randint(0, 5) if rng.random() < 0.15 else rng.randint(5, 20)
        options["max_length"] = rng.choice([small, small, small, 32, 100])
    for name, values, often in (
        ("padding", [False, True, "longest", "max_length", "do_not_pad"], 0.6),
        ("truncation", [None, False, True, "longest_first", "only_first", "only_second", "do_not_truncate"], 0.8),
        ("padding_side", [None, "left", "right"], 0.3),
        ("pad_to_multiple_of", [None, 1, 2, 5, 8], 0.25),
    ):
        if rng.random() < often:
            options[name] = rng.choice(values)
    if rng.random() < 0.5:
        room = options.get("max_length", 16) - 3
        options["stride"] = rng.randint(0, room + 4) if rng.random() < 0.06 else rng.randint(0, max(room // 2, 0))
    if "pad_to_multiple_of" in options and "max_length" in options and rng.random() < 0.8:
        # Else most of these calls would be refused: a length for both has to be a multiple.
        options["max_length"] = -(-options["max_length"] // (options["pad_to_multiple_of"] or 1)) * (
            options["pad_to_multiple_of"] or 1
        )


def draw_call(rng: random.Random) -> Call:
    """Draw a call over the whole interface. The defaults are drawn by leaving the option out."""
    options: dict[str, Any] = {}
    split, batch, paired = rng.random() < 0.3, rng.random() < 0.45, rng.random() < 0.45
    if split:
        options["is_split_into_words"] = True
    if rng.random() < 0.15:
        options["add_special_tokens"] = rng.random() < 0.2
    draw_lengths(rng, options)
    flags = ["token_type_ids", "attention_mask", "overflowing_tokens", "special_tokens_mask", "offsets_mapping"]
    for name in [*flags, "length"]:
        if rng.random() < 0.4:
            options[f"return_{name}"] = rng.random() < 0.7
    if rng.random() < 0.3:
        options["return_tensors"] = rng.choice(["np", "pt"])
        if rng.random() < 0.8:
            options["padding"] = rng.choice([True, "max_length"])
    if rng.random() < 0.25:
        windows = {"truncation": rng.choice([True, True, "only_first"]), "max_length": rng.randint(5, 14)}
        options |= {**windows, "return_overflowing_tokens": True, "stride": rng.choice([0, 0, 1, 2])}
        options.pop("pad_to_multiple_of", None)
    size = rng.randint(1, 4)
    some = draw_words if split else draw_text
    text, pair = ([some(rng) for _ in range(size)] for _ in range(2))
    if paired and options.get("max_length", 16) < 32:
        # Overflow of pairs is a cross product: long texts would give thousands of rows.
        text, pair = shorten(text), shorten(pair)
    if rng.random() < 0.1:
        text = [tuple(words) for words in text] if split else tuple(text)
    if not batch:
        text, pair = text[0], pair[0]
    return Call(text, pair if paired else None, options)
