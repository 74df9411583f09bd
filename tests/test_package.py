"""The package as a whole: its list of packages, what importing it costs, and rules that every file keeps."""

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from patience import PATIENCE, children_seconds, measured
from sweeps import sweep

import fastbert
from fastbert.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
PACKAGE_DIRS = {"fastbert": "fastbert", "kernels": "fastbert.kernels", "benchmarks": "fastbert.benchmarks"}
SOURCES = sorted(file for folder in PACKAGE_DIRS for file in (ROOT / folder).rglob("*.py"))


def setup_constant(name: str) -> Any:
    """The value of a constant in setup.py, without running the rest."""
    names: dict[str, Any] = {"ROOT": ROOT}
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and any(
            getattr(t, "id", "") in ("PACKAGES", "PACKAGE_DIR") for t in node.targets
        ):
            exec(compile(ast.Module([node], []), "setup.py", "exec"), names)
    return names[name]


def run_python(code: str, folder: Path) -> str:
    """Return the output of `code` in a fresh interpreter, away from the source tree."""
    # The first keeps compiled modules for those after it, as for users.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_setup_finds_the_packages_of_the_tree() -> None:
    """Every folder of modules is a package: one without an __init__.py would not be shipped."""
    packages = setup_constant("PACKAGES")
    for folder, package in PACKAGE_DIRS.items():
        for file in (ROOT / folder).rglob("*.py"):
            inner = file.parent.relative_to(ROOT / folder).parts
            assert ".".join((package, *inner)) in packages, file
    assert setup_constant("PACKAGE_DIR") == {package: folder for folder, package in PACKAGE_DIRS.items()}


def test_every_folder_with_code_is_a_package() -> None:
    bare = {file.parent for file in SOURCES if not (file.parent / "__init__.py").exists()}
    assert not bare, f"without __init__.py these are left out of the wheel: {sorted(map(str, bare))}"


def test_the_folder_of_kernels_only_describes_itself() -> None:
    tree = ast.parse((ROOT / "kernels" / "__init__.py").read_text())
    assert len(tree.body) == 1
    assert ast.get_docstring(tree)
    # Hugging Face owns the global name: a folder of that name on sys.path would hide its package.
    assert not [path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("kernels")]
    assert str(ROOT) not in sys.path


def test_the_version_has_one_source() -> None:
    assert fastbert.__version__ == PROJECT["version"]
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{PROJECT['version']}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_stub_names_what_the_extension_holds() -> None:
    stub = ast.parse((ROOT / "fastbert" / "_C.pyi").read_text())
    written = {node.name for node in stub.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    written |= {
        node.target.id for node in stub.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    module = importlib.import_module("fastbert._C")
    exported = {name for name in vars(module) if not name.startswith("_")}
    assert written == exported


def test_all_and_homes_agree() -> None:
    assert sorted(fastbert.__all__) == sorted(fastbert._HOMES)
    assert dir(fastbert) == sorted([*fastbert.__all__, "__version__"]), "each public name once, and nothing else"
    with pytest.raises(AttributeError, match="no attribute 'BertModle'"):
        fastbert.BertModle  # noqa: B018


def test_importing_fastbert_is_quick_and_leaves_torch_alone(tmp_path: Path) -> None:
    code = (
        "import sys, time; start = time.process_time(); import fastbert; took = time.process_time() - start;"
        "print(took, *sorted({'torch', 'numpy', 'transformers', 'tyro', 'rich', 'matplotlib'} & set(sys.modules)))"
    )
    answers = [run_python(code, tmp_path).split() for _ in range(3)]
    assert all(len(answer) == 1 for answer in answers), f"import fastbert imports {answers[0][1:]}"
    assert min(float(answer[0]) for answer in answers) < 0.3 * max(PATIENCE, measured())


def test_all_public_names_add_little_to_torch(tmp_path: Path) -> None:
    """All but `pretrain` and `finetune`, which load the options of a run, and the estimators, which load
    scikit-learn."""
    others = ("pretrain", "finetune", "TextClassifier", "TextEmbedder")
    code = (
        "import torch, time; start = time.process_time(); import fastbert;"
        f"[getattr(fastbert, name) for name in fastbert.__all__ if name not in {others}];"
        "print(time.process_time() - start)"
    )
    times = (float(run_python(code, tmp_path)) for _ in range(5))
    assert any(seconds < 0.3 * PATIENCE or seconds < 0.3 * measured() for seconds in times)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_answers_at_once(command: str, tmp_path: Path) -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    script = Path(sys.executable).with_name("fastbert")
    if not script.exists():
        pytest.skip("the console script is not installed beside this Python")
    times = []
    for _ in range(3):
        before = children_seconds()
        done = subprocess.run([script, *command.split(), "--help"], cwd=tmp_path, capture_output=True, text=True)
        times.append(children_seconds() - before)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("usage: fastbert")
        # The machine may have become slower since the tests began, and change from one process to the next.
        if times[-1] < 0.5 * PATIENCE or times[-1] < 0.6 * measured():
            return
    pytest.fail(f"fastbert {command} --help took {min(times):.2f} s")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([Path(sys.executable).with_name("fastbert")], id="console-script"),
        pytest.param([sys.executable, "-P", "-m", "fastbert"], id="module"),
        pytest.param([sys.executable, ROOT / "fastbert" / "__main__.py"], id="file"),
    ],
)
def test_the_command_works_inside_the_clone(command: list[str | Path]) -> None:
    if not Path(command[0]).exists():
        pytest.skip("the console script is not installed beside this Python")
    # As a user's shell has it, and unlike the other tests (see conftest.py).
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run([*command, "--version"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == f"fastbert {fastbert.__version__}\n", done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "fastbert.config",
        "fastbert.tokenizers",
        "fastbert.data.corpus",
        "fastbert.cli",
        "fastbert.finetuning.config",
        "fastbert.tasks.span.task",
        "fastbert.tasks.prediction_files",
    ],
)
def test_what_commands_read_at_once_needs_no_torch(module: str, tmp_path: Path) -> None:
    assert run_python(f"import sys, {module}; print('torch' in sys.modules)", tmp_path) == "False"


