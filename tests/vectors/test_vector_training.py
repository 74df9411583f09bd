"""Training of static vectors: the words of a corpus, counts, GloVe's step, and what all kinds learn from a toy."""

import itertools
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastbert.data.corpus import Corpus
from fastbert.errors import CorpusError, UserError
from fastbert.vectors import cooccurrences, glove
from fastbert.vectors.corpus_words import WordCorpus, read_words
from fastbert.vectors.training import Kind, TrainedVectors, VectorTraining, train_vectors

TOPICS = (
    ["river", "lake", "water", "boat", "fish", "swim", "shore", "island", "wave", "rain"],
    ["piano", "violin", "music", "song", "choir", "sing", "melody", "rhythm", "tune", "opera"],
)
TRAINING = VectorTraining(size=12, window=4, min_count=1, epochs=25, seed=3)


def toy(folder: Path, seed: int) -> Corpus:
    """Sentences on one of two topics each."""
    draw = random.Random(seed)
    lines = [" ".join(draw.choices(draw.choice(TOPICS), k=8)) for _ in range(400)]
    (folder / "toy.txt").write_text("\n".join(lines) + "\n")
    return Corpus.find(folder / "toy.txt", text_format="lines")


def written(folder: Path, text: str, **options: Any) -> WordCorpus:
    (folder / "text.txt").write_text(text)
    return read_words(Corpus.find(folder / "text.txt", text_format="lines"), folder, **options)


def test_rare_and_long_words_are_left_out_of_sentences(tmp_path: Path) -> None:
    line = "Él [MASK] a b c d e f g h i"
    corpus = written(tmp_path, f"{line}\nx {'y' * 101}\n\n{line} rare a\n{'y' * 101}\n", min_count=2)
    sentences = list(itertools.pairwise(corpus.offsets.tolist()))
    words = [" ".join(corpus.words[index] for index in corpus.ids[begin:end]) for begin, end in sentences]
    whole = "Él [ MASK ] a b c d e f g h i"
    assert words == [whole, f"{whole} a"], "the sentences of rare words alone are gone"
    assert corpus.words[0] == "a"
    assert corpus.counts.tolist() == [3, *[2] * 12]
    assert (corpus.total_words, corpus.distinct_words) == (29, 15)
    lower = written(tmp_path, f"{line}\n", min_count=1, lower_case=True)
    assert {"él", "mask"} <= set(lower.words), "accents stay"


@pytest.mark.parametrize(("text", "message"), [("a a b b\n", "2 occur at least min_count=2"), ("\n", "no text in")])
def test_a_corpus_too_small_for_a_vocabulary_is_an_error(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=message):
        written(tmp_path, text)


def naive_counts(corpus: WordCorpus, window: int) -> dict[tuple[int, int], float]:
    counts: dict[tuple[int, int], float] = Counter()
    for begin, end in itertools.pairwise(corpus.offsets.tolist()):
        sentence = corpus.ids[begin:end].tolist()
        for x, y in itertools.permutations(range(len(sentence)), 2):
            if abs(x - y) <= window:
                counts[sentence[x], sentence[y]] += 1 / abs(x - y)
    return counts


