"""What fastbert runs on: each thing that is missing, too old or built for another system is one line with its cure."""

import ast
import importlib.machinery
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

import fastbert
from fastbert import _C, requirements
from fastbert.cli import main
from fastbert.errors import RequirementError, UserError

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(str(fastbert.__file__)).parent


def one_line(error: BaseException) -> str:
    """Return the message of an error, which must be one line."""
    message = str(error)
    assert "\n" not in message
    return message


def test_the_versions_are_those_of_pyproject() -> None:
    pyproject = ROOT / "pyproject.toml"
    if not pyproject.exists():
        pytest.skip("needs the source tree")
    project = tomllib.loads(pyproject.read_text())["project"]
    asked = {item.name: item for item in map(Requirement, project["dependencies"])}
    for package in requirements.REQUIRED:
        assert str(Requirement(requirements._specifier(package))) == str(asked[package])
    assert project["requires-python"] == ">=3.11"


@pytest.mark.parametrize(
    ("package", "version", "problem"),
    [
        ("torch", "2.8.0", ""),
        ("torch", "2.13.0+cpu", ""),
        ("torch", "3.0.0a0+git1234", ""),
        ("torch", "2.7.1+cu126", "fastbert needs torch >= 2.8, found 2.7.1+cu126: `pip install -U 'torch>=2.8'`"),
        ("torch", "1.13", "fastbert needs torch >= 2.8, found 1.13: `pip install -U 'torch>=2.8'`"),
        ("numpy", "1.26.4", ""),
        ("numpy", "1.25.2", "fastbert needs numpy >= 1.26, < 3, found 1.25.2: `pip install -U 'numpy>=1.26,<3'`"),
        ("numpy", "3.0.0rc1", "fastbert needs numpy >= 1.26, < 3, found 3.0.0rc1: `pip install -U 'numpy>=1.26,<3'`"),
        ("torch", "unknown", ""),
    ],
)
def test_versions(package: str, version: str, problem: str) -> None:
    assert requirements.version_problem(package, version) == problem


def test_an_old_torch_is_refused_where_it_is_first_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules["torch"], "__version__", "2.4.1+cu121")
    for name in ("BertForMaskedLM", "WordPieceTokenizer", "accelerate", "RobertaModel"):
        monkeypatch.delitem(vars(fastbert), name, raising=False)
        with pytest.raises(RequirementError, match=re.escape("fastbert needs torch >= 2.8, found 2.4.1+cu121: `pip")):
            getattr(fastbert, name)
    with monkeypatch.context() as patch:
        patch.delattr(fastbert, "_C")
        with pytest.raises(ImportError, match=r"fastbert needs torch >= 2\.8"):
            from fastbert import _C  # noqa: F401
    assert main(["doctor"]) == 1
    assert "advice: fastbert needs torch >= 2.8, found 2.4.1+cu121: `pip install -U" in capsys.readouterr().out


def test_the_version_of_torch_is_read_without_importing_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    monkeypatch.delitem(sys.modules, "torch")
    assert requirements.installed_torch() == torch.__version__
    assert "torch" not in sys.modules
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert requirements.installed_torch() == ""
    requirements.check_torch()  # a missing one counts only where it is needed
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise AssertionError('imported')\n")
    assert requirements.installed_torch() == ""
    (tmp_path / "torch/version.py").write_text("__version__: str = '2.4.1'\ndebug = False\n")
    assert requirements.installed_torch() == "2.4.1"
    with pytest.raises(RequirementError, match=r"found 2\.4\.1"):
        requirements.check_torch()


