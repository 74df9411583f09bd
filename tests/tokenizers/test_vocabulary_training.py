"""Vocabularies: deterministic, of the size asked for, and made of what the tokenizer will see."""

import logging
import os
import random
import subprocess
import sys

import pytest

from fastbert.errors import UserError
from fastbert.tokenizers import WordPieceTokenizer, train_vocabulary
from fastbert.tokenizers.training import SPECIAL_TOKENS, count_words, learn_vocabulary

pytest.importorskip("tokenizers")


def corpus(seed: int = 0, sentences: int = 3000) -> list[str]:
    """Words of random syllables, common ones more often, with capitals, accents, punctuation and some Chinese."""
    rng = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "é", "ö")]
    words = ["".join(rng.choice(syllables) for _ in range(rng.randint(1, 4))) for _ in range(2000)]
    lines = []
    for _ in range(sentences):
        line = [words[int(len(words) * rng.random() ** 3)] for _ in range(rng.randint(3, 12))]
        lines.append(" ".join(line).capitalize() + rng.choice([".", "!", "?", " 中国。", ""]))
    return lines


def test_same_corpus_same_vocabulary():
    first = train_vocabulary(corpus(), 600)
    for _ in range(3):
        assert train_vocabulary(iter(corpus()), 600) == first
    assert train_vocabulary(reversed(corpus()), 600) == first
    # Another process has other hash seeds, in Python as in the trainer.
    code = (
        "import importlib.util, sys; spec = importlib.util.spec_from_file_location('t', sys.argv[1]);"
        "t = importlib.util.module_from_spec(spec); spec.loader.exec_module(t);"
        "print('\\n'.join(t.train_vocabulary(t.corpus(), 600)))"
    )
    for hash_seed, parallel in (("1", "true"), ("2", "false")):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "TOKENIZERS_PARALLELISM": parallel}
        command = [sys.executable, "-c", code, __file__]
        result = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=True)
        assert result.stdout.splitlines() == first


@pytest.mark.parametrize("vocab_size", [60, 100, 500, 1000])
def test_size_is_honoured(vocab_size):
    vocab = train_vocabulary(corpus(), vocab_size)
    assert len(vocab) == len(set(vocab)) == vocab_size
    assert tuple(vocab[:5]) == SPECIAL_TOKENS


def test_unused_tokens():
    vocab = train_vocabulary(corpus(), 300, unused=3)
    assert vocab[5:8] == ["[unused0]", "[unused1]", "[unused2]"]
    assert len(vocab) == 300


def test_case():
    assert not any(token != token.lower() for token in train_vocabulary(corpus(), 500)[5:])
    cased = train_vocabulary(corpus(), 500, lower_case=False)
    assert any(token != token.lower() for token in cased[5:])
    assert "é" in cased
    assert "é" not in train_vocabulary(corpus(), 500)


def test_the_tokenizer_knows_the_corpus():
    lines = corpus()
    tokenizer = WordPieceTokenizer(train_vocabulary(lines, 800))
    ids, _ = tokenizer.encode_ragged(lines)
    assert (ids != tokenizer.unk_token_id).all()
    # Letters continue words; what is always a word of its own needs no continuing form.
    assert "##a" in tokenizer.vocab
    assert "中" in tokenizer.vocab
    assert "##中" not in tokenizer.vocab
    assert "##." not in tokenizer.vocab


def test_alphabet_limit():
    vocab = train_vocabulary(corpus(), 500, alphabet_limit=4)
    characters = {token for token in vocab if len(token) == 1}
    assert len(characters) == 4
    assert all(set(token.removeprefix("##")) <= characters for token in vocab[5:])


def test_small_corpus_is_announced(caplog):
    with caplog.at_level(logging.WARNING, logger="fastbert"):
        vocab = train_vocabulary(["a tiny corpus, a tiny corpus"], 30522)
    assert len(vocab) < 60
    assert f"supports only {len(vocab)} of 30522 tokens of a vocabulary" in caplog.text


def test_bad_arguments():
    with pytest.raises(UserError, match="the corpus holds no words"):
        train_vocabulary(["", " \u200b\n"], 100)
    with pytest.raises(UserError, match="the corpus holds no words"):
        train_vocabulary([], 100)
    with pytest.raises(UserError, match="vocab_size=6 has no room beside 5 special and 0 unused tokens"):
        train_vocabulary(["a"], 6)
    with pytest.raises(UserError, match="alphabet_limit=0"):
        train_vocabulary(["a"], 100, alphabet_limit=0)


def test_words_are_counted_as_the_tokenizer_splits_them():
    counts = count_words(["Héllo, hello!", "HELLO中国", "[MASK] " + "x" * 101])
    assert counts == {"!": 1, ",": 1, "[": 1, "]": 1, "hello": 3, "mask": 1, "中": 1, "国": 1}
    assert count_words(["Héllo"], lower_case=False) == {"Héllo": 1}


def test_progress():
    seen: list[int] = []
    train_vocabulary((line for line in corpus(sentences=9000)), 300, progress=seen.append)
    assert sum(seen) == 9000
    assert len(seen) > 1


def test_learning_can_be_interrupted_and_shows_that_time_passes():
    beats: list[float] = []
    learn_vocabulary(count_words(corpus()), 600, heartbeat=beats.append)
    assert beats
    assert beats == sorted(beats)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn_vocabulary(count_words(corpus()), 600, heartbeat=interrupt)


def test_what_fails_in_the_thread_fails_here(monkeypatch):
    def fail(*arguments):
        raise MemoryError("too many words")

    monkeypatch.setattr("fastbert.tokenizers.training._learn_pieces", fail)
    with pytest.raises(MemoryError, match="too many words"):
        learn_vocabulary({"a": 1}, 100)
