"""Row 3 of the scorecard: no input crashes a parser or a tokenizer, makes it hang, or leaves it with another error.

The C++ cores are fuzzed by libFuzzer under AddressSanitizer and UBSan, beside plain implementations (`fuzz/run.py`);
the readers of files, which are Python, by atheris (`torture/reader_fuzzing.py`). A unit is a second of a processor. The
short forms compile the cores once, without a fuzzer, and check the inputs that are kept in `fuzz/corpus`, the smallest
that reach as much code as all of the full forms; a reader gets some damaged files, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz import run
from torture import reader_fuzzing
from torture.campaign import Campaign
from torture.ledger import Figures
from torture.reader_formats import FORMATS, Format
from torture.scorecard import scored

SECONDS, PART = 1800, 30
TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C++ checks without a fuzzer, under AddressSanitizer and UBSan; skips where the compiler has neither."""
    flag, folder = "-fsanitize=address,undefined", tmp_path_factory.mktemp("probe")
    if shutil.which(run.COMPILER) is None:
        pytest.skip(f"no compiler ({run.COMPILER})")
    (folder / "probe.cpp").write_text("int main() { return 0; }\n")
    command = [run.COMPILER, flag, str(folder / "probe.cpp"), "-o", str(folder / "probe")]
    if subprocess.run(command, capture_output=True).returncode or subprocess.run([folder / "probe"]).returncode:
        pytest.skip(f"{run.COMPILER} cannot build with {flag}")
    # Without optimisation it is compiled in half the time, and few inputs are quick all the same; what it is compared
    # with needs no sanitizers.
    return run.checker(["-O0", "-g1"], ["-O0", "-g0"])


def artifacts() -> Path:
    """Return the folder of the inputs that fuzzers find wrong."""
    folder = run.kept() / "findings"
    folder.mkdir(exist_ok=True)
    return folder


def fuzz_core(target: str) -> Callable[..., None]:
    """Return the check of a C++ core."""

    def test(campaign: Campaign, request: pytest.FixtureRequest) -> None:
        def fuzz(numbers: range) -> Figures:
            if campaign.full:
                if run.clang() is None:
                    pytest.skip("libFuzzer needs clang++")
                return run.fuzz(target, numbers.start, len(numbers), artifacts())
            run.replay(request.getfixturevalue("checker"), [target])
            return {}

        campaign.run(fuzz)

    test.__doc__ = "Cores in C++: no bytes crash one, or make it differ from its definition."
    return test


def fuzz_reader(known: Format) -> Callable[..., None]:
    """Return the check of a reader."""

    def test(campaign: Campaign, tmp_path: Path) -> None:
        def fuzz(numbers: range) -> Figures:
            if campaign.full:
                return fuzz_apart(known.name, numbers)
            with reader_fuzzing.quiet():
                reader = reader_fuzzing.Reader(known, tmp_path / known.name)
                inputs = run.inputs_of(known.name)
                for index, data in enumerate(inputs):
                    reader_fuzzing.attempt(reader, data, f"kept input {index}")
                with reader_fuzzing.bounded_memory():
                    reader_fuzzing.random_damage(reader, numbers, [*reader.valid, *inputs], each=15)
                return reader.figures()

        campaign.run(fuzz)

    test.__doc__ = "Readers of files: nothing but UserError leaves one, within two seconds and 400 MB."
    return test


def fuzz_apart(name: str, numbers: range) -> Figures:
    """Fuzz a reader in a process of its own, for as many seconds as there are numbers."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "FASTBERT_VERIFY": "0"}
    # Thousands of files are written a second: on a disk that takes longer than to read them.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with run.unpacked(name) as corpus, tempfile.TemporaryDirectory(dir=memory) as folder:
        environment["TMPDIR"] = folder
        command = [sys.executable, "-P", "-m", "torture.reader_fuzzing", name, str(len(numbers)), str(numbers.start)]
        command += [str(corpus), str(artifacts())]
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    last = next((line for line in reversed(done.stdout.splitlines()) if line.startswith("figures ")), None)
    assert done.returncode == 0, f"{name}, seed {numbers.start}: {done.stdout[-500:]}{done.stderr[-3000:]}"
    assert last is not None, f"{name}, seed {numbers.start}: no figures: {done.stderr[-2000:]}"
    figures: dict[str, Any] = reader_fuzzing.read_figures(last)
    return figures


def register(name: str, test: Callable[..., None]) -> None:
    """Make a check a test of this module."""
    test.__name__ = test.__qualname__ = f"test_fuzz_{name}"
    goal = "no crash, no hang over 2 s, no other error than a refusal"
    globals()[test.__name__] = scored(row=3, unit="seconds of fuzzing", short=1, full=SECONDS, chunk=PART, goal=goal)(
        test
    )


for _target in run.TARGETS:
    register(_target, fuzz_core(_target))
for _known in FORMATS:
    register(_known.name, fuzz_reader(_known))


def test_the_targets_are_those_of_the_program() -> None:
    header = (TESTS / "fuzz/checks.h").read_text()
    assert all(f'{{"{target}", check_{target}}}' in header for target in run.TARGETS)
    assert header.count(", check_") == len(run.TARGETS)
    assert set(reader_fuzzing.MODULES) == {known.name for known in FORMATS}


def test_hostile_texts(checker: Path, seed: int) -> None:
    """Random texts, of which the fuzzers draw few that are long."""
    subprocess.run([checker, str(seed), "8"], check=True)


@pytest.mark.slow
def test_more_hostile_texts_in_optimised_code(checker: Path, seed: int) -> None:
    assert run.check(seed, 3000) == 0