def test_counts_equal_a_loop_over_pairs_in_any_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooccurrences, "_STRIDE", 3)
    draw = random.Random(0)
    text = "".join(" ".join(draw.choices("abcdefghijklmnop", k=draw.randint(1, 30))) + "\n" for _ in range(25))
    corpus = written(tmp_path, text, min_count=1)
    for number, (window, records) in enumerate([(1, 9), (3, 50), (100, 20), (5, 1 << 20)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        done: list[int] = []
        counts = cooccurrences.count_cooccurrences(corpus, window, folder, records=records, progress=done.append)
        cells = np.concatenate([counts.bucket(index) for index in range(len(counts.buckets))])
        expected = naive_counts(corpus, window)
        assert len(cells) == counts.records == len(expected)
        for row, column, count in cells.tolist():
            assert count == pytest.approx(expected[row, column], rel=1e-6)
        assert done[-1] == len(corpus.ids)
        assert (len(counts.buckets) > 1) == (records < 1000)
        assert max(len(counts.bucket(index)) for index in range(len(counts.buckets))) < max(4 * records, 60)


def test_a_step_of_glove_equals_adagrad_on_its_loss(seed: int) -> None:
    """Against autograd in float64, with rows that occur several times."""
    words, size, records = 7, 5, 40
    shape = (words, size + 1)
    generator = torch.Generator().manual_seed(seed)
    tables = [
        glove._Table(torch.randn(shape, generator=generator), torch.rand(shape, generator=generator)) for _ in range(2)
    ]
    rows, columns = torch.randint(words - 1, (2, records), generator=generator)
    x = 30 * torch.rand(records, generator=generator)
    weights = (x / 10).clamp(max=1) ** 0.75
    w, v = (table.values.double().requires_grad_() for table in tables)
    dots = (w[rows, :-1] * v[columns, :-1]).sum(-1) + w[rows, -1] + v[columns, -1]
    loss = (0.5 * weights.double() * (dots - x.double().log()) ** 2).sum()
    gradients = torch.autograd.grad(loss, (w, v))
    squares = [table.squares.double() + g**2 for table, g in zip(tables, gradients)]
    touched = [torch.zeros(words, dtype=torch.bool).index_fill(0, index, True)[:, None] for index in (rows, columns)]
    expected = [
        (value - torch.where(mask, 0.05 * g / square.sqrt(), 0.0)).detach()
        for value, g, square, mask in zip((w, v), gradients, squares, touched)
    ]
    total = glove._step(*tables, rows, columns, x.log(), weights)
    assert total == pytest.approx(loss.item(), rel=1e-5)
    for table, value, square in zip(tables, expected, squares):
        torch.testing.assert_close(table.values.double(), value, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(table.squares.double(), square, rtol=1e-5, atol=1e-6)


def trained(kind: Kind, folder: Path, **changes: Any) -> TrainedVectors:
    if kind != "glove":
        pytest.importorskip("gensim", reason="needs gensim")
    return train_vectors(toy(folder, 0), replace(TRAINING, kind=kind, **changes))


@pytest.mark.parametrize("kind", ["skipgram", "cbow", "glove"])
def test_neighbours_are_of_the_same_topic_and_the_seed_decides(kind: Kind, tmp_path: Path) -> None:
    result = trained(kind, tmp_path)
    vectors = result.vectors
    for topic in TOPICS:
        for word in topic:
            assert {near for near, _ in vectors.neighbours(word, 9)} == set(topic) - {word}, word
    again, other = trained(kind, tmp_path).vectors, trained(kind, tmp_path, seed=4).vectors
    assert vectors.words == again.words
    assert (vectors.array == again.array).all()
    assert not np.allclose(vectors.array, other.array)
    assert (result.total_words, result.distinct_words, result.epochs) == (3200, 20, 25)


def test_glove_is_the_same_with_more_threads(tmp_path: Path) -> None:
    one, two = (trained("glove", tmp_path, threads=threads, epochs=3).vectors for threads in (1, 2))
    assert (one.array == two.array).all()


def test_defaults_follow_from_the_size_of_the_corpus() -> None:
    training = VectorTraining()
    assert [training.epochs_for(words) for words in (10, 10_000_000, 10**9)] == [20, 6, 5]
    assert VectorTraining(kind="glove").epochs_for(10**9) == 25
    assert [training.x_max_for(words) for words in (10, 10**9)] == [10, 100]
    assert (VectorTraining(epochs=2).epochs_for(10), VectorTraining(x_max=3.0).x_max_for(10)) == (2, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("kind", "lsa"), ("size", 0), ("size", 1 << 20), ("window", 0), ("seed", -1), ("seed", 1 << 32), ("x_max", 0.0),
     ("x_max", float("nan")), ("epochs", 0), ("min_count", 0), ("threads", 0), ("negative", 0)],
)  # fmt: skip
def test_values_out_of_range_are_named(name: str, value: object) -> None:
    with pytest.raises(UserError, match=f"^{name}="):
        VectorTraining(**{name: value})  # type: ignore[arg-type]


def test_without_gensim_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "gensim", None)
    with pytest.raises(UserError, match="need the package gensim: `pip install gensim`"):
        train_vectors(toy(tmp_path, 0), TRAINING)


def test_progress_reaches_its_totals_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gensim", reason="needs gensim")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    corpus = toy(tmp_path, 0)
    for kind, stages in (("glove", 4), ("cbow", 3)):
        last: dict[str, tuple[int, int]] = {}
        train_vectors(
            corpus,
            replace(TRAINING, kind=kind, epochs=2),  # type: ignore[arg-type]
            progress=lambda stage, done, total, unit, last=last: last.update({stage: (done, total)}),  # type: ignore[misc]
        )
        assert len(last) == stages
        assert all(done == total for done, total in last.values()), last
    assert [path.name for path in tmp_path.iterdir()] == ["toy.txt"]
