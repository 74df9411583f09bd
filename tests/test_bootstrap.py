"""bootstrap.py, the README's two commands: what it refuses before it installs anything, and what it installs."""

import ast
import json
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import IO

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "bootstrap.py"
Version = namedtuple("Version", "major minor micro")

pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="needs the source tree")


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, for a clone in an empty folder, on a machine without an NVIDIA driver."""
    spec = spec_from_file_location("bootstrap", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "csrc/common").mkdir(parents=True)
    shutil.copy2(ROOT / "csrc/common/cxx20_probe.h", tmp_path / "csrc/common/cxx20_probe.h")
    monkeypatch.setattr(module, "ROOT", str(tmp_path))
    monkeypatch.setattr(module, "has_nvidia_driver", lambda: False)
    return module


def refusal(bootstrap: ModuleType, *words: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", *words])
    monkeypatch.setattr(bootstrap, "run", lambda *command: pytest.fail(f"ran {command}"))
    with pytest.raises(SystemExit) as stopped:
        bootstrap.main()
    message = str(stopped.value.code)
    assert message.startswith("bootstrap.py: ")
    assert "\n" not in message
    return message


def test_old_pythons_can_read_the_file() -> None:
    ast.parse(FILE.read_text(), feature_version=(3, 6))


def test_what_is_missing_is_named_before_anything_is_installed(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", Version(3, 10, 13))
        patch.setenv("PATH", str(tmp_path))
        assert "Python 3.10 is too old: install Python 3.11" in refusal(bootstrap, "demo", monkeypatch=patch)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ensurepip", None)
        assert "this Python has no venv: apt-get install python3." in refusal(bootstrap, "demo", monkeypatch=patch)
    with monkeypatch.context() as patch:
        patch.setattr(bootstrap.sysconfig, "get_path", lambda name: str(tmp_path))
        assert "the headers of Python are missing" in refusal(bootstrap, "test", monkeypatch=patch)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        patch.delenv("CXX", raising=False)
        assert "(tried c++, g++, clang++)" in refusal(bootstrap, "test", monkeypatch=patch)
        patch.setenv("CXX", "/usr/bin/g++-1")
        assert "no C++20 compiler" in refusal(bootstrap, "test", monkeypatch=patch)
    monkeypatch.setattr(bootstrap, "compiles_cxx20", lambda compiler: True)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**10, 9 * 10**9, 10**9))
        assert f"1.0 GB are free in {tmp_path}: make room for 5 GB" in refusal(bootstrap, "test", monkeypatch=patch)
    with monkeypatch.context() as patch:
        patch.setattr(bootstrap.platform, "system", lambda: "Windows")
        assert "WSL2" in refusal(bootstrap, "demo", monkeypatch=patch)


def test_a_newer_python_is_used_where_there_is_one(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(sys, "version_info", Version(3, 9, 2))
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "test", "-k", "tokenizer"])
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name == "python3.12" else None)
    monkeypatch.setattr(bootstrap.os, "execv", lambda *words: started.append(words) or sys.exit(0))
    with pytest.raises(SystemExit):
        bootstrap.main()
    assert started == [("/usr/bin/python3.12", ["/usr/bin/python3.12", str(FILE), "test", "-k", "tokenizer"])]


@pytest.mark.parametrize(
    ("driver", "offered", "uv_works"),
    [
        pytest.param(True, "2.13.0", True, id="driver"),
        pytest.param(False, "2.13.0+cpu", True, id="pip-offers-the-cpu-build"),
        pytest.param(False, "2.13.0", True, id="cpu-build-by-uv"),
        pytest.param(False, "2.13.0", False, id="cpu-build-out-of-reach"),
    ],
)
def test_the_cpu_build_is_taken_where_it_can_be_had(
    bootstrap: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    driver: bool,
    offered: str,
    uv_works: bool,
) -> None:
    commands: list[str] = []
    needed: set[str] = set()

    def compile_wheel(pip: list[str], target: str, output: IO[bytes]) -> subprocess.Popen[bytes]:
        (Path(target) / "built.whl").touch()
        return subprocess.Popen(["true"])

    def call(command: list[str], **options: object) -> int:
        commands.append(" ".join(command))
        if "-r" in command:
            needed.update(Path(command[-1]).read_text().splitlines())
        return int("show" in command or ("--torch-backend" in command and not uv_works))

    def answer(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        report = {"install": [{"metadata": {"version": offered}}]}
        return subprocess.CompletedProcess(command, 0, json.dumps(report).encode())

    monkeypatch.setattr(bootstrap, "check_machine", lambda task: None)
    monkeypatch.setattr(bootstrap, "has_nvidia_driver", lambda: driver)
    monkeypatch.setattr(bootstrap.platform, "system", lambda: "Linux")
    monkeypatch.setattr(bootstrap.subprocess, "call", call)
    monkeypatch.setattr(bootstrap.subprocess, "run", answer)
    monkeypatch.setattr(bootstrap, "compile_wheel", compile_wheel)
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "test", "-x"])
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    bootstrap.main()
    by_uv = [command for command in commands if "--torch-backend cpu -c constraints.txt torch" in command]
    assert len(by_uv) == (not driver and offered == "2.13.0")
    assert ("CUDA build follows" in capfd.readouterr().out) == (not uv_works)
    assert commands[0] == f"{sys.executable} -m venv .venv-test"
    assert commands[-3].startswith(".venv-test/bin/python -m pip")
    assert {"torch>=2.8", "hypothesis>=6.100,<7"} < needed
    assert commands[-2].endswith("/built.whl")
    assert commands[-1] == ".venv-test/bin/pytest -x"


def test_a_wheel_that_does_not_compile_ends_with_what_the_compiler_said(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def compile_wheel(pip: list[str], target: str, output: IO[bytes]) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sh", "-c", script], stdout=output, start_new_session=True))
        return started[-1]

    monkeypatch.setattr(bootstrap, "check_machine", lambda task: None)
    monkeypatch.setattr(bootstrap, "install_cpu_torch", lambda folder, pip: None)
    monkeypatch.setattr(bootstrap, "compile_wheel", compile_wheel)
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "install"])
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    script = "echo 'core.cpp:1: error'; exit 3"
    monkeypatch.setattr(bootstrap, "run", lambda *command: None)
    with pytest.raises(SystemExit) as stopped:
        bootstrap.main()
    assert str(stopped.value.code) == "core.cpp:1: error\nbootstrap.py: fastbert was not compiled"
    # What cannot be downloaded ends the compiler, too.
    script = "sleep 600 & wait"
    monkeypatch.setattr(bootstrap, "run", lambda *command: sys.exit(1) if "-r" in command else None)
    with pytest.raises(SystemExit):
        bootstrap.main()
    assert started[-1].poll() == -signal.SIGTERM


def test_other_words_show_how_it_is_used(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for words, code in (([], 0), (["--help"], 0), (["tset"], 2)):
        monkeypatch.setattr(sys, "argv", ["bootstrap.py", *words])
        with pytest.raises(SystemExit) as stopped:
            bootstrap.main()
        assert stopped.value.code == code
        printed = capfd.readouterr().out
        assert ("python3 bootstrap.py demo" in printed) == (code == 0)
        assert (printed == "bootstrap.py: 'tset' is unknown: choose one of demo, install, test\n") == (code == 2)
