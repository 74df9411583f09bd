"""Generate tables.cpp: the treatment of each Unicode scalar value by BERT's tokenizer, as measured on the reference.

The reference (the `tokenizers` library) mixes several Unicode versions: categories of one, decompositions of another,
lower case of a third. Tables made from any single Unicode release would therefore differ from it on rare characters.
This script therefore queries the reference for all 1,112,064 scalar values, and a test
(tests/tokenizers/test_unicode_tables.py) repeats the queries and compares the fingerprint in tables.cpp.

    python csrc/unicode/generate.py            # rewrites csrc/unicode/tables.cpp
"""

import functools
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

REFERENCE_VERSION = "0.23.3"
CODE_POINTS = 0x110000
SURROGATES = range(0xD800, 0xE000)
HANGUL = range(0xAC00, 0xD7A4)
BLOCK = 64  # 1 << kBlockBits of tables.h
CHARACTERS_PER_CALL = 1 << 12  # so that the texts of a call fit the cache

# The flags of csrc/unicode/tables.h.
DELETED, CLEANED_TO_SPACE, WHITESPACE, PUNCTUATION = 1, 2, 4, 8
CHINESE, STRIPPED, LOWERS, DECOMPOSES = 16, 32, 64, 128

# Non-starters with the lowest and the highest canonical combining class (1 and 240).
LOWEST_MARK, HIGHEST_MARK = "\u0334", "\u0345"


def scalars() -> Iterator[str]:
    """Yield every Unicode scalar value as a string of one character."""
    return (chr(point) for point in range(CODE_POINTS) if point not in SURROGATES)


def apply(function, chars: Sequence[str], before: str = "", after: str = "") -> list[str]:
    """Return function(before + char + after) for each character, none of them a line break, through few calls."""
    results = []
    for start in range(0, len(chars), CHARACTERS_PER_CALL):
        joined = f"{after}\n{before}".join(chars[start : start + CHARACTERS_PER_CALL])
        results += function(before + joined + after).split("\n")
    return results


def combining_ranks(decompose, characters: Iterable[str]) -> dict[str, int]:
    """Return the rank (1, 2, ...) of each non-starter's combining class, from the order that `decompose` gives pairs.

    Canonical reordering depends only on the order of the classes, so the ranks are sufficient.
    """
    chars = [char for char in characters if char != "\n"]
    pairs = zip(chars, apply(decompose, chars, HIGHEST_MARK), apply(decompose, chars, after=LOWEST_MARK), strict=True)
    marks = [char for char, a, b in pairs if a == char + HIGHEST_MARK or b == LOWEST_MARK + char]

    def compare(a: str, b: str) -> int:
        if a == b:
            return 0
        return (decompose(a + b) == b + a) - (decompose(b + a) == a + b)

    ordered = sorted(marks, key=functools.cmp_to_key(compare))
    ranks: dict[str, int] = {}
    for previous, char in zip(["", *ordered], ordered):
        ranks[char] = ranks[previous] + (compare(previous, char) != 0) if previous else 1
    return ranks


def word_characters() -> tuple[set[int], set[int]]:
    """Return the word characters, beside which a single-word token is not recognised, and the white space that a token
    with rstrip consumes."""
    import tokenizers

    reference = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    reference.add_tokens([tokenizers.AddedToken("<w>", single_word=True, normalized=False)])
    reference.add_tokens([tokenizers.AddedToken("<s>", rstrip=True, normalized=False)])
    single_word, stripping = (reference.token_to_id(token) for token in ("<w>", "<s>"))
    words, spaces = set(), set()
    chars = list(scalars())
    for start in range(0, len(chars), BLOCK):
        block = chars[start : start + BLOCK]
        encoding = reference.encode("".join(f"-<w>{char}-<s>{char}" for char in block))
        tokens = set(zip(encoding.ids, (begin for begin, _ in encoding.offsets), strict=True))
        ends = {end for index, (_, end) in zip(encoding.ids, encoding.offsets, strict=True) if index == stripping}
        for index, char in enumerate(block):
            offset = 10 * index
            if (single_word, offset + 1) not in tokens:
                words.add(ord(char))
            if offset + 10 in ends:
                spaces.add(ord(char))
    return words, spaces


