"""Sweeps: every case runs, a failure names its case, and only a test whose cases all skip is skipped."""

import inspect

import pytest
from sweeps import sweep


def test_every_combination_runs_and_the_names_are_no_fixtures() -> None:
    ran = []

    @sweep("letter", ["a", "b"])
    @sweep(("number", "square"), [(1, 1), pytest.param(2, 4, id="two")])
    def test(letter: str, number: int, square: int, seed: int) -> None:
        ran.append((letter, number, square, seed))

    assert list(inspect.signature(test).parameters) == ["seed"]
    test(seed=7)
    assert ran == [("a", 1, 1, 7), ("a", 2, 4, 7), ("b", 1, 1, 7), ("b", 2, 4, 7)]


def test_a_failure_names_its_case() -> None:
    @sweep("letter", ["a", "b"], ids=["first", "second"])
    @sweep("number, square", [(1, 1), (2, 5)])
    def test(letter: str, number: int, square: int) -> None:
        assert letter == "a" or number**2 == square

    with pytest.raises(AssertionError) as failure:
        test()
    assert failure.value.__notes__ == ["in the case 2-5 of number, square", "in the case second of letter"]


def test_cases_that_skip_are_left_out() -> None:
    ran = []

    @sweep("number", range(4))
    def test(number: int) -> None:
        if number < 3:
            pytest.skip("small")
        ran.append(number)

    @sweep("number", range(3))
    def nothing(number: int) -> None:
        pytest.skip(f"small: {number}")

    test()
    assert ran == [3]
    with pytest.raises(pytest.skip.Exception, match="small: 2"):
        nothing()


def test_a_sweep_that_cannot_run_is_refused() -> None:
    with pytest.raises(AssertionError, match="no case of number"):
        sweep("number", [])
    with pytest.raises(AssertionError, match="marks of its own"):
        sweep("number", [pytest.param(1, marks=pytest.mark.slow)])
    with pytest.raises(AssertionError, match="not values of"):
        sweep("number, square", [(1, 1, 1)])
    with pytest.raises(AssertionError, match="does not take"):
        sweep("number", [1])(lambda square: None)
