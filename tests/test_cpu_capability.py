"""FASTBERT_CPU forces the level of the CPU kernels, and what it cannot force is one clear line."""

import os
import subprocess
import sys

import pytest

from fastbert import _C, cpu_capability

PRINT = "from fastbert import cpu_capability; print(cpu_capability.current())"
MODEL = """
import torch, fastbert
model = fastbert.BertModel(fastbert.BertConfig.preset("tiny", vocab_size=50))
model(input_ids=torch.zeros(1, 3, dtype=torch.int64))
"""


def python(code: str, level: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"FASTBERT_CPU": level}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("level", _C.cpu_capabilities())
def test_a_level_is_forced(level: str) -> None:
    assert python(PRINT, level).stdout.strip() == level


@pytest.mark.parametrize("named", ["portable", "AVX2", "sse9"])
def test_kernels_heed_it_before_anyone_asks(named: str) -> None:
    """Benchmarks and compiled code reach a kernel without a choice of backend."""
    highest = _C.cpu_capabilities()[-1]
    expected = named.lower() if named.lower() in _C.cpu_capabilities() else highest
    assert python("from fastbert import _C; print(_C.cpu_capability())", named).stdout.strip() == expected


def test_the_highest_is_the_default() -> None:
    assert python(PRINT, "").stdout.strip() == _C.cpu_capabilities()[-1]


def test_an_unknown_level_is_named() -> None:
    result = python(MODEL, "sse9")
    assert (
        "UserError: FASTBERT_CPU=sse9 is not a CPU capability: choose one of portable, avx2, avx512, amx"
        in result.stderr
    )


@pytest.mark.skipif("amx" in _C.cpu_capabilities(), reason="this processor has every level")
def test_a_level_that_the_processor_lacks_is_named() -> None:
    result = python(MODEL, "amx")
    assert "UserError: FASTBERT_CPU=amx: not supported by this processor or operating system" in result.stderr


def test_doctor_says_what_is_wrong() -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    result = python("from fastbert.cli import main; raise SystemExit(main(['doctor']))", "sse9")
    assert result.returncode == 1
    assert "FASTBERT_CPU is wrong" in result.stdout
    assert "Traceback" not in result.stderr


def test_forcing_in_process_is_checked() -> None:
    before = cpu_capability.current()
    with pytest.raises(ValueError, match="there is no CPU capability fast"):
        _C.force_cpu_capability("fast")
    assert _C.cpu_capability() == before


def test_threads_are_those_of_torch() -> None:
    code = "import torch; from fastbert import _C; torch.set_num_threads(3); print(_C.parallel_threads())"
    assert python(code, "").stdout.strip() == "3"
    code = "from fastbert import _C; print(_C.parallel_threads() >= 1)"
    assert python(code, "").stdout.strip() == "True"
