"""Comparison of our tokenizers with the `tokenizers` library on the same tokenizer.json."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastbert import load_tokenizer
from fastbert.errors import UserError
from fastbert.tokenizers.template import read_post_processor

# The released tokenizers, in the optional data folder's `tokenizers`, each compressed.
FAMILIES = {
    "gpt2": "gpt2/tokenizer.json",
    "roberta-base": "roberta-base/tokenizer.json",
    "modernbert-base": "modernbert-base/tokenizer.json",
    "albert-base-v2": "albert-base-v2/tokenizer.json",
    "albert-base-v2-transformers5": "albert-base-v2/tokenizer-transformers5.json",
    "deberta-v3-base": "deberta-v3-base/tokenizer.json",
    "mpnet-base": "mpnet-base/tokenizer.json",
    "xlm-roberta-base": "xlm-roberta-base/tokenizer.reconstructed.json",
}
ROW_FIELDS = (
    "ids",
    "tokens",
    "type_ids",
    "offsets",
    "word_ids",
    "sequence_ids",
    "attention_mask",
    "special_tokens_mask",
)
STRATEGIES = ["longest_first", "only_first", "only_second"]


def read_both(file: Path, *, split_special_tokens: bool = False) -> tuple[Any, Any]:
    """Return our tokenizer and the reference of a tokenizer.json."""
    import tokenizers

    reference = tokenizers.Tokenizer.from_file(str(file))
    reference.no_truncation()
    reference.no_padding()
    reference.encode_special_tokens = split_special_tokens
    return load_tokenizer(file, verify=False, split_special_tokens=split_special_tokens), reference


def write_tokenizer(folder: Path, content: dict[str, Any]) -> Path:
    """Write a tokenizer.json and return its path."""
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(content))
    return file


def is_ambiguous(tokenizer: Any, content: dict[str, Any]) -> bool:
    """Return True if two added tokens have one normal form: which one the reference finds is random."""
    forms = [tokenizer._normalize(token["content"]) for token in content["added_tokens"] if token["normalized"]]
    return len(set(forms)) < len(forms)


def _reference_rows(reference: Any, texts: Sequence[str]) -> list[Any]:
    """Encode one by one after a panic, which ends the whole batch; None for the texts at fault."""
    try:
        return list(reference.encode_batch(texts, add_special_tokens=False))
    except BaseException as error:  # a Rust panic is a bare BaseException
        if isinstance(error, KeyboardInterrupt):
            raise
    rows = []
    for text in texts:
        try:
            rows.append(reference.encode(text, add_special_tokens=False))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            rows.append(None)
    return rows


def differences(ours: Any, reference: Any, texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return the texts whose tokens differ, each with what differs: ids, ids with positions, offsets, words."""
    ids, bounds = ours.encode_ragged(texts)
    aligned, begins, ends, words, aligned_bounds = ours.encode_aligned_ragged(texts)
    result = []
    for index, row in enumerate(_reference_rows(reference, texts)):
        if row is None:
            continue
        part = slice(aligned_bounds[index], aligned_bounds[index + 1])
        pairs = {
            "ids": (ids[bounds[index] : bounds[index + 1]].tolist(), row.ids),
            "ids with positions": (aligned[part].tolist(), row.ids),
            "offsets": (list(zip(begins[part].tolist(), ends[part].tolist(), strict=True)), row.offsets),
            "words": (words[part].tolist(), row.word_ids),
        }
        if different := [name for name, (got, expected) in pairs.items() if got != expected]:
            result.append((texts[index], ", ".join(different)))
    return result


def assert_same(ours: Any, reference: Any, texts: Sequence[str], batch: int = 500) -> None:
    """Compare texts in batches; the shortest that differs is in the message."""
    found = [
        pair for at in range(0, len(texts), batch) for pair in differences(ours, reference, texts[at : at + batch])
    ]
    if not found:
        return
    text, what = min(found, key=lambda pair: len(pair[0]))
    raise AssertionError(f"{len(found)} of {len(texts)} texts differ, among them ({what}) {text!a}")


def random_call(rng: random.Random, ours: Any, texts: Sequence[Any], *, paired: bool, words: bool) -> dict[str, Any]:
    """Return options of a call that both can follow."""
    added = ours.num_special_tokens_to_add(paired)
    options: dict[str, Any] = {"add_special_tokens": rng.random() < 0.8, "is_split_into_words": words}
    options["truncation_side"] = rng.choice(["left", "right"])
    if rng.random() < 0.75:
        # With room for a token of each: what becomes of a sequence that vanishes is an accident.
        options["max_length"] = added + rng.choice([1, 2, 3, 5, 8, 16, 40]) + paired
        options["truncation"] = rng.choice(STRATEGIES if paired else STRATEGIES[:2])
        options["stride"] = rng.randrange(min(options["max_length"] - added, 4))
    if rng.random() < 0.5:
        options["padding"] = True
        options["padding_side"] = rng.choice(["left", "right"])
        options["pad_to_multiple_of"] = rng.choice([None, None, 8])
        if options["pad_to_multiple_of"] and "max_length" in options:
            options["max_length"] += -options["max_length"] % 8
    return options