def ranges_of(points: Iterable[int]) -> list[int]:
    """Return the first and last number of each run of consecutive numbers."""
    bounds: list[int] = []
    for point in sorted(points):
        if bounds and point == bounds[-1] + 1:
            bounds[-1] = point
        else:
            bounds += [point, point]
    return bounds


def changed_in_blocks(normalizers: Sequence[Callable[[str], str]], split: Callable[[str], list]) -> Iterator[str]:
    """Yield the scalar values of all blocks that anything changes or splits, letters between them. Most code points are
    unassigned: their blocks stay as they are."""
    chars = list(scalars())
    for start in range(0, len(chars), BLOCK):
        block = chars[start : start + BLOCK]
        text = f"a{'a'.join(block)}a"
        if len(split(text)) != 1 or any(normalize(text) != text for normalize in normalizers):
            yield from block


def query_reference() -> tuple[list[int], dict[int, str], dict[int, str], dict[int, int], list[int]]:
    """Return flags, decomposition, lower case and combining rank by code point, and the ranges of word characters."""
    from tokenizers import normalizers, pre_tokenizers

    def bert(**on: bool):
        options = dict.fromkeys(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), False) | on
        return normalizers.BertNormalizer(**options).normalize_str

    clean, chinese, strip, lower = (
        bert(clean_text=True),
        bert(handle_chinese_chars=True),
        bert(strip_accents=True),
        bert(lowercase=True),
    )
    decompose = normalizers.NFD().normalize_str
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str

    flags = [0] * CODE_POINTS
    decompositions: dict[int, str] = {}
    lowercase: dict[int, str] = {}
    for char in changed_in_blocks((clean, chinese, decompose, strip, lower), split):
        point = ord(char)
        flag = 0
        cleaned = clean(char)
        if cleaned != char:
            assert cleaned in ("", " ")
            flag |= CLEANED_TO_SPACE if cleaned else DELETED
        pieces = len(split(f"a{char}b"))
        if pieces != 1:
            flag |= PUNCTUATION if pieces == 3 else WHITESPACE
        if chinese(char) != char:
            assert chinese(char) == f" {char} "
            flag |= CHINESE
        decomposed = decompose(char)
        if decomposed != char:
            decompositions[point] = decomposed
            flag |= DECOMPOSES
        elif strip(char) == "":
            flag |= STRIPPED
        lowered = lower(char)
        if lowered != char:
            lowercase[point] = lowered
            flag |= LOWERS
        flags[point] = flag
    stable = [char for char in scalars() if ord(char) not in decompositions]
    ranks = {ord(char): rank for char, rank in combining_ranks(decompose, stable).items()}
    check_assumptions(flags, decompositions, lowercase, ranks)
    words, spaces = word_characters()
    assert spaces == {point for point in range(CODE_POINTS) if flags[point] & WHITESPACE}, "two kinds of white space"
    return flags, decompositions, lowercase, ranks, ranges_of(words)


