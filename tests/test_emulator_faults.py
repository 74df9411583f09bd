"""Faults of emulated instructions end the process with a message; the emulator in several processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import emulator
import pytest
from emulator_checks import checks, touch, touch_masked

pytestmark = pytest.mark.skipif(bool(emulator.why_unavailable()), reason=emulator.why_unavailable())


def ending(code: str) -> tuple[int, str]:
    """The exit status and the errors of `code` in another process, where `t` is emulator_checks.py."""
    start = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import emulator_checks as t; t.checks()\n"
    result = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, timeout=120)
    return result.returncode, result.stderr


TILE_ACCESSES = ["load", "load_streaming", "store", "load_config", "store_config"]
ACCESSES = [*TILE_ACCESSES, "dot_256", "convert_two_256", "convert_256"]


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("function", ACCESSES)
def test_no_byte_beside_the_operand_is_touched(function: str, place: str) -> None:
    touch(function, place, 0)
    checks().release()


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("function", ACCESSES)
def test_a_byte_beyond_the_page_is_a_segmentation_fault(function: str, place: str) -> None:
    status, errors = ending(f"t.touch({function!r}, {place!r}, 1)")
    assert status == -signal.SIGSEGV, errors


@pytest.mark.parametrize("function", ["dot_256", "convert_256"])
def test_masked_elements_of_vectors_are_not_read(function: str) -> None:
    touch_masked(function, 0b111)


@pytest.mark.parametrize(("function", "mask"), [("dot_256", 0b1111), ("convert_256", 0b1000), ("convert_two_256", 0)])
def test_what_vectors_read_beyond_the_page_faults(function: str, mask: int) -> None:
    """VCVTNE2PS2BF16 reads all of its operand whatever the mask."""
    status, errors = ending(f"t.touch_masked({function!r}, {mask})")
    assert status == -signal.SIGSEGV, errors


WRONG = {
    "t.checks().zero(0)": "TILEZERO: no tile configuration is loaded",
    "t.configure({0: (1, 4)}); t.checks().zero(3)": "TILEZERO: tile 3 is not configured",
    "t.checks().load_config(bytes([2]) + bytes(63))": "LDTILECFG: palette 2",
    "t.configure({0: (1, 4)}, byte2=1)": "LDTILECFG: a reserved byte is 1",
    "t.configure({0: (17, 64)})": "LDTILECFG: tile 0 has 17 rows",
    "t.configure({0: (16, 65)})": "LDTILECFG: tile 0 has rows of 65 bytes",
    "t.configure({0: (16, 0)})": "LDTILECFG: tile 0 has 16 rows of 0 bytes",
    "t.configure({8: (16, 64)})": "LDTILECFG: tile 8 is configured",
    "t.configure({0: (5, 12), 1: (5, 8), 2: (3, 12)}); t.checks().dot(0, 0)": "tile 0 (5 rows of 12 bytes) is no",
    "t.configure({0: (5, 12), 1: (4, 8), 2: (2, 12)}); t.checks().dot(1, 0)": "tile 1 (4 of 8)",
    "t.configure({0: (5, 12), 1: (5, 8), 2: (2, 16)}); t.checks().dot(1, 0)": "tile 2 (2 of 16)",
    "t.configure({0: (5, 10), 1: (5, 8), 2: (2, 10)}); t.checks().dot(0, 0)": "rows of tile 0 have 10 bytes",
    "t.configure({0: (5, 10)}); t.stored(0, 5, 10)": "rows of tile 0 have 10 bytes",
    "t.configure({0: (16, 64), 1: (16, 64)}); t.checks().dot_with_itself()": "tiles 0, 1, 1 must differ",
}


@pytest.mark.parametrize("code", WRONG)
def test_wrong_use_ends_the_process_and_says_why(code: str) -> None:
    status, errors = ending(code)
    if emulator.native():
        # The processor's fault reaches the emulator's handler, which knows of no configuration and aborts.
        assert status in (-signal.SIGILL, -signal.SIGSEGV, -signal.SIGABRT), errors
        assert status != -signal.SIGABRT or "(#UD)" in errors
    else:
        assert status == -signal.SIGABRT, errors
        assert WRONG[code] in errors


@pytest.mark.parametrize("handler", ["none", "before", "after"])
@pytest.mark.parametrize("cause", ["t.checks().undefined()", "os.kill(os.getpid(), 4); time.sleep(60)"])
def test_other_illegal_instructions_end_the_process(cause: str, handler: str) -> None:
    """Python's faulthandler, which stands where pytest runs, may have come before or after the emulator."""
    enable = "faulthandler.enable()\n"
    lines = "import faulthandler, os, signal, time\n"
    if handler == "before":
        lines += f"signal.signal(signal.SIGILL, signal.SIG_DFL); {enable}t.emulator.install()\n"
    if handler == "after":
        lines += f"{enable}assert not t.emulator.installed(); t.emulator.install()\n"
    status, errors = ending(f"{lines}assert t.emulator.installed()\n{cause}")
    assert status == -signal.SIGILL, errors
    assert errors.count("Fatal Python error: Illegal instruction") == (handler != "none"), errors


def test_processes_may_compile_at_once(tmp_path: Path) -> None:
    code = "import emulator; emulator.install(); print(emulator.installed())"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent)}
    running = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=120)[0] for process in running] == ["True\n"] * 2
    assert len(list(tmp_path.glob("fastbert-emulator-*/*"))) == 1
