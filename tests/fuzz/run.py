"""Builds the C++ cores that read untrusted bytes with sanitizers and runs them against plain implementations.

    python tests/fuzz/run.py check          # random hostile texts and the corpora, AddressSanitizer and UBSan
    python tests/fuzz/run.py threads        # tokenizers and the runtime's threads, ThreadSanitizer
    python tests/fuzz/run.py fuzz --target unigram --seconds 1800   # libFuzzer (clang), AddressSanitizer and UBSan
    python tests/fuzz/run.py minimise --target unigram # keep a small part of what libFuzzer found in corpus/unigram.zip

The first input that differs is printed as hexadecimal bytes; libFuzzer also leaves it in a file. Exit code 0 means no
finding. What is compiled is kept under the system's temporary folder for the next run with the same sources.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
CORPUS = HERE / "corpus"
FOLDERS = ("tokenizer", "normalizer", "unicode", "wordpiece", "bpe", "unigram", "json", "corpus", "collator")
SOURCES = [
    *(file for folder in FOLDERS for file in sorted(CSRC.glob(f"{folder}/*.cpp"))),
    CSRC / "common/cpu_features.cpp",
    CSRC / "cpu/runtime/cpu_capability.cpp",
    CSRC / "cpu/runtime/crc32c.cpp",
]
# Files that cannot be compiled together with the others: variants of one function, and names of their own.
APART = ("avx2", "avx512", "vnni", "neon", "portable", "offset_trimming")
NAMES = ("checks", "wordpiece_checks", "byte_level_checks", "unigram_checks", "number_checks", "corpus_checks")
CHECKS = [HERE / f"{name}.cpp" for name in NAMES]
# Those of kTargets in checks.h.
TARGETS = (
    "wordpiece", "byte_level", "unigram", "vocabulary", "merges", "pieces", "charsmap", "json", "decimal", "crc32c",
    "sentences", "shards",
)  # fmt: skip
FLAGS = ["-std=c++20", "-O1", "-g", "-pthread", "-fno-omit-frame-pointer", f"-I{CSRC}", f"-I{HERE}"]
ADDRESS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FUZZER = ["-fsanitize=fuzzer,address,undefined", "-Wno-deprecated-declarations", "-fno-sanitize-recover=all"]
COMPILER = os.environ.get("CXX", "c++")
LARGEST_CORPUS = 12_000  # bytes of inputs that are kept per target


def kept() -> Path:
    """Return the folder of what is compiled, which belongs to this user."""
    folder = Path(tempfile.gettempdir()) / f"fastbert-fuzz-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user; set TMPDIR to a folder of your own")
    return folder


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time compile; the others find what it built."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(
    name: str,
    main: str,
    flags: Sequence[str],
    compiler: str,
    *,
    checks: Sequence[str] | None = None,
    sources: Sequence[Path] = (*SOURCES, *CHECKS),
) -> Path:
    """Compile sources and a main program; raises CalledProcessError with the compiler's messages.

    `checks` are flags of the checks, where they are others.
    """
    key = hashlib.sha256(repr((flags, checks, compiler, os.environ.get("CXXFLAGS"))).encode())
    headers = [*CSRC.rglob("*.h"), *HERE.glob("*.h")]
    for source in sorted({*sources, *headers, HERE / main}):
        key.update(source.name.encode() + source.read_bytes())
    program = kept() / f"{name}-{key.hexdigest()[:16]}"
    with locked(kept() / f"{name}.lock"), tempfile.TemporaryDirectory(dir=kept()) as private:
        if program.exists():
            return program
        folder = Path(private)
        own = [source for source in (*sources, HERE / main) if HERE in source.parents]
        files = [*joined(folder, [source for source in sources if source not in own]), *own]
        objects = [folder / f"{source.stem}-{index}.o" for index, source in enumerate(files)]

        def compile_one(source: Path, output: Path) -> None:
            chosen = flags if checks is None or source not in CHECKS else checks
            subprocess.run([compiler, *FLAGS, *chosen, "-c", str(source), "-o", str(output)], check=True)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, files, objects))
        built = folder / "program"
        subprocess.run([compiler, *FLAGS, *flags, *map(str, objects), "-ldl", "-o", str(built)], check=True)
        built.replace(program)
    return program


def joined(folder: Path, sources: Iterable[Path]) -> list[Path]:
    """Write files that include others: what headers define is compiled a few times instead of forty."""
    groups: dict[str, list[Path]] = {}
    for source in sources:
        group = next((ending for ending in APART if source.stem.endswith(ending)), "")
        groups.setdefault(group, []).append(source)
    files = []
    for group, members in groups.items():
        files.append(folder / f"core{group}.cpp")
        files[-1].write_text("".join(f'#include "{source}"\n' for source in members))
    return files


def checker(flags: Sequence[str] = (), checks: Sequence[str] | None = None) -> Path:
    """Build the program without a fuzzer; `flags` are further ones, `checks` those of the checks instead."""
    return build("check", "check_texts.cpp", [*ADDRESS, *flags], COMPILER, checks=checks)


def inputs_of(target: str) -> list[bytes]:
    """Return the inputs that are kept for a target."""
    file = CORPUS / f"{target}.zip"
    if not file.exists():
        return []
    with zipfile.ZipFile(file) as archive:
        return [archive.read(name) for name in sorted(archive.namelist())]


def keep_inputs(target: str, inputs: Iterable[bytes]) -> None:
    """Write the inputs of a target, the smallest first, as many as fit."""
    size, chosen = 0, []
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        size += len(data)
        if size > LARGEST_CORPUS:
            break
        chosen.append(data)
    CORPUS.mkdir(exist_ok=True)
    with zipfile.ZipFile(CORPUS / f"{target}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for index, data in enumerate(chosen):
            archive.writestr(zipfile.ZipInfo(f"{index:04}", (2026, 1, 1, 0, 0, 0)), data)


def replay(program: Path, targets: Sequence[str] = TARGETS, shift: int = 0, step: int = 1) -> None:
    """Check the inputs that are kept, or every `step`th of each target; raises CalledProcessError at a finding."""
    with tempfile.TemporaryDirectory() as folder:
        for target in TARGETS:
            inputs = inputs_of(target)[shift % step :: step] if target in targets else []
            data = b"".join(struct.pack("<I", len(item)) + item for item in inputs)
            (Path(folder) / target).write_bytes(data)
        subprocess.run([program, folder], check=True, stdout=subprocess.DEVNULL)


def check(seed: int, texts: int, flags: Sequence[str] = (), checks: Sequence[str] | None = None) -> int:
    """Random texts and the corpora under AddressSanitizer and UBSan."""
    program = checker(flags, checks)
    replay(program)
    return subprocess.run([program, str(seed), str(texts)]).returncode


def threads(seed: int, texts: int) -> int:
    """Random texts on four threads under ThreadSanitizer, and the threads of the runtime."""
    thread = ["-fsanitize=thread"]
    program = build("threads", "check_texts.cpp", thread, COMPILER)
    code = subprocess.run([*fixed_addresses(), program, str(seed), str(texts), "4"]).returncode
    return code or subprocess.run([*fixed_addresses(), runtime_threads(), str(seed), str(50 * texts)]).returncode


def runtime_threads() -> Path:
    """Build the program of the runtime's threads under ThreadSanitizer."""
    runtime = ("parallel", "caching_allocator", "arena", "cpu_capability")
    sources = [CSRC / f"cpu/runtime/{name}.cpp" for name in runtime]
    sources += [*sorted(CSRC.glob("cpu/search/*.cpp")), CSRC / "common/cpu_features.cpp"]
    flags = ["-fsanitize=thread", "-ffp-contract=off", "-rdynamic"]
    return build("runtime", "runtime_threads.cpp", flags, COMPILER, sources=sources)