def reference_call(reference: Any, ours: Any, texts: Any, pairs: Any, options: dict[str, Any]) -> list[Any]:
    """Return the rows of the reference, each followed by those of its overflow."""
    reference.no_truncation()
    reference.no_padding()
    if "max_length" in options:
        reference.enable_truncation(
            options["max_length"],
            stride=options["stride"],
            strategy=options["truncation"],
            direction=options["truncation_side"],
        )
    if options.get("padding"):
        reference.enable_padding(
            direction=options["padding_side"],
            pad_id=ours.pad_token_id,
            pad_token=ours.pad_token,
            pad_to_multiple_of=options["pad_to_multiple_of"],
        )
    inputs = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
    rows = reference.encode_batch(
        inputs, is_pretokenized=options["is_split_into_words"], add_special_tokens=options["add_special_tokens"]
    )
    reference.no_truncation()
    reference.no_padding()
    return [part for row in rows for part in (row, *row.overflowing)]


def fields_of(reference: Any, ours: Any, options: dict[str, Any]) -> list[str]:
    """Return the fields of rows to compare: all but those of the documented deviations."""
    left_out = set()
    state = None if reference.post_processor is None else json.loads(reference.post_processor.__getstate__())
    if state is None:
        left_out.add("sequence_ids")
    elif state["type"] == "RobertaProcessing" and not options["add_special_tokens"]:
        left_out.add("type_ids")
    if "max_length" in options and (1, 1) not in ours.template.pair:
        left_out.add("type_ids")  # in windows of a second sequence
    processor = read_post_processor(state, Path())
    if processor.trim_offsets and processor.expects_prefix:
        left_out.add("offsets")
    return [name for name in ROW_FIELDS if name not in left_out]


def assert_same_call(reference: Any, ours: Any, texts: Any, pairs: Any, options: dict[str, Any]) -> int:
    """Compare all fields of all rows; return their number, 0 if both refuse."""
    fields = fields_of(reference, ours, options)
    try:
        expected = reference_call(reference, ours, texts, pairs, options)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        try:
            ours(texts, pairs, return_overflowing_tokens=True, **options)
        except ValueError:
            return 0
        if type(error).__name__ == "PanicException":
            return 0
        refused = f"{error}: {texts!a}, {pairs!a}, {options}"
        raise AssertionError(f"ours accepts what the reference refuses: {refused}") from error
    got = ours(texts, pairs, return_overflowing_tokens="max_length" in options, **options)
    where = f"{texts!a}, {pairs!a}, {options}"
    assert len(got.encodings) == len(expected), f"{len(got.encodings)} rows, not {len(expected)}: {where}"
    for index, (row, theirs) in enumerate(zip(got.encodings, expected, strict=True)):
        for name in fields:
            mine, other = getattr(row, name), getattr(theirs, name)
            assert mine == other, f"row {index}, {name}: {mine} instead of {other}: {where}"
    return len(expected)


def assert_same_random_calls(ours: Any, reference: Any, rng: random.Random, texts: Sequence[str], calls: int) -> None:
    """Compare calls with random options on three texts, or pairs, or split into words."""
    for _ in range(calls):
        paired, words = rng.random() < 0.4, rng.random() < 0.3
        sides = [
            [rng.sample(texts, rng.randint(1, 4)) if words else rng.choice(texts) for _ in range(3)]
            for _ in range(1 + paired)
        ]
        options = random_call(rng, ours, sides[0], paired=paired, words=words)
        if options.get("padding") and ours.pad_token is None:
            del options["padding"]
        assert_same_call(reference, ours, sides[0], sides[1] if paired else None, options)


def assert_same_decoding(ours: Any, reference: Any, rows: Sequence[Sequence[int]]) -> None:
    """Compare the texts of rows of ids, with and without special tokens."""
    for ids in rows:
        for skip in (False, True):
            expected = reference.decode(list(ids), skip_special_tokens=skip)
            got = ours.decode(list(ids), skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert got == expected, f"decode({list(ids)}, skip_special_tokens={skip}): {got!a} instead of {expected!a}"


def load_random(folder: Path, content: dict[str, Any], *, split_special_tokens: bool) -> tuple[Any, Any] | None:
    """Return both tokenizers, or None for added tokens of which nothing is left or that are ambiguous."""
    file = write_tokenizer(folder, content)
    try:
        ours, reference = read_both(file, split_special_tokens=split_special_tokens)
    except UserError as error:
        if "added token" not in str(error):
            raise
        return None
    return None if is_ambiguous(ours, content) else (ours, reference)
