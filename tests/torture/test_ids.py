"""Row 1 of the scorecard: ids, types, masks, offsets and words equal those of the `tokenizers` library.

WordPiece runs with four small vocabularies, each with five settings; the full forms add the released vocabularies and
tokenizers of the optional data, and lines of its texts, changed at random.
"""

from __future__ import annotations

import functools
import json
import lzma
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hostile_texts import PARTS, character, hostile_texts
from hostile_texts import hostile_text as text_at_boundaries
from tokenizer_parity import (
    FAMILIES,
    assert_same,
    assert_same_call,
    assert_same_decoding,
    fields_of,
    load_random,
    random_call,
    read_both,
)
from tokenizer_pipelines import random_tokenizer
from torture.campaign import Campaign
from torture.ledger import Figures
from torture.scorecard import scored
from torture.tokenizer_subjects import data_of
from wordpiece_cases import draw_text, hostile_text, small_vocabulary

from fastbert import _C, WordPieceTokenizer

pytest.importorskip("tokenizers")

SETTINGS: dict[str, dict[str, Any]] = {
    "uncased": {},
    "cased": {"do_lower_case": False},
    "uncased-accents": {"strip_accents": False},
    "cased-stripped": {"do_lower_case": False, "strip_accents": True},
    "uncased-no-chinese": {"tokenize_chinese_chars": False},
}
RELEASED = ("bert-base-uncased", "bert-base-cased", "bert-base-chinese", "bert-base-multilingual-cased")
BLOCK, FULL_BLOCK = 250, 5_000  # texts per tokenizer, one after the other: one takes as long to load as 5,000 texts
COLUMNS = {
    "ids": "input_ids",
    "type_ids": "token_type_ids",
    "attention_mask": "attention_mask",
    "special_tokens_mask": "special_tokens_mask",
    "offsets": "offset_mapping",
}
FORMS = ("{}", "a{}b", "{}\u0301")
CHARACTERS = [*range(0xD800), *range(0xE000, 0x110000)]


def small_vocabularies() -> dict[str, list[str]]:
    """Return vocabularies that differ in what is a word, a piece, or unknown."""
    small = small_vocabulary()
    letters = [chr(point) for point in range(0xA0, 0x3000) if chr(point) not in small]
    long = ["a" * 99, "a" * 100, "##" + "b" * 50, "é" * 100, "##s", "##'", "[unused1]", "##[SEP]"]
    return {
        "small": small,
        "letters": [*small, *letters],
        "long": list(dict.fromkeys([*small, *long])),
        "few": [*small[:5], "a", "##a", "中", "\u0301"],
    }


@dataclass(frozen=True)
class Pair:
    """A tokenizer of ours and the reference, made when they are needed."""

    name: str
    make: Callable[[], tuple[Any, Any]]


def wordpiece(vocab: Sequence[str], settings: dict[str, Any]) -> tuple[Any, Any]:
    """Return both tokenizers of a vocabulary."""
    transformers = pytest.importorskip("transformers")
    numbered = {token: index for index, token in enumerate(vocab)}
    reference = transformers.BertTokenizerFast(vocab=numbered, **settings).backend_tokenizer
    return WordPieceTokenizer(vocab, model_max_length=int(1e30), **settings), reference


def released_vocabulary(data: Path, name: str, settings: dict[str, Any]) -> tuple[Any, Any]:
    """Return both tokenizers of a released BERT vocabulary."""
    text = lzma.decompress((data / "vocab" / f"{name}-vocab.txt.xz").read_bytes()).decode()
    return wordpiece(text.removesuffix("\n").split("\n"), settings)


def released_family(data: Path, folder: Path, family: str) -> tuple[Any, Any]:
    """Return both tokenizers of a released tokenizer.json."""
    file = folder / f"{family}.json"
    file.write_bytes(lzma.decompress((data / "tokenizers" / f"{FAMILIES[family]}.xz").read_bytes()))
    return read_both(file)


