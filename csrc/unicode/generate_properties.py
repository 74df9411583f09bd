"""Generate properties_tables.cpp: the properties of each Unicode scalar value used by byte-level BPE and Unigram
tokenizers, and the data of the normalization forms, as measured on the reference (see generate.py for the reasons).

Grapheme clusters are observable only through the reference's normalizers.Precompiled, whose rule is: a cluster of fewer
than 6 bytes is replaced as a whole, the characters of a longer one are replaced one by one. With a character map in
which every text has a replacement of one character, the length of the result shows the boundaries that matter.

    python csrc/unicode/generate_properties.py            # rewrites csrc/unicode/properties_tables.cpp
"""

import functools
import hashlib
import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from generate import BLOCK, CODE_POINTS, HANGUL, HIGHEST_MARK, LOWEST_MARK, REFERENCE_VERSION, apply, rows, scalars

# The bits of csrc/unicode/properties_tables.h.
LETTER, NUMBER, SPACE, OTHER = range(4)
COMBINING_MARK, NUMERIC = 1 << 2, 1 << 3
GRAPHEME_SHIFT, CHANGES_SHIFT = 4, 8
FORMS = ("NFC", "NFD", "NFKC", "NFKD")
COMPOSES_WITH_PREVIOUS, DECOMPOSES_COMPATIBLY = 1 << 12, 1 << 13
GRAPHEME_CLASSES = (
    *("other", "control", "prepended", "leading", "vowel", "trailing", "open syllable", "closed syllable"),
    *("pictographic", "consonant", "spacing mark", "extender", "conjunct extender", "linker", "joiner"),
)

ACUTE, JOINER, COPYRIGHT = "\u0301", "\u200d", "\u00a9"
KA, VIRAMA, SSA = "\u0915", "\u094d", "\u0937"  # a conjunct of Devanagari: consonant, linker, consonant
HANGUL_VOWELS, HANGUL_TRAILING = range(0x1161, 0x1176), range(0x11A8, 0x11C3)  # of the formula of composition


class Answers(NamedTuple):
    properties: Sequence[int]  # 16 bits by code point
    compatibility: dict[int, str]  # the full compatibility decompositions that differ from the canonical ones
    compositions: dict[tuple[str, str], str]  # of two characters to one, without Hangul
    white_space: set[int]  # by WhitespaceSplit and by Punctuation: for comparison with the tables of BERT
    punctuation: set[int]


@functools.cache
def all_scalars() -> str:
    """Return every Unicode scalar value in a text."""
    return "".join(scalars())


def split_classes() -> bytearray:
    """Return the class of each code point in the expression of ByteLevel."""
    from tokenizers import pre_tokenizers

    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str

    def class_of(char: str) -> int:
        for prefix, split_class in (("a", LETTER), ("1", NUMBER), ("!", OTHER)):
            if len(split(prefix + char)) == 1:
                return split_class
        return SPACE

    classes = bytearray([OTHER]) * CODE_POINTS
    text = all_scalars()
    # The characters of a piece, less a leading space, are of one class.
    for _, (begin, end) in split(text):
        if end - begin > 1 and text[begin] == " ":
            classes[ord(" ")] = class_of(" ")
            begin += 1
        first, last = ord(text[begin]), ord(text[end - 1])
        classes[first : last + 1] = bytes([class_of(text[begin])]) * (last + 1 - first)
    return classes


def charsmap() -> bytes:
    """Return a character map with "1" for every text that does not begin with a NUL or a line feed: each first byte
    alone is a key, and the shortest key of a text takes effect. The layout is that of a double array of darts-clone."""
    children, values = 256, 512
    units = [0] * 768
    units[0] = children << 10
    for byte in range(1, 256):
        if byte != ord("\n"):
            units[children ^ byte] = (children ^ values) << 10 | 1 << 8 | byte
    return struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + b"1\0"


