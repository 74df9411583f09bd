"""The tensors of a checkpoint: their copies in memory, and the bytes of their file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from fastbert.checkpoints.formats.safetensors import DTYPES
from fastbert.checkpoints.formats.safetensors_stream import stream_safetensors, stream_size
from fastbert.errors import CheckpointError
from fastbert.training.snapshot import Snapshot, SnapshotBuffers


def test_the_files_are_the_librarys_and_so_are_their_sizes(tmp_path: Path, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {"scalar": torch.tensor(3.5), "empty": torch.empty(0, 4), 'é"\\': torch.ones(3)}
    for code, dtype in DTYPES.items():
        values = torch.randint(0, 2, (3, 5), generator=generator)
        tensors[f"matrix {code}"] = values.to(dtype)
        tensors[f"turned {code}"] = values.to(dtype).t()
    for metadata in (None, {"format": "pt", "a": "b"}):
        data = b"".join(stream_safetensors(tensors, metadata))
        assert len(data) == stream_size(tensors, metadata)
        (tmp_path / "file").write_bytes(data)
        loaded = load_file(tmp_path / "file")
        assert loaded.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert loaded[name].dtype == tensor.dtype
            assert loaded[name].shape == tensor.shape
            assert torch.equal(*(value.flatten().view(torch.uint8) for value in (loaded[name], tensor)))
    plain = {name: tensor for name, tensor in tensors.items() if tensor.dtype in (torch.float32, torch.int64)}
    contiguous = {name: tensor.contiguous() for name, tensor in plain.items()}
    assert b"".join(stream_safetensors(plain, {"format": "pt"})) == save(contiguous, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"x has dtype torch\.complex64, which safetensors files do not support"):
        list(stream_safetensors({"x": torch.zeros(1, dtype=torch.complex64)}))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_copy_is_exact_and_its_memory_is_reused(threads: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    generator = torch.Generator().manual_seed(seed)
    large = torch.randn((2049, 3071), generator=generator)  # 24 MiB: two blocks
    half = torch.randn(999, generator=generator).bfloat16()
    source = Snapshot({"a": large, "t": large[:7].t(), "b": torch.empty(0)}, {"step/a": torch.tensor(7.0), "m/a": half})
    buffers = SnapshotBuffers()
    copy = buffers.copy(source)
    expected = [{name: tensor.clone() for name, tensor in part.items()} for part in (source.model, source.optimizer)]
    for tensor in (large, half, source.optimizer["step/a"]):
        tensor.zero_()
    for part, tensors in zip((copy.model, copy.optimizer), expected, strict=True):
        assert all(torch.equal(part[name], tensor) for name, tensor in tensors.items())
    again = buffers.copy(source)
    assert again.model["a"].data_ptr() == copy.model["a"].data_ptr()
    assert not again.model["a"].any()
    assert buffers.nbytes >= source.nbytes


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_copy_from_a_gpu_is_the_state_at_the_call(seed: int) -> None:
    """Later work on the device waits for the copy, which the host does not."""
    generator = torch.Generator("cuda").manual_seed(seed)
    weights = {str(number): torch.randn((4096, 1024), device="cuda", generator=generator) for number in range(16)}
    weights["host"] = torch.ones(3)
    expected = {name: tensor.cpu().clone() for name, tensor in weights.items()}
    buffers = SnapshotBuffers()
    for _ in range(2):
        copy = buffers.copy(Snapshot(weights, {}))
        for tensor in weights.values():
            tensor.add_(1)
        buffers.wait()
        assert copy.model["0"].is_pinned()
        for name, tensor in expected.items():
            assert torch.equal(copy.model[name], tensor)
            tensor.add_(1)
