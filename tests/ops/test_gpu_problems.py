"""What a GPU lacks is said in one line, and what can go on does: drivers, old GPUs, bf16, memory."""

from pathlib import Path

import pytest
import torch

from fastbert.cli.memory_errors import describe
from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.ops import dispatch, gpu
from fastbert.training.config import PretrainConfig
from fastbert.training.device import choose_device

OLD_DRIVER = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading"
    " and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
SHORTAGE = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.25 GiB is free."
    " Process 1 has 77.85 GiB memory in use. Of the allocated memory 70.1 GiB is allocated by PyTorch."
)


def cuda_build(patch: pytest.MonkeyPatch, problem: str | None = None) -> None:
    """Make torch look like a CUDA build, whose GPU works or has a problem."""
    patch.setattr(torch.version, "cuda", "13.0")
    patch.setattr(torch.cuda, "is_available", lambda: problem is None)

    def init() -> None:
        raise RuntimeError(problem)

    patch.setattr(torch.cuda, "init", init)


def test_an_old_driver_is_named_and_the_cpu_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_build(monkeypatch, OLD_DRIVER)
    assert gpu.problem() == "The NVIDIA driver on your system is too old (found version 11040)"
    messages: list[str] = []
    device, _ = choose_device("auto", "fp32", messages.append)
    assert device.type == "cpu"
    assert messages[0] == f"the GPU is not used: {gpu.problem()}"
    with pytest.raises(UserError, match=r"--device cuda: The NVIDIA driver .*; use --device cpu, or update the driver"):
        choose_device("cuda", "auto", messages.append)


def test_a_build_without_gpus_says_so_only_if_asked() -> None:
    if torch.version.cuda is not None or torch.version.hip is not None:
        pytest.skip("needs a CPU build of torch")
    messages: list[str] = []
    choose_device("auto", "fp32", messages.append)
    assert not any("GPU" in message for message in messages)
    with pytest.raises(UserError, match=r"--device cuda: this torch is a CPU build.*install a CUDA build of torch"):
        choose_device("cuda", "fp32", messages.append)


def test_an_old_gpu_runs_on_pytorch_in_fp16(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    cuda_build(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(dispatch, "_without_triton", {})
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)
    gpu.lacks_triton.cache_clear()
    messages: list[str] = []
    with caplog.at_level("WARNING", "fastbert"):
        choices = [dispatch.report(torch.device("cuda:0")) for _ in range(2)][1]
    assert {choice.backend for choice in choices} == {"eager"}
    assert {choice.reason for choice in choices} == {"triton needs compute capability 8.0, the GPU has 7.5"}
    assert len(caplog.records) == 1, "one line for all operations"
    assert choose_device("auto", "auto", messages.append)[1] == torch.float16
    assert len(messages) == 1
    choose_device("auto", "bf16", messages.append)
    assert messages[-1] == "this GPU emulates bf16 matmuls: --dtype fp16 is faster"
    gpu.lacks_triton.cache_clear()


def test_a_lack_of_memory_names_sizes_and_flags() -> None:
    error = describe(SHORTAGE, PretrainConfig(micro_batch=64))
    assert str(error) == (
        "the GPU is out of memory (2.00 GiB asked for, 1.25 GiB free, 79.10 GiB in all);"
        " use --micro-batch 32 (now 64) or --checkpoint-activations"
    )
    full = FinetuneConfig(task="classification", micro_batch=1, checkpoint_activations=True)
    assert "use a smaller model or shorter sequences" in str(describe(SHORTAGE, full))
    assert describe(RuntimeError("something else"), PretrainConfig()) is None


def test_a_command_without_memory_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    from fastbert.cli import doctor, main

    def without_memory(config: object, *, quiet: bool) -> int:
        raise SHORTAGE

    monkeypatch.setattr(doctor, "run", without_memory)
    assert main(["doctor"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("fastbert: error: the GPU is out of memory (2.00 GiB asked for")
    assert printed.count("\n") == 1
    with pytest.raises(UserError, match="out of memory"):
        main(["doctor", "--debug"])