def grapheme_classes() -> bytearray:
    """Return the class of each code point in the rules of grapheme clusters, as an index of GRAPHEME_CLASSES."""
    from tokenizers import normalizers

    replace = normalizers.Precompiled(charsmap()).normalize_str
    assert len(replace("\r\n")) == 1
    assert all(len(replace(f"{char}{ACUTE}{ACUTE}")) == 2 for char in "\r\n")
    chars = [char for char in all_scalars() if char not in "\r\n"]

    def select(candidates: Iterable[str], before: str, after: str, length: int) -> set[str]:
        """Return the characters with which before + character + after is replaced by `length` characters."""
        candidates = list(candidates)
        results = apply(replace, candidates, before, after)
        return {char for char, result in zip(candidates, results, strict=True) if len(result) == length}

    controls = select(chars, "", ACUTE + ACUTE, 2)
    prepended = select(chars, "", "b", 1)
    joining = select(chars, "a", "", 1)
    others = [char for char in chars if char not in controls and char not in joining and char not in prepended]

    def joins(candidates: Iterable[str], before: str = "", after: str = "") -> set[str]:
        """Return those with which before + character + after is one cluster, of 6 bytes or more."""
        return select(candidates, before, after, len(before) + len(after) + 1)

    # A character of 4 bytes and a mark are 6 bytes, so that a boundary before it is not observable and irrelevant.
    short = {char for char in others if len(char.encode()) < 4}
    leading, vowel, trailing = "\u1100", "\u1161", "\u11a8"
    before_vowel, before_trailing = (joins(others, after=jamo + ACUTE) for jamo in (vowel, trailing))
    after_leading, after_vowel = (joins(short, before=jamo, after=ACUTE) for jamo in (leading, vowel))
    vowels = {char for char in before_vowel & before_trailing if char in after_vowel or char not in short}
    pictographic = joins(others, after=JOINER + COPYRIGHT + ACUTE)
    consonants = joins(others, after=VIRAMA + SSA + ACUTE)
    assert joins(short, before=COPYRIGHT + JOINER, after=ACUTE) == pictographic & short
    assert joins(short, before=KA + VIRAMA, after=ACUTE) == consonants & short
    extenders = joins(joining, before=COPYRIGHT, after=JOINER + COPYRIGHT + ACUTE)
    conjunct_extenders = joins(joining, before=KA + VIRAMA, after=SSA + ACUTE)
    linkers = joins(joining, before=KA, after=SSA + ACUTE)
    assert joins(joining, before=COPYRIGHT, after=COPYRIGHT + ACUTE) == {JOINER}
    assert linkers <= conjunct_extenders <= extenders | {JOINER}

    members = {
        "control": controls | set("\r\n"),
        "prepended": prepended,
        "leading": before_vowel - before_trailing,
        "vowel": vowels,
        "trailing": before_trailing - before_vowel - after_leading,
        "open syllable": before_vowel & before_trailing - vowels,
        "closed syllable": (before_trailing - before_vowel) & after_leading,
        "pictographic": pictographic,
        "consonant": consonants,
        "spacing mark": joining - extenders - {JOINER},
        "extender": extenders - conjunct_extenders,
        "conjunct extender": conjunct_extenders - linkers - {JOINER},
        "linker": linkers,
        "joiner": {JOINER},
    }
    classes = bytearray(CODE_POINTS)
    for name, characters in members.items():
        for char in characters:
            assert classes[ord(char)] == 0, f"U+{ord(char):04X} is of two grapheme classes"
            classes[ord(char)] = GRAPHEME_CLASSES.index(name)
    return classes


def removed_characters(pre_tokenizer) -> set[int]:
    """Return the code points that a pre-tokenizer removes from text."""
    text = all_scalars()
    bounds = [0, *(bound for _, piece in pre_tokenizer.pre_tokenize_str(text) for bound in piece), len(text)]
    return {ord(char) for begin, end in zip(bounds[::2], bounds[1::2]) for char in text[begin:end]}


def numeric_characters() -> set[int]:
    """Return the code points that Digits splits off."""
    from tokenizers import pre_tokenizers

    split = pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str
    pieces = split("--".join(all_scalars()))
    return {ord(piece) for piece, (begin, end) in pieces if end - begin == 1 and begin % 3 == 0}


def compositions_of(compose, canonical: dict[str, str]) -> dict[tuple[str, str], str]:
    """Return the pairs of characters that compose, without Hangul, from the canonical decompositions."""
    compositions = {}
    for char, decomposed in canonical.items():
        if ord(char) not in HANGUL and compose(decomposed) == char:
            first, second = compose(decomposed[:-1]), decomposed[-1]
            assert len(first) == 1
            assert compose(first + second) == char
            compositions[first, second] = char
    for syllable in map(chr, HANGUL):
        assert compose(canonical[syllable]) == syllable, "Hangul does not compose by the formula"
    return compositions


def query_reference() -> Answers:
    """Return the properties and the normalization data of all code points."""
    from tokenizers import normalizers, pre_tokenizers

    properties = array("H", list(split_classes()))
    for point, grapheme_class in enumerate(grapheme_classes()):
        properties[point] |= grapheme_class << GRAPHEME_SHIFT
    for point in numeric_characters():
        properties[point] |= NUMERIC
    for char in set(all_scalars()) - set(normalizers.StripAccents().normalize_str(all_scalars())):
        properties[ord(char)] |= COMBINING_MARK

    normalize = {form: getattr(normalizers, form)().normalize_str for form in FORMS}
    chars = [char for char in all_scalars() if char != "\n"]
    results = {form: apply(normalize[form], chars) for form in FORMS}
    canonical = {char: result for char, result in zip(chars, results["NFD"], strict=True) if result != char}
    stable = [char for char in chars if char not in canonical]
    decompose = normalize["NFD"]
    reordered = zip(stable, apply(decompose, stable, HIGHEST_MARK), apply(decompose, stable, after=LOWEST_MARK))
    marks = {char for char, a, b in reordered if a != HIGHEST_MARK + char or b != char + LOWEST_MARK}
    compatible = zip(chars, results["NFD"], results["NFKD"], strict=True)
    compatibility = {char: result for char, canonical_result, result in compatible if result != canonical_result}
    compositions = compositions_of(normalize["NFC"], canonical)
    seconds = {second for _, second in compositions} | set(map(chr, [*HANGUL_VOWELS, *HANGUL_TRAILING]))
    for char in seconds:
        properties[ord(char)] |= COMPOSES_WITH_PREVIOUS
    for index, form in enumerate(FORMS):
        changed = {char for char, result in zip(chars, results[form], strict=True) if result != char}
        for char in changed | marks | (seconds if form in ("NFC", "NFKC") else set()):
            properties[ord(char)] |= 1 << (CHANGES_SHIFT + index)
    for char in compatibility:
        properties[ord(char)] |= DECOMPOSES_COMPATIBLY
    check_assumptions(properties, canonical, compatibility, marks, seconds)
    return Answers(
        properties,
        {ord(char): decomposed for char, decomposed in compatibility.items()},
        compositions,
        removed_characters(pre_tokenizers.WhitespaceSplit()),
        removed_characters(pre_tokenizers.Punctuation("removed")),
    )


