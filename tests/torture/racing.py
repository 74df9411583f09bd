"""A server under ThreadSanitizer: the extension is compiled for it, and the interpreter gets gcc's run-time library.

    python -m torture.racing FIRST COUNT

runs inside of such an interpreter and asks a server of several models, from eight threads, for texts that the numbers
determine.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fuzz import run
from torture.ledger import Figures

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 8


def instrumented() -> Path:
    """Return a folder whose package `fastbert` has an extension for ThreadSanitizer; compiles it once per sources."""
    import hashlib

    key = hashlib.sha256()
    for source in sorted([*ROOT.glob("csrc/**/*.cpp"), *ROOT.glob("csrc/**/*.h"), ROOT / "setup.py"]):
        key.update(source.read_bytes())
    folder = run.kept() / f"instrumented-{key.hexdigest()[:16]}"
    if folder.exists():
        return folder
    with run.locked(run.kept() / "instrumented.lock"), tempfile.TemporaryDirectory(dir=run.kept()) as private:
        copy = Path(private) / "copy"
        for name in ("fastbert", "kernels", "benchmarks", "csrc"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "results"))
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
            shutil.copy(ROOT / name, copy / name)
        # Less optimisation than usual: the code is the same, and compiled in a third of the time.
        flags = {"CXXFLAGS": "-fsanitize=thread -O1 -g1", "LDFLAGS": "-fsanitize=thread"}
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        done = subprocess.run(command, cwd=copy, env={**os.environ, **flags}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        # As they are installed.
        for name in ("kernels", "benchmarks"):
            (copy / name).rename(copy / "fastbert" / name)
        if not folder.exists():
            copy.rename(folder)
    return folder


def runtime_library() -> str:
    """Return the path of gcc's library of ThreadSanitizer."""
    printed = subprocess.run([run.COMPILER, "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True)
    return str(Path(printed.stdout.strip()).resolve())


def ask_instrumented_server(numbers: range) -> Figures:
    """Ask such a server in a process of its own; raises AssertionError for a report that names the extension."""
    folder = instrumented()
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(temporary) / "report"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "tests")]),
            "LD_PRELOAD": runtime_library(),
            "TSAN_OPTIONS": f"log_path={log} exitcode=0 report_signal_unsafe=0 ignore_noninstrumented_modules=1",
            "OMP_NUM_THREADS": "1",
            "FASTBERT_CPU": "",
        }
        command = [*run.fixed_addresses(), sys.executable, "-P", "-m", "torture.racing"]
        command += [str(numbers.start), str(len(numbers))]
        done = subprocess.run(command, env=environment, cwd=temporary, capture_output=True, text=True)
        reports = "".join(file.read_text() for file in Path(temporary).glob("report*")).split("==================")
    assert done.returncode == 0, f"requests {numbers}: {done.stderr[-3000:]}"
    reports = [report for report in reports if "WARNING: ThreadSanitizer" in report]
    ours = [report for report in reports if "fastbert::" in report]
    assert not ours, f"requests {numbers}: {len(ours)} reports, the first: {ours[0][:3000]}"
    return {"reports_of_others": float(len(reports) - len(ours)), "answers": float(done.stdout.split()[-1])}


def main(first: int, count: int) -> None:
    """Ask a server for `count` answers."""
    from served_models import ask, sources, toy_folders

    import fastbert._C
    from fastbert.serving.config import ServeConfig
    from fastbert.serving.server import running

    assert "instrumented-" in fastbert._C.__file__, fastbert._C.__file__
    paths = {
        "/models/embedder/embed": "inputs",
        "/models/splade/embed_sparse": "inputs",
        "/models/classifier/predict": "inputs",
        "/models/embedder/tokenize": "inputs",
    }

    def request(number: int) -> int:
        rng = random.Random(f"requests {number}")
        texts = [" ".join(rng.choices("abcdefgh", k=rng.randrange(1, 30))) for _ in range(rng.randrange(1, 6))]
        path = rng.choice(list(paths))
        return ask(address, path, {paths[path]: texts, "truncate": True})[0]

    with tempfile.TemporaryDirectory() as folder:
        config = ServeConfig(port=0, dtype="fp32", log="none")
        with (
            running(sources(toy_folders(Path(folder), 0)), config) as (address, _),
            ThreadPoolExecutor(CLIENTS) as pool,
        ):
            statuses = list(pool.map(request, range(first, first + count)))
    wrong = sorted({status for status in statuses if status not in (200, 422, 424)})
    assert not wrong, f"answers with {wrong}"
    print(statuses.count(200))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
