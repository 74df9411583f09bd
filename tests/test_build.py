"""The build: what is compiled again, what is shipped, and what a user reads when it fails."""

import inspect
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TREE = ("benchmarks", "csrc", "docs", "fastbert", "kernels", "tests")
FILES = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "NOTICE", "README.md", "constraints.txt")
BUILD_FILES = ("MANIFEST.in", "bootstrap.py", "pyproject.toml", "setup.py")
JUNK = ("__pycache__", "*.pyc", "*.so", "*.egg-info", "cache")  # the last: models of the tour

# A core of three files in place of the real one: the build is the same, and takes seconds. Of pybind11 it includes the
# definitions alone, since its templates take longest to compile.
SMALL_CORE = {
    "bindings.cpp": """#include <pybind11/detail/common.h>
#include "core.h"
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(one() + two()); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods};
extern "C" PYBIND11_EXPORT PyObject* PyInit__C() { return PyModule_Create(&definition); }
""",
    "part/one.cpp": '#include "core.h"\nint one() { return 1; }\n',
    "part/two.cpp": "int two() { return 2; }\n",
    "core.h": "int one();\nint two();\n",
}
HOOK = "from setuptools import build_meta; import sys; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"

pytestmark = pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="needs the source tree")


def copy_tree(target: Path, small: bool = True) -> Path:
    """The files of this project in `target`, with the small core unless the real one is asked for."""
    for name in (*FILES, *BUILD_FILES, ".pre-commit-config.yaml"):
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    for name in TREE:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns(*JUNK))
    if small:
        shutil.rmtree(target / "csrc")
        probe = target / "csrc/common/cxx20_probe.h"
        probe.parent.mkdir(parents=True)
        shutil.copy2(ROOT / "csrc/common/cxx20_probe.h", probe)
        for name, text in SMALL_CORE.items():
            (target / "csrc" / name).parent.mkdir(parents=True, exist_ok=True)
            (target / "csrc" / name).write_text(text)
    return target


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("CXX", "CXXFLAGS", "PYTHONPATH")}
    return subprocess.run(
        command,
        cwd=folder,
        env={**inherited, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def build(tree: Path, hook: str = "build_wheel", **environment: str) -> tuple[Path, list[str]]:
    """Call a build hook as pip does; returns the file it made and the sources it compiled."""
    dist = tree.parent / "dist"
    dist.mkdir(exist_ok=True)
    done = run([sys.executable, "-c", HOOK, hook, str(dist)], tree, CXXFLAGS="-O0", **environment)
    assert done.returncode == 0, done.stdout
    compiled = re.findall(r"^\[\d+/\d+\] compile .*/csrc/([^'\n]*)", done.stdout, flags=re.MULTILINE)
    return dist / done.stdout.splitlines()[-1], sorted(compiled)


def moved_pybind11(folder: Path) -> str:
    """A PYTHONPATH with pybind11 in a place of its own, as in each of pip's isolated builds."""
    pybind11 = pytest.importorskip("pybind11")
    shutil.copytree(Path(pybind11.__file__).parent, folder / "pybind11", copy_function=shutil.copy)
    return str(folder)


def test_only_what_changed_is_compiled_again(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "my $clone (1)")
    (tree / "fastbert/tasks/named.py").write_text("")
    first, second = moved_pybind11(tmp_path / "isolated-1"), moved_pybind11(tmp_path / "isolated-2")
    _, compiled = build(tree, PYTHONPATH=first)
    assert compiled == ["bindings.cpp", "part/one.cpp", "part/two.cpp"]

    # pybind11 lies elsewhere, which changes nothing.
    (tree / "csrc/part/two.cpp").write_text("int two() { return 41; }\n")
    wheel, compiled = build(tree, PYTHONPATH=second)
    assert compiled == ["part/two.cpp"]
    assert answer(wheel, tmp_path / "changed") == "42"

    (tree / "csrc/core.h").write_text("inline int one() { return 2; }\nint two();\n")
    (tree / "csrc/part/one.cpp").unlink()
    # A file that is gone from the tree is gone from the wheel, though an earlier build has left a copy of it.
    (tree / "fastbert/tasks/named.py").rename(tree / "fastbert/tasks/renamed.py")
    wheel, compiled = build(tree, PYTHONPATH=first)
    assert compiled == ["bindings.cpp"]
    assert answer(wheel, tmp_path / "header") == "43"
    assert "fastbert/tasks/renamed.py" in zipfile.ZipFile(wheel).namelist()
    assert "fastbert/tasks/named.py" not in zipfile.ZipFile(wheel).namelist()


def answer(wheel: Path, folder: Path) -> str:
    """Return the answer of the small core in a wheel, unpacked."""
    zipfile.ZipFile(wheel).extractall(folder)
    done = run([sys.executable, "-c", "from fastbert import _C; print(_C.answer())"], folder, PYTHONPATH=str(folder))
    return done.stdout.strip()


@pytest.mark.slow
def test_bindings_need_no_entry_in_a_list(tmp_path: Path) -> None:
    """Each file of csrc/bindings registers itself; classes are bound first, whatever the names of the files: pybind11's
    templates are compiled three times. The next test reads as much in the real extension."""
    tree = copy_tree(tmp_path / "tree")
    shutil.rmtree(tree / "csrc")
    (tree / "csrc" / "bindings").mkdir(parents=True)
    for name in ("module.cpp", "precompiled.h", "registration.h"):
        shutil.copy2(ROOT / "csrc" / "bindings" / name, tree / "csrc" / "bindings" / name)
    includes = '#include <pybind11/pybind11.h>\n#include "bindings/registration.h"\n'
    sources = {
        "a.cpp": "int value(const Toy& toy);\nnamespace a_bindings { const fastbert::Registration registration{"
        '"a", [](pybind11::module_& m) { m.def("answer", [] { return 42; }); m.def("value", &value); }}; }\n',
        "b.cpp": "int value(const Toy&) { return 1; }\n"
        'namespace b_bindings { const fastbert::Registration registration{"b", nullptr, '
        '[](pybind11::module_& m) { pybind11::class_<Toy>(m, "Toy"); }}; }\n',
    }
    (tree / "csrc" / "toy.h").write_text("#pragma once\nstruct Toy {};\n")
    for name, text in sources.items():
        (tree / "csrc" / "bindings" / name).write_text(f'{includes}#include "toy.h"\n{text}')
    wheel, _ = build(tree)
    assert answer(wheel, tmp_path / "toys") == "42"
    show = [sys.executable, "-c", "from fastbert import _C; print(_C.value.__doc__)"]
    assert "fastbert._C.Toy" in run(show, tmp_path, PYTHONPATH=str(tmp_path / "toys")).stdout


def test_functions_of_the_extension_name_classes_that_are_bound_before_them() -> None:
    """Where a class is bound later, pybind11 writes its name in C++, such as `fastbert::Toy`, into the docstring."""
    from fastbert import _C

    functions = {name: value.__doc__ or "" for name, value in vars(_C).items() if inspect.isbuiltin(value)}
    sources = (ROOT / "csrc" / "bindings").glob("*.cpp")
    registered = [file.stem for file in sources if "const Registration registration{" in file.read_text()]
    assert len(functions) > len(registered) > 10
    assert [name for name, doc in functions.items() if "::" in doc] == []
    assert any("fastbert._C." in doc for doc in functions.values())


def test_files_of_bindings_may_share_a_translation_unit() -> None:
    """What a file of csrc/bindings holds is in a namespace named after it, so that names of two files never meet."""
    for file in sorted((ROOT / "csrc" / "bindings").glob("*.cpp")):
        text = file.read_text()
        if file.stem != "module":
            assert f"\nnamespace fastbert::{file.stem}_bindings {{\nnamespace {{\n" in text, file.name
            assert text.count("\nnamespace {\n") == 1, file.name
        outside = text.partition("\nnamespace ")[0]
        assert set(re.findall(r"using namespace (\S+);", outside)) <= {"py::literals"}, file.name


def test_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "tree")
    (tree / "benchmarks/results").mkdir(exist_ok=True)
    (tree / "benchmarks/results/machine.json").write_text("{}")
    wheel, _ = build(tree)
    names = set(zipfile.ZipFile(wheel).namelist())
    homes = {"fastbert": "fastbert", "kernels": "fastbert/kernels", "benchmarks": "fastbert/benchmarks"}
    modules = {
        f"{home}/{file.relative_to(tree / folder).as_posix()}"
        for folder, home in homes.items()
        for file in (tree / folder).rglob("*.py*")
    }
    [extension] = [name for name in names if name.endswith(".so")]
    [info] = {name.split("/")[0] for name in names if not name.startswith("fastbert/")}
    assert extension.startswith("fastbert/_C.")
    assert info.endswith(".dist-info")
    others = {"fastbert/py.typed", "fastbert/training/reference_curves.json"}
    others |= {f"fastbert/training/run_page/page.{ending}" for ending in ("html", "css", "js")}
    others |= {f"fastbert/serving/page/{file.name}" for file in (tree / "fastbert/serving/page").iterdir()}
    others.add("fastbert/benchmarks/serving/load.cpp")
    assert {name for name in names if name.startswith("fastbert/")} == {extension, *others, *modules}
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"} <= names
    metadata = zipfile.ZipFile(wheel).read(f"{info}/METADATA").decode()
    assert "\nName: fastbert-engine\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist: triton") and "extra" not in line
    ] == []