def contenders(data: Path | None, folder: Path) -> list[Pair]:
    """Return all tokenizers: small ones, and those of the optional data."""
    pairs = [
        Pair(f"{name} {setting}", functools.partial(wordpiece, vocab, options))
        for name, vocab in small_vocabularies().items()
        for setting, options in SETTINGS.items()
    ]
    if data is not None:
        pairs += [
            Pair(f"{name} {setting}", functools.partial(released_vocabulary, data, name, options))
            for name in RELEASED
            for setting, options in SETTINGS.items()
        ]
        pairs += [Pair(family, functools.partial(released_family, data, folder, family)) for family in FAMILIES]
    return pairs


def lines_of(data: Path | None) -> list[str]:
    """Return texts to change at random: of some languages, and named edge cases."""
    if data is None:
        return [
            "The quick brown fox's 1,000 naïve friends.",
            "中文和English 한국어 ελληνικά",
            "crêpes à la plage – 2024",
        ]
    lines = [text for _, text in json.loads((data / "multilingual" / "edge_cases.json").read_text("utf-8"))]
    for name in ("wiki-en/wiki_en.sent.txt.xz", "books-en/books_en.sent.txt.xz", "multilingual/wiki-zh.txt.xz"):
        with lzma.open(data / name, "rt", encoding="utf-8") as file:
            lines += islice(file, 3000)
    return lines


def changed(rng: random.Random, lines: Sequence[str]) -> str:
    """Draw a line with a few changes."""
    text = rng.choice(lines)[: rng.choice((40, 200, 1000))]
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(text) + 1)
        new = rng.choice((character(rng), rng.choice(PARTS), text[at:][:9], " ", ""))
        text = text[:at] + new + text[at + rng.randrange(3) :]
    return text


def generated(number: int, lines: Sequence[str]) -> str:
    """Return the text of a number: hostile in three ways, or a line that is changed."""
    rng = random.Random(f"ids {number}")
    kind = rng.random()
    if kind < 0.3:
        return hostile_text(rng)
    if kind < 0.6:
        return text_at_boundaries(rng, long=0.02)
    return draw_text(rng) if kind < 0.75 else changed(rng, lines)


def differences(ours: Any, reference: Any, texts: Sequence[str], seconds: Sequence[str] | None) -> Iterator[str]:
    """Yield what differs, with the texts."""
    inputs = list(texts) if seconds is None else list(zip(texts, seconds, strict=True))
    expected = reference.encode_batch(inputs, add_special_tokens=True)
    flags = ("token_type_ids", "attention_mask", "special_tokens_mask", "offsets_mapping")
    got = ours(texts, seconds, **{f"return_{name}": True for name in flags})
    fields = fields_of(reference, ours, {"add_special_tokens": True})
    for name, column in COLUMNS.items():
        if name in fields and got[column] != [getattr(row, name) for row in expected]:
            bad = next(index for index, row in enumerate(expected) if got[column][index] != getattr(row, name))
            yield f"{name} of {inputs[bad]!a}: {got[column][bad]} instead of {getattr(expected[bad], name)}"
    for index, row in enumerate(expected):
        if got.word_ids(index) != row.word_ids:
            yield f"words of {inputs[index]!a}: {got.word_ids(index)} instead of {row.word_ids}"
    # The same without positions, which is other code.
    if seconds is None:
        ids, bounds = ours.encode_ragged(texts, True)
        for index, (begin, end) in enumerate(pairwise(bounds)):
            if ids[begin:end].tolist() != expected[index].ids:
                yield f"ragged ids of {texts[index]!a}: {ids[begin:end].tolist()} instead of {expected[index].ids}"


