"""Many cases in one test: `sweep` stands in for `pytest.mark.parametrize` where cases differ only by their numbers.

Collecting, setting up and reporting an item of pytest costs more than such a case computes, and there are thousands.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sweep(names: str | tuple[str, ...], cases: Iterable[Any], ids: Any = None) -> Callable[[Any], Any]:
    """Run a test once per case, with the arguments of `pytest.mark.parametrize`.

    The first case that fails ends the test, and a note of the exception names it. A case that skips is left out; the
    test is skipped if all its cases are. Fixtures are set up once, so that none may carry state from case to case.
    """
    parameters = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    single = isinstance(names, str) and len(parameters) == 1
    labels = list(ids) if isinstance(ids, list | tuple) else None
    table: list[tuple[str, dict[str, Any]]] = []
    for index, case in enumerate(cases):
        label = None if labels is None else labels[index]
        if isinstance(case, type(pytest.param())):
            assert not case.marks, f"{case}: a case of a sweep has no marks of its own"
            values, label = case.values, case.id if case.id is not None else label
        else:
            values = (case,) if single else tuple(case)
        assert len(values) == len(parameters), f"{values} are not values of {parameters}"
        name = label if label is not None else "-".join(map(ids if callable(ids) else _label, values))
        table.append((str(name), dict(zip(parameters, values))))
    assert table, f"no case of {names}"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        assert signature.parameters.keys() >= set(parameters), f"{test.__name__} does not take {parameters}"

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            skipped = None
            ran = 0
            for name, values in table:
                try:
                    test(**fixtures, **values)
                except pytest.skip.Exception as reason:
                    skipped = reason
                except BaseException as error:
                    error.add_note(f"in the case {name} of {', '.join(parameters)}")
                    raise
                else:
                    ran += 1
            if skipped is not None and not ran:
                raise skipped

        kept = [value for name, value in signature.parameters.items() if name not in parameters]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate


def _label(value: Any) -> str:
    return str(getattr(value, "__name__", value))