def check_assumptions(properties, canonical, compatibility, marks, seconds) -> None:
    """Assert the properties that normalization_forms.cpp relies on, for future versions of the reference."""
    for char, decomposed in canonical.items():
        composed_changes = properties[ord(char)] & 1 << (CHANGES_SHIFT + FORMS.index("NFC"))
        assert composed_changes or (decomposed[0] not in marks and decomposed[0] not in seconds), (
            f"U+{ord(char):04X} is stable, but its decomposition composes with the character before it"
        )
    for decomposed in compatibility.values():
        assert all(char not in canonical and char not in compatibility for char in decomposed)
    for char in HANGUL:
        assert chr(char) not in compatibility
    assert not any(properties[point] >> CHANGES_SHIFT for point in range(128))


def fingerprint(answers: Answers) -> str:
    """Return the SHA-256 of the reference's results, independent of the packing of the tables."""
    digest = hashlib.sha256(struct.pack(f"<{CODE_POINTS}H", *answers.properties))
    for point, decomposed in sorted(answers.compatibility.items()):
        digest.update(f"{point:x}:{' '.join(f'{ord(char):x}' for char in decomposed)};".encode())
    for (first, second), composed in sorted(answers.compositions.items()):
        digest.update(f"{ord(first):x} {ord(second):x}:{ord(composed):x};".encode())
    return digest.hexdigest()


def two_stages(values: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the number of the block of each BLOCK code points, and the values of the blocks."""
    blocks: dict[tuple[int, ...], int] = {}
    numbers = [
        blocks.setdefault(tuple(values[start : start + BLOCK]), len(blocks)) for start in range(0, CODE_POINTS, BLOCK)
    ]
    assert len(blocks) < 1 << 16
    return numbers, [value for block in blocks for value in block]


def render(answers: Answers) -> str:
    """Return the text of properties_tables.cpp."""
    pool: list[int] = [0]
    offsets = array("H", bytes(2 * CODE_POINTS))
    known: dict[str, int] = {}
    for point, decomposed in sorted(answers.compatibility.items()):
        if decomposed not in known:
            known[decomposed] = len(pool)
            pool += [len(decomposed), *map(ord, decomposed)]
        offsets[point] = known[decomposed]
    property_blocks, properties = two_stages(answers.properties)
    compatibility_blocks, compatibility = two_stages(offsets)
    compositions = sorted(
        (ord(second), ord(first), ord(char)) for (first, second), char in answers.compositions.items()
    )
    return f"""\
// Generated by csrc/unicode/generate_properties.py from tokenizers {REFERENCE_VERSION}. Do not edit.
#include "unicode/properties_tables.h"

namespace fastbert::unicode {{

const char* const kPropertiesFingerprint = "{fingerprint(answers)}";

const std::uint16_t kPropertyBlocks[] = {{
{rows(property_blocks)}
}};

const std::uint16_t kPropertiesOfBlock[] = {{
{rows(properties)}
}};

const std::uint16_t kCompatibilityBlocks[] = {{
{rows(compatibility_blocks)}
}};

const std::uint16_t kCompatibilityOfBlock[] = {{
{rows(compatibility)}
}};

const char32_t kCompatibilitySequences[] = {{
{rows(f"0x{value:x}" for value in pool)}
}};

constexpr Composition kCompositionPairs[] = {{
{rows(f"{{0x{second:x},0x{first:x},0x{char:x}}}" for second, first, char in compositions)}
}};
const std::span<const Composition> kCompositions = kCompositionPairs;

}}  // namespace fastbert::unicode
"""


def main() -> int:
    """Query the reference and write properties_tables.cpp beside this file."""
    import tokenizers

    if tokenizers.__version__ != REFERENCE_VERSION:
        sys.stderr.write(f"the reference is tokenizers {REFERENCE_VERSION}, installed is {tokenizers.__version__}\n")
        return 1
    Path(__file__).with_name("properties_tables.cpp").write_text(render(query_reference()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