@scored(row=1, unit="texts", short=2_500, full=10_000_000, chunk=50_000, goal="no difference")
def test_ids_of_generated_texts(campaign: Campaign, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Ids, types, both masks, offsets and words of hostile texts, and of changed real ones, are the reference's."""
    data = data_of(campaign, request)
    pairs, lines = contenders(data, tmp_path), lines_of(data)
    made = functools.lru_cache(maxsize=None if campaign.full else 8)(lambda index: pairs[index].make())
    size = FULL_BLOCK if campaign.full else BLOCK

    def compare(numbers: range) -> Figures:
        compared = 0
        for first in range(numbers.start, numbers.stop, size):
            block = range(first, min(first + size, numbers.stop))
            index = first // size % len(pairs)
            texts = [generated(number, lines) for number in block]
            # A quarter of the blocks are pairs.
            seconds = texts[::-1] if first // size // len(pairs) % 4 == 3 else None
            wrong = next(differences(*made(index), texts, seconds), None)
            assert wrong is None, f"texts {block.start} to {block.stop}, {pairs[index].name}: {wrong}"
            compared += len(block)
        return {"compared": compared}

    campaign.run(compare)


@scored(row=1, unit="characters", short=4_000, full=3 * 1_112_064, chunk=10_000, goal="no difference")
def test_ids_of_every_character(campaign: Campaign, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Every scalar value alone, between letters, and before an accent, with all settings and released tokenizers."""
    assert len(CHARACTERS) == 1_112_064
    data = data_of(campaign, request)
    pairs = contenders(data, tmp_path)
    # Small vocabularies have all characters of a kind in common: one with each setting. Each released one once.
    chosen = [pair for pair in pairs if pair.name.startswith("letters ") or pair.name.endswith(" uncased")]
    chosen += [pair for pair in pairs if pair.name in FAMILIES]
    made = functools.cache(lambda index: chosen[index].make())

    def compare(numbers: range) -> Figures:
        total = len(CHARACTERS) * len(FORMS)
        texts = []
        for number in numbers:
            # Each once, but neighbours apart, so that any part of them is a sample.
            spread = number * 1_000_003 % total
            texts.append(FORMS[spread % len(FORMS)].format(chr(CHARACTERS[spread // len(FORMS)])))
        for index, pair in enumerate(chosen):
            try:
                assert_same(*made(index), texts, batch=5_000)
            except AssertionError as error:
                raise AssertionError(f"characters {numbers}, {pair.name}: {error}") from None
        return {"comparisons": len(chosen) * len(numbers)}

    campaign.run(compare)


def check_tokenizer(folder: Path, number: int, texts: int, calls: int) -> int:
    """Compare one random tokenizer, which its number alone determines; return the number of rows compared."""
    rng = random.Random(number)
    content = random_tokenizer(rng, PARTS, _C.byte_level_alphabet())
    both = load_random(folder, content, split_special_tokens=rng.random() < 0.2)
    if both is None:
        return 0
    ours, reference = both
    drawn = hostile_texts(rng, texts)
    try:
        assert_same(ours, reference, drawn)
        short = [text[:40] for text in drawn if text]
        rows = 0
        for _ in range(calls):
            paired, words = rng.random() < 0.4, rng.random() < 0.3
            size = rng.randint(1, 4)
            sides = [
                [rng.sample(short, rng.randint(1, 4)) if words else rng.choice(short) for _ in range(size)]
                for _ in range(1 + paired)
            ]
            options = random_call(rng, ours, sides[0], paired=paired, words=words)
            rows += assert_same_call(reference, ours, sides[0], sides[1] if paired else None, options)
        ids, bounds = ours.encode_ragged(drawn[:20])
        if number % 5 == 0:
            ours.save_pretrained(folder / "saved")
            saved = read_both(folder / "saved" / "tokenizer.json", split_special_tokens=ours.split_special_tokens)
            assert_same(ours, saved[1], drawn)
            assert saved[0].fingerprint == ours.fingerprint
        drawn_ids = [[rng.randrange(len(ours)) for _ in range(rng.randint(0, 12))] for _ in range(20)]
        assert_same_decoding(ours, reference, [*(ids[a:b] for a, b in pairwise(bounds)), *drawn_ids])
    except AssertionError as error:
        raise AssertionError(f"tokenizer {number}: {error}\n{dict(content, model=content['model']['type'])}") from None
    return texts + rows


@scored(row=1, unit="random tokenizers", short=25, full=5_000, chunk=50, goal="no difference")
def test_ids_of_random_tokenizers(campaign: Campaign, tmp_path: Path) -> None:
    """Byte-level BPE and Unigram of random steps, pieces and merges: texts, calls, decoding are the reference's."""

    def compare(numbers: range) -> Figures:
        texts, calls = (150, 12) if campaign.full else (50, 6)
        rows = sum(check_tokenizer(tmp_path, number, texts, calls) for number in numbers)
        assert rows > 40 * len(numbers)
        return {"rows": rows}

    campaign.run(compare)
