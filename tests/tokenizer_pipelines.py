"""Random tokenizer.json files: every step that is supported, in random order, over random models.

Pieces and merges are drawn, not trained: trained ones never have merges whose result ranks before its parts, nor pieces
of equal score, and both must come out as in the reference.
"""

from __future__ import annotations

import base64
import random
import struct
from typing import Any

Json = dict[str, Any]

SPACE = "▁"
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
RUNS = [r" {2,}", r"\s{2,}|[\n\r\t]", r"\s+", r"[\n\r\t]", r"\t+|\n{2,}", r"a{2,}"]
STRINGS = [("``", '"'), ("''", '"'), (" ", SPACE), ("\n", " "), ("a", ""), ("é", "e"), ("  ", " "), ("ab", "xyz")]
CHARSMAP_KEYS = [
    "é", "e\u0301", "①", "ﬁ", "\u00a0", "\u3000", "\n", "\t", "\u200b", "\u0301", "\x07", "ｶﾞ", "ａ", "Å", "A", "ab",
    "\r\n", "…", "½", "가", "ಠ", "\u0600", "a\u0327", "\u2003", "ﷺ", "\u1680", "😀", "क्", "\u200d", "'", "中",
]  # fmt: skip
CHARSMAP_VALUES = ["", " ", "e", "fi", "...", "1", "é", "가", "\u0301", "صلى الله", "a", "ab", "中", "1⁄2", "  "]


def charsmap(entries: dict[bytes, str]) -> bytes:
    """Return a character map in sentencepiece's format: a double-array trie of the keys, and the replacements."""
    replacements, offsets = bytearray(), {}
    for value in entries.values():
        if value not in offsets:
            offsets[value] = len(replacements)
            replacements += value.encode() + b"\0"
    tree: dict[int, Any] = {}
    for key, value in entries.items():
        node = tree
        for byte in key:
            node = node.setdefault(byte, {})
        node[0] = offsets[value]
    units: dict[int, int] = {0: 0}
    bases: set[int] = set()

    def place(index: int, node: dict[int, Any]) -> None:
        base = 256
        while base in bases or any((base ^ byte) in units for byte in node):
            base += 1
        bases.add(base)
        for byte, child in node.items():
            units[base ^ byte] = child | 1 << 31 if byte == 0 else byte
        units[index] |= (index ^ base) << 10 | (0 in node) << 8
        for byte, child in node.items():
            if byte != 0:
                place(base ^ byte, child)

    place(0, tree)
    array = [units.get(index, 0) for index in range((max(units) | 0xFF) + 1)]
    return struct.pack(f"<I{len(array)}I", 4 * len(array), *array) + bytes(replacements)


def random_charsmap(rng: random.Random) -> bytes:
    """Return a map of a few random keys."""
    keys = rng.sample(CHARSMAP_KEYS, rng.randint(1, len(CHARSMAP_KEYS)))
    return charsmap({key.encode(): rng.choice(CHARSMAP_VALUES) for key in keys})


def _normalizer_step(rng: random.Random) -> Json:
    kind = rng.choice(["form", "form", "Lowercase", "StripAccents", "Strip", "Prepend", "string", "runs", "charsmap"])
    if kind == "form":
        return {"type": rng.choice(["NFC", "NFD", "NFKC", "NFKD"])}
    if kind == "Strip":
        return {"type": "Strip", "strip_left": rng.random() < 0.7, "strip_right": rng.random() < 0.7}
    if kind == "Prepend":
        return {"type": "Prepend", "prepend": rng.choice([SPACE, " ", "x", "é1"])}
    if kind == "string":
        old, new = rng.choice(STRINGS)
        return {"type": "Replace", "pattern": {"String": old}, "content": new}
    if kind == "runs":
        content = rng.choice([" ", " ", SPACE, "", "ab"])
        return {"type": "Replace", "pattern": {"Regex": rng.choice(RUNS)}, "content": content}
    if kind == "charsmap":
        return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(random_charsmap(rng)).decode()}
    return {"type": kind}


