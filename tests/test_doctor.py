"""`fastbert doctor`: the features match the system's own list, and it answers where something is missing."""

import dataclasses
import json
import platform
import sys
from pathlib import Path

import pytest

from fastbert import _C, doctor
from fastbert.cli import main
from fastbert.ops import operation
from fastbert.ops.operation import Backend, EagerBackend, Operation, operations

CPUINFO = Path("/proc/cpuinfo")
CPU = doctor.Cpu(
    model="some",
    architecture="x86_64",
    logical_cores=8,
    usable_cores=2.5,
    torch_threads=8,
    features={"amx_in_hardware": True, "amx_tile": False},
    level="avx512",
    level_reason="some reason",
    matmul="some",
)


class Native(Backend[object]):
    """A kernel of a throw-away operation."""

    name = "native"
    summary = "nothing"


@pytest.fixture
def command_line() -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")


@pytest.mark.skipif(platform.machine() != "x86_64" or not CPUINFO.exists(), reason="needs Linux on x86-64")
def test_cpu_features_are_those_that_linux_lists() -> None:
    line = next(line for line in CPUINFO.read_text().splitlines() if line.startswith("flags"))
    listed = set(line.partition(":")[2].split())
    features = _C.cpu_features()
    amx_in_hardware = features.pop("amx_in_hardware")
    assert {name for name, usable in features.items() if usable} <= listed
    missing = {name for name, usable in features.items() if not usable} & listed
    # A container may forbid the request for AMX tiles; nothing else is withheld from a process.
    assert all(name.startswith("amx") for name in missing)
    assert amx_in_hardware == ("amx_tile" in listed)


def test_every_operation_has_a_backend_and_a_reason() -> None:

    diagnosis = doctor.examine()
    assert [choice.operation for choice in diagnosis.operations] == list(operations())
    assert all(choice.backend in ("triton", "native", "eager") and choice.reason for choice in diagnosis.operations)
    assert diagnosis.fastest_dtype in ("bf16", "fp16", "fp32")
    assert diagnosis.dtype_reason


def test_kernels_are_those_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = doctor.examine()
    assert diagnosis.extension_problem == ""
    registered = operations()
    for backend, kernels in (("native", diagnosis.native_kernels), ("triton", diagnosis.triton_kernels)):
        assert list(kernels) == [name for name, record in registered.items() if backend in record.backends]
    monkeypatch.setattr(operation, "_operations", dict(operation._operations))
    Operation("throwaway", EagerBackend(), Native())
    diagnosis = doctor.examine()
    assert "throwaway" in diagnosis.native_kernels
    assert "throwaway" not in diagnosis.triton_kernels
    assert "throwaway" in [choice.operation for choice in diagnosis.operations]


def test_an_extension_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_extension", lambda: ({}, "no symbol"))
    diagnosis = doctor.examine()
    assert diagnosis.extension_problem == "no symbol"
    assert diagnosis.advice[0] == "no symbol"
    assert diagnosis.cpu.level is None


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("flags", [[], ["--quiet"]])
def test_text_is_plain_when_piped(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *flags]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "Operations on " in text
    assert f"python {' ' * 16} {platform.python_version()}\n" in text


@pytest.mark.usefixtures("command_line")
def test_json_holds_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert set(written) == {field.name for field in dataclasses.fields(doctor.Diagnosis)}


@pytest.mark.usefixtures("command_line")
def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "advice: torch cannot be imported" in text
    assert "https://pytorch.org/get-started/locally/" in text


def test_advice_names_the_cure() -> None:
    amx, threads = doctor._advice(CPU, has_gpu=False, triton=None)
    assert "AMX" in amx
    assert threads == "torch runs 8 threads on 2.5 cores: set OMP_NUM_THREADS=2"
    (gpu,) = doctor._advice(dataclasses.replace(CPU, features={}, torch_threads=2), has_gpu=True, triton=None)
    assert "pip install 'fastbert-engine[gpu]'" in gpu


def test_each_backend_lives_in_the_module_of_its_name() -> None:
    kernels = doctor.examine().triton_kernels
    assert "attention" in kernels
    for record in operations().values():
        for name, backend in record.backends.items():
            assert type(backend).__module__.split(".")[-1] == name, record.name


def test_kernels_that_do_not_compile_are_listed(
    command_line: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fastbert.cli import doctor as command

    line = "triton 3.7.1 cannot compile norm_forward for bfloat16 (40, 768) on sm_86: OutOfResources: shared memory"
    diagnosis = dataclasses.replace(doctor.examine(), kernel_failures=(line,))
    monkeypatch.setattr(command, "examine", lambda: diagnosis)
    assert main(["doctor"]) == 0
    assert any(shown.split(maxsplit=2) == ["not", "compiled", line] for shown in capsys.readouterr().out.splitlines())