def test_sdist_holds_the_project_and_no_build(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "tree")
    expected = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    results = tree / "benchmarks/results/machine.json"
    results.parent.mkdir(exist_ok=True)
    results.write_text("{}")
    junk_files = ("build/lib/fastbert/x.py", "fastbert/_C.so", "tests/__pycache__/x.pyc", ".venv/x.py", "runs/x.json")
    for junk in (*junk_files, "docs/tour/cache/x.txt", "docs/notebooks/cache/x.txt"):
        (tree / junk).parent.mkdir(parents=True, exist_ok=True)
        (tree / junk).write_text("")
    sdist, _ = build(tree, "build_sdist")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    files = {name for name in names if "egg-info" not in name}
    assert files == expected | {"benchmarks/results/machine.json", "PKG-INFO", "setup.cfg"}


def no_compiler(folder: Path, *, old: bool) -> str:
    """A PATH without a C++20 compiler; with `old`, its compilers refuse every program."""
    folder.mkdir()
    if old:
        for name in ("c++", "g++", "clang++"):
            (folder / name).write_text("#!/bin/sh\necho 'error: unrecognized option -std=c++20' >&2\nexit 1\n")
            (folder / name).chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("old", [pytest.param(False, id="none"), pytest.param(True, id="too-old")])