def check_assumptions(flags, decompositions, lowercase, ranks) -> None:
    """Assert the properties that csrc/wordpiece relies on, for future versions of the reference."""
    for point in HANGUL:
        index = point - 0xAC00
        tail = index % 28
        jamo = chr(0x1100 + index // 588) + chr(0x1161 + index % 588 // 28) + (chr(0x11A7 + tail) if tail else "")
        assert decompositions[point] == jamo, f"U+{point:04X}: Hangul does not decompose by the formula"
    for point, lowered in lowercase.items():
        for char in lowered:
            kind = WHITESPACE | PUNCTUATION
            assert flags[ord(char)] & kind == flags[point] & kind, f"U+{point:04X}: lower case changes its kind"
    for decomposed in decompositions.values():
        assert all(ord(char) not in decompositions for char in decomposed), "a decomposition is not full"
    for point in range(128):
        assert point not in decompositions
        assert point not in ranks


def fingerprint(flags, decompositions, lowercase, ranks, words) -> str:
    """Return the SHA-256 of the reference's results, independent of the packing of the tables."""
    digest = hashlib.sha256(bytes(flags))
    for table in (decompositions, lowercase, ranks):
        for point, value in sorted(table.items()):
            text = value if isinstance(value, str) else str(value)
            digest.update(f"{point:x}:{' '.join(f'{ord(char):x}' for char in text)};".encode())
        digest.update(b"\n")
    digest.update(" ".join(f"{point:x}" for point in words).encode())
    return digest.hexdigest()


def rows(values: Iterable[object]) -> str:
    """Return comma-separated values in lines of at most 120 characters."""
    lines, line = [], "   "
    for value in values:
        item = f" {value},"
        if len(line) + len(item) > 120:
            lines.append(line)
            line = "   "
        line += item
    return "\n".join([*lines, line])


def pack(flags, decompositions, lowercase, ranks) -> tuple[list[tuple[int, ...]], list[int], list[int], list[int]]:
    """Return unique records, the sequence pool, and the two stages: code point -> block -> record."""
    pool: list[int] = [0]
    offsets: dict[str, int] = {}

    def offset_of(text: str | None) -> int:
        if text is None:
            return 0
        if text not in offsets:
            offsets[text] = len(pool)
            pool.extend([len(text), *map(ord, text)])
        return offsets[text]

    records: dict[tuple[int, ...], int] = {}
    blocks: dict[tuple[int, ...], int] = {}
    stage1 = []
    for start in range(0, CODE_POINTS, BLOCK):
        block = []
        for point in range(start, start + BLOCK):
            decomposed = None if point in HANGUL else decompositions.get(point)
            record = (flags[point], ranks.get(point, 0), offset_of(decomposed), offset_of(lowercase.get(point)))
            block.append(records.setdefault(record, len(records)))
        stage1.append(blocks.setdefault(tuple(block), len(blocks)))
    assert max(len(records), len(blocks), len(pool)) < 1 << 16
    return list(records), pool, stage1, [record for block in blocks for record in block]


def render(flags, decompositions, lowercase, ranks, words) -> str:
    """Return the text of tables.cpp."""
    records, pool, stage1, stage2 = pack(flags, decompositions, lowercase, ranks)
    return f"""\
// Generated by csrc/unicode/generate.py from tokenizers {REFERENCE_VERSION}. Do not edit.
#include "unicode/tables.h"

namespace fastbert::unicode {{

const char* const kFingerprint = "{fingerprint(flags, decompositions, lowercase, ranks, words)}";

const Record kRecords[] = {{
{rows("{" + ",".join(map(str, record)) + "}" for record in records)}
}};

const char32_t kSequences[] = {{
{rows(f"0x{value:x}" for value in pool)}
}};

const std::uint16_t kBlocks[] = {{
{rows(stage1)}
}};

const std::uint16_t kRecordOfBlock[] = {{
{rows(stage2)}
}};

constexpr char32_t kWordBounds[] = {{
{rows(f"0x{value:x}" for value in words)}
}};
const std::span<const char32_t> kWordRanges = kWordBounds;

}}  // namespace fastbert::unicode
"""


def main() -> int:
    """Query the reference and write tables.cpp beside this file."""
    import tokenizers

    if tokenizers.__version__ != REFERENCE_VERSION:
        sys.stderr.write(f"the reference is tokenizers {REFERENCE_VERSION}, installed is {tokenizers.__version__}\n")
        return 1
    Path(__file__).with_name("tables.cpp").write_text(render(*query_reference()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
