"""An addition edits few existing files: a throw-away operation, architecture, task and command.

The files are in `additions/`. All of them are applied to one copy of the project, where their own tests run.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from additions.architecture import ARCHITECTURE
from additions.command import COMMAND
from additions.operation import OPERATION
from additions.task import TASK

from fastbert import _C
from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("fastbert", "kernels", "csrc")
ADDITIONS = {"operation": OPERATION, "architecture": ARCHITECTURE, "task": TASK, "command": COMMAND}


# The package is imported from the copy, however the project itself is installed.
CONFTEST = """
import importlib.util
import sys
from pathlib import Path

for name in ("fastbert", "fastbert.kernels"):
    folder = Path(__file__).parents[1] / name.removeprefix("fastbert.")
    file, folders = folder / "__init__.py", [str(folder)]
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
sys.modules["fastbert"].kernels = module
"""


class Project(NamedTuple):
    """A copy of the project with all additions."""

    tree: Path
    edited: Mapping[str, set[str]]
    """By kind of addition: the existing files that it has changed."""


def contents(tree: Path) -> dict[str, bytes]:
    """Return the files of a project by path."""
    files = (file for folder in FOLDERS for file in (tree / folder).rglob("*") if file.is_file())
    return {str(file.relative_to(tree)): file.read_bytes() for file in files if file.suffix != ".pyc"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    tree = tmp_path_factory.mktemp("project")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("*.so"))
    before, edited = contents(tree), {}
    for kind, addition in ADDITIONS.items():
        addition.apply(tree)
        after = contents(tree)
        assert before.keys() < after.keys()
        edited[kind] = {path for path, content in before.items() if content != after[path]}
        before = after
    return Project(tree, edited)


@pytest.mark.parametrize(
    ("kind", "limit"), [("operation", 2), ("architecture", 1), ("task", 1), ("command", 1)], ids=ADDITIONS
)
def test_an_addition_edits_few_existing_files(kind: str, limit: int, project: Project) -> None:
    edited = project.edited[kind]
    assert edited == ADDITIONS[kind].edits.keys()
    assert len(edited) <= limit
    table = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (row,) = [line.split("|") for line in table.splitlines() if line.startswith(f"| {kind} |")]
    assert set(re.findall(r"`([^`]+)`", row[3])) == edited, "docs/architecture.md names other files"


def test_additions_pass_their_own_tests(project: Project) -> None:
    extension = Path(str(_C.__file__))
    (project.tree / "fastbert" / extension.name).symlink_to(extension)
    (project.tree / "tests" / "conftest.py").write_text(CONFTEST)
    (project.tree / "pytest.ini").write_text("[pytest]\n")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tests"),
        "OMP_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        "pytest.ini",
        "-p",
        "no:cacheprovider",
        "--durations=9",
        "tests",
    ]
    done = subprocess.run(command, cwd=project.tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    tests = [path for addition in ADDITIONS.values() for path in addition.new if path.startswith("tests/")]
    assert len(tests) == len(ADDITIONS)
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def evaluate(name: str, tree: Path) -> Any:
    """Return the value of an argument of `setup` in setup.py for a copy of the project, without running the rest."""
    setup = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    names: dict[str, Any] = {"ROOT": tree, "os": os}
    needed = ("PACKAGE_DIR", "PACKAGES", "PEAK_SOURCES", "find_sources")
    for node in setup.body:
        defined = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else getattr(node, "name", None)
        if defined in needed:
            exec(ast.unparse(node), names)
    call = next(
        node.value
        for node in setup.body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "setup"
    )
    expression = next(item.value for item in call.keywords if item.arg == name)
    return eval(ast.unparse(expression), {**names, "Extension": lambda name, sources: sources})


def test_the_build_finds_new_packages_and_sources(project: Project) -> None:
    new = [Path(path) for addition in ADDITIONS.values() for path in addition.new]
    packages = evaluate("packages", project.tree)
    for path in new:
        if path.name == "__init__.py":
            assert ".".join(path.parent.parts).replace("kernels", "fastbert.kernels") in packages
    (sources,) = evaluate("ext_modules", project.tree)
    assert {str(path) for path in new if path.suffix == ".cpp"} < set(sources)


@pytest.mark.slow
def test_the_binding_of_an_operation_registers_itself(project: Project, tmp_path: Path) -> None:
    """An extension of the module and the new files alone; `test_build.py` builds whole ones."""
    pybind11 = pytest.importorskip("pybind11")
    sources = ["csrc/bindings/module.cpp", *(path for path in OPERATION.new if path.endswith(".cpp"))]
    includes = [project.tree / "csrc", pybind11.get_include(), sysconfig.get_path("include")]
    compiler = os.environ.get("CXX", "c++").split()
    flags = ["-std=c++20", "-O0", "-fPIC", "-shared", *(f"-I{folder}" for folder in includes)]
    subprocess.run([*compiler, *flags, *sources, "-o", tmp_path / "_C.so"], cwd=project.tree, check=True)
    code = (
        "import _C; from array import array; x, y = array('f', [1, 2, 3]), array('f', [0, 0, 0]);"
        "_C.twice(x.buffer_info()[0], y.buffer_info()[0], 3); print(list(y))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.stdout == "[2.0, 4.0, 6.0]\n", done.stderr


def test_no_file_of_the_package_names_operations_in_a_list() -> None:
    """Doctor and dispatch follow from what is registered."""
    for path in ("doctor.py", "ops/dispatch.py", "ops/operation.py"):
        text = (ROOT / "fastbert" / path).read_text(encoding="utf-8")
        assert "bias_gelu" not in text, path
        assert "dropout_add_layer_norm" not in text, path


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(
        UserError, match="--task verdict: choose one of classification, multilabel, regression, tagging,"
    ):
        FinetuneConfig(task="verdict")
