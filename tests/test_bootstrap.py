"""bootstrap.py, the README's two commands: what it refuses before it installs anything, and what it installs."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
        patch.setenv("CXX", "'g++")
        assert "CXX='g++ lacks a closing quotation mark: set it to" in refusal(bootstrap, "test", monkeypatch=patch)
    monkeypatch.setattr(bootstrap, "compiles_cxx20", lambda compiler: True)
    with monkeypatch.context() as patch:
        free = {str(tmp_path): 10**10, "/dev/shm": 10**8}
        patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**11, 0, free[path]))
        patch.setattr(bootstrap.tempfile, "gettempdir", lambda: "/dev/shm")
        patch.setattr(bootstrap, "device", lambda path: path)
        message = "0.1 GB are free in /dev/shm: make room for 1 GB, or set TMPDIR to a folder with as much"
        assert message in refusal(bootstrap, "demo", monkeypatch=patch)
    with monkeypatch.context() as patch:
        patch.setattr(bootstrap.tempfile, "gettempdir", no_folder)
        assert "no folder for temporary files can be written: set TMPDIR" in refusal(
            bootstrap, "demo", monkeypatch=patch
        )
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**10, 9 * 10**9, 10**9))
        assert f"1.0 GB are free in {tmp_path}: make room for 5 GB" in refusal(bootstrap, "test", monkeypatch=patch)
    with monkeypatch.context() as patch:
        patch.setattr(bootstrap.platform, "system", lambda: "Windows")
        assert "WSL2" in refusal(bootstrap, "demo", monkeypatch=patch)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def runs(process: int) -> bool:
    """Return whether a process is there, on Linux, and has not ended without anyone who asks how."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def no_folder() -> str:
    raise FileNotFoundError("No usable temporary directory found")


@pytest.mark.parametrize(
    ("python", "problem"),
    [
        pytest.param("#!/bin/sh\necho 3.10\n", "holds Python 3.10, which is too old", id="old"),
        pytest.param("#!/bin/sh\nexit 1\n", "holds a Python that does not run", id="broken"),
        pytest.param("", "holds a Python that does not run", id="dangling"),
    ],
)
def test_an_environment_of_a_python_that_is_old_or_gone_is_refused(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str, problem: str
) -> None:
    monkeypatch.setattr(bootstrap, "compiles_cxx20", lambda compiler: True)
    script = tmp_path / ".venv/bin/python"
    script.parent.mkdir(parents=True)
    if python:
        script.write_text(python)
        script.chmod(0o755)
    else:
        script.symlink_to(tmp_path / "gone")
    message = refusal(bootstrap, "demo", monkeypatch=monkeypatch)
    assert message == f"bootstrap.py: .venv {problem}: remove that folder, or move it away"


# Stands for pip: it compiles and downloads until it is ended, each time with a file in the folder of temporary ones.
PYTHON = """#!/bin/sh
case "$*" in
    *" wheel "*) touch "$TMPDIR/object.o"; sleep 600 & echo $! > part; mv part compiling; wait ;;
    *" -r "*) touch "$TMPDIR/torch.whl" downloading; exec sleep 600 ;;
esac
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, id="ctrl-c"),
        pytest.param(signal.SIGTERM, 143, id="terminated"),
        pytest.param(signal.SIGHUP, 129, id="terminal-closed"),
    ],
)
def test_a_signal_ends_compiler_and_downloads_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    clone, temporary = tmp_path / "a clone", tmp_path / "tmp"
    (clone / ".venv/bin").mkdir(parents=True)
    temporary.mkdir()
    shutil.copy2(FILE, clone)
    shutil.copy2(ROOT / "pyproject.toml", clone)
    python = clone / ".venv/bin/python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    words = "import bootstrap; bootstrap.check_machine = lambda task: None; bootstrap.start()"
    process = subprocess.Popen(
        [sys.executable, "-c", words, "install"],
        cwd=clone,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(clone)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        begun = clone / "downloading", clone / "compiling"
        wait_for(lambda: all(file.exists() for file in begun) or process.poll() is not None)
        compiler = int((clone / "compiling").read_text())
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == code
    assert errors.strip() == ("bootstrap.py: interrupted" if number == signal.SIGINT else "")
    assert not list(temporary.iterdir())
    wait_for(lambda: not runs(compiler))


def test_ctrl_c_lets_a_command_end_by_itself(tmp_path: Path) -> None:
    shutil.copy2(FILE, tmp_path)
    script = "trap 'sleep 1; touch ended; exit 3' INT; touch begun; while :; do sleep 0.1; done"
    words = "import sys, bootstrap; bootstrap.main = lambda: bootstrap.run('sh', '-c', sys.argv[1]); bootstrap.start()"
    process = subprocess.Popen(
        [sys.executable, "-c", words, script],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(lambda: (tmp_path / "begun").exists() or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (tmp_path / "ended").exists()
    assert (process.returncode, errors.strip()) == (130, "bootstrap.py: interrupted")


def test_an_environment_without_pip_is_given_one(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[tuple[str, ...]] = []

    def run(*command: str, **options: object) -> None:
        commands.append(command)

    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch()
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setattr(bootstrap, "call", lambda command, **options: int("--version" in command))
    monkeypatch.setattr(bootstrap, "compile_wheel", lambda *words: subprocess.Popen(["true"]))
    monkeypatch.setattr(bootstrap, "run", run)
    bootstrap.install("install")
    assert commands[0] == (".venv/bin/python", "-m", "ensurepip")


def test_only_one_installs_in_a_clone_at_a_time(
    bootstrap: ModuleType, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = bootstrap.lock_clone()
    assert capfd.readouterr().out == ""
    with ThreadPoolExecutor(1) as executor:
        second = executor.submit(bootstrap.lock_clone)
        try:
            wait_for(lambda: capfd.readouterr().out.startswith("Waiting for another bootstrap.py in this clone"))
            assert not second.done()
        finally:
            first.close()
        second.result(timeout=30).close()


def test_a_newer_python_is_used_where_there_is_one(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(sys, "version_info", Version(3, 9, 2))
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "test", "-k", "tokenizer"])
    shims = ("python3.12", "python3.13")  # of which the newer one is not installed
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in shims else None)
    monkeypatch.setattr(bootstrap.subprocess, "call", lambda command, **options: int("3.13" in command[0]))
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
    monkeypatch.setattr(bootstrap, "call", call)
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
    monkeypatch.setattr(bootstrap, "call", lambda *command, **options: 0)
    script = "echo 'core.cpp:1: error'; exit 3"
    monkeypatch.setattr(bootstrap, "run", lambda *command, **options: None)
    with pytest.raises(SystemExit) as stopped:
        bootstrap.main()
    assert str(stopped.value.code) == "core.cpp:1: error\nbootstrap.py: fastbert was not compiled"
    # What cannot be downloaded ends the compiler, too.
    script = "sleep 600 & wait"
    monkeypatch.setattr(bootstrap, "run", lambda *command, **options: sys.exit(1) if "-r" in command else None)
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