@pytest.mark.parametrize("package", ["torch", "numpy", "safetensors"])
def test_a_missing_package_is_named(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ModuleNotFoundError(f"No module named '{package}'", name=package)

    def fail(name: str) -> ModuleType:
        raise error

    monkeypatch.setattr(fastbert, "_import_module", fail)
    monkeypatch.delitem(vars(fastbert), "BertModel", raising=False)
    expected = f"fastbert needs {package} >= "
    with pytest.raises(RequirementError) as raised:
        fastbert.BertModel  # noqa: B018
    assert one_line(raised.value).startswith(expected)
    assert f"which is not installed: `pip install '{package}>=" in str(raised.value)
    monkeypatch.setattr("fastbert.cli.import_module", fail)
    pytest.importorskip("tyro", reason="the command line needs tyro")
    assert main(["fill-mask", "some"]) == 2
    assert capsys.readouterr().err == f"fastbert: error: {raised.value}\n"


def test_other_missing_modules_are_not_ours_to_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    assert requirements.missing_package(ModuleNotFoundError("no transformers", name="transformers")) == ""
    assert requirements.missing_package(ImportError("cannot import name 'x' from 'torch'", name="torch")) == ""
    # A module that an installed torch lacks: its version is the matter, not its absence.
    assert requirements.missing_package(ModuleNotFoundError("no torch.export", name="torch.export")) == ""


def test_numpy_is_checked_before_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy

    assert requirements.load_extension() is _C
    monkeypatch.setattr(numpy, "__version__", "1.25.2")
    with pytest.raises(RequirementError, match=r"fastbert needs numpy >= 1\.26, < 3, found 1\.25\.2"):
        requirements.load_extension()
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(RequirementError, match=r"fastbert needs numpy >= 1\.26, < 3, which is not installed"):
        requirements.load_extension()


def load_broken(content: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the message for an extension with this content, from the real dynamic linker."""
    file = folder / "_C.so"
    file.write_bytes(content)

    def load(name: str) -> ModuleType:
        loader = importlib.machinery.ExtensionFileLoader(name, str(file))
        spec = importlib.util.spec_from_file_location(name, file, loader=loader)
        assert spec is not None
        return importlib.util.module_from_spec(spec)

    monkeypatch.setattr(importlib, "import_module", load)
    with pytest.raises(RequirementError) as raised:
        requirements.load_extension()
    return one_line(raised.value)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into an ELF file")
def test_an_extension_for_another_system_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = Path(str(_C.__file__)).read_bytes()
    libc = re.findall(rb"GLIBC_2\.\d\d\0", content)
    assert libc, "the extension names no version of glibc"
    newer = content.replace(libc[0], b"GLIBC_2.99\0")
    message = load_broken(newer, tmp_path, monkeypatch)
    assert re.match(r"fastbert's extension needs glibc 2\.99, found [\w. ]+: compile it on this system: `pip", message)
    runtime = re.findall(rb"GLIBCXX_3\.4\.\d\d\0", content)[0]
    message = load_broken(content.replace(runtime, b"GLIBCXX_3.4.99\0"), tmp_path, monkeypatch)
    assert message.startswith(
        "fastbert's extension needs a newer libstdc++, with GLIBCXX_3.4.99: update it, or compile"
    )
    message = load_broken(b"MZ" + content[2:], tmp_path, monkeypatch)
    assert message.startswith("fastbert's extension was built for a different system than linux ")
    message = load_broken(content.replace(b"PyInit__C", b"PyInit__D"), tmp_path, monkeypatch)
    assert message.startswith("fastbert's extension does not load (")
    assert "install fastbert again, or compile it on this system" in message


def import_copy(folder: Path) -> str:
    """Return the message with which the package's __init__.py, run for a package in a folder, is refused."""
    file = PACKAGE / "__init__.py"
    spec = importlib.util.spec_from_file_location("fastbert_copy", file, submodule_search_locations=[str(folder)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.raises(ImportError) as raised:
        spec.loader.exec_module(module)
    return one_line(raised.value)


def test_an_extension_for_another_python_is_named(tmp_path: Path) -> None:
    (tmp_path / "_C.cpython-37m-x86_64-linux-gnu.so").touch()
    (tmp_path / "_C.pyi").touch()
    message = import_copy(tmp_path)
    assert message.startswith(f"fastbert in {tmp_path} was compiled for a different Python or system (_C.cpython-37m")
    assert f"install fastbert with this Python, {sys.executable}" in message


def test_an_old_python_and_windows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
        patch.setattr(sys, "version", "3.10.13 (main, Jan  1 2024, 00:00:00) [GCC 12.2.0]")
        message = import_copy(tmp_path)
    assert message.startswith("fastbert needs Python 3.11 or newer, and this is 3.10.13: install it in a virtual env")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        message = import_copy(tmp_path)
    assert message.startswith("fastbert does not run on Windows: install it in WSL2, https://")


def test_old_pythons_can_parse_what_refuses_them() -> None:
    source = (PACKAGE / "__init__.py").read_text()
    tree = ast.parse(source, feature_version=(3, 7))
    checks = [node for node in tree.body if isinstance(node, ast.If)]
    before = tree.body[: tree.body.index(checks[0])]
    # What runs before the check exists in every Python 3.
    imported = {ast.unparse(node) for node in before if isinstance(node, ast.Import | ast.ImportFrom)}
    known = re.compile(r"import (sys|typing) |from (importlib|importlib\.machinery|typing) import ")
    assert all(map(known.match, imported))
    assert not [node for node in before if not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)]


def test_a_requirement_is_an_import_error_and_the_user_s() -> None:
    assert issubclass(RequirementError, ImportError)
    assert issubclass(RequirementError, UserError)


def test_without_torch_the_last_line_is_ours(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; import fastbert; fastbert.BertConfig(); fastbert.BertModel"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("fastbert.errors.RequirementError: fastbert needs torch >= 2.8, which is not installed: ")
    assert "https://pytorch.org/get-started/locally/" in last


def test_the_documentation_has_these_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ROOT / "docs" / "support.md"
    if not file.exists():
        pytest.skip("needs the documentation")
    text = file.read_text(encoding="utf-8")
    messages = [
        requirements.version_problem("torch", "2.4.1"),
        requirements.version_problem("numpy", "1.25.2"),
        requirements.missing_package(ModuleNotFoundError(name="torch")),
        requirements.missing_extension(str(tmp_path)).replace(str(tmp_path), "FOLDER"),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(requirements, "_glibc", lambda: "2.17")
        messages.append(requirements._extension_problem("/lib/libc.so.6: version `GLIBC_2.28' not found (required"))
    (tmp_path / "_C.cpython-37m-x86_64-linux-gnu.so").touch()
    with monkeypatch.context() as patch:
        patch.setattr(requirements.platform, "python_version", lambda: "3.13.0")
        patch.setattr(requirements.platform, "machine", lambda: "x86_64")
        message = requirements.missing_extension(str(tmp_path))
        shown = {str(tmp_path): "FOLDER", "_C.cpython-37m-x86_64-linux-gnu.so": "FILES", sys.executable: "PATH"}
        for text_here, name in shown.items():
            message = message.replace(text_here, name)
        messages.append(message.replace(f"on {sys.platform} ", "on linux "))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 10, 13))
        patch.setattr(sys, "version", "3.10.13 (main)")
        messages.append(import_copy(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        messages.append(import_copy(tmp_path))
    for message in messages:
        assert f"`{message}" in text, message
    setup = (ROOT / "setup.py").read_text()
    for part in re.findall(r"^\| (?:installing on|compiling without) .*? \| `([^(`]*)", text, re.MULTILINE):
        assert part.strip() in setup, part
