"""The CPU kernels and their bindings, built with AddressSanitizer and UBSan, through their own tests.

The tokenizer's core has a program for this of its own: tests/fuzz/run.py.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BUILT_FROM = [
    "csrc",
    "fastbert",
    "kernels",
    "benchmarks",
    "tests",
    "setup.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "NOTICE",
]
SANITIZERS = "-fsanitize=address,undefined"
APART = ("test_native_processes.py", "test_native_sanitized.py")  # of these, processes of their own are the matter
# Freed memory is quarantined for a while.
GROWS = "tests/ops/native/test_caching_allocator.py::test_two_thousand_steps_of_any_size_do_not_grow"
FILES = [
    *(
        str(file.relative_to(ROOT))
        for folder in ("ops", "training")
        for file in sorted(ROOT.glob(f"tests/{folder}/**/test_native_*.py"))
        if file.name not in APART
    ),
    "tests/models/test_native_layer.py",
    "tests/models/test_native_training.py",
    "tests/models/test_read_rows.py",
    "tests/ops/native/test_caching_allocator.py",
    "tests/ops/native/test_prepacked_weights.py",
]


def runtime_libraries(folder: Path, compiler: list[str]) -> str:
    """AddressSanitizer's library and libstdc++, to be loaded before Python; skips where the compiler lacks them."""
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no compiler ({compiler[0]})")
    source = folder / "probe.cpp"
    source.write_text("int main() { return 0; }\n")
    command = [*compiler, SANITIZERS, str(source), "-o", str(folder / "probe")]
    if subprocess.run(command, capture_output=True).returncode or subprocess.run([folder / "probe"]).returncode:
        pytest.skip(f"{compiler[0]} cannot build with {SANITIZERS}")
    results = []
    # An exception thrown while libstdc++ is not loaded yet when AddressSanitizer starts would end the process.
    for library in ("libasan.so", "libstdc++.so.6"):
        command = [*compiler, f"-print-file-name={library}"]
        results.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
        if not Path(results[-1]).is_absolute():
            pytest.skip(f"{compiler[0]} has no {library} (gcc comes with it)")
    return " ".join(results)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizers are loaded with LD_PRELOAD")
def test_native_tests_under_address_and_undefined_sanitizer(tmp_path: Path, seed: int) -> None:
    preload = runtime_libraries(tmp_path, shlex.split(os.environ.get("CXX", "c++")))
    tree, installed = tmp_path / "tree", tmp_path / "installed"
    tree.mkdir()
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy2(ROOT / name, tree / name)
    flags = f"-O1 -g1 -fno-omit-frame-pointer {SANITIZERS} -fno-sanitize-recover=all"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps"]
    environment = {**os.environ, "CXXFLAGS": flags, "LDFLAGS": SANITIZERS}
    subprocess.run([*install, "--target", str(installed), str(tree)], check=True, env=environment)

    environment = {
        **os.environ,
        "PYTHONPATH": str(installed),
        "LD_PRELOAD": preload,
        # An interpreter that ends leaves much; a test asks for more memory than there is, which torch must report.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "2",
    }
    environment.pop("PYTEST_XDIST_WORKER", None)
    options = ["-q", "-x", "-p", "no:cacheprovider", "--seed", str(seed), "--deselect", GROWS]
    command = [sys.executable, "-P", "-m", "pytest", *options, *FILES]
    assert subprocess.run(command, cwd=tree, env=environment).returncode == 0
