"""fastbert/models/classes.pyi: what type checkers and editors know of the classes that architectures' records make.

`python tests/models/test_class_stub.py && ruff check --fix fastbert && ruff format fastbert` writes it again.
"""

import ast
from pathlib import Path

import fastbert
from fastbert.models import registry

STUB = Path(fastbert.__file__).parent / "models" / "classes.pyi"
HEAD = '''\
"""The classes of the models of all architectures, for type checkers and editors.

At run time the architectures' records make them (`fastbert.models.registry`), and there is no module of this name.
`tests/models/test_class_stub.py` writes this file and compares it with the records.
"""
'''


def stub() -> str:
    """Return the stub that the registry asks for."""
    imports, classes, others = set(), [], []
    for record in registry.ARCHITECTURES.values():
        for name, model in registry.model_classes(record).items():
            base = model.__mro__[1]
            imports.add(f"from {base.__module__} import {base.__name__} as _{base.__name__}")
            classes.append(f"class {name}(_{base.__name__}): ...")
    for model in registry.SEQUENCE_MODELS.values():
        imports.add(f"from {model.__module__} import {model.__name__}")
        others.append(model.__name__)
    names = sorted([*(line.split("(")[0].removeprefix("class ") for line in classes), *others])
    return "\n".join([HEAD, *sorted(imports), "", f"__all__: list[str] = {names!r}", "", *classes, ""])


def statements(text: str) -> set[str]:
    return {ast.unparse(statement) for statement in ast.parse(text).body}


def test_the_stub_names_the_models_of_every_architecture() -> None:
    written, expected = statements(STUB.read_text(encoding="utf-8")), statements(stub())
    assert written == expected, f"{written ^ expected}: write it again, as the docstring of {__file__} says"


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
