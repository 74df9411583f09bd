"""The floors of docs/architecture.md: no module imports a floor above its own, and imports form no circle.

Every import counts: at the top of a file, inside functions, under TYPE_CHECKING, relative ones, and names that are
written out in a call of `import_module`.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TREES = {"fastbert": "fastbert", "fastbert.kernels": "kernels", "fastbert.benchmarks": "benchmarks"}
# From the ground up; a name stands for the module or package and all inside it, and the longest one that fits decides.
FLOORS = (
    ("errors", "flags", "io", "packing", "cpu_capability", "tuning_tables", "distributed", "requirements", "_C"),
    ("checkpoints",),
    ("kernels",),
    ("config", "ops"),
    ("models", "tokenizers", "data"),
    (
        "checkpoints.convert", "checkpoints.delta", "checkpoints.tokenizer_files", "checkpoints.pipeline_files",
        "graphs", "tasks", "embeddings", "reranking", "retrieval", "features", "vectors", "scoring",
        "planning", "mining", "losses", "search",
    ),
    ("training", "finetuning", "distillation"),
    (
        "adaptation", "integrations", "serving", "experiments",
        "planning.fitting", "planning.flags", "planning.measure", "planning.plan", "planning.report", "planning.times",
    ),
    ("doctor", "cli"),
    ("",),  # the public names of `fastbert` itself
    ("benchmarks", "__main__", "cli.bench"),
)  # fmt: skip


def modules() -> dict[str, Path]:
    """Return every module of the package by its name, and the file that defines it."""
    named = {"fastbert._C": ROOT / "fastbert" / "_C.pyi"}
    for package, folder in TREES.items():
        for file in (ROOT / folder).rglob("*.py"):
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            named[".".join((package, *parts)).removesuffix(".__init__")] = file
    return named


def imports(name: str, file: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of the package that a module imports, the module itself left out."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # A package is its __init__: the first dot of a relative import is the package itself.
            parts = name.split(".")[: -(node.level - (file.name == "__init__.py")) or None] if node.level else []
            home = ".".join([*parts, *filter(None, [node.module])])
            for alias in node.names:
                module = f"{home}.{alias.name}"
                imported.add(module if module in known else home)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            imported |= {named_module(argument) for argument in node.args[:1]}
    return {module for module in imported if module in known} - {name}


def named_module(argument: ast.expr) -> str:
    """Return the module that a string names, or the package that an f-string begins with; "" for other expressions."""
    if isinstance(argument, ast.Constant):
        return str(argument.value)
    begin = argument.values[0] if isinstance(argument, ast.JoinedStr) and argument.values else None
    return str(begin.value).rstrip(".") if isinstance(begin, ast.Constant) else ""


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: imports(name, file, known) for name, file in known.items()}


def floor(module: str) -> int:
    """Return the floor of a module."""
    inner = module.removeprefix("fastbert").removeprefix(".")
    fitting = [
        (len(name), level)
        for level, names in enumerate(FLOORS)
        for name in names
        if inner == name or (name and inner.startswith(f"{name}."))
    ]
    assert fitting, f"{module} has no floor: add its package to FLOORS and to docs/architecture.md"
    return max(fitting)[1]


def test_nothing_imports_upwards(graph: dict[str, set[str]]) -> None:
    upward = [
        f"{name} imports {other}" for name, others in graph.items() for other in others if floor(other) > floor(name)
    ]
    # The lazy public names of the package are on the floor above everything that they load.
    assert not upward, "\n".join(sorted(upward))


def test_imports_form_no_circle(graph: dict[str, set[str]]) -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "imports form a circle: " + " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_the_walk_finds_what_it_forbids(tmp_path: Path) -> None:
    """A lazy import, one under TYPE_CHECKING, by the package's name, relative or by a string: all count."""
    file = tmp_path / "module.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from fastbert.tasks.base import Task\n"
        "def f():\n    from fastbert import doctor\n    import fastbert.cli.flags\n    from .. import graphs\n"
        "    from ..training.loop import Loop\n    import_module('fastbert.serving.multi_task_model')\n"
        "    importlib.import_module(f'fastbert.benchmarks.{name}')\n"
    )
    upward = imports("fastbert.ops.custom_op", file, modules())
    assert upward == {
        "fastbert.tasks.base", "fastbert.doctor", "fastbert.cli.flags", "fastbert.graphs", "fastbert.training.loop",
        "fastbert.serving.multi_task_model", "fastbert.benchmarks",
    }  # fmt: skip
    assert all(floor(module) > floor("fastbert.ops.custom_op") for module in upward)
    package = tmp_path / "__init__.py"
    package.write_text("from . import dispatch\nfrom .. import doctor\n")
    assert imports("fastbert.ops", package, modules()) == {"fastbert.ops.dispatch", "fastbert.doctor"}


def test_the_document_names_every_floor() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for names in FLOORS:
        for name in names:
            assert not name or f"`{name.replace('.', '/')}" in text, name


REASONED = 400


def test_long_files_give_a_reason() -> None:
    """A file of more than 400 lines says in its first lines why it is one file ("One file: ...")."""
    for file in (*modules().values(), *(ROOT / "tests").rglob("*.py")):
        lines = file.read_text(encoding="utf-8").splitlines()
        if len(lines) > REASONED and file.suffix == ".py":
            assert any("One file" in line for line in lines[:12]), f"{file.relative_to(ROOT)}: {len(lines)} lines"