def random_normalizer(rng: random.Random) -> Json | None:
    """Return some steps in some order, or None."""
    if rng.random() < 0.15:
        return None
    if rng.random() < 0.25:  # DeBERTa-v3's and ALBERT's order
        encoded = base64.b64encode(random_charsmap(rng)).decode()
        steps = [
            {"type": "Strip", "strip_left": rng.random() < 0.5, "strip_right": True},
            {"type": "Precompiled", "precompiled_charsmap": encoded},
            {"type": "Replace", "pattern": {"Regex": rng.choice(RUNS[:3])}, "content": " "},
        ]
        return {"type": "Sequence", "normalizers": steps[rng.randint(0, 1) :]}
    steps = [_normalizer_step(rng) for _ in range(rng.choice([1, 1, 2, 3, 4]))]
    return steps[0] if len(steps) == 1 and rng.random() < 0.5 else {"type": "Sequence", "normalizers": steps}


def _splitting_step(rng: random.Random) -> Json:
    kind = rng.choice(["WhitespaceSplit", "Metaspace", "Digits", "Punctuation", "Split"])
    if kind == "Metaspace":
        scheme = rng.choice(["always", "always", "first", "never"])
        return {"type": kind, "replacement": SPACE, "prepend_scheme": scheme, "split": rng.random() < 0.75}
    if kind == "Digits":
        return {"type": kind, "individual_digits": rng.random() < 0.5}
    if kind == "Punctuation":
        return {"type": kind, "behavior": rng.choice(BEHAVIORS)}
    if kind == "Split":
        pattern = {"String": rng.choice([" ", "a", "''", "\n", "."])}
        return {"type": kind, "pattern": pattern, "behavior": rng.choice(BEHAVIORS), "invert": rng.random() < 0.3}
    return {"type": kind}


def random_splitter(rng: random.Random) -> Json:
    """Return some steps in some order; half of the time those of a known family."""
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    if rng.random() < 0.5:
        metaspace |= {"prepend_scheme": rng.choice(["always", "always", "first", "never"]), "split": rng.random() < 0.9}
        steps = [{"type": "WhitespaceSplit"}] * rng.randint(0, 1) + [metaspace]
    else:
        steps = [_splitting_step(rng) for _ in range(rng.choice([1, 2, 2, 3]))]
    return steps[0] if len(steps) == 1 and rng.random() < 0.5 else {"type": "Sequence", "pretokenizers": steps}


ADDED = ["[MASK]", "<mask>", "abc", "é", "New York", "#", "中", "IP_ADDRESS", "'s", "naïve", "A", " x", "e\u0301x", "ﬁ"]


SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "[MASK]", "[CLS]", "[SEP]", "<|endoftext|>"]


def random_added(rng: random.Random, vocab: list[str]) -> list[Json]:
    """Return added tokens with all flags, some of them of the vocabulary; contents differ in every normal form."""
    tokens, ids = [], {token: index for index, token in enumerate(vocab)}
    # Names of special tokens are recognised in any case.
    contents = list(dict.fromkeys([*rng.sample(ADDED, rng.choice([0, 0, 1, 2, 4])), *(set(SPECIAL) & set(vocab))]))
    size = len(vocab)
    for content in sorted(contents):
        flags = {name: rng.random() < 0.4 for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}
        flags["special"] = flags["special"] or content in SPECIAL
        index = ids.get(content)
        if index is None:
            index, size = size, size + 1
        tokens.append({"id": index, "content": content, **flags})
    return sorted(tokens, key=lambda token: token["id"])


def _sample_text(rng: random.Random, parts: list[str]) -> str:
    return rng.choice(parts)[: rng.randint(1, 6)]


def random_unigram(rng: random.Random, parts: list[str]) -> Json:
    """Return a model of pieces cut out of texts, with scores of few values; with or without fallback to bytes."""
    vocab = dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>"], 0.0)
    fallback = rng.random() < 0.3
    if fallback:
        vocab |= {f"<0x{byte:02X}>": 0.0 for byte in range(256)}
    characters = [character for part in parts for character in part if character > " " or rng.random() < 0.1]
    for _ in range(rng.choice([20, 100, 400])):
        kind = rng.random()
        piece = rng.choice(characters) if kind < 0.4 else _sample_text(rng, parts).replace(" ", SPACE)
        piece = SPACE * (rng.random() < 0.3) + piece + (_sample_text(rng, parts) if rng.random() < 0.2 else "")
        if piece and "\0" not in piece:
            vocab[piece] = -rng.choice([1.0, 2.0, 2.5, 3.0, 4.0, round(rng.uniform(0, 12), 3), rng.uniform(0, 12)])
    return {"type": "Unigram", "unk_id": 3, "vocab": [*map(list, vocab.items())], "byte_fallback": fallback}