def test_without_tyro_the_command_line_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fastbert.cli import main

    monkeypatch.setitem(sys.modules, "tyro", None)
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err == "fastbert: error: the command line needs the package tyro: `pip install tyro`\n"


def imported_modules(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


# Files about transformers' models, which are imported before any of them is used.
OF_OTHER_LIBRARIES = {
    *(ROOT / "fastbert" / "integrations").rglob("*.py"),
    ROOT / "fastbert" / "finetuning" / "adapters.py",
    ROOT / "fastbert" / "tokenizers" / "transformers_interface.py",
}


@sweep("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_rules_of_every_file(file: Path) -> None:
    tree = ast.parse(file.read_text())
    imported = imported_modules(tree)
    roots = {name.split(".")[0] for name in imported}
    assert not roots & {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}, "nothing is pickled"
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not calls & {"torch.load", "torch.save", "eval", "exec"}, "files are safetensors, JSON and raw arrays"
    if file.is_relative_to(ROOT / "fastbert"):
        assert not any(name.startswith("fastbert.benchmarks") for name in imported), (
            "the package never needs benchmarks"
        )
        assert not roots & {"benchmarks", "kernels"}
        foreign = roots & {"transformers", "sentence_transformers", "peft", "tensorflow"}
        assert not foreign or file in OF_OTHER_LIBRARIES, "models of ours need nobody else's"
    if file.is_relative_to(ROOT / "fastbert") and "cli" not in file.parts:
        heavy = imported_modules(ast.Module([node for node in tree.body if not is_type_checking(node)], []))
        at_top = {name.split(".")[0] for name in heavy & top_level_imports(tree)}
        assert not at_top & {"rich", "tyro", "matplotlib", "tokenizers", "transformers", "pyarrow"}, (
            "imported where it is used, outside cli/"
        )


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def top_level_imports(tree: ast.Module) -> set[str]:
    statements = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return imported_modules(ast.Module(statements, []))


CORE = sorted(f for f in (ROOT / "csrc").rglob("*") if f.suffix in (".cpp", ".h") and f.parent.name != "bindings")


@sweep("file", CORE, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_core_never_includes_python(file: Path) -> None:
    included = re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', file.read_text(), re.MULTILINE)
    foreign = [name for name in included if re.match(r"(Python\.h|pybind11/|torch/|ATen/|c10/|numpy/)", name)]
    assert not foreign


def readme_command(name: str) -> str:
    match = re.search(rf"<!-- {name} command -->\n```sh\n(.+?)\n```\n<!-- end -->", (ROOT / "README.md").read_text())
    assert match, f"README.md has no {name} command of one line between its markers"
    return match[1]


def test_the_readme_sets_everything_up() -> None:
    for name, last in (("demo", "/bin/fastbert demo"), ("test", "/bin/pytest -n auto")):
        create, install, work = readme_command(name).split(" && ")
        folder = create.removeprefix("python3 -m venv ")
        assert install.startswith(f"{folder}/bin/pip install -c constraints.txt ")
        assert work == folder + last


def test_ci_runs_the_command_of_the_readme(tmp_path: Path) -> None:
    """With a Python that only records how it is called, .ci/run stops after the first word of the README's command."""
    tree = tmp_path / "tree"
    (tree / ".ci").mkdir(parents=True)
    for file in (".ci/run", "README.md"):
        (tree / file).write_bytes((ROOT / file).read_bytes())
    (tree / ".ci" / "run").chmod(0o755)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").write_text('#!/bin/sh\necho "called: python3 $*"\nexit 7\n')
    (tools / "python3").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([tree / ".ci" / "run"], capture_output=True, text=True, env=environment)
    assert done.returncode == 7, done.stderr
    assert f"$ bash -euo pipefail -c {readme_command('test')}\n" in done.stdout
    assert "called: python3 -m venv .venv-test" in done.stdout


def test_constraints_are_exact_and_name_no_index() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", pin) for pin in pins)
    assert {"torch==2.13.0", "triton==3.7.1", "transformers==5.17.0"} <= set(pins)
    assert "://" not in "\n".join(lines)
    names = [pin.partition("==")[0] for pin in pins]
    assert len(names) == len(set(names))


def test_constraints_satisfy_what_pyproject_asks_for() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    extras = [text for texts in PROJECT["optional-dependencies"].values() for text in texts]
    for requirement in map(Requirement, [*PROJECT["dependencies"], *extras, *PYPROJECT["build-system"]["requires"]]):
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), (
            f"{requirement.name}=={version} is pinned, {requirement} is asked for"
        )
