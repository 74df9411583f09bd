"""Static vectors: looking words up, neighbours and analogies."""

import numpy as np
import pytest

from fastbert.errors import UserError
from fastbert.vectors import UnknownWordError, WordVectors

WORDS = ("king", "queen", "man", "woman", "river", "River")


def capitals() -> WordVectors:
    """Vectors in which king - man = queen - woman."""
    return WordVectors(WORDS, np.array([[1, 1, 0], [1, 0, 1], [0, 1, 0], [0, 0, 1], [-1, 0, 0], [0, 0, 0]]))


def test_a_word_has_its_row() -> None:
    vectors = capitals()
    assert (len(vectors), vectors.size, vectors.array.dtype) == (6, 3, np.float32)
    assert "queen" in vectors
    assert "Queen" not in vectors
    assert vectors["queen"].tolist() == [1, 0, 1]
    assert vectors.similarity("king", "queen") == pytest.approx(0.5)


def test_an_unknown_word_is_an_error_with_suggestions() -> None:
    vectors = capitals()
    for word, suggestion in (
        ("QUEEN", "did you mean 'queen'?"),
        ("womann", "did you mean 'woman'?"),
        ("zz", "6 words"),
    ):
        with pytest.raises(UnknownWordError) as error:
            vectors[word]
        assert str(error.value).startswith(f"the word '{word}' has no vector; ")
        assert suggestion in str(error.value)
    with pytest.raises(KeyError):
        vectors.neighbours("zz")


def test_lookup_falls_back_to_lower_case_then_to_zeros_or_the_mean() -> None:
    vectors = capitals()
    words = ["River", "KING", "zz"]
    assert vectors.rows(words).tolist() == [5, 0, -1]
    assert vectors.rows([]).shape == (0,)
    before = vectors.array.copy()
    zero, mean = vectors.lookup(words), vectors.lookup(words, unknown="mean")
    assert zero[:2].tolist() == mean[:2].tolist() == [[0, 0, 0], [1, 1, 0]]
    assert not zero[2].any()
    np.testing.assert_allclose(mean[2], before.mean(axis=0), rtol=1e-6)
    assert (vectors.array == before).all()
    with pytest.raises(UserError, match="unknown='none' must be zero or mean"):
        vectors.lookup(words, unknown="none")  # type: ignore[arg-type]


def test_neighbours_equal_a_full_sort(seed: int) -> None:
    """Of equal cosines the first word comes first; a vector as the query leaves no word out."""
    draw = np.random.default_rng(seed)
    array = draw.integers(-2, 3, (200, 4)).astype(np.float32)  # many equal cosines
    vectors = WordVectors([f"w{row}" for row in range(200)], array)
    for query in (3, 77):
        cosines = vectors.unit @ vectors.unit[query]
        order = [row for row in np.argsort(-cosines, kind="stable") if row != query]
        for count in (1, 10, 199, 500):
            assert [word for word, _ in vectors.neighbours(f"w{query}", count)] == [f"w{row}" for row in order[:count]]
    nearest = vectors.neighbours(array[3] * 7, 200)
    assert len(nearest) == 200
    assert nearest[0].cosine == pytest.approx(1.0 if array[3].any() else 0.0)
    with pytest.raises(UserError, match="shape"):
        vectors.neighbours(array)
    with pytest.raises(UserError, match="count=0"):
        vectors.neighbours("w1", 0)


def test_analogies_leave_their_words_out() -> None:
    vectors = capitals()
    assert vectors.analogy("man", "king", "woman", 1)[0].word == "queen"
    assert {word for word, _ in vectors.analogy("man", "king", "man", 9)} == set(WORDS) - {"man", "king"}


@pytest.mark.parametrize(
    ("words", "array", "message"),
    [
        pytest.param(["a"], np.ones((2, 2)), "1 words cannot have an array of shape", id="rows"),
        pytest.param(["a"], np.ones(1), "must be .words, size.", id="rank"),
        pytest.param([], np.ones((0, 3)), "0 words", id="none"),
        pytest.param(["a", "b", "a"], np.ones((3, 2)), "the word 'a' occurs twice", id="twice"),
        pytest.param(["a", "b"], np.array([[1, 2], [np.nan, 1]]), "the vector of 'b' is not finite", id="nan"),
    ],
)
def test_wrong_vectors_are_refused(words: list[str], array: np.ndarray, message: str) -> None:
    with pytest.raises(UserError, match=message):
        WordVectors(words, array)  # type: ignore[arg-type]
