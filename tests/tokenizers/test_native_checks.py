"""The C++ core under sanitizers, compared with a plain implementation: see tests/fuzz/run.py."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[1] / "fuzz" / "run.py"


@pytest.fixture(scope="module")
def run():
    spec = importlib.util.spec_from_file_location("fuzz_run", RUN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def needs_sanitizer(tmp_path: Path, flag: str) -> None:
    """Skips where the compiler or its run-time library for the sanitizer is missing."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        pytest.skip(f"no compiler ({compiler})")
    source = tmp_path / "probe.cpp"
    source.write_text("int main() { return 0; }\n")
    command = [compiler, flag, str(source), "-o", str(tmp_path / "probe")]
    if subprocess.run(command, capture_output=True).returncode or subprocess.run([tmp_path / "probe"]).returncode:
        pytest.skip(f"{compiler} cannot build with {flag}")


def test_hostile_texts_under_address_and_undefined_sanitizer(run, tmp_path, seed):
    needs_sanitizer(tmp_path, "-fsanitize=address,undefined")
    # Without optimisation it is compiled in half the time, and few texts are quick all the same; what it is compared
    # with needs no sanitizers.
    assert run.check(tmp_path, seed, 100, ["-O0", "-g1"], ["-O0", "-g0"]) == 0


@pytest.mark.slow
def test_more_hostile_texts_in_optimised_code(run, tmp_path, seed):
    needs_sanitizer(tmp_path, "-fsanitize=address,undefined")
    assert run.check(tmp_path, seed, 3000) == 0


@pytest.mark.slow
def test_threads_under_thread_sanitizer(run, tmp_path, seed):
    needs_sanitizer(tmp_path, "-fsanitize=thread")
    assert run.threads(tmp_path, seed, 6) == 0


@pytest.mark.slow
def test_fuzzing(run, tmp_path, seed):
    if shutil.which("clang++") is None:
        pytest.skip("libFuzzer needs clang++")
    assert run.fuzz(tmp_path, seed, 60) == 0
