"""Builds the tokenizer's C++ core with sanitizers and runs it against a plain implementation of the same rules.

    python tests/fuzz/run.py check                     # random hostile texts, AddressSanitizer and UBSan
    python tests/fuzz/run.py threads                   # the same texts on four threads at once, ThreadSanitizer
    python tests/fuzz/run.py fuzz --seconds 1800       # libFuzzer (clang), AddressSanitizer and UBSan

The first text that differs is printed as hexadecimal bytes; libFuzzer also leaves it in a file. Exit code 0 means no
finding.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
SOURCES = [*sorted(CSRC.glob("wordpiece/*.cpp")), *sorted(CSRC.glob("unicode/*.cpp")), CSRC / "common/cpu_features.cpp"]
FLAGS = ["-std=c++20", "-O1", "-g", "-pthread", "-fno-omit-frame-pointer", f"-I{CSRC}", f"-I{HERE}"]
ADDRESS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def build(target: Path, main: str, flags: Sequence[str], compiler: str) -> None:
    """Compile the core, the checks and a main program; raises CalledProcessError with the compiler's messages."""
    sources = [*SOURCES, HERE / "wordpiece_checks.cpp", HERE / main]
    objects = [target.with_name(f"{target.name}-{source.stem}-{index}.o") for index, source in enumerate(sources)]
    for first in range(0, len(sources), jobs := os.cpu_count() or 1):
        running = [
            subprocess.Popen([compiler, *FLAGS, *flags, "-c", str(source), "-o", str(output)])
            for source, output in list(zip(sources, objects))[first : first + jobs]
        ]
        for process in running:
            if process.wait() != 0:
                raise subprocess.CalledProcessError(process.returncode, process.args)
    subprocess.run([compiler, *FLAGS, *flags, *map(str, objects), "-o", str(target)], check=True)


def check(folder: Path, seed: int, texts: int, flags: Sequence[str] = ()) -> int:
    """Random texts under AddressSanitizer and UBSan."""
    program = folder / "check"
    build(program, "check_wordpiece.cpp", [*ADDRESS, *flags], os.environ.get("CXX", "c++"))
    return subprocess.run([program, str(seed), str(texts)]).returncode


def threads(folder: Path, seed: int, texts: int) -> int:
    """Random texts on four threads under ThreadSanitizer."""
    program = folder / "threads"
    build(program, "check_wordpiece.cpp", ["-fsanitize=thread"], os.environ.get("CXX", "c++"))
    return subprocess.run([program, str(seed), str(texts), "4"]).returncode


def fuzz(folder: Path, seed: int, seconds: int) -> int:
    """libFuzzer for a while; what it finds stays in the working directory."""
    compiler = os.environ.get("CXX", "clang++")
    if shutil.which(compiler) is None:
        sys.exit(f"{compiler} is missing: libFuzzer comes with clang (Debian: apt-get install clang)")
    program, corpus = folder / "fuzz", folder / "corpus"
    corpus.mkdir(exist_ok=True)
    build(program, "fuzz_wordpiece.cpp", ["-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"], compiler)
    options = [f"-max_total_time={seconds}", f"-seed={seed}", "-max_len=6000", "-print_final_stats=1", "-timeout=20"]
    return subprocess.run([program, corpus, f"-dict={HERE / 'wordpiece.dict'}", *options]).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["check", "threads", "fuzz"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--texts", type=int, help="random texts (check: 3000, threads: 6)")
    parser.add_argument("--seconds", type=int, default=1800, help="of fuzzing")
    parser.add_argument("--folder", type=Path, help="keep what is built, and the fuzzer's corpus, here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if arguments.what == "check":
            return check(folder, arguments.seed, arguments.texts or 3000)
        if arguments.what == "threads":
            return threads(folder, arguments.seed, arguments.texts or 6)
        return fuzz(folder, arguments.seed, arguments.seconds)


if __name__ == "__main__":
    raise SystemExit(main())
