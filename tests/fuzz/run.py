"""Builds the tokenizers' C++ core with sanitizers and runs it against plain implementations of the same rules.

    python tests/fuzz/run.py check                     # random hostile texts, AddressSanitizer and UBSan
    python tests/fuzz/run.py threads                   # the same texts on four threads at once, ThreadSanitizer
    python tests/fuzz/run.py fuzz --target unigram --seconds 1800   # libFuzzer (clang), AddressSanitizer and UBSan

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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
FOLDERS = ("tokenizer", "normalizer", "unicode", "wordpiece", "bpe", "unigram")
SOURCES = [
    *(file for folder in FOLDERS for file in sorted(CSRC.glob(f"{folder}/*.cpp"))),
    CSRC / "common/cpu_features.cpp",
]
# Files that cannot be compiled together with the others: variants of one function, and names of their own.
APART = ("_avx2", "_avx512", "_neon", "offset_trimming")
CHECKS = [HERE / f"{name}.cpp" for name in ("checks", "wordpiece_checks", "byte_level_checks", "unigram_checks")]
TARGETS = ("wordpiece", "byte_level", "unigram", "charsmap")
FLAGS = ["-std=c++20", "-O1", "-g", "-pthread", "-fno-omit-frame-pointer", f"-I{CSRC}", f"-I{HERE}"]
ADDRESS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def build(target: Path, main: str, flags: Sequence[str], compiler: str, checks: Sequence[str] | None = None) -> None:
    """Compile the core, the checks and a main program; raises CalledProcessError with the compiler's messages.

    `checks` are flags of the checks, where they are others.
    """
    sources = [*joined(target), HERE / main, *CHECKS]
    objects = [target.with_name(f"{target.name}-{source.stem}-{index}.o") for index, source in enumerate(sources)]

    def compile_one(source: Path, output: Path) -> None:
        own = flags if checks is None or source not in CHECKS else checks
        subprocess.run([compiler, *FLAGS, *own, "-c", str(source), "-o", str(output)], check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, sources, objects))
    subprocess.run([compiler, *FLAGS, *flags, *map(str, objects), "-o", str(target)], check=True)


def joined(target: Path) -> list[Path]:
    """Write files that include those of the core: what headers define is compiled a few times instead of forty."""
    groups: dict[str, list[Path]] = {}
    for source in SOURCES:
        group = next((ending for ending in APART if source.stem.endswith(ending)), "")
        groups.setdefault(group, []).append(source)
    files = []
    for group, sources in groups.items():
        files.append(target.with_name(f"{target.name}-core{group}.cpp"))
        files[-1].write_text("".join(f'#include "{source}"\n' for source in sources))
    return files


def check(folder: Path, seed: int, texts: int, flags: Sequence[str] = (), checks: Sequence[str] | None = None) -> int:
    """Random texts under AddressSanitizer and UBSan; `flags` are further ones, `checks` those of the checks instead."""
    program = folder / "check"
    build(program, "check_texts.cpp", [*ADDRESS, *flags], os.environ.get("CXX", "c++"), checks)
    return subprocess.run([program, str(seed), str(texts)]).returncode


def threads(folder: Path, seed: int, texts: int) -> int:
    """Random texts on four threads under ThreadSanitizer."""
    program = folder / "threads"
    build(program, "check_texts.cpp", ["-fsanitize=thread"], os.environ.get("CXX", "c++"))
    return subprocess.run([program, str(seed), str(texts), "4"]).returncode


def fuzz(folder: Path, seed: int, seconds: int, target: str = "wordpiece") -> int:
    """libFuzzer for a while on one of TARGETS; what it finds stays in the working directory."""
    compiler = os.environ.get("CXX", "clang++")
    if shutil.which(compiler) is None:
        sys.exit(f"{compiler} is missing: libFuzzer comes with clang (Debian: apt-get install clang)")
    program, corpus = folder / f"fuzz-{target}", folder / f"corpus-{target}"
    corpus.mkdir(exist_ok=True)
    flags = ["-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all", f"-DCHECK=check_{target}"]
    build(program, "fuzz_target.cpp", flags, compiler)
    options = [f"-max_total_time={seconds}", f"-seed={seed}", "-max_len=6000", "-print_final_stats=1", "-timeout=20"]
    return subprocess.run([program, corpus, f"-dict={HERE / 'texts.dict'}", *options]).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["check", "threads", "fuzz"])
    parser.add_argument("--target", choices=TARGETS, default="wordpiece", help="what is fuzzed")
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
        return fuzz(folder, arguments.seed, arguments.seconds, arguments.target)


if __name__ == "__main__":
    raise SystemExit(main())
