"""Byte-level BPE and Unigram vocabularies: deterministic, in the layouts of their families, measured and extended."""

import itertools
import json
import logging
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from fastbert import load_tokenizer
from fastbert.errors import UserError
from fastbert.tokenizers import ByteLevelBPETokenizer, UnigramTokenizer, layouts
from fastbert.tokenizers.coverage import measure_coverage
from fastbert.tokenizers.extension import extend_for, extend_vocabulary, propose
from fastbert.tokenizers.piece_training import train_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.tokenizers.variants import with_vocabulary
from fastbert.tokenizers.word_counts import count_documents, count_words, words_of

KINDS = {"bpe": ByteLevelBPETokenizer, "unigram": UnigramTokenizer}
every_kind = pytest.mark.parametrize("kind", KINDS)


def corpus(sentences: int = 600) -> list[str]:
    """Words of random syllables, common ones more often, with capitals, accents, punctuation and rare characters."""
    rng = random.Random(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "é", "ö")]
    words = ["".join(rng.choice(syllables) for _ in range(rng.randint(1, 4))) for _ in range(800)]
    lines = []
    for _ in range(sentences):
        line = [words[int(len(words) * rng.random() ** 3)] for _ in range(rng.randint(3, 12))]
        rare = chr(rng.randint(0x4E00, 0x4E40))
        lines.append(" ".join(line).capitalize() + rng.choice([".", "!", "?", f" 中国{rare}。", f" {rare}", ""]))
    return lines


def files_of(tokenizer: Tokenizer) -> str:
    """Return the content of a tokenizer's files."""
    return json.dumps(tokenizer.to_json())


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(corpus(), request.param, 700)


def test_same_corpus_same_tokenizer(trained: Tokenizer) -> None:
    kind = next(name for name, cls in KINDS.items() if isinstance(trained, cls))
    assert files_of(train_tokenizer(iter(corpus()), kind, 700)) == files_of(trained)
    assert files_of(train_tokenizer(reversed(corpus()), kind, 700)) == files_of(trained)
    # Another process has other hash seeds, in Python as in the trainer, and another number of threads.
    code = (
        "import importlib.util, sys; spec = importlib.util.spec_from_file_location('t', sys.argv[1]);"
        "t = importlib.util.module_from_spec(spec); spec.loader.exec_module(t);"
        "sys.stdout.write(t.files_of(t.train_tokenizer(t.corpus(), sys.argv[2], 700)))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "1", "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, __file__, kind]
    result = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=True)
    assert result.stdout == files_of(trained)