def random_bpe(rng: random.Random, parts: list[str], alphabet: str) -> Json:
    """Return a model of random merges over the byte-level alphabet; a token may be made in several ways."""
    vocab = dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>"]) | dict.fromkeys(rng.sample(alphabet, len(alphabet)))
    merges: dict[tuple[str, str], None] = {}
    words = [
        [alphabet[byte] for byte in (" " * rng.randint(0, 1) + rng.choice(parts) + rng.choice(parts)[:3]).encode()]
        for _ in range(rng.choice([50, 300]))
    ]
    words += [[alphabet[byte] for byte in unit.encode() * 8] for unit in ("a", "ab", " ", "!", "é", "中", "\n")]
    for _ in range(rng.choice([10, 100, 500])):
        word = rng.choice(words)
        if len(word) < 2:
            continue
        at = rng.randrange(len(word) - 1)
        pair = (word[at], word[at + 1])
        if len(pair[0]) + len(pair[1]) > 24:
            continue
        merges[pair] = None
        vocab["".join(pair)] = None
        word[at : at + 2] = ["".join(pair)]
    order = list(merges)
    if rng.random() < 0.5:
        rng.shuffle(order)
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": rng.random() < 0.3,
        "vocab": {token: index for index, token in enumerate(vocab)}, "merges": [list(pair) for pair in order],
    }  # fmt: skip


def random_post_processor(rng: random.Random, ids: dict[str, int], byte_level: bool) -> Json | None:
    """Return one of every kind that is supported."""
    ends = {"sep": ["</s>", ids["</s>"]], "cls": ["<s>", ids["<s>"]]}
    flags = {"trim_offsets": rng.random() < 0.6, "add_prefix_space": rng.random() < 0.5}
    special = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("<s>", "</s>")]
    first, second = ({"Sequence": {"id": name, "type_id": index}} for index, name in enumerate("AB"))
    template = {
        "type": "TemplateProcessing",
        "single": [*special[: rng.randint(0, 1)], first, *special[rng.randint(1, 2) :]],
        "pair": [special[0], first, special[1], *special[: rng.randint(0, 1)], second, special[1]],
        "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in ("<s>", "</s>")},
    }
    choices: list[Json | None] = [None, {"type": "BertProcessing", **ends}, template]
    if byte_level:
        trim = {"type": "ByteLevel", "use_regex": True, **flags}
        choices += [trim, {"type": "RobertaProcessing", **ends, **flags}]
        choices += [{"type": "Sequence", "processors": [trim, template]}]
    return rng.choice(choices)


def random_tokenizer(rng: random.Random, parts: list[str], alphabet: str, kind: str | None = None) -> Json:
    """Return the content of a tokenizer.json, of a BPE or a Unigram model; `alphabet` has a character per byte."""
    kind = kind or rng.choice(["BPE", "Unigram"])
    if kind == "BPE":
        model = random_bpe(rng, parts, alphabet)
        pre: Json = {
            "type": "ByteLevel",
            "add_prefix_space": rng.random() < 0.5,
            "trim_offsets": True,
            "use_regex": True,
        }
        ids = model["vocab"]
        decoder: Json = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    else:
        model, pre = random_unigram(rng, parts), random_splitter(rng)
        ids = {piece: index for index, (piece, _) in enumerate(model["vocab"])}
        scheme = rng.choice(["always", "first", "never"])
        decoder = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True}
        if model["byte_fallback"] and rng.random() < 0.7:
            replace = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
            strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
            steps = [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]
            decoder = {"type": "Sequence", "decoders": steps}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": random_added(rng, list(ids)),
        "normalizer": random_normalizer(rng), "pre_tokenizer": pre,
        "post_processor": random_post_processor(rng, ids, kind == "BPE"), "decoder": decoder, "model": model,
    }  # fmt: skip