def fixed_addresses() -> list[str]:
    """Return the prefix of a command under ThreadSanitizer, which many kernels' random addresses confuse."""
    return [setarch, "-R"] if (setarch := shutil.which("setarch")) else []


def clang() -> str | None:
    """Return the newest clang++, which has libFuzzer, or None."""
    named = os.environ.get("CXX", "")
    names = [named] if "clang" in named else [*(f"clang++-{version}" for version in range(30, 13, -1)), "clang++"]
    return next((name for name in names if shutil.which(name)), None)


def children_seconds() -> float:
    """Return the processor time of the child processes so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def unpacked(target: str) -> Iterator[Path]:
    """Yield the folder of a target's inputs: those that are kept, and those of earlier runs on this machine."""
    corpus = kept() / f"corpus-{target}"
    corpus.mkdir(exist_ok=True)
    for data in inputs_of(target):
        (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)
    yield corpus


def fuzz(target: str, seed: int, seconds: float, artifacts: Path = Path()) -> dict[str, float]:
    """Run libFuzzer on one of TARGETS for some seconds of a processor; what it finds stays in `artifacts`.

    Raises AssertionError if there is a finding.
    """
    compiler = clang()
    if compiler is None:
        raise FileNotFoundError("libFuzzer comes with clang (Debian: apt-get install clang)")
    program = build("fuzz", "fuzz_target.cpp", FUZZER, compiler)
    begin, rounds, executions = children_seconds(), 0, 0
    environment = {**os.environ, "FASTBERT_FUZZ_TARGET": target}
    with unpacked(target) as corpus:
        while (left := seconds - (children_seconds() - begin)) > 0.5:
            options = [
                f"-max_total_time={max(1, round(left))}", f"-seed={(seed * 1000 + rounds) % 2**31 + 1}",
                "-max_len=6000", "-print_final_stats=1", "-timeout=300", "-rss_limit_mb=2500",
                f"-artifact_prefix={artifacts}/",
                f"-dict={HERE / 'texts.dict'}",
            ]  # fmt: skip
            done = subprocess.run([program, corpus, *options], env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{target}, seed {seed}, round {rounds}: {done.stderr[-3000:]}"
            executions += int(done.stderr.partition("stat::number_of_executed_units:")[2].split()[0])
            rounds += 1
        inputs = sum(1 for _ in corpus.iterdir())
    return {"inputs": executions, "largest_corpus": inputs}


def minimise(target: str) -> None:
    """Write the part of a target's corpus that reaches as much code."""
    compiler = clang()
    assert compiler is not None, "libFuzzer comes with clang"
    program = build("fuzz", "fuzz_target.cpp", FUZZER, compiler)
    environment = {**os.environ, "FASTBERT_FUZZ_TARGET": target}
    with unpacked(target) as corpus, tempfile.TemporaryDirectory() as folder:
        command = [program, "-merge=1", "-max_len=600", folder, str(corpus)]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        keep_inputs(target, [file.read_bytes() for file in Path(folder).iterdir()])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["check", "threads", "fuzz", "minimise"])
    parser.add_argument("--target", choices=TARGETS, default="wordpiece", help="what is fuzzed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--texts", type=int, help="random texts (check: 3000, threads: 6)")
    parser.add_argument("--seconds", type=int, default=1800, help="of fuzzing, on a processor")
    arguments = parser.parse_args()
    if arguments.what == "check":
        return check(arguments.seed, arguments.texts or 3000)
    if arguments.what == "threads":
        return threads(arguments.seed, arguments.texts or 6)
    if arguments.what == "minimise":
        minimise(arguments.target)
        return 0
    try:
        print(fuzz(arguments.target, arguments.seed, arguments.seconds))
    except (AssertionError, FileNotFoundError) as error:
        sys.exit(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