def test_the_layout_is_that_of_the_family(trained: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    assert len(trained) == trained.vocab_size == 700
    assert trained.convert_ids_to_tokens([0, 1, 2, 3, 699]) == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert (trained.pad_token_id, trained.mask_token_id, trained.unk_token_id) == (1, 699, 3)
    assert trained.build_inputs_with_special_tokens([5], [6]) == [0, 5, 2, 2, 6, 2]
    trained.save_pretrained(tmp_path)
    ours, theirs = load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(ours) is type(trained)
    assert ours.fingerprint == trained.fingerprint
    texts = [*corpus()[:30], "", " two  spaces <mask>, ﬁne\u200b \U0001f600", "<s>Wörter</s> don't"]
    for pairs in (None, texts[::-1]):
        mine, reference = ours(texts, pairs, return_offsets_mapping=True), theirs(texts, pairs)
        assert mine["input_ids"] == reference["input_ids"]
        if pairs is None:
            rows = theirs(texts, return_offsets_mapping=True)["offset_mapping"]
            assert [list(map(tuple, row)) for row in mine["offset_mapping"]] == [list(map(tuple, row)) for row in rows]
        assert ours.batch_decode(mine["input_ids"]) == theirs.batch_decode(mine["input_ids"])


def test_fingerprints_of_scores_that_change_when_saved(trained: Tokenizer, tmp_path: Path, seed: int) -> None:
    """sentencepiece has float32 scores; the reference reads some of them, written as decimals, one bit off."""
    if not isinstance(trained, UnigramTokenizer):
        return
    pieces = list(trained.vocab)[len(layouts.FIRST_TOKENS) : -1]
    scores = -np.random.default_rng(seed).uniform(0, 20, len(pieces)).astype(np.float32).astype(np.float64)
    tokenizer = layouts.unigram_tokenizer(pieces, scores, trained.pipeline)
    tokenizer.save_pretrained(tmp_path)
    saved = load_tokenizer(tmp_path)
    assert isinstance(saved, UnigramTokenizer)
    assert (saved.scores != tokenizer.scores).any()
    np.testing.assert_allclose(saved.scores, tokenizer.scores, rtol=4e-16)
    assert saved.fingerprint == tokenizer.fingerprint
    scores[9] += 1e-12
    other = layouts.unigram_tokenizer(pieces, scores, trained.pipeline)
    assert other.fingerprint != tokenizer.fingerprint


@every_kind
@pytest.mark.parametrize("lower_case", [False, True])
def test_words_are_counted_as_the_reference_splits_them(kind: str, lower_case: bool, hostile_text, seed: int) -> None:
    reference = pytest.importorskip("tokenizers")
    rng = random.Random(seed)
    tokenizer = train_tokenizer(corpus(60), kind, 300, lower_case=lower_case)
    theirs = reference.Tokenizer.from_str(json.dumps(tokenizer.to_json()))
    texts = [hostile_text(rng) for _ in range(500)]
    expected: Counter[str] = Counter()
    for text in texts:
        text = theirs.normalizer.normalize_str(text) if theirs.normalizer is not None else text
        words = [word for word, _ in theirs.pre_tokenizer.pre_tokenize_str(text)]
        expected.update(words if kind == "unigram" else (trained_text(word) for word in words))
    assert count_words(texts, normalization=words_of(tokenizer)) == dict(expected)


def trained_text(chunk: str) -> str:
    """Return the text of a chunk of the byte-level alphabet."""
    from fastbert import _C

    values = {character: byte for byte, character in enumerate(_C.byte_level_alphabet())}
    return bytes(map(values.__getitem__, chunk)).decode()


def test_case_and_accents() -> None:
    for kind in KINDS:
        folded, kept = (train_tokenizer(corpus(200), kind, 500, lower_case=lower) for lower in (True, False))
        assert folded.tokenize("Bádö GAFU") == folded.tokenize("bado gafu") != kept.tokenize("Bádö GAFU")
        assert folded.decode(folded.encode("BÁDÖ 中"), skip_special_tokens=True) == "bado 中"
        assert kept.decode(kept.encode("Badö 中"), skip_special_tokens=True) == "Badö 中"


def test_the_characters_are_the_most_frequent_ones() -> None:
    tokenizer = train_tokenizer(corpus(), "unigram", 400, alphabet_limit=10)
    characters = {char for token in list(tokenizer.vocab)[4:-1] for char in token}
    assert len(characters) == 10
    assert "\u2581" in characters


@every_kind
def test_bad_arguments(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UserError, match="the corpus holds no words"):
        train_tokenizer(["", " \n"], kind, 700)
    with pytest.raises(UserError, match="vocab_size=6 has no room beside 5 special tokens"):
        train_tokenizer(["a"], kind, 6)
    with pytest.raises(UserError, match="min_frequency=0"):
        train_tokenizer(["a"], kind, 700, min_frequency=0)
    with caplog.at_level(logging.WARNING, logger="fastbert"):
        tokenizer = train_tokenizer(["a tiny corpus, a tiny corpus </s> <mask>"], kind, 30522)
    assert f"supports only {len(tokenizer)} of 30522 tokens of a vocabulary" in caplog.text
    # What is a special token in text is no piece.
    assert tokenizer.tokenize("<mask>") == ["<mask>"]


def test_no_room_for_any_word() -> None:
    with pytest.raises(UserError, match="vocab_size=8 has no room for the characters of any word"):
        train_tokenizer(["abcdefg"], "unigram", 8)


def test_coverage_counts_what_the_tokenizer_yields(trained: Tokenizer, hostile_text, seed: int) -> None:
    rng = random.Random(seed)
    texts = [*corpus(), *(hostile_text(rng) for _ in range(500))]
    text = count_documents([texts], words_of(trained)).learn
    report = measure_coverage(trained, text)
    # Special tokens in text count as the words that they consist of.
    ids, _ = with_vocabulary_split(trained).encode_ragged(texts)
    assert report.tokens == len(ids)
    assert report.unknown_tokens == int((ids == trained.unk_token_id).sum())
    assert sum(report.pieces_per_word.values()) == pytest.approx(1)
    if isinstance(trained, ByteLevelBPETokenizer):
        assert report.unknown_token is None
        assert report.unknown_tokens == 0
        # 256 bytes and the first merges are a smaller vocabulary.
        learned = count_documents([corpus()], words_of(trained)).learn
        smaller = measure_coverage(train_tokenizer(corpus(), "bpe", 501), learned)
        point = next(point for point in measure_coverage(trained, learned).curve if point.entries == 500)
        assert (point.tokens_per_word, point.unknown_words) == (smaller.tokens_per_word, 0)
        assert report.curve[0].tokens_per_word is None
    else:
        assert report.unknown_token == "<unk>"
        assert report.unknown_characters


def with_vocabulary_split(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that treats special tokens in text as text."""
    return with_vocabulary(tokenizer, list(tokenizer.vocab)[: tokenizer.vocab_size], split_special_tokens=True)


def test_an_extension_keeps_ids_and_loads_in_transformers(trained: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    base = with_vocabulary(trained, list(trained.vocab))
    base.add_tokens(["<extra>"])  # its id is kept too
    domain = [f"{line} Tagudopome, tagudopome-Test {line}" for line in corpus(200)]
    words = count_words(domain, normalization=words_of(base))
    proposal = propose(base, words)
    chosen = proposal.candidates[:30]
    extension, changed = extend_for(base, chosen, words)
    larger = extension.tokenizer
    assert extension.base_size == len(base) == 701
    assert [entry.word for entry in extension.entries] == [candidate.word for candidate in chosen]
    assert [entry.id for entry in extension.entries] == list(range(701, 731))
    assert larger.convert_ids_to_tokens(list(range(701))) == base.convert_ids_to_tokens(list(range(701)))
    assert larger.encode("<extra>") == base.encode("<extra>")
    space = " " if isinstance(base, ByteLevelBPETokenizer) else "\u2581"
    assert f"{space}Tagudopome" in {entry.word for entry in extension.entries}
    before, after = ([*itertools.chain(*it(domain)["input_ids"])] for it in (base, larger))
    assert len(after) < len(before)
    for entry in extension.entries:
        assert entry.replaced is None
        text = entry.word.replace("\u2581", " ")
        assert entry.id in larger.encode(f"-{text}" if space == " " else text)
    if isinstance(base, ByteLevelBPETokenizer):
        assert changed == ()
        with pytest.raises(UserError, match="is not one word to this tokenizer"):
            extend_vocabulary(base, ["two words"])
    else:
        assert all(change.word.startswith(tuple(entry.word for entry in extension.entries)) for change in changed)
    larger.save_pretrained(tmp_path)
    ours, theirs = load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = [*domain[:50], "<extra> <mask>", " Tagudopomen"]
    assert ours(texts)["input_ids"] == theirs(texts)["input_ids"] == larger(texts)["input_ids"]
    # Extending once more is possible.
    again = extend_vocabulary(ours, [f"{space}qqq"])
    assert again.entries[0].id == 731
    assert again.tokenizer(texts)["input_ids"] == larger(texts)["input_ids"]