def test_without_a_compiler_one_line_says_so(tmp_path: Path, old: bool) -> None:
    tree = copy_tree(tmp_path / "tree")
    hook = [sys.executable, "-c", HOOK, "build_wheel", str(tmp_path)]
    done = run(hook, tree, PATH=no_compiler(tmp_path / "bin", old=old))
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("fastbert: error: no C++20 compiler found (tried c++, g++, clang++): install g++ >= 11")
    assert "Traceback" not in done.stdout
    assert "ninja" not in done.stdout
    # Nothing is copied before the compiler is known to be there, so the line stands alone.
    assert "copying" not in done.stdout


def test_a_compile_error_ends_in_one_line(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "tree")
    (tree / "csrc/part/two.cpp").write_text("int two() { return nothing; }\n")
    (tree / "csrc/bindings.cpp").write_text("// Compiles at once.\n")
    done = run([sys.executable, "-c", HOOK, "build_wheel", str(tmp_path)], tree)
    assert done.returncode == 1
    assert "nothing" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("fastbert: error: the C++ extension did not compile")
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        pytest.param("import platform; platform.system = lambda: 'Windows'", "WSL2", id="windows"),
        pytest.param("import setuptools; setuptools.__version__ = '65.5.0'", "is older than 77", id="old-setuptools"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(tmp_path: Path, patch: str, message: str) -> None:
    code = f"{patch}; import runpy, sys; sys.argv = ['setup.py', '--version']; runpy.run_path('setup.py')"
    done = run([sys.executable, "-c", code], copy_tree(tmp_path / "tree"))
    assert done.returncode == 1
    assert done.stdout.startswith("\nfastbert: error: ")
    assert message in done.stdout
    assert done.stdout.count("\n") == 2


def test_importing_the_uncompiled_tree_names_the_cure(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "tree")
    done = run([sys.executable, "-c", "import fastbert"], tmp_path, PYTHONPATH=str(tree))
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith(f"ImportError: {tree / 'fastbert'} is fastbert's source tree, which is not compiled")
    assert "`pip install .`" in last


def tool(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]} (binutils)")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="looks into an ELF file")
def test_the_extension_links_runtimes_only_and_exports_only_its_entry() -> None:
    from fastbert import _C

    libraries = set(re.findall(r"\(NEEDED\).*\[(.*?)\.so", tool("readelf", "-dW", str(_C.__file__))))
    runtimes = {"libstdc++", "libm", "libgcc_s", "libc", "libdl", "libpthread"}
    assert libraries <= runtimes | {"ld-linux-x86-64", "ld-linux-aarch64"}
    symbols = tool("nm", "-D", "--defined-only", str(_C.__file__)).split()[2::3]
    assert symbols == ["PyInit__C"]


@pytest.mark.slow
def test_the_real_sdist_and_wheel_install_where_there_is_no_compiler(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "tree", small=False)
    done = run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist")], tree)
    assert done.returncode == 0, done.stdout
    [wheel] = (tmp_path / "dist").glob("*.whl")
    assert len(list((tmp_path / "dist").glob("*.tar.gz"))) == 1
    done = run([sys.executable, "-m", "venv", str(tmp_path / "venv")], tmp_path)
    assert done.returncode == 0, done.stdout
    python = str(tmp_path / "venv/bin/python")
    path = no_compiler(tmp_path / "bin", old=False)
    done = run([python, "-m", "pip", "install", "--no-deps", "--no-index", str(wheel)], tmp_path, PATH=path)
    assert done.returncode == 0, done.stdout
    code = "import fastbert; print(fastbert.__version__); from fastbert import _C"
    done = run([python, "-c", code], tmp_path, PATH=path)
    # The core's types speak of NumPy arrays, which this empty environment does not have.
    assert done.stdout.startswith("0.1.0\n"), done.stdout
    assert done.returncode == 0 or "numpy" in done.stdout, done.stdout
