"""Texts as callers hold them: what counts as a column, what is missing, and what is refused with its index."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastbert.errors import UserError
from fastbert.io.columns import is_series, items_of, series_like, texts_of

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")

TEXTS = ["a", "", "two words"]
HOLES = ["a", None, "b", None]


def test_columns_of_every_kind_are_the_same_list() -> None:
    columns = [
        TEXTS,
        tuple(TEXTS),
        np.array(TEXTS),
        np.array(TEXTS, dtype=object),
        np.array(TEXTS, dtype=np.dtypes.StringDType()),
        pandas.Series(TEXTS, index=[7, 8, 9]),
        pandas.Series(TEXTS, dtype="category"),
        pandas.Series(TEXTS, dtype=object),
        pandas.Index(TEXTS),
        polars.Series("text", TEXTS),
        polars.Series("text", TEXTS, dtype=polars.Categorical),
        pyarrow.array(TEXTS),
        pyarrow.chunked_array([TEXTS[:1], TEXTS[1:]]),
        pyarrow.array(TEXTS).dictionary_encode(),
    ]
    for column in columns:
        assert texts_of(column) == TEXTS, type(column)
    for column in columns[5:9]:
        assert is_series(column) == isinstance(column, pandas.Series)


def test_a_generator_is_read_only_as_it_comes() -> None:
    def numbered() -> Iterator[Any]:
        yield "a"
        yield 3

    texts = iter(texts_of(numbered()))
    assert next(texts) == "a"
    with pytest.raises(UserError, match=r"texts\[1\] must be a string, not int \(3\)"):
        next(texts)


def test_missing_values_are_refused_with_their_place_and_number() -> None:
    cure = "drop such rows first (.dropna(), .drop_nulls()) or fill them with ''"
    cases = [
        (HOLES, r"texts\[1\] is missing \(None\), and so is 1 other: "),
        ([*HOLES, None], r"texts\[1\] is missing \(None\), and so are 2 others: "),
        (pandas.Series(HOLES, index=list("wxyz"), dtype=object), r"texts\[1\] \(index label 'x'\) is missing \(None\)"),
        (pandas.Series(HOLES, dtype="string"), r"texts\[1\] is missing \(<NA>\), and so is 1 other: "),
        (pandas.Series(["a", pandas.NaT], dtype=object), r"texts\[1\] is missing \(NaT\): "),
        (np.array(["a", float("nan")], dtype=object), r"texts\[1\] is missing \(nan\): "),
        (polars.Series("text", HOLES), r"texts\[1\] is missing \(None\), and so is 1 other: "),
        (pyarrow.array(HOLES), r"texts\[1\] is missing \(None\), and so is 1 other: "),
        ((text for text in HOLES), r"texts\[1\] is missing \(None\): "),
    ]
    for column, message in cases:
        with pytest.raises(UserError, match=f"^{message}") as caught:
            list(texts_of(column))
        assert str(caught.value).endswith(cure)


def test_what_is_no_column_of_texts_is_refused() -> None:
    frame = pandas.DataFrame({"a": TEXTS})
    table = r"is a table \(.*\): give one of its columns, frame\['text'\] for example"
    cases: list[tuple[Any, str]] = [
        (frame, table),
        (polars.DataFrame({"a": TEXTS}), table),
        (polars.LazyFrame({"a": TEXTS}), table),
        (pyarrow.table({"a": TEXTS}), table),
        (np.array([["a", "b"]]), r"has the shape \(1, 2\): give one dimension"),
        (np.array("a"), r"has the shape \(\): give one dimension"),
        ("a text", "must be a list of strings or another iterable, not str"),
        (b"bytes", "not bytes; decode it first"),
        ({"a": 1}, "not dict; make it a list"),
        ({"a"}, "not set; make it a list"),
        (None, "not NoneType"),
        (3, "not int"),
    ]
    for value, message in cases:
        with pytest.raises(UserError, match=rf"^X .*{message}"):
            items_of(value, "X")
    for item, shown in ((3, r"int \(3\)"), (["a"], "list"), (("a", "b"), "tuple"), (np.float64(1.5), "float64")):
        with pytest.raises(UserError, match=rf"^texts\[1\] must be a string, not {shown}"):
            texts_of(["a", item])
    with pytest.raises(UserError, match=r"^texts\[0\] is bytes: decode it first, with \.decode\('utf-8'\)"):
        texts_of([b"a"])
    with pytest.raises(UserError) as caught:
        texts_of([["x" * 5000]])
    assert len(str(caught.value)) < 200
    assert texts_of([np.str_("a"), "b" * 10_000_000])[0] == "a"


def test_a_series_is_answered_with_one_of_its_kind() -> None:
    column = pandas.Series(TEXTS, index=[5, 6, 6], name="text")
    answer = series_like(column, [1, 2, 3], "label")
    assert isinstance(answer, pandas.Series)
    assert (answer.name, answer.index.tolist(), answer.tolist()) == ("label", [5, 6, 6], [1, 2, 3])
    other = series_like(polars.Series("text", TEXTS), [1, 2, 3], "label")
    assert isinstance(other, polars.Series)
    assert (other.name, other.to_list()) == ("label", [1, 2, 3])
    assert not is_series(TEXTS)
